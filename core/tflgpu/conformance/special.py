"""NaN, infinities and huge numbers, planted into the operands of an op's samples.

What may become of them is said in `docs/nan.md`; here is only where they are put. An elementwise
op gets them everywhere, since no element knows of its neighbours. Any other op gets them in one
place of one operand, so that it shows which results they reach, and which they must not.
"""

from __future__ import annotations

import enum

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Fields, OpDef, Operand, Sample

_FLOATS = frozenset({DType.F32, DType.F16})
# Of every ten elements of an elementwise op's operands, so many are special.
_SHARE = 0.6
# Devices promise divisions by numbers up to 2^126.
_HUGE, _HUGE_HALF = 5e37, 6e4
# An op of n operands has up to so many cases, beside one for each sample.
_MOST = 30


class SpecialKind(enum.Enum):
    """What is planted, and where."""

    NAN = "nan"
    INF = "inf"
    MINUS_INF = "minus_inf"
    HUGE = "huge"
    ALL_NAN = "all_nan"
    EVERYWHERE = "everywhere"


@attrs.frozen
class SpecialNumbers:
    """Special numbers in the operands of a sample.

    Attributes:
        kind: Which, and whether in one element or in all.
        operand: The position of the operand; -1 for all operands of floats.
        huge: What huge means.
    """

    kind: SpecialKind
    operand: int = -1
    huge: float = _HUGE

    @property
    def name(self) -> str:
        """Part of a check's name."""
        return self.kind.value if self.operand < 0 else f"{self.kind.value}_in_{self.operand}"

    def plant(self, index: int, data: Array, rng: np.random.Generator) -> Array:
        """Contents of operand ``index`` with the special numbers in it; ``data`` stays."""
        if self.operand not in (-1, index) or data.dtype.kind != "f" or not data.size:
            return data
        huge = min(self.huge, _HUGE_HALF) if data.dtype == np.float16 else self.huge
        planted = np.array(data)
        if self.kind is SpecialKind.EVERYWHERE:
            chosen = rng.choice(_everything(huge), data.shape).astype(data.dtype)
            return np.where(rng.random(data.shape) < _SHARE, chosen, data)
        value = _value(self.kind, huge)
        if self.kind is SpecialKind.ALL_NAN:
            planted[...] = value
        else:
            planted.reshape(-1)[int(rng.integers(planted.size))] = value
        return planted


def _value(kind: SpecialKind, huge: float) -> float:
    numbers = {SpecialKind.INF: np.inf, SpecialKind.MINUS_INF: -np.inf, SpecialKind.HUGE: huge}
    return numbers.get(kind, np.nan)


def _everything(huge: float) -> list[float]:
    return [np.nan, np.nan, np.inf, -np.inf, 0.0, -0.0, huge, -huge, 90.0, -90.0, 1e4, -1e4]


def special_samples(op: OpDef, *, half: bool = False) -> list[tuple[Sample, SpecialNumbers]]:
    """The samples of an op that has operands of floats, each with something planted: in turn
    every kind in every operand, and all of them at least once (of an op of many operands, in
    turns too: ``_MOST`` cases)."""
    floats = {s.id: _floats(op, s) for s in op.samples()}
    samples = [s for s in op.samples() if floats[s.id]]
    huge = min(op.device.largest_operand, _HUGE_HALF if half else _HUGE)
    if op.elementwise:
        return [(s, SpecialNumbers(SpecialKind.EVERYWHERE, huge=huge)) for s in samples]
    kinds = [k for k in SpecialKind if k is not SpecialKind.EVERYWHERE]
    operands = sorted({i for found in floats.values() for i in found})
    count = max(len(samples), min(_MOST, len(kinds) * len(operands)))
    found: list[tuple[Sample, SpecialNumbers]] = []
    for i in range(count if samples else 0):
        turn, which = divmod(i, len(operands))
        operand, kind = operands[which], kinds[(turn + which) % len(kinds)]
        able = [s for s in samples if operand in floats[s.id]]
        found.append((able[i % len(able)], SpecialNumbers(kind, operand, huge)))
    return found


def _floats(op: OpDef, sample: Sample) -> list[int]:
    """Positions of the operands of floats, but for those that say what is done (RANGE: how often)
    and not to what."""
    operands = [
        None if a is None else Operand(TensorSpec(a.shape, a.dtype), a.data) for a in sample.args
    ]
    attributes = op.parse(Fields(op.name, sample.fields, sample.custom_options))
    known = (*op.must_know(attributes, operands), *op.contents.settings)
    return [
        i
        for i, arg in enumerate(sample.args)
        if arg is not None and arg.dtype in _FLOATS and 0 not in arg.shape and i not in known
    ]
