"""What arithmetic with a constant per channel does: ``scale * x + shift``."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Value
from tflgpu.values import frozen


def is_plain(node: Node) -> bool:
    """Whether all operands and results that are not indices are f32 or f16, without
    quantization: what arithmetic may be moved between."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return all(v.quant is None and (v.dtype.is_float or v.is_const) for v in values)


def scalar_of(value: Value | None) -> float | None:
    """The one number that a constant's elements all are; None for anything else."""
    if value is None or value.data is None or value.data.size == 0:
        return None
    flat = value.data.reshape(-1)
    return float(flat[0]) if bool((flat == flat[0]).all()) else None


@frozen(eq=False)
class Affine:
    """``scale * x + shift``, a number of each a channel (last axis), in f64.

    One number is kept where all channels have it: a resized input may change how many channels
    there are, and nothing of that size is made before a filter is known to have them too.

    Attributes:
        operand: The position of x. The result has its shape, and all other operands are constants.
        channels: Size of its last axis.
    """

    operand: int
    channels: int
    _scale: Array
    _shift: Array

    @property
    def scale(self) -> Array:
        """What each channel is multiplied by; read-only."""
        return np.broadcast_to(self._scale, (self.channels,))

    @property
    def shift(self) -> Array:
        """What is added to each channel; read-only."""
        return np.broadcast_to(self._shift, (self.channels,))

    @property
    def scales(self) -> bool:
        """Whether a scale is not 1."""
        return bool((self._scale != 1).any())

    @property
    def shifts(self) -> bool:
        """Whether a shift is not 0."""
        return bool(self._shift.any())

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are: folding others would change where NaN and infinity arise."""
        return bool(np.isfinite(self._scale).all() and np.isfinite(self._shift).all())


#: (constant, position of the runtime operand) -> scale and shift; None where it is not affine.
ScaleAndShift = Callable[[Array, int], tuple[Array, Array] | None]


def affine_with(arithmetic: ScaleAndShift) -> Callable[[Node], Affine | None]:
    """`Arithmetic.affine` of an op of two operands, where one of them is a constant per channel."""

    def affine(node: Node) -> Affine | None:
        runtime = [i for i, v in enumerate(node.inputs) if v is not None and not v.is_const]
        if len(runtime) != 1 or not is_plain(node) or not node.outputs[0].shape:
            return None
        (at,) = runtime
        shape = node.outputs[0].shape
        if node.input(at).shape != shape:
            return None
        constant = _channels_of(node.input(1 - at), shape[-1])
        found = None if constant is None else arithmetic(constant, at)
        return None if found is None else Affine(at, shape[-1], *found)

    return affine


def _channels_of(value: Value, channels: int) -> Array | None:
    """A float constant that differs along the last axis only, as ``channels`` numbers in f64, or
    one where they are all the same; None for anything else."""
    data = value.data
    if data is None or data.dtype.kind != "f":
        return None
    if prod(data.shape[:-1]) != 1 or data.size not in (1, channels):
        return None
    return data.reshape(-1).astype(np.float64)


def copies_where_neutral(number: float, *sides: int) -> Callable[[Node], int | None]:
    """`Movement.copies` of arithmetic that a constant ``number`` on one of the ``sides`` leaves as
    it is."""

    def copies(node: Node) -> int | None:
        if not is_plain(node):
            return None
        for side in sides:
            other = node.input(1 - side)
            if scalar_of(node.input(side)) == number and not other.is_const:
                return 1 - side if other.shape == node.outputs[0].shape else None
        return None

    return copies
