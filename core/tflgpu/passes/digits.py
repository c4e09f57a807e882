"""Sums of products of 16-bit numbers in the float view of a quantized model, digit by digit.

i16 -> CONV_2D -> i16
f32 -> STORED_DIGIT 0 -> CONV_2D -> STORED_SUMS
-> STORED_DIGIT 1 -> CONV_2D ->
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node, Value
from tflgpu.ops.digit_sums import exponents
from tflgpu.ops.quantized import InDigits
from tflgpu.ops.stored_digit import OP as DIGIT
from tflgpu.ops.stored_digit import StoredDigit
from tflgpu.ops.stored_sums import OP as SUMS
from tflgpu.passes.quantized_pairs import QuantizedPairs
from tflgpu.passes.scales import range_of


def sum_digits(twins: QuantizedPairs, node: Node, found: InDigits) -> Value:
    """Add the nodes that compute ``node``'s result in real numbers, and give it; the node itself is
    not added.

    Args:
        twins: Of the tensors of the graph to whose end they are added.
        node: On quantized tensors.
        found: How its op says they are computed.
    """
    (out,) = node.outputs
    graph = twins.graph
    digits: dict[int, list[Value]] = {}
    for position, count in found.split.items():
        x = node.input(position)
        digits[position] = [twins.new(x) for _ in range(count)]
        for index, digit in enumerate(digits[position]):
            attributes = StoredDigit(range_of(x), found.bits, count, index)
            graph.add_node(DIGIT, attributes, [twins.make_real(x)], [digit], origins=node.origins)
    constants = {
        position: graph.add_const(data, name=node.input(position).name)
        for position, data in found.constants.items()
    }
    sums, powers = [], []
    for choice, power in exponents(list(found.split.values()), found.bits):
        taken = dict(zip(found.split, choice, strict=True))
        inputs = [
            digits[i][taken[i]] if i in taken else constants.get(i, value)
            for i, value in enumerate(node.inputs[: len(node.inputs) - found.dropped])
        ]
        sums.append(twins.new(out))
        powers.append(power)
        graph.add_node(node.op, found.attributes, inputs, [sums[-1]], origins=node.origins)
    numbers = graph.add_const(np.ascontiguousarray(found.table), name=f"{out.name}/factors")
    made = twins.new(out)
    graph.add_node(
        SUMS, found.finish(tuple(powers)), [*sums, numbers], [made], origins=node.origins
    )
    return made
