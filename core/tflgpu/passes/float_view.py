"""The float view of a quantized model: the same graph, computed on real numbers.

    u8 image -> CONV_2D -> i8       u8 image -> DEQUANTIZE -> CONV_2D -> QUANTIZE_AND_DEQUANTIZE

Every tensor that the file stores as scaled 8- or 16-bit numbers gets an f32 twin, constants are
dequantized once, and a simulator behind each op rounds and clamps as storing the result would.
The graph's inputs and outputs keep their types: conversions stand at the edges.

Of float data and 8-bit weights TFLite's kernels round the data too, in steps that they find while
the model runs, and so does the view:

    f32 -> FULLY_CONNECTED (i8 weights)     f32 -> QUANTIZE_ON_THE_FLY -> FULLY_CONNECTED

Functions that TFLite takes from tables of 16-bit numbers, which are not the rounded function,
become such a table:

    i16 -> EXP -> i16       f32 -> QUANTIZED_TABLE

Sums of products of 16-bit data, which f32 has no room for, are put together of exact ones
(`tflgpu.passes.digits`).

Where a kernel of TFLite's makes something else of stored numbers than the rounded result, the op
may know how, and makes it (`Quantized.results`); nothing rounds it then:

    i8 -> AVERAGE_POOL_2D -> i8     f32 -> AVERAGE_POOL_2D {stored}

A node that a device computes on the stored numbers, as TFLite's own kernels do, stays on them where
integer numerics are asked for, with conversions around it as around any op that takes no real
numbers:

    i8 -> CONV_2D -> i8 -> ADD -> i8     i8 -> CONV_2D (f32, rounded) -> i8 -> QUANTIZED_ADD -> i8

Unlike a pass, which makes a graph faster and may be left out, this is how quantized models are
computed at all, on every device and on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Union

import attrs
import numpy as np

from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import Graph, Node, TensorSpec, Value
from tflgpu.ir.rewrite import merged_origins
from tflgpu.ir.verify import verify
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.ops.convert import Dequantize, Quantize
from tflgpu.ops.facets import Filter
from tflgpu.ops.quantized import (
    InDigits,
    Numbers,
    PostOp,
    Replacement,
    StoredTable,
    is_in_blocks,
    is_quantized,
    is_simple,
)
from tflgpu.ops.quantized_table import OP as TABLE
from tflgpu.ops.quantized_table import QuantizedTable
from tflgpu.ops.unknown import UnknownOp
from tflgpu.passes.digits import sum_digits
from tflgpu.passes.hybrid_data import RoundedData, read_legacy_weights, round_block_scales
from tflgpu.passes.quantized_pairs import QuantizedPairs
from tflgpu.passes.scales import inferred, one_scale, only_moves, range_of


def same_steps(product: Quantization, given: Quantization | None) -> bool:
    """Whether a file gives a bias the scales that it has by the product, but for rounding. TFLite's
    kernels look at nothing else of what it gives."""
    if given is None or len(given.scale) != len(product.scale) or any(given.zero_point):
        return False
    return bool(np.allclose(given.scale, product.scale, rtol=1e-5, atol=0))


def product_of_scales(kind: Filter, node: Node, bias: Value) -> Quantization | None:
    """The quantization of a bias: TFLite's kernels add it to sums of products as it is."""
    x, weights = node.input(kind.source).quant, node.input(kind.weights).quant
    if x is None or weights is None or x.per_axis:
        return None
    scales = np.float32(x.scale[0]) * np.asarray(weights.scale, np.float32)
    if len(scales) not in (1, bias.elements):
        return None
    axis = max(0, len(bias.shape) - 1)
    return Quantization(tuple(float(s) for s in scales), (0,) * len(scales), axis)


def steps_of_bias(kind: Filter, node: Node, bias: Value) -> Quantization | None:
    """The scale of a bias: the file's, or the product of the other scales where the two differ by
    more than rounding; None where neither is known."""
    product = product_of_scales(kind, node, bias)
    return bias.quant if product is None or same_steps(product, bias.quant) else product


