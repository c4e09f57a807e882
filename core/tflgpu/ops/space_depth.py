"""DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND, SPACE_TO_BATCH_ND: blocks of pixels moved
between height and width and another dimension.

DEPTH_TO_SPACE, SPACE_TO_DEPTH: TFLite versions 1-2; the other two: 1-4. Images are NHWC.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import const_integers, integers, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
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
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import each_row, rows_of
from tflgpu.ops.positions import of_items
from tflgpu.values import frozen


@frozen
class BlockAttrs:
    """Pixels along each side of a block."""

    block_size: int


def _parse_block(fields: Fields) -> BlockAttrs:
    return BlockAttrs(fields.integer("block_size", minimum=1))


def _infer_depth_to_space(attributes: BlockAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("DEPTH_TO_SPACE", operands, 1)
    need_rank("DEPTH_TO_SPACE", x, "operand 0", 4)
    n, h, w, c = x.shape
    size = attributes.block_size
    if c % (size * size):
        raise ModelError(f"DEPTH_TO_SPACE: {c} channels do not divide by block_size {size} squared")
    return [TensorSpec((n, h * size, w * size, c // (size * size)), x.dtype)]


def _reference_depth_to_space(attributes: BlockAttrs, arrays: Arrays) -> list[Array]:
    x, size = present(arrays[0]), attributes.block_size
    n, h, w, c = x.shape
    blocks = x.reshape(n, h, w, size, size, c // (size * size)).transpose(0, 1, 3, 2, 4, 5)
    return [blocks.reshape(n, h * size, w * size, c // (size * size)).copy()]


def _infer_space_to_depth(attributes: BlockAttrs, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("SPACE_TO_DEPTH", operands, 1)
    need_rank("SPACE_TO_DEPTH", x, "operand 0", 4)
    n, h, w, c = x.shape
    size = attributes.block_size
    if h % size or w % size:
        raise ModelError(
            f"SPACE_TO_DEPTH: height {h} and width {w} do not divide by block_size {size}"
        )
    return [TensorSpec((n, h // size, w // size, c * size * size), x.dtype)]


def _reference_space_to_depth(attributes: BlockAttrs, arrays: Arrays) -> list[Array]:
    x, size = present(arrays[0]), attributes.block_size
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // size, size, w // size, size, c).transpose(0, 1, 3, 2, 4, 5)
    return [blocks.reshape(n, h // size, w // size, size * size * c).copy()]


@frozen
class BlockSizes:
    """Constant operands 1 and 2 of the two batch ops.

    Attributes:
        sizes: Pixels along each side of a block, one for each spatial dimension (1, 2, ...).
        edges: What is cropped off (or padded on) before and after each of them.
    """

    sizes: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Pixels in a block."""
        return math.prod(self.sizes)


def blocks_of(sizes: Array, edges: Array) -> BlockSizes:
    """The blocks that the contents of operands 1 and 2 speak of."""
    return BlockSizes(integers(sizes), tuple((int(a), int(b)) for a, b in edges))


def _blocks(op: str, operands: Operands, edge_name: str) -> tuple[Operand, BlockSizes]:
    x, block, edge = take_operands(op, operands, 3)
    need_rank(op, x, "operand 0", 3, 4)
    spatial = x.rank - 2
    sizes = const_integers(op, block, "block_shape (operand 1)", spatial)
    const_integers(op, edge, f"{edge_name} (operand 2)", 2 * spatial)
    if edge.shape != (spatial, 2):
        raise ModelError(f"{op}: {edge_name} (operand 2) have shape {list(edge.shape)}")
    found = blocks_of(np.array(sizes), edge.const(op, edge_name))
    if any(s < 1 for s in sizes) or any(n < 0 for pair in found.edges for n in pair):
        raise ModelError(f"{op}: block_shape {list(sizes)}, {edge_name} {found.edges}")
    return x, found


