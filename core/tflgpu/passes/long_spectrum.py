"""A long spectrum of real numbers in two steps of matrix products (Cooley and Tukey, 1965).

    x -> TRANSPOSE -> FULLY_CONNECTED -> TRANSPOSE -> BATCH_MATMUL -> TRANSPOSE -> SLICE -> part

A frame of N = N1 * N2 numbers is N1 rows of N2; N is a power of two, as LiteRT's RFFT2D has it.
With n = n1 * N2 + n2 and k = k1 + N1 * k2,

    X[k] = sum over n2 of exp(-2 pi i n2 k / N) * (sum over n1 of exp(-2 pi i n1 k1 / N1) * x[n1,
    n2])

The inner sums are spectra of N1 numbers, one for each n2. The outer ones are a product with a
matrix of its own for each k1. A frame of 2,048 takes 4 % of the multiplications of one product with
all cosines and sines.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.batch_matmul import BatchMatMul
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.reshape import ReshapeAttrs

#: Longer ones are left to the CPU: their tables would have megabytes.
LONGEST = 16384


class LongSpectrum:
    """Writes the operators before a node, which it does not touch."""

    def __init__(self, rewriter: Rewriter, before: Node) -> None:
        self._rewriter = rewriter
        self._before = before

    def parts(self, rows: Value, width: int, wanted: tuple[str, ...]) -> dict[str, Value]:
        """Parts of spectra.

        Args:
            rows: f32[rows, width], frames.
            width: Numbers of a frame: a power of two, 16 at least.
            wanted: Of "real" and "imaginary".

        Returns:
            f32[rows, width / 2 + 1] of each that is wanted.
        """
        first = 2 ** ((width.bit_length() - 1) // 2)
        second = width // first
        count, ends = rows.shape[0], second // 2 + 1
        x = self._turned(self._shaped(rows, (count, first, second)), (0, 2, 1))
        table = self._rewriter.const(_inner(first), f"{rows.name}/inner")
        inner = self._made(
            "FULLY_CONNECTED",
            FullyConnected(),
            [self._shaped(x, (count * second, first)), table, None],
            (count * second, 2 * first),
        )
        by_k1 = self._turned(self._shaped(inner, (count, second, first, 2)), (2, 0, 1, 3))
        outer = self._rewriter.const(_outer(first, second, wanted), f"{rows.name}/outer")
        found = self._made(
            "BATCH_MATMUL",
            BatchMatMul(),
            [self._shaped(by_k1, (first, count, 2 * second)), outer],
            (first, count, len(wanted) * ends),
        )
        in_order = self._turned(
            self._shaped(found, (first, count, len(wanted), ends)), (2, 1, 3, 0)
        )
        flat = self._shaped(in_order, (len(wanted), count, ends * first))
        return {part: self._part(flat, i, width // 2 + 1) for i, part in enumerate(wanted)}

    def _part(self, flat: Value, index: int, size: int) -> Value:
        rows = flat.shape[1]
        begin, shape = ([index, 0, 0], [1, rows, size])
        numbers = [self._rewriter.const(np.array(n, np.int32)) for n in (begin, shape)]
        return self._shaped(
            self._made("SLICE", NoAttrs(), [flat, *numbers], (1, rows, size)), (rows, size)
        )

    def _shaped(self, value: Value, shape: Shape) -> Value:
        return self._made("RESHAPE", ReshapeAttrs(shape), [value], shape)

    def _turned(self, value: Value, order: tuple[int, ...]) -> Value:
        axes = self._rewriter.const(np.array(order, np.int32))
        shape = tuple(value.shape[i] for i in order)
        return self._made("TRANSPOSE", NoAttrs(), [value, axes], shape)

    def _made(self, op: str, attributes: object, inputs: list[Value | None], shape: Shape) -> Value:
        before = self._before
        spec = shape, DType.F32, f"{before.outputs[0].name}/{op}"
        return self._rewriter.result_of(op, attributes, inputs, spec, before=before)


def turns(numbers: Array, width: int) -> tuple[Array, Array]:
    """Cosines and sines of so many width-ths of a turn, f64; half a turn has a sine of 0, not of
    1e-16."""
    angles = numbers % width * (2 * np.pi / width)
    return np.cos(angles), np.where(2 * numbers % width, np.sin(angles), 0)


def _inner(first: int) -> Array:
    """f32[2 * N1, N1]: by k1 and part, of n1."""
    cosines, sines = turns(np.outer(np.arange(first), np.arange(first)), first)
    return np.stack([cosines, -sines], 1).reshape(2 * first, first).astype(np.float32)


def _outer(first: int, second: int, wanted: tuple[str, ...]) -> Array:
    """f32[N1, 2 * N2, parts * (N2 / 2 + 1)]: for each k1 by n2 and part, of the part that is wanted
    and k2."""
    k = np.arange(first)[:, None] + first * np.arange(second // 2 + 1)
    cosines, sines = turns(np.arange(second)[None, :, None] * k[:, None, :], first * second)
    # (a + b i) (cos - i sin): what the real and the imaginary part of a factor give to each part.
    of = {"real": (cosines, sines), "imaginary": (-sines, cosines)}
    columns = [np.stack(of[part], 2).reshape(first, 2 * second, -1) for part in wanted]
    return np.concatenate(columns, -1).astype(np.float32)
