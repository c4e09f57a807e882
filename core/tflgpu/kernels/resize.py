"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR.

Which pixels an output pixel is made of is found while the kernel is built, by the very functions
of the references. Where whole-number arithmetic gives the same indices the kernel computes them;
else it reads them from a table, because a device may round the f32 product differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import (
    IndexMap,
    accepts_moves,
    movable,
    move,
    position,
)
from tflgpu.kernels.resize_stored import mix_stored
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView, decompose
from tflgpu.ops.resize import ResizeAttrs, nearest, neighbours, stored_weights


def _arithmetic(table: Array, size: int, at: Expr, k: Builder) -> Expr | None:
    """``table[at]`` as a formula, where whole-number arithmetic gives the whole table."""
    count = len(table)
    if (table == table[0]).all():
        return k.i32(int(table[0]))
    if (table != np.arange(count) * size // count).any():
        return None
    return at * (size // math.gcd(size, count)) // (count // math.gcd(size, count))


def _looked_up(
    low: Lowering,
    k: Builder,
    wanted: Sequence[tuple[Array, Expr]],
    names: tuple[str, str],
    scalar: Scalar,
) -> Iterator[Expr]:
    """For each (table, position): what the table has there. The tables share one buffer; ``names``
    are its own and that of what is read."""
    tables = np.concatenate([table for table, _ in wanted])
    buffer = low.weights(k, tables, names[0], width=1, scalar=scalar)
    start = 0
    for table, at in wanted:
        yield k.let(k.load(buffer, at + start), names[1])
        start += len(table)


def _indices(low: Lowering, k: Builder, wanted: Sequence[tuple[Array, int, Expr]]) -> list[Expr]:
    """For each (table of indices, pixels they count, position): the index at that position."""
    found = [_arithmetic(table, size, at, k) for table, size, at in wanted]
    stored = [
        (table, at)
        for (table, _, at), formula in zip(wanted, found, strict=True)
        if formula is None
    ]
    pixels = _looked_up(low, k, stored, ("pixels", "pixel"), Scalar.I32)
    return [next(pixels) if formula is None else k.let(formula, "pixel") for formula in found]


def _nearest(low: Lowering) -> None:
    attributes: ResizeAttrs = low.attrs
    sides = low.node.input(0).shape[1:3]
    wanted = low.node.outputs[0].shape[1:3]

    tables = [
        (nearest(attributes, size, count), size) for size, count in zip(sides, wanted, strict=True)
    ]

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            n, y, x, c = index
            pairs = zip(tables, (y, x), strict=True)
            return [n, *_indices(low, k, [(table, size, at) for (table, size), at in pairs]), c]

        return where

    move(low, prepare, vector=True)


def _weights(low: Lowering, k: Builder, wanted: Sequence[tuple[Array, Expr]]) -> list[Expr | None]:
    """For each (weights of upper neighbours, position): the weight there, f32; None where the
    weights are all 0."""
    stored = [(weights, at) for weights, at in wanted if weights.any()]
    mixes = _looked_up(low, k, stored, ("mix", "mix"), Scalar.F32)
    return [next(mixes) if weights.any() else None for weights, _ in wanted]


def _bilinear(low: Lowering) -> None:
    k = low.kernel("resize_bilinear")
    mix_pixels(low, k, low.read(k, 0), low.node.input(0).shape[1:3])


def mix_pixels(
    low: Lowering, k: Builder, src: ReadView, sides: Sequence[int], corner: Sequence[int] = (0, 0)
) -> None:
    """Write a kernel of RESIZE_BILINEAR, and dispatch it.

    Args:
        low: Its attributes and its result are those of the node, the last of a group.
        k: The kernel, so far.
        src: An image of any numbers, of as many channels as the result or more.
        sides: Height and width of the part of it that is resized.
        corner: Where that begins.
    """
    attributes: ResizeAttrs = low.attrs
    shape = low.node.outputs[0].shape
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        n, y, x = decompose(k, outer, shape[:-1])
        tables: list[tuple[Array, int, Expr]] = []
        mixes: list[tuple[Array, Expr]] = []
        for place, size, wanted in zip((y, x), sides, shape[1:3], strict=True):
            lower, upper, weight = neighbours(attributes, size, wanted)
            tables += [(lower, size, place), (upper, size, place)]
            # Where both neighbours are one pixel its two weights add up to 1.
            shares = np.where(lower == upper, np.float32(0), weight)
            if attributes.stored is not None:  # whole numbers, of which f32 has all
                shares = stored_weights(attributes, (lower, upper, weight)).astype(np.float32)
            mixes.append((shares, place))
        top, bottom, left, right = _indices(low, k, tables)
        v, u = _weights(low, k, mixes)

        def pixel(row: Expr, column: Expr) -> Expr:
            at = [n, row + corner[0], column + corner[1]] if any(corner) else [n, row, column]
            value = src.load(position(at, src.shape[:-1]), slice_)
            # Weights are f32, so the mixing is too, in every precision.
            return k.let(k.cast(value, Scalar.F32), "pixel")

        def mix(a: Expr, b: Callable[[], Expr], weight: Expr | None) -> Expr:
            if weight is None:
                return a
            # Not a + (b - a) * weight: of an infinite a that is NaN.
            between = k.fma(b(), k.splat(weight, 4), a * (1.0 - weight))
            return k.let(k.select(weight.eq(0.0), a, between), "mixed")

        def line(row: Expr) -> Expr:
            return mix(pixel(row, left), lambda: pixel(row, right), u)

        if attributes.stored is not None:
            pixels = [[pixel(row, column) for column in (left, right)] for row in (top, bottom)]
            out.store(outer, slice_, mix_stored(k, attributes, attributes.stored, pixels, (v, u)))
        else:
            out.store(outer, slice_, mix(line(top), lambda: line(bottom), v))


def _accepts_bilinear(node: Node, site: Site) -> str | None:
    dtype = node.input(0).dtype
    if not dtype.is_float:
        return f"RESIZE_BILINEAR of {dtype.value}; floats run on the GPU"
    return movable(node, node.input(0), *node.outputs)


RULES = (
    KernelRule("RESIZE_NEAREST_NEIGHBOR", "move", _nearest, accepts_moves(0), pointwise=True),
    KernelRule("RESIZE_BILINEAR", "mix", _bilinear, _accepts_bilinear, pointwise=True),
)