_WIDE = frozenset({DType.I32, DType.I64})

#: What computes a node on stored numbers, with the same operands and results; or why nothing does.
InIntegers = Callable[[Node], Union[Node, Unsupported]]


@attrs.frozen(eq=False)
class FloatView:
    """A graph without quantized tensors, but at its edges and where an op wants stored numbers.

    Attributes:
        graph: A graph of its own; inputs and outputs have the ids and types of the original's.
        origins: The file's operators that read or make quantized tensors.
        integers: Those of them that are computed on the stored numbers.
        in_floats: Where that was wanted, why the others are not.
        exact: Those whose sums are whole numbers that f16 does not hold.
    """

    graph: Graph
    origins: frozenset[int]
    integers: frozenset[int] = frozenset()
    in_floats: Mapping[int, str] = attrs.Factory(dict)
    exact: frozenset[int] = frozenset()


def float_view(
    graph: Graph,
    ops: Mapping[str, OpDef],
    *,
    keep_stored: bool = False,
    in_integers: InIntegers | None = None,
    rounds_hybrid: bool = True,
) -> FloatView:
    """The float view of a graph, which is not changed; a plain copy where nothing is quantized.

    An operator that does not take real numbers keeps its quantized tensors, converted around it.

    Args:
        graph: As built from a file, before any pass.
        ops: Op definitions by name.
        keep_stored: Make every quantized tensor in its stored form too, under the file's id.
        in_integers: Asked of every operator that does not take stored numbers anyway; None where
            all are wanted in floats.
        rounds_hybrid: Round the data of operators with 8-bit weights, as TFLite does.

    Raises:
        PluginError: a plugin's op broke its contract.
    """
    view = _Viewing(graph.copy(), ops, in_integers, rounds_hybrid=rounds_hybrid)
    view.run(keep_stored=keep_stored)
    sets = [frozenset(s) for s in (view.origins, view.integers, view.exact)]
    return FloatView(view.graph, sets[0], sets[1], view.in_floats, sets[2])


