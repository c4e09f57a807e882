"""What passes ask of nodes and constants."""

from __future__ import annotations

from math import prod

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Value
from tflgpu.ops.base import Activation

#: Ops that apply `attrs.activation` to their result.
ACTIVATED = frozenset(
    {"ADD", "SUB", "MUL", "DIV", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV",
     "Convolution2DTransposeBias", "FULLY_CONNECTED", "AVERAGE_POOL_2D", "MAX_POOL_2D",
     "CONCATENATION"}
)  # fmt: skip


def is_plain(node: Node) -> bool:
    """Whether all operands and results that are not indices are f32 or f16, without
    quantization: what arithmetic may be moved between."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return all(v.quant is None and (v.dtype.is_float or v.is_const) for v in values)


def activation_of(node: Node) -> Activation:
    """The activation fused into a node."""
    if node.op not in ACTIVATED:
        return Activation.NONE
    found = getattr(node.attrs, "activation", Activation.NONE)
    return found if isinstance(found, Activation) else Activation.NONE


def is_linear(node: Node) -> bool:
    """Whether a node has no activation fused into it."""
    return activation_of(node) is Activation.NONE


def scalar_of(value: Value | None) -> float | None:
    """The one number that a constant's elements all are; None for anything else."""
    if value is None or value.data is None or value.data.size == 0:
        return None
    flat = value.data.reshape(-1)
    return float(flat[0]) if bool((flat == flat[0]).all()) else None


def channels_of(value: Value, channels: int) -> Array | None:
    """A float constant that differs along the last axis only, as ``channels`` numbers in f64, or
    one where they are all the same; None for anything else."""
    data = value.data
    if data is None or data.dtype.kind != "f":
        return None
    if prod(data.shape[:-1]) != 1 or data.size not in (1, channels):
        return None
    return data.reshape(-1).astype(np.float64)


@attrs.frozen(eq=False)
class Affine:
    """``scale * x + shift``, a number of each a channel (last axis), in f64.

    One number is kept where all channels have it: how many channels there are is up to whoever
    resizes an input, and nothing of that size is made before a filter is known to have them too.
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


def affine_of(node: Node) -> Affine | None:
    """What a node does to its runtime operand, before its activation, where it is ADD, SUB, MUL
    or DIV with a constant a channel and its result is shaped like the operand."""
    if node.op not in ("ADD", "SUB", "MUL", "DIV") or not is_plain(node):
        return None
    runtime = [i for i, v in enumerate(node.inputs) if v is not None and not v.is_const]
    if len(runtime) != 1 or not node.outputs[0].shape:
        return None
    (at,) = runtime
    shape = node.outputs[0].shape
    if node.input(at).shape != shape:
        return None
    c = channels_of(node.input(1 - at), shape[-1])
    if c is None or (node.op == "DIV" and at == 1):
        return None
    one, zero = np.ones(1), np.zeros(1)
    if node.op == "ADD":
        return Affine(at, shape[-1], one, c)
    if node.op == "SUB":
        return Affine(at, shape[-1], *((one, -c) if at == 0 else (-one, c)))
    with np.errstate(divide="ignore"):
        return Affine(at, shape[-1], c if node.op == "MUL" else one / c, zero)


def f32(data: Array) -> Array:
    """A constant's contents as f32."""
    return np.asarray(data, np.float32, order="C")