def _infer_batch_to_space(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    op = "BATCH_TO_SPACE_ND"
    x, blocks = _blocks(op, operands, "crops")
    if x.shape[0] % blocks.count:
        raise ModelError(f"{op}: batch {x.shape[0]} does not divide by {blocks.count}")
    sides = [
        d * s - sum(pair)
        for d, s, pair in zip(x.shape[1:-1], blocks.sizes, blocks.edges, strict=True)
    ]
    if any(side < 0 for side in sides):
        raise ModelError(f"{op}: crops {blocks.edges} leave nothing of {list(x.shape)}")
    return [TensorSpec((x.shape[0] // blocks.count, *sides, x.shape[-1]), x.dtype)]


def _reference_batch_to_space(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    blocks = blocks_of(present(arrays[1]), present(arrays[2]))
    batch, spatial = x.shape[0] // blocks.count, len(blocks.sizes)
    # [blocks..., batch, sides..., c] -> [batch, side, block, side, block, ..., c]
    apart = x.reshape(*blocks.sizes, batch, *x.shape[1:])
    order = [spatial]
    for i in range(spatial):
        order += [spatial + 1 + i, i]
    merged = [d * s for d, s in zip(x.shape[1:-1], blocks.sizes, strict=True)]
    whole = apart.transpose(*order, apart.ndim - 1).reshape(batch, *merged, x.shape[-1])
    crop = [slice(a, side - b) for (a, b), side in zip(blocks.edges, merged, strict=True)]
    index = (slice(None), *crop)
    return [whole[index].copy()]


def _infer_space_to_batch(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    op = "SPACE_TO_BATCH_ND"
    x, blocks = _blocks(op, operands, "paddings")
    sides = [d + sum(pair) for d, pair in zip(x.shape[1:-1], blocks.edges, strict=True)]
    if any(side % size for side, size in zip(sides, blocks.sizes, strict=True)):
        raise ModelError(f"{op}: padded sides {sides} do not divide by {list(blocks.sizes)}")
    rows = [side // size for side, size in zip(sides, blocks.sizes, strict=True)]
    return [TensorSpec((x.shape[0] * blocks.count, *rows, x.shape[-1]), x.dtype)]


def _reference_space_to_batch(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    blocks = blocks_of(present(arrays[1]), present(arrays[2]))
    whole = np.pad(x, ((0, 0), *blocks.edges, (0, 0)))
    spatial = len(blocks.sizes)
    split: list[int] = []
    for side, size in zip(whole.shape[1:-1], blocks.sizes, strict=True):
        split += [side // size, size]
    apart = whole.reshape(x.shape[0], *split, x.shape[-1])
    order = [2 * i + 2 for i in range(spatial)] + [0] + [2 * i + 1 for i in range(spatial)]
    rows = split[::2]
    moved = apart.transpose(*order, apart.ndim - 1)
    return [moved.reshape(x.shape[0] * blocks.count, *rows, x.shape[-1]).copy()]


def _depth_samples(to_space: bool) -> list[Sample]:
    def sample(
        id: str, small: tuple[int, int, int, int], size: int, dtype: DType = DType.F32
    ) -> Sample:
        n, h, w, c = small
        image = (n, h, w, c * size * size) if to_space else (n, h * size, w * size, c)
        return Sample(id, {"block_size": size}, (Arg(image, dtype, -9, 9),))

    return [
        sample("rgb", (1, 3, 5, 3), 2),
        sample("one_channel", (1, 5, 3, 1), 2),
        sample("aligned", (2, 3, 2, 8), 2),
        sample("block3", (1, 3, 2, 5), 3),
        sample("batch", (3, 2, 3, 2), 2),
        sample("block1", (1, 3, 5, 3), 1),
        sample("one_pixel", (1, 1, 1, 7), 4),
        sample("i32", (1, 3, 2, 3), 2, DType.I32),
    ]


def _batch_sample(
    id: str,
    shape: tuple[int, ...],
    sizes: Sequence[int],
    edges: Sequence[Sequence[int]],
) -> Sample:
    args = (Arg(shape, DType.F32, -9, 9), Arg.of(sizes, DType.I32), Arg.of(edges, DType.I32))
    return Sample(id, {}, args)


def _batch_to_space_samples() -> list[Sample]:
    return [
        _batch_sample("plain", (4, 3, 5, 3), [2, 2], [[0, 0], [0, 0]]),
        _batch_sample("aligned", (4, 3, 2, 8), [2, 2], [[0, 0], [0, 0]]),
        _batch_sample("crops", (8, 3, 5, 3), [2, 2], [[1, 0], [2, 1]]),
        _batch_sample("uneven", (6, 3, 5, 2), [3, 2], [[2, 1], [0, 3]]),
        _batch_sample("one_side", (3, 2, 5, 5), [1, 3], [[0, 0], [0, 0]]),
        _batch_sample("rank3", (6, 5, 3), [3], [[1, 2]]),
        _batch_sample("no_block", (2, 3, 5, 3), [1, 1], [[0, 0], [0, 0]]),
    ]


def _space_to_batch_samples() -> list[Sample]:
    return [
        _batch_sample("plain", (1, 6, 4, 3), [2, 2], [[0, 0], [0, 0]]),
        _batch_sample("aligned", (1, 6, 4, 8), [2, 2], [[0, 0], [0, 0]]),
        _batch_sample("paddings", (2, 5, 7, 3), [2, 2], [[1, 0], [2, 1]]),
        _batch_sample("uneven", (1, 5, 7, 2), [3, 2], [[2, 2], [0, 3]]),
        _batch_sample("one_side", (1, 2, 6, 5), [1, 3], [[0, 0], [0, 0]]),
        _batch_sample("rank3", (2, 5, 3), [3], [[1, 3]]),
        _batch_sample("no_block", (2, 3, 5, 3), [1, 1], [[0, 0], [0, 0]]),
    ]


def _mixed(node: Node, items: Items) -> Batched | str:
    """Positions of an image and rows of axis 0 are traded: the rows of one position come
    together."""
    refused = rows_of(node, items, (0,))
    return Batched(node.attrs, mixed=True) if refused is None else refused


OPS = (
    OpDef(
        "DEPTH_TO_SPACE", _parse_block, _infer_depth_to_space, _reference_depth_to_space,
        lambda: _depth_samples(True), accuracy=Accuracy.EXACT, file=FileForm(max_version=2),
        movement=Movement(keeps_values=True), batch=each_row(0), positions=of_items
    ),
    OpDef(
        "SPACE_TO_DEPTH", _parse_block, _infer_space_to_depth, _reference_space_to_depth,
        lambda: _depth_samples(False), accuracy=Accuracy.EXACT, file=FileForm(max_version=2),
        movement=Movement(keeps_values=True), batch=each_row(0), positions=of_items
    ),
    OpDef(
        "BATCH_TO_SPACE_ND", no_attrs, _infer_batch_to_space, _reference_batch_to_space,
        _batch_to_space_samples, accuracy=Accuracy.EXACT, file=FileForm(max_version=4),
        movement=Movement(keeps_values=True), batch=_mixed
    ),
    OpDef(
        "SPACE_TO_BATCH_ND", no_attrs, _infer_space_to_batch, _reference_space_to_batch,
        _space_to_batch_samples, accuracy=Accuracy.EXACT, file=FileForm(max_version=4),
        movement=Movement(keeps_values=True), batch=_mixed
    ),
)  # fmt: skip
