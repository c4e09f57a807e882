"""TILE, BROADCAST_TO, REVERSE_V2: elements repeated or in another order, along whole axes.

TILE: TFLite versions 1-3; BROADCAST_TO: 2-4; REVERSE_V2: 1-4.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import const_integers, integers, normal_axis, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    FileForm,
    Movement,
    NoAttrs,
    OpDef,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import Batched, Items, copies_first
from tflgpu.ops.items import broadcast, first_size, lifted, next_axes, rows_of
from tflgpu.ops.positions import Along, Positions, aligned


def _infer_tile(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, multiples = take_operands("TILE", operands, 2)
    times = const_integers("TILE", multiples, "multiples (operand 1)", x.rank)
    if any(t < 0 for t in times):
        raise ModelError(f"TILE: multiples {listed(times)} must not be negative")
    return [TensorSpec(tuple(d * t for d, t in zip(x.shape, times, strict=True)), x.dtype)]


def _reference_tile(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [np.tile(present(arrays[0]), integers(present(arrays[1])))]


def _infer_broadcast(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, wanted = take_operands("BROADCAST_TO", operands, 2)
    shape = const_integers("BROADCAST_TO", wanted, "shape (operand 1)")
    extra = len(shape) - x.rank
    fits = extra >= 0 and all(
        d in (1, w) for d, w in zip(x.shape, shape[max(extra, 0) :], strict=True)
    )
    if not fits or any(d < 0 for d in shape):
        raise ModelError(f"BROADCAST_TO: {list(x.shape)} does not broadcast to {listed(shape)}")
    return [TensorSpec(shape, x.dtype)]


def _reference_broadcast(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    return [np.broadcast_to(present(arrays[0]), integers(present(arrays[1]))).copy()]


def reverse_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """REVERSE_V2's axes, from the front.

    Raises:
        ModelError: one is no axis, or comes twice.
    """
    found = tuple(normal_axis("REVERSE_V2", a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise ModelError(f"REVERSE_V2: axes {listed(axes)} name one axis twice")
    return found


def _infer_reverse(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, axes = take_operands("REVERSE_V2", operands, 2)
    reverse_axes(const_integers("REVERSE_V2", axes, "axes (operand 1)"), x.rank)
    return [x.spec]


def _reference_reverse(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    return [np.flip(x, reverse_axes(integers(present(arrays[1])), x.ndim)).copy()]


def _two(
    shape: tuple[int, ...], numbers: Sequence[int], dtype: DType = DType.F32
) -> tuple[Arg, Arg]:
    return Arg(shape, dtype, -9, 9), Arg.of(numbers, DType.I32)


def _tile_samples() -> list[Sample]:
    return [
        Sample("all", {}, _two((2, 3, 5), [2, 1, 3])),
        Sample("channels", {}, _two((1, 2, 3, 5), [1, 1, 1, 3])),
        Sample("channels_aligned", {}, _two((3, 8), [1, 2])),
        Sample("one_channel", {}, _two((2, 3, 1), [1, 1, 7])),
        Sample("batch", {}, _two((1, 3, 5, 7), [3, 1, 1, 1])),
        Sample("vector", {}, _two((5,), [3])),
        Sample("once", {}, _two((3, 5), [1, 1])),
        Sample("i32", {}, _two((3, 5), [2, 2], DType.I32)),
        Sample("bool", {}, _two((3, 5), [2, 1], DType.BOOL)),
        Sample("rank5", {}, _two((1, 2, 1, 3, 2), [2, 1, 3, 1, 2])),
    ]


def _broadcast_samples() -> list[Sample]:
    return [
        Sample("rank_up", {}, _two((5,), [2, 3, 5]), 2),
        Sample("middle", {}, _two((2, 1, 7), [2, 3, 7]), 2),
        Sample("channels", {}, _two((2, 3, 1), [2, 3, 5]), 2),
        Sample("aligned", {}, _two((1, 8), [3, 8]), 2),
        Sample("scalar", {}, _two((), [3, 5]), 2),
        Sample("one", {}, _two((1, 1), [5, 3]), 2),
        Sample("same", {}, _two((3, 5), [3, 5]), 2),
        Sample("rank5", {}, _two((2, 1, 3), [2, 3, 2, 5, 3]), 2),
        Sample("i32", {}, _two((1, 5), [3, 5], DType.I32), 2),
        Sample("bool", {}, _two((3, 1), [3, 5], DType.BOOL), 2),
    ]


def _reverse_samples() -> list[Sample]:
    return [
        Sample("channels", {}, _two((2, 3, 5), [2])),
        Sample("channels_aligned", {}, _two((3, 8), [-1])),
        Sample("height", {}, _two((1, 5, 3, 7), [1])),
        Sample("batch", {}, _two((3, 2, 5), [0])),
        Sample("two", {}, _two((2, 5, 3, 6), [1, 2])),
        Sample("vector", {}, _two((7,), [0])),
        Sample("i32", {}, _two((3, 5), [0], DType.I32)),
        Sample("bool", {}, _two((3, 5), [1], DType.BOOL)),
    ]


def _batch_tile(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    times = node.const(1)
    if refused is None and integers(times)[0] != 1:
        wanted = np.concatenate([[1], times.reshape(-1)]).astype(times.dtype)
        return lifted(node, items, (0,), constants={1: wanted})
    return refused or Batched(node.attrs)


def _batch_broadcast(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    old, new = node.input(0).shape, node.outputs[0].shape
    sizes = node.input(1).data
    if refused is None and sizes is not None and (len(old) != len(new) or old[0] != new[0]):
        wanted = new[1:] if new[0] == 1 else new
        made = np.array([items.count, *wanted], sizes.dtype)
        return attrs.evolve(broadcast(node, items), constants={1: made})
    return refused or first_size(node, items, 1)


def _batch_reverse(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    axes, rank = node.const(1), len(node.input(0).shape)
    if refused is None and 0 in reverse_axes(integers(axes), rank):
        return lifted(node, items, (0,), constants={1: next_axes(axes, rank)})
    return refused or Batched(node.attrs)


def _positions_tile(node: Node, cut: Node) -> Positions | str:
    times, less = node.input(1).data, cut.input(1).data
    if times is None or less is None:
        return "how often it repeats is not known"
    counts = zip(node.input(0).shape, integers(times), integers(less), strict=True)
    axes = [Along(i) if size == 1 or a == b == 1 else None for i, (size, a, b) in enumerate(counts)]
    return Positions([axes, [None]], shapes=(1,))


def _positions_broadcast(node: Node, cut: Node) -> Positions:
    axes = aligned(node.input(0), len(node.outputs[0].shape))
    return Positions([axes, [None]], shapes=(1,), repeats=True)


OPS = (
    OpDef(
        "TILE", no_attrs, _infer_tile, _reference_tile, _tile_samples, accuracy=Accuracy.EXACT,
        contents=Contents(texts=True), file=FileForm(max_version=3),
        movement=Movement(keeps_values=True, copies=copies_first), batch=_batch_tile,
        positions=_positions_tile
    ),
    OpDef(
        "BROADCAST_TO", no_attrs, _infer_broadcast, _reference_broadcast, _broadcast_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=4),
        movement=Movement(keeps_values=True, copies=copies_first), batch=_batch_broadcast,
        positions=_positions_broadcast
    ),
    OpDef(
        "REVERSE_V2", no_attrs, _infer_reverse, _reference_reverse, _reverse_samples,
        accuracy=Accuracy.EXACT, file=FileForm(max_version=4), movement=Movement(keeps_values=True),
        batch=_batch_reverse
    ),
)  # fmt: skip
