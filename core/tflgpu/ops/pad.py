"""PAD, PADV2, MIRROR_PAD: a border around a tensor.

PAD, PADV2: TFLite versions 1-6; MIRROR_PAD: 1-3. PAD fills with 0; in a quantized tensor the
border is the zero point, so such a tensor is dequantized first.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.axes import elements, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    FileForm,
    Movement,
    NoAttrs,
    OpDef,
    Operand,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import Batched, Items, copies_first
from tflgpu.ops.items import lifted, rows_of
from tflgpu.ops.positions import Along, Positions
from tflgpu.values import frozen

Borders = tuple[tuple[int, int], ...]

# What TFLite's kernels take for paddings. An i8 or i16 tensor holds them as they are too, even
# where the file gives it a scale.
_PAD_TYPES = (DType.BOOL, DType.I8, DType.I16, DType.I32, DType.I64)
_MIRROR_TYPES = (DType.I32, DType.I64)


class MirrorMode(enum.Enum):
    """TFLite's `MirrorPadMode` codes: whether the element at the edge is repeated."""

    REFLECT = 0
    SYMMETRIC = 1


@frozen
class MirrorPadAttrs:
    """How the border continues the tensor."""

    mode: MirrorMode


def _parse_mirror(fields: Fields) -> MirrorPadAttrs:
    return MirrorPadAttrs(fields.member("mode", MirrorMode, "mode"))


def borders(paddings: Array) -> Borders:
    """Elements before and after each dimension, from an array of shape [rank, 2]."""
    return tuple((int(before), int(after)) for before, after in paddings)


def _borders(
    op: str, x: Operand, paddings: Operand, types: Sequence[DType] = _PAD_TYPES
) -> Borders:
    if paddings.dtype not in types:
        taken = ", ".join(t.value for t in types)
        raise ModelError(
            f"{op}: paddings (operand 1) are {paddings.dtype.value}; they may be {taken}"
        )
    if paddings.shape != (x.rank, 2):
        raise ModelError(
            f"{op}: paddings (operand 1) have shape {list(paddings.shape)} for an operand of "
            f"rank {x.rank}"
        )
    found = borders(paddings.const(op, "paddings (operand 1)"))
    if any(n < 0 for pair in found for n in pair):
        raise ModelError(f"{op}: paddings {listed(map(list, found))} must not be negative")
    return found


def _padded(x: TensorSpec, border: Borders) -> list[TensorSpec]:
    shape = tuple(d + a + b for d, (a, b) in zip(x.shape, border, strict=True))
    return [TensorSpec(shape, x.dtype)]


