"""The two forms of a quantized tensor in the float view of its graph: as stored numbers and as real
numbers. Each is made of the other at its first use."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.stored_reals import stored_reals
from tflgpu.ops.convert import Dequantize, Quantize
from tflgpu.ops.quantize_and_dequantize import OP as SIMULATOR
from tflgpu.passes.scales import range_of


class QuantizedPairs:
    """The tensors of a graph while its nodes are taken over, in order.

    Attributes:
        graph: Where nodes that convert are added.
        real: f32 twins by the quantized value's id.
        stored: Values that are there in their stored form, by id.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.real: dict[int, Value] = {}
        given = [v for v in graph.values.values() if v.is_const or v.is_variable]
        self.stored = {v.id for v in (*graph.inputs, *given)}

    def make_real(self, value: Value) -> Value:
        """The twin of a tensor."""
        found = self.real.get(value.id)
        if found is None:
            assert value.quant is not None
            if value.data is not None:
                data = stored_reals(value.data, value.quant)
                found = self.graph.add_const(data, name=value.name)
            else:
                found = self.dequantize(value, value.quant)
            self.real[value.id] = found
        return found

    def read_as(self, value: Value, other: Value) -> Value:
        """The real numbers that a tensor's stored ones would be on the scale of another."""
        if range_of(value) == range_of(other):
            return self.make_real(value)
        assert other.quant is not None
        if value.data is not None:
            return self.graph.add_const(other.quant.dequantize(value.data), name=value.name)
        self.make_stored(value)
        return self.dequantize(value, other.quant)

    def make_stored(self, value: Value) -> None:
        """Have the stored form of a tensor, of its twin."""
        if value.id not in self.stored:
            assert value.quant is not None
            attributes = Quantize(value.dtype, value.quant)
            self.graph.add_node("QUANTIZE", attributes, [self.real[value.id]], [value])
            self.stored.add(value.id)

    def dequantize(self, value: Value, quant: Quantization) -> Value:
        """Real numbers of a tensor's stored ones, which are there, on any scale."""
        real = self.new(value)
        self.graph.add_node("DEQUANTIZE", Dequantize(quant), [value], [real])
        return real

    def simulate(
        self, raw: Value, out: Value, origins: Sequence[int], *, even: bool = False
    ) -> None:
        """Let the twin of ``out`` be ``raw``, rounded and clamped; of two steps ``even`` takes the
        even one."""
        assert out.quant is not None
        self.real[out.id] = self.new(out)
        attributes = attrs.evolve(range_of(out), even=even)
        self.graph.add_node(SIMULATOR, attributes, [raw], [self.real[out.id]], origins=origins)

    def new(self, like: Value) -> Value:
        """Real numbers in the shape of a tensor, which nothing makes yet."""
        twin = self.graph.add_value(like.shape, DType.F32, name=like.name)
        twin.shape_known = like.shape_known
        return twin
