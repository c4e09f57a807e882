"""ROTARY_EMBEDDING and GATED_SILU, the ops of the composites "odml.rope" and "odml.swiglu".

Not TFLite ops: they stand for composites of a file (`tflgpu.ops.base.Composed`).

ROTARY_EMBEDDING turns pairs of numbers, (x[i], x[i + H/2]) of the H along the last axis, by the
angle ``position / timescale[i]``, with ``timescale[i] = min * (max / min) ** (2 * i / H)``; pairs
from ``proportion * H / 2`` on stay as they are. Every row along the axis of tokens has a position.

GATED_SILU is ``a / (1 + exp(-a)) * b``, of two operands, or of the two halves of one along its last
axis.

Sources: litert-torch's `rope.py` and `swiglu.py` of its GPU composites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import at_least_f32, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Composed,
    Contents,
    Fields,
    FileForm,
    OnDevice,
    OpDef,
    Operands,
    Reading,
    Sample,
    graph_attributes,
)
from tflgpu.ops.composed import draw_all, there
from tflgpu.ops.elementwise import FLOATS, check_dtype
from tflgpu.ops.items import each_row
from tflgpu.values import evolve, frozen

ROTARY, GATED = "ROTARY_EMBEDDING", "GATED_SILU"

# Devices promise sines of numbers up to 2^15.
_LARGEST_ANGLE = 3e4


@frozen
class Rotary:
    """Attributes:
    axis: That of the tokens.
    longest: The largest timescale.
    shortest: The smallest.
    proportion: How many of the pairs are turned.
    each_item: Whether items, along axis 0, have positions of their own.
    """

    axis: int
    longest: float = 10000.0
    shortest: float = 1.0
    proportion: float = 1.0
    each_item: bool = False

    def rates(self, width: int) -> Array:
        """Radians a position for each number of the last axis."""
        part = np.arange(width // 2) * 2 / width
        scale = self.shortest * (self.longest / self.shortest) ** part
        rates = np.where(part < self.proportion, 1 / scale, 0)
        return np.concatenate([rates, rates]).astype(np.float32)


def _infer(attributes: Rotary, operands: Operands) -> list[TensorSpec]:
    x, at = take_operands(ROTARY, operands, 2)
    check_dtype(ROTARY, x.dtype, FLOATS)
    check_dtype(ROTARY, at.dtype, frozenset({DType.I32, x.dtype}))
    if x.rank < 2 or x.shape[-1] % 2 or not 0 <= attributes.axis < x.rank - 1:
        raise ModelError(f"{ROTARY}: pairs along the last axis of {x.spec}, tokens on another")
    needed = x.shape[attributes.axis] * (x.shape[0] if attributes.each_item else 1)
    if int(np.prod(at.shape)) < needed:
        raise ModelError(f"{ROTARY}: positions {list(at.shape)} for {needed} tokens")
    return [x.spec]


def _rotary(attributes: Rotary, arrays: Arrays) -> list[Array]:
    given, at = present(arrays[0]), present(arrays[1])
    x, axis, half = at_least_f32(given), attributes.axis, given.shape[-1] // 2
    tokens = x.shape[axis]
    count = x.shape[0] if attributes.each_item else 1
    shape = [1] * x.ndim
    shape[0] = count
    shape[axis] = tokens
    positions = at.reshape(-1)[: count * tokens].astype(np.float32).reshape(shape)
    angles = (positions * attributes.rates(x.shape[-1])).astype(np.float64)
    other = np.concatenate([-x[..., half:], x[..., :half]], -1)
    return [(x * np.cos(angles) + other * np.sin(angles)).astype(given.dtype)]


_LONGEST = ("max_timescale", "base", "rope_theta", "theta")
_PROPORTIONS = ("proportion", "partial_rotary_factor")


def _first(fields: Fields, names: Sequence[str], default: float) -> float:
    return next((fields.number(n) for n in names if n in fields.values), default)


def _read(fields: Fields, operands: Operands) -> list[Reading]:
    x, at = there(operands, 2, 2)
    if fields.integer("kernel_type", 0) != 0:
        raise UnsupportedError("it turns by two positions")
    plain = Rotary(
        0,
        _first(fields, _LONGEST, 10000.0),
        fields.number("min_timescale", 1.0),
        _first(fields, _PROPORTIONS, 1.0),
    )
    tokens = at.shape[-2] if at.rank == 4 else at.shape[-1] if at.rank else 0
    axes = [a for a in (1, 2, 0) if a < x.rank - 1 and x.shape[a] == tokens]
    if not axes or not plain.shortest > 0 or not plain.longest > 0:
        raise UnsupportedError(f"positions {list(at.shape)} are not known for {list(x.shape)}")
    found = [evolve(plain, axis=axis) for axis in axes]
    if int(np.prod(at.shape)) > tokens:
        found += [evolve(reading, each_item=True) for reading in found]
    return [Reading(reading) for reading in found]


def _draw(rng: np.random.Generator, operands: Operands) -> list[Array | None]:
    """Positions small enough for the angles to be known well in f32."""
    drawn = draw_all(rng, operands)
    at = operands[1]
    assert at is not None
    drawn[1] = rng.integers(0, 40, at.shape).astype(at.dtype.numpy)
    return drawn


def _samples() -> list[Sample]:
    def sample(
        name: str,
        shape: Shape,
        axis: int,
        positions: Shape,
        dtype: DType = DType.I32,
        **more: Any,
    ) -> Sample:
        at = Arg(positions, dtype, 0, 40)
        return Sample.of(name, Rotary(axis, **more), Arg(shape), at)

    return [
        sample("tokens_first", (2, 5, 3, 10), 1, (5,)),
        sample("heads_first", (1, 3, 7, 16), 2, (1, 7), longest=500.0, proportion=0.6),
        sample("each_item", (2, 3, 2, 6), 1, (2, 3), each_item=True),
        sample("floats", (3, 5, 8), 1, (1, 1, 5, 1), DType.F32),
    ]


# GATED_SILU


@frozen
class Gated:
    """Whether one operand holds both halves."""

    halves: bool


def _infer_gated(attributes: Gated, operands: Operands) -> list[TensorSpec]:
    found = take_operands(GATED, operands, 1 if attributes.halves else 2)
    x = found[0]
    check_dtype(GATED, x.dtype, FLOATS)
    if not attributes.halves:
        if found[1].spec != x.spec:
            raise ModelError(f"{GATED}: operands {x.spec} and {found[1].spec}")
        return [x.spec]
    if not x.rank or x.shape[-1] % 2:
        raise ModelError(f"{GATED}: halves of {x.spec}")
    return [TensorSpec((*x.shape[:-1], x.shape[-1] // 2), x.dtype)]


def _gated(attributes: Gated, arrays: Arrays) -> list[Array]:
    given = present(arrays[0])
    both = np.split(given, 2, -1) if attributes.halves else [given, present(arrays[1])]
    a, b = (half.astype(np.float64) for half in both)
    small = np.exp(-np.abs(a))
    share = np.where(a >= 0, 1, small) / (1 + small)
    # Products in f32 overflow where those of the operators do.
    kind = at_least_f32(given).dtype
    silu = (a * share).astype(kind)
    return [(silu * b.astype(kind)).astype(given.dtype)]


def _read_gated(fields: Fields, operands: Operands) -> list[Reading]:
    x, *rest = there(operands, 1, 2)
    size = fields.integer("gate_size", 0)
    width = x.shape[-1] if x.rank else 0
    if size > 0 and size != (width if rest else width // 2):
        raise UnsupportedError(f"its gates have {size} of {width} numbers")
    return [Reading(Gated(not rest))]


def _gated_samples() -> list[Sample]:
    def sample(name: str, shape: Shape, *, halves: bool = True) -> Sample:
        args = (Arg(shape, low=-6, high=6),) * (1 if halves else 2)
        return Sample.of(name, Gated(halves), *args)

    return [
        sample("odd", (2, 3, 14)),
        sample("aligned", (3, 24)),
        sample("vector", (6,)),
        sample("two", (2, 5, 7), halves=False),
    ]


_ROTARY_ATTRIBUTES = frozenset({"min_timescale", "kernel_type", *_LONGEST, *_PROPORTIONS})

OPS = (
    OpDef(
        ROTARY, graph_attributes, _infer, _rotary, _samples, accuracy=Accuracy.TRANSCENDENTAL,
        device=OnDevice(largest_operand=_LARGEST_ANGLE), contents=Contents(settings=(1,)),
        file=FileForm(composed=(Composed(("odml.rope",), _read, _ROTARY_ATTRIBUTES, _draw),))
    ),
    OpDef(
        GATED, graph_attributes, _infer_gated, _gated, _gated_samples,
        accuracy=Accuracy.TRANSCENDENTAL, batch=each_row(0, 1, rank=2),
        file=FileForm(composed=(Composed(("odml.swiglu",), _read_gated, frozenset({"gate_size"})),))
    ),
)  # fmt: skip
