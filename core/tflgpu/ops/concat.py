"""CONCATENATION and PACK: several tensors, one after another along an axis.

CONCATENATION: TFLite versions 1-7; PACK: 1-5; later ones add element types. LiteRT's CPU kernel
refuses a fused activation; GPU delegates apply it, and so does this definition.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.activation import apply_activation, computable_activation
from tflgpu.ops.axes import normal_axis, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    Fields,
    FileForm,
    Movement,
    OpDef,
    Operands,
    Quantized,
    Sample,
)
from tflgpu.ops.facets import Batched, Items, copies_only
from tflgpu.ops.items import as_they_are, lifted
from tflgpu.ops.positions import Along, Positions, axes_from, without
from tflgpu.ops.reshape import as_reshape
from tflgpu.values import evolve, frozen

_ANY_NUMBER = 1 << 30


@frozen
class ConcatAttrs:
    """The axis, negative = from the back, and what is applied to the result."""

    axis: int
    activation: Activation = Activation.NONE


def _parse_concat(fields: Fields) -> ConcatAttrs:
    return ConcatAttrs(fields.integer("axis"), computable_activation(fields))


def _infer_concat(attributes: ConcatAttrs, operands: Operands) -> list[TensorSpec]:
    args = take_operands("CONCATENATION", operands, 1, _ANY_NUMBER)
    first = args[0]
    axis = normal_axis("CONCATENATION", attributes.axis, first.rank)
    if attributes.activation is not Activation.NONE and not first.dtype.is_float:
        raise ModelError(
            f"CONCATENATION: fused activation {attributes.activation.name} of "
            f"{first.dtype.value} operands"
        )
    for i, arg in enumerate(args):
        if arg.dtype is not first.dtype:
            raise ModelError(
                f"CONCATENATION: operand {i} is {arg.dtype.value}, operand 0 {first.dtype.value}"
            )
        same = arg.rank == first.rank and all(
            a == b for d, (a, b) in enumerate(zip(arg.shape, first.shape, strict=True)) if d != axis
        )
        if not same:
            raise ModelError(
                f"CONCATENATION: operand {i} has shape {list(arg.shape)}, which differs from "
                f"operand 0's {list(first.shape)} in more than axis {axis}"
            )
    total = sum(arg.shape[axis] for arg in args)
    return [TensorSpec((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)]


def _reference_concat(attributes: ConcatAttrs, arrays: Arrays) -> list[Array]:
    joined = np.concatenate([present(a) for a in arrays], attributes.axis)
    return [apply_activation(attributes.activation, joined)]


@frozen
class PackAttrs:
    """Where the new dimension goes (negative = from the back, of the result), and how many
    operands the options promise."""

    axis: int
    values_count: int


def _parse_pack(fields: Fields) -> PackAttrs:
    return PackAttrs(fields.integer("axis"), fields.integer("values_count", minimum=1))


def _infer_pack(attributes: PackAttrs, operands: Operands) -> list[TensorSpec]:
    args = take_operands("PACK", operands, attributes.values_count)
    first = args[0]
    axis = normal_axis("PACK", attributes.axis, first.rank + 1)
    for i, arg in enumerate(args):
        if arg.spec != first.spec:
            raise ModelError(f"PACK: operand {i} is {arg.spec}, operand 0 {first.spec}")
    return [TensorSpec((*first.shape[:axis], len(args), *first.shape[axis:]), first.dtype)]


def _reference_pack(attributes: PackAttrs, arrays: Arrays) -> list[Array]:
    return [np.stack([present(a) for a in arrays], attributes.axis)]


def _concat_samples() -> list[Sample]:
    def sample(id: str, axis: int, *shapes: tuple[int, ...], dtype: DType = DType.F32) -> Sample:
        return Sample(id, {"axis": axis}, tuple(Arg(s, dtype, -9, 9) for s in shapes))

    def activated(id: str, fused: Activation, axis: int, *shapes: tuple[int, ...]) -> Sample:
        plain = sample(id, axis, *shapes)
        return evolve(plain, fields={"axis": axis, "fused_activation_function": fused.value})

    return [
        sample("channels_odd", 3, (2, 3, 5, 3), (2, 3, 5, 6)),
        sample("channels_aligned", -1, (1, 3, 5, 8), (1, 3, 5, 4), (1, 3, 5, 7)),
        sample("channels_tiny", 2, (3, 5, 1), (3, 5, 1), (3, 5, 1), (3, 5, 2), (3, 5, 1)),
        sample("one_vector", 1, (7, 3), (7, 1)),
        sample("height", 1, (1, 3, 5, 7), (1, 2, 5, 7)),
        sample("width", -2, (2, 3, 5, 3), (2, 3, 1, 3), (2, 3, 7, 3)),
        sample("batch", 0, (1, 3, 5), (3, 3, 5)),
        sample("vectors", 0, (5,), (7,), (1,)),
        sample("single", 1, (3, 5)),
        sample("many_rows", 0, *[(i % 3 + 1, 5) for i in range(11)]),
        sample("many_channels", 1, *[(3, i % 4 + 1) for i in range(11)]),
        sample("rank5", 4, (1, 2, 3, 2, 5), (1, 2, 3, 2, 6)),
        sample("i32", 1, (3, 5), (3, 2), dtype=DType.I32),
        sample("bool", 0, (3, 5), (1, 5), dtype=DType.BOOL),
        Sample("const", {"axis": 2}, (Arg((2, 5, 3)), Arg((2, 5, 2), const=True))),
        activated("relu", Activation.RELU, 1, (3, 6), (3, 2)),
        activated("relu6_rows", Activation.RELU6, 0, (3, 5), (2, 5)),
    ]


def _pack_samples() -> list[Sample]:
    def sample(
        id: str, axis: int, count: int, shape: tuple[int, ...], dtype: DType = DType.F32
    ) -> Sample:
        fields = {"axis": axis, "values_count": count}
        return Sample(id, fields, (Arg(shape, dtype, -9, 9),) * count)

    return [
        sample("front", 0, 3, (3, 5, 7)),
        sample("middle", 1, 2, (3, 5, 7)),
        sample("channels", -1, 3, (2, 3, 5)),
        sample("channels_aligned", 2, 4, (3, 8)),
        sample("before_channels", -2, 5, (3, 6)),
        sample("vectors", 0, 2, (7,)),
        sample("vectors_last", 1, 7, (5,)),
        sample("scalars", 0, 5, ()),
        sample("many", 0, 10, (2, 3)),
        sample("many_last", -1, 11, (3, 2)),
        sample("i32", 0, 2, (3, 5), DType.I32),
        sample("rank5", 2, 2, (1, 2, 3, 5)),
    ]


def _batch_concat(node: Node, items: Items) -> Batched | str:
    rank = len(node.outputs[0].shape)
    return _side_by_side(node, items) if node.attrs.axis % rank == 0 else as_they_are(node, items)


def _side_by_side(node: Node, items: Items) -> Batched | str:
    """Along axis 0, on which the items lie."""
    wanted = evolve(node.attrs, axis=1)
    return lifted(node, items, range(len(node.inputs)), wanted)


def _batch_pack(node: Node, items: Items) -> Batched | str:
    if node.attrs.axis % len(node.outputs[0].shape):
        return as_they_are(node, items)
    return as_reshape(node, items) if len(node.inputs) == 1 else _side_by_side(node, items)


def _positions_concat(node: Node, cut: Node) -> Positions:
    values = [v for v in node.inputs if v is not None]
    axes = [without(node.attrs.axis, v) for v in values]
    # Nothing comes behind the last.
    return Positions([*axes[:-1], axes_from(0, len(values[-1].shape))])


def _positions_pack(node: Node, cut: Node) -> Positions:
    rank = len(node.outputs[0].shape)
    at = node.attrs.axis % rank
    return Positions([[Along(i + (i >= at)) for i in range(rank - 1)]] * len(node.inputs))


OPS = (
    OpDef(
        "CONCATENATION", _parse_concat, _infer_concat, _reference_concat, _concat_samples,
        generate=draws.concat, accuracy=Accuracy.EXACT, file=FileForm(max_version=7),
        arithmetic=Arithmetic(activation_field="activation"),
        movement=Movement(keeps_values=True, copies=copies_only),
        quantized=Quantized(one_scale=frozenset({DType.I16})),
        batch=_batch_concat, positions=_positions_concat
    ),
    OpDef(
        "PACK", _parse_pack, _infer_pack, _reference_pack, _pack_samples, accuracy=Accuracy.EXACT,
        file=FileForm(max_version=5), movement=Movement(keeps_values=True, copies=copies_only),
        batch=_batch_pack, positions=_positions_pack
    ),
)  # fmt: skip