def _infer_pad(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, paddings = take_operands("PAD", operands, 2)
    return _padded(x.spec, _borders("PAD", x, paddings))


def _pad(x: Array, paddings: Array, **how: Any) -> Array:
    # A scalar has no border, for which NumPy has no words.
    return np.pad(x, borders(paddings), **how) if x.ndim else x.copy()


def _reference_pad(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [_pad(present(arrays[0]), present(arrays[1]))]


def _infer_pad_v2(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, paddings, value = take_operands("PADV2", operands, 3)
    if elements(value.shape) != 1 or value.dtype is not x.dtype:
        raise ModelError(
            f"PADV2: constant value (operand 2) is {value.spec}; one {x.dtype.value} needed"
        )
    return _padded(x.spec, _borders("PADV2", x, paddings))


def _reference_pad_v2(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, paddings, value = (present(a) for a in arrays)
    return [_pad(x, paddings, constant_values=value.reshape(-1)[0])]


def _infer_mirror(attributes: MirrorPadAttrs, operands: Operands) -> list[TensorSpec]:
    x, paddings = take_operands("MIRROR_PAD", operands, 2)
    border = _borders("MIRROR_PAD", x, paddings, _MIRROR_TYPES)
    spare = 1 if attributes.mode is MirrorMode.REFLECT else 0
    for axis, (dim, pair) in enumerate(zip(x.shape, border, strict=True)):
        if max(pair) > max(dim - spare, 0):
            raise ModelError(
                f"MIRROR_PAD: paddings {list(pair)} of dimension {axis} are more than "
                f"{attributes.mode.name} finds in {dim} elements"
            )
    return _padded(x.spec, border)


def _reference_mirror(attributes: MirrorPadAttrs, arrays: Arrays) -> list[Array]:
    return [_pad(present(arrays[0]), present(arrays[1]), mode=attributes.mode.name.lower())]


def _args(
    shape: tuple[int, ...], pairs: Sequence[Sequence[int]], dtype: DType = DType.F32
) -> tuple[Arg, Arg]:
    return Arg(shape, dtype, -9, 9), Arg.of(pairs, DType.I32)


def _pad_samples() -> list[Sample]:
    return [
        Sample("image", {}, _args((1, 5, 7, 3), [[0, 0], [1, 2], [3, 0], [0, 0]])),
        Sample("image_aligned", {}, _args((2, 3, 5, 8), [[0, 0], [1, 1], [1, 1], [0, 0]])),
        Sample("channels", {}, _args((1, 3, 5, 3), [[0, 0], [0, 0], [0, 0], [2, 3]])),
        Sample("channels_after", {}, _args((1, 3, 5, 6), [[0, 0], [0, 0], [0, 0], [0, 7]])),
        Sample("channels_aligned", {}, _args((3, 8), [[0, 0], [4, 4]])),
        Sample("batch", {}, _args((1, 3, 5), [[1, 2], [0, 0], [0, 0]])),
        Sample("all", {}, _args((2, 3, 5, 2), [[1, 0], [0, 1], [2, 1], [1, 2]])),
        Sample("vector", {}, _args((7,), [[3, 2]])),
        Sample("none", {}, _args((3, 5), [[0, 0], [0, 0]])),
        Sample("rank5", {}, _args((1, 2, 3, 2, 3), [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2]])),
        Sample("i32", {}, _args((3, 5), [[1, 1], [0, 3]], DType.I32)),
        *(
            Sample(id, {}, (Arg((3, 5)), Arg.of([[1, 0], [0, 2]], dtype)))
            for id, dtype in (("wide", DType.I64), ("short", DType.I16), ("byte", DType.I8))
        ),
    ]


def _pad_v2_samples() -> list[Sample]:
    def sample(id: str, args: tuple[Arg, Arg], value: float, const: bool = True) -> Sample:
        dtype = args[0].dtype
        last = Arg.of(value, dtype) if const else Arg((), dtype, -9, 9)
        return Sample(id, {}, (*args, last))

    return [
        sample("image", _args((1, 5, 7, 3), [[0, 0], [1, 2], [3, 0], [0, 0]]), 2.5),
        sample("lowest", _args((1, 5, 7, 8), [[0, 0], [1, 1], [1, 1], [0, 0]]), -60000.0),
        sample("channels", _args((1, 3, 5, 3), [[0, 0], [0, 0], [0, 0], [2, 3]]), -1.5),
        sample("runtime", _args((2, 3, 5), [[1, 0], [0, 1], [2, 1]]), 0, const=False),
        sample("vector", _args((7,), [[3, 2]]), 1),
        sample("i32", _args((3, 5), [[1, 1], [0, 3]], DType.I32), 7),
        sample("rank5", _args((1, 2, 3, 2, 3), [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2]]), 3),
        sample("short", (Arg((3, 5)), Arg.of([[1, 0], [0, 2]], DType.I16)), 2.5),
        sample("byte", (Arg((3, 5)), Arg.of([[1, 0], [0, 2]], DType.I8)), 2.5),
    ]


def _mirror_samples() -> list[Sample]:
    def sample(id: str, mode: MirrorMode, args: tuple[Arg, Arg]) -> Sample:
        return Sample(id, {"mode": mode.value}, args)

    reflect, symmetric = MirrorMode.REFLECT, MirrorMode.SYMMETRIC
    image = [[0, 0], [2, 1], [3, 4], [0, 0]]
    return [
        sample("reflect", reflect, _args((1, 5, 7, 3), image)),
        sample("reflect_aligned", reflect, _args((2, 3, 5, 8), image)),
        sample("reflect_channels", reflect, _args((2, 3, 5), [[0, 0], [1, 0], [4, 3]])),
        sample("reflect_vector", reflect, _args((7,), [[6, 6]])),
        sample("reflect_i32", reflect, _args((3, 5), [[2, 1], [0, 4]], DType.I32)),
        sample("symmetric", symmetric, _args((1, 5, 7, 3), [[0, 0], [5, 1], [3, 7], [0, 0]])),
        sample("symmetric_aligned", symmetric, _args((1, 3, 5, 8), image)),
        sample("symmetric_channels", symmetric, _args((2, 3, 5), [[2, 0], [0, 3], [5, 4]])),
        sample("symmetric_vector", symmetric, _args((7,), [[7, 7]])),
        sample("rank5", reflect, _args((2, 1, 3, 2, 3), [[1, 0], [0, 0], [2, 1], [1, 1], [0, 2]])),
    ]


def _batch(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    paddings = node.input(1).data
    if refused is None and paddings is None:
        refused = "operand 1, how much it pads, is not known"
    if refused is not None or paddings is None or not paddings.reshape(-1)[:2].any():
        return refused or Batched(node.attrs)
    none = np.zeros((1, 2), paddings.dtype)
    return lifted(node, items, (0,), constants={1: np.concatenate([none, paddings])})


def _positions(node: Node, cut: Node) -> Positions | str:
    paddings = node.input(1).data
    if paddings is None:
        return "how much it pads is not known"
    # Zeros that are put behind come where positions that do not count are.
    padded = Along if node.op == "PAD" else lambda axis, fill: None
    axes = [
        padded(i, 0) if pads.any() else Along(i) for i, pads in enumerate(paddings.reshape(-1, 2))
    ]
    return Positions([axes, *([None] * 2 for _ in node.inputs[1:])])


OPS = (
    OpDef(
        "PAD", no_attrs, _infer_pad, _reference_pad, _pad_samples, generate=draws.pad,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=6),
        movement=Movement(keeps_values=True, copies=copies_first), contents=Contents(counts=(1,)),
        batch=_batch, positions=_positions
    ),
    OpDef(
        "PADV2", no_attrs, _infer_pad_v2, _reference_pad_v2, _pad_v2_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=6),
        movement=Movement(keeps_values=True, copies=copies_first), contents=Contents(counts=(1,)),
        batch=_batch, positions=_positions
    ),
    OpDef(
        "MIRROR_PAD", _parse_mirror, _infer_mirror, _reference_mirror, _mirror_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=3),
        movement=Movement(keeps_values=True, copies=copies_first), batch=_batch,
        positions=_positions
    ),
)  # fmt: skip