class _Viewing:
    """The view so far: nodes are taken over one by one, in order."""

    def __init__(
        self,
        graph: Graph,
        ops: Mapping[str, OpDef],
        in_integers: InIntegers | None,
        *,
        rounds_hybrid: bool,
    ) -> None:
        self._rounds_hybrid = rounds_hybrid
        self.graph = graph
        self.origins: set[int] = set()
        self.integers, self.exact = set[int](), set[int]()
        self.in_floats: dict[int, str] = {}
        self._in_integers = in_integers
        self._ops = ops
        self._twins = QuantizedPairs(graph)
        self._rounded = RoundedData(graph)

    def run(self, *, keep_stored: bool) -> None:
        nodes, self.graph.nodes = self.graph.nodes, []
        quantized = [v for v in self.graph.values.values() if is_quantized(v)]
        for node in nodes:
            self._take(node)
        for value in quantized if keep_stored else self.graph.outputs:
            if value.id in self._twins.real:
                self._twins.make_stored(value)
        if self.origins and not keep_stored:
            self.graph.prune()
        if self.origins:
            verify(self.graph, "float_view")

    def _take(self, node: Node) -> None:
        if not any(v is not None and is_quantized(v) for v in (*node.inputs, *node.outputs)):
            self._round_beside_blocks(node)
            self.graph.nodes.append(node)
            return
        source = node.optional_input(0)
        if node.op == "DEQUANTIZE" and source is not None:
            self._dequantize(node, source)
            return
        self.origins.update(node.origins)
        if self._stays_in_integers(node):
            return
        if any(is_quantized(v) and not is_simple(v) for v in node.outputs):
            self._keep(node)
        elif node.op == "QUANTIZE" and source is not None:
            if _WIDE & {source.dtype, node.outputs[0].dtype}:
                self._keep(node)  # f32 does not hold all numbers of 32 bits
            else:
                self._quantize(node, source)
        else:
            self._take_operator(node)

    def _round_beside_blocks(self, node: Node) -> None:
        """Round the data of a node whose weights are quantized by blocks, and real numbers here."""
        op = self._ops.get(node.op)
        if op is not None and self._rounds_hybrid and any(map(is_in_blocks, node.inputs)):
            inputs = list(node.inputs)
            self._rounded.put(op, node, inputs)
            round_block_scales(self.graph, inputs)
            node.inputs = inputs

    # Conversions of the file

    def _dequantize(self, node: Node, source: Value) -> None:
        if not source.is_const:  # constants are weights on their way to a float op
            self.origins.update(node.origins)
        if source.id in self._twins.real:
            node.inputs, node.attrs = [self._twins.real[source.id]], Dequantize(None)
        elif not source.is_const:
            self._twins.real[source.id] = node.outputs[0]
        self.graph.nodes.append(node)

    def _quantize(self, node: Node, source: Value) -> None:
        op, (out,) = self._ops.get(node.op), node.outputs
        if not is_quantized(source):
            self._twins.simulate(source, out, node.origins, even=self._in_integers is None)
            return
        inputs: list[Value | None] = [x := self._twins.make_real(source)]
        if is_simple(source) and range_of(source) == range_of(out):
            self._twins.real[out.id] = x  # i8 and u8 forms of the same real numbers
            if (maker := self.graph.producer(x)) is not None:
                maker.origins = merged_origins(maker, node)
        elif op is not None and self._computes_stored(op, node, inputs) is True:
            made = self._twins.real[out.id] = self._twins.new(out)
            node.inputs, node.outputs = inputs, [made]
            self.graph.nodes.append(node)
        else:
            self._twins.simulate(x, out, node.origins)

    # Operators

    def _take_operator(self, node: Node) -> None:
        op = self._ops.get(node.op)
        if op is None or isinstance(node.attrs, UnknownOp):
            self._keep(node)
            return
        way = op.quantized.way(node)
        if isinstance(way, StoredTable):
            self._look_up(node, way)
        elif isinstance(way, InDigits):
            self._twins.real[node.outputs[0].id] = sum_digits(self._twins, node, way)
            self.exact.update(node.origins)
        elif way is Numbers.STORED or not self._compute(op, node):
            self._keep(node)

    def _compute(self, op: OpDef, node: Node) -> bool:
        """Take a node over in floats; False, and no edit that lasts, where its op does not."""
        inputs = self._real_operands(op, node)
        if inputs is None:
            return False
        if op.quantized.hybrid is not None and node.input(0).dtype is DType.F32:
            read_legacy_weights(self.graph, node, inputs)
        specs = inferred(op, node, inputs)
        wanted = [
            TensorSpec(v.shape, DType.F32) if is_quantized(v) else v.spec for v in node.outputs
        ]
        if specs != wanted:
            return False
        if self._rounds_hybrid:
            self._rounded.put(op, node, inputs)
        operands = [
            v
            for i, v in enumerate(node.inputs)
            if v is not None and is_quantized(v) and i not in op.contents.counts
        ]
        as_one = one_scale(op, node, operands)
        if as_one is not None:
            for i, v in enumerate(node.inputs):
                if v is not None and is_quantized(v) and i not in op.contents.counts:
                    inputs[i] = self._twins.read_as(v, as_one)
        stored = self._computes_stored(op, node, inputs)
        results, rounded, moved = [], [], []
        for out in node.outputs:
            if not is_quantized(out):
                results.append(out)
                continue
            results.append(self._twins.new(out))
            if stored is True:
                self._twins.real[out.id] = results[-1]
                continue
            if as_one is not None and range_of(out) != range_of(as_one):
                moved.append((results[-1], out))
            elif not isinstance(stored, PostOp) and only_moves(
                op, node, operands if as_one is None else [out], out
            ):
                self._twins.real[out.id] = results[-1]
            else:
                rounded.append((results[-1], out))
        node.inputs, node.outputs = inputs, results
        self.graph.nodes.append(node)
        for raw, out in rounded:
            if not isinstance(stored, PostOp):
                self._twins.simulate(raw, out, node.origins, even=op.arithmetic.filter is not None)
                continue
            twin = self._twins.real[out.id] = self._twins.new(out)
            self.graph.add_node(stored.op, stored.attributes, [raw], [twin], origins=node.origins)
        for raw, out in moved:
            assert as_one is not None
            assert as_one.quant is not None
            self.graph.add_node("QUANTIZE", Quantize(out.dtype, as_one.quant), [raw], [out])
            self._twins.stored.add(out.id)
        return True

    def _computes_stored(self, op: OpDef, node: Node, inputs: list[Value | None]) -> PostOp | bool:
        """Let a node make the numbers that TFLite stores, or say what rounds them so."""
        found = op.quantized.results_of(node)
        if isinstance(found, PostOp):
            return found
        if isinstance(found, Replacement):
            node.op, node.attrs, node.version = found.op, found.attributes, 1
            for at, data in found.replaced.items():
                inputs[at] = self.graph.add_const(data, name=node.input(at).name)
            inputs.extend(
                self.graph.add_const(c, name=f"{found.op}/table") for c in found.constants
            )
        elif found is not None:
            node.attrs = found
        return found is not None

    def _look_up(self, node: Node, table: StoredTable) -> None:
        """Take a node over as the table that TFLite's kernel goes by."""
        x, (out,) = node.input(0), node.outputs
        assert out.quant is not None
        (scale,), (zero_point,) = out.quant.scale, out.quant.zero_point
        steps = table.entries.astype(np.int32) - zero_point
        entries = self.graph.add_const(steps, name=f"{x.name}/table")
        real = self._twins.make_real(x)
        self._twins.real[out.id] = self._twins.new(out)
        self.graph.add_node(
            TABLE,
            QuantizedTable(range_of(x), scale),
            [real, entries],
            [self._twins.real[out.id]],
            origins=node.origins,
        )

    def _stays_in_integers(self, node: Node) -> bool:
        """Let a node be computed on stored numbers; False where nothing computes it so, or numerics
        are not integer."""
        op = self._ops.get(node.op)
        if self._in_integers is None or op is None:
            return False
        if op.quantized.on_stored(node.attrs):
            if callable(op.quantized.stored):  # what others take they only move
                self.integers.update(node.origins)
            return False
        found = self._in_integers(node)
        if isinstance(found, Unsupported):
            self.in_floats.update((origin, found.reason) for origin in node.origins)
            return False
        node.op, node.attrs, node.version = found.op, found.attrs, found.version
        self._keep(node)
        self.integers.update(node.origins)
        return True

    def _real_operands(self, op: OpDef, node: Node) -> list[Value | None] | None:
        """A node's operands, quantized ones in floats, but counts without their scale; None where
        one cannot be."""
        found: list[Value | None] = []
        for index, value in enumerate(node.inputs):
            kind = op.arithmetic.filter
            if kind and index == kind.bias and value and value.dtype in _WIDE:
                real = self._real_bias(kind, node, value)
                if real is None:
                    return None
                found.append(real)
            elif value is not None and is_quantized(value):
                if index in op.contents.counts and value.data is not None:
                    found.append(self.graph.add_const(value.data, name=value.name))
                    continue
                if value.is_variable:
                    return None
                found.append(self._twins.make_real(value))
            else:
                found.append(value)
        return found

    def _keep(self, node: Node) -> None:
        """Take a node over as it is: its operands in stored form, and its results too."""
        for value in node.inputs:
            if value is not None and value.id in self._twins.real:
                self._twins.make_stored(value)
        self.graph.nodes.append(node)
        self._twins.stored.update(v.id for v in node.outputs)

    def _real_bias(self, kind: Filter, node: Node, bias: Value) -> Value | None:
        quant = steps_of_bias(kind, node, bias)
        if quant is None:
            return None
        if bias.data is None:
            return self._twins.dequantize(bias, quant)
        return self.graph.add_const(quant.dequantize(bias.data), name=bias.name)
