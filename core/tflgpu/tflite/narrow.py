"""Tensors of types that a graph holds as others: bf16 as f32, numbers of 2 and 4 bits as bytes.

NumPy has none of these types, and devices store none. What an operator makes of the numbers is the
same; what storing the result does to it is done by a node of its own behind the operator:

    f32 -> CAST -> bf16 -> ADD -> bf16      f32 -> CAST -> ROUND_TO_BF16 -> ADD -> ROUND_TO_BF16
    f32 -> QUANTIZE -> i4                   f32 -> QUANTIZE (i8) -> FIT_BITS (clamped to i4)
    i4, an input of the model               i8 -> FIT_BITS (wrapped, as LiteRT packs it)

LiteRT's interpreter in Python has no arrays of bf16 either, so that such tensors are only inside a
model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ops import fit_bits, round_to_bf16
from tflgpu.ops.base import Activation, NoAttrs, OpDef
from tflgpu.ops.facets import NarrowTypes
from tflgpu.tflite.model_file import TensorInfo


def held_type(info: TensorInfo, edge: Collection[int]) -> DType:
    """The type by which a graph holds a tensor; ``edge`` are the graph's inputs and outputs. State
    of such a type, and bf16 at the edge, keep theirs, which nothing runs."""
    if info.is_variable or (info.dtype is DType.BF16 and info.index in edge):
        return info.dtype
    return DType.F32 if info.dtype is DType.BF16 else info.dtype.unpacked


class Narrow:
    """Which values of a graph stand for tensors of other types, and what keeps them so."""

    def __init__(self, graph: Graph, tensors: Sequence[TensorInfo]) -> None:
        self._graph = graph
        self._types = {
            t.index: t.dtype
            for t in tensors
            if (t.dtype.packed or t.dtype is DType.BF16)
            and graph.values[t.index].dtype is not t.dtype
            # A constant that is quantized by blocks is real numbers by now.
            and (t.blockwise is None or t.data is None)
        }
        self._fitted: dict[int, Value] = {}
        for value in graph.inputs:
            dtype = self._types.get(value.id)
            if dtype is not None:
                self._fitted[value.id] = self._fit(value, dtype)

    def __bool__(self) -> bool:
        return bool(self._types)

    def read(self, value: Value) -> Value:
        """The value that operators read for a tensor: for an input, its numbers limited to its
        type."""
        return self._fitted.get(value.id, value)

    def refuses(self, node: Node, definition: OpDef | None) -> str | None:
        """Why a node cannot have its tensors held as other types; None where it can."""
        for value in (*node.inputs, *node.outputs):
            dtype = None if value is None else self._types.get(value.id)
            if value is None or dtype is None:
                continue
            if definition is None and not value.is_const:
                return f"tensor {value.id} is {dtype.value}, which only ops that are defined take"
            if (
                definition is not None
                and definition.held is NarrowTypes.BITS
                and not self._as_it_is(node)
            ):
                return f"{node.op} reads the bits of tensor {value.id}, which is {dtype.value}"
        if definition is None:
            return None
        for value in node.outputs:
            dtype = self._types.get(value.id)
            if dtype is None or dtype is DType.BF16 or self._as_it_is(node):
                continue
            if definition.keeps_values and self._all_are(
                node, dtype, one_scale=definition.one_scale
            ):
                continue
            x = node.optional_input(0)
            if definition.held is not NarrowTypes.CLAMPED or x is None or not x.dtype.is_float:
                return f"{node.op} has no result of {dtype.value}, as tensor {value.id} is"
        return None

    def store(self, node: Node, definition: OpDef) -> list[Node]:
        """Nodes that store the results of a node, whose shapes are known, as their types do; to
        come behind it."""
        found = []
        for index, value in enumerate(node.outputs):
            dtype = self._types.get(value.id)
            if dtype is None or self._moved(node, definition, dtype):
                continue
            raw = self._graph.add_value(
                value.shape, value.dtype, name=value.name, quant=value.quant
            )
            raw.shape_known = value.shape_known
            node.outputs[index] = raw
            if dtype is DType.BF16:
                made = Node(round_to_bf16.OP, NoAttrs(), [raw], [value], origins=node.origins)
            else:
                fit = fit_bits.FitBits(dtype.packed, dtype.value[0] == "i", wraps=False)
                made = Node(fit_bits.OP, fit, [raw], [value], origins=node.origins)
            found.append(made)
        return found

    def _as_it_is(self, node: Node) -> bool:
        """Whether a node that looks at bits makes bits of the type that it takes."""
        types = {self._types.get(v.id) for v in (*node.inputs, *node.outputs) if v is not None}
        return len(types) == 1 and None not in types

    def _moved(self, node: Node, definition: OpDef, dtype: DType) -> bool:
        """Whether all numbers of a node's results are numbers of operands of the same type."""
        if definition.activation_of(node) is not Activation.NONE:
            return False
        return definition.keeps_values and self._all_are(
            node, dtype, one_scale=definition.one_scale
        )

    def _all_are(self, node: Node, dtype: DType, *, one_scale: bool) -> bool:
        """Whether a node's operands that may be of a type are, and it stores their numbers as they
        are: rescaled ones might not fit."""
        like = [v for v in node.inputs if v is not None and v.dtype in (DType.F32, dtype.unpacked)]
        if not like or any(self._types.get(v.id) is not dtype for v in like):
            return False
        quant = node.outputs[0].quant
        return one_scale or all(v.quant == quant for v in like)

    def _fit(self, value: Value, dtype: DType) -> Value:
        fitted = self._graph.add_value(value.shape, value.dtype, name=value.name, quant=value.quant)
        fitted.shape_known = value.shape_known
        self._types[fitted.id] = dtype
        attributes = fit_bits.FitBits(dtype.packed, dtype.value[0] == "i", wraps=True)
        self._graph.add_node(fit_bits.OP, attributes, [value], [fitted])
        return fitted
