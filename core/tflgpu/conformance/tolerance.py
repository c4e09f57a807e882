"""How close is close enough: one type, five classes, each with a half-precision variant.

A result is judged by what its op does to rounding errors, never by a number picked for a test.
Half precision means that tensors are stored as f16; expected values are then computed from
operands that were rounded to f16 first, so that only the op's own errors are left.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from tflgpu.ir.dtypes import Array
from tflgpu.ops.base import Accuracy

_F32_ULPS = 4
_F16_ULPS = 4
# Below the smallest normal number a device may flush to zero.
_F32_TINY = float(np.finfo(np.float32).tiny)
_F16_TINY = float(np.finfo(np.float16).tiny)
_F16_MAX = float(np.finfo(np.float16).max)
# A mean hides one bad element among many: no element may be off by this many times the root of
# the mean that is allowed.
_OUTLIER = 16.0


@attrs.frozen
class Tolerance:
    """Limits of the difference between a result and what was expected.

    Each limit that is not zero is checked; with none the values must be equal. NaNs and
    infinities must stand at the same places in every class, except that f16 may overflow.

    Attributes:
        name: The class, for messages.
        ulps: Units in the last place of the expected value.
        rtol: Relative to the expected value, together with ``atol``.
        atol: Absolute.
        nmse: Mean square error over the mean square of the expected values.
        half: Whether results went through f16.
    """

    name: str
    ulps: int = 0
    rtol: float = 0.0
    atol: float = 0.0
    nmse: float = 0.0
    half: bool = False

    @classmethod
    def of(cls, accuracy: Accuracy, accumulates: int = 1, *, half: bool = False) -> Tolerance:
        """The tolerance of an accuracy class; ``accumulates`` products are summed an element."""
        if accuracy is Accuracy.EXACT:
            return cls.exact()
        if accuracy is Accuracy.ROUNDED:
            return cls.rounded(half=half)
        if accuracy is Accuracy.TRANSCENDENTAL:
            return cls.transcendental(half=half)
        if accuracy is Accuracy.ACCUMULATE:
            return cls.accumulate(accumulates, half=half)
        return cls.quantized()

    @classmethod
    def exact(cls) -> Tolerance:
        """Moves, comparisons and whole numbers: bit for bit (but -0 equals 0)."""
        return cls("exact")

    @classmethod
    def rounded(cls, *, half: bool = False) -> Tolerance:
        """A few correctly rounded operations: 4 units in the last place."""
        if half:
            return cls("rounded f16", ulps=_F16_ULPS, atol=_F16_TINY, half=True)
        return cls("rounded", ulps=_F32_ULPS, atol=_F32_TINY)

    @classmethod
    def transcendental(cls, *, half: bool = False) -> Tolerance:
        """Functions that devices approximate."""
        if half:
            return cls("transcendental f16", rtol=2.0**-8, atol=2.0**-10, half=True)
        return cls("transcendental", rtol=2e-5, atol=2e-6)

    @classmethod
    def accumulate(cls, n: int, *, half: bool = False) -> Tolerance:
        """Sums of ``n`` products in any order, accumulated in f32."""
        if half:
            return cls(f"accumulate({n}) f16", nmse=5e-5 * max(1.0, n / 4096), half=True)
        return cls(f"accumulate({n})", nmse=1e-7 * max(1.0, n / 4096))

    @classmethod
    def quantized(cls, step: float = 1.0) -> Tolerance:
        """At most one step; ``step`` is the scale where the values are real numbers."""
        return cls("quantized", atol=step * (1 + 1e-6))

    def scaled(self, factor: float) -> Tolerance:
        """The same class, looser by ``factor`` (a backend's profile may ask, with a reason)."""
        return attrs.evolve(
            self,
            name=f"{self.name} x{factor:g}",
            ulps=int(self.ulps * factor),
            rtol=self.rtol * factor,
            atol=self.atol * factor,
            nmse=self.nmse * factor**2,
        )

    def mismatch(self, got: npt.ArrayLike, expected: npt.ArrayLike) -> str | None:
        """What is wrong with ``got``, None where it is close enough.

        The text names the worst element: its index, what was expected, and what came.
        """
        a, b = np.asarray(got), np.asarray(expected)
        if a.shape != b.shape:
            return f"shape {list(a.shape)}, expected {list(b.shape)}"
        if a.dtype.kind != b.dtype.kind:
            return f"dtype {a.dtype}, expected {b.dtype}"
        if a.size == 0:
            return None
        if a.dtype.kind == "c":  # two numbers each, as they lie
            a, b = (np.stack([x.real, x.imag], -1) for x in (a, b))
        if not (self.ulps or self.rtol or self.atol or self.nmse):
            same = a == b
            if a.dtype.kind == "f":
                same |= np.isnan(a) & np.isnan(b)
            return None if same.all() else self._worst(a, b, ~same * 1.0, "differ")
        x, y = a.astype(np.float64), b.astype(np.float64)
        if self.half:
            x, y = _as_stored_in_f16(x), _as_stored_in_f16(y)
        odd = ~(np.isfinite(x) & np.isfinite(y))
        wrong = odd & ~((x == y) | (np.isnan(x) & np.isnan(y)))
        if wrong.any():
            return self._worst(a, b, wrong * 1.0, "are not finite in one of the two")
        x, y = np.where(odd, 0.0, x), np.where(odd, 0.0, y)
        if self.nmse:
            return self._mean_mismatch(a, b, x, y)
        over = np.abs(x - y) - self._limit(y)
        return self._worst(a, b, over, "are too far off") if (over > 0).any() else None

    def check(self, got: npt.ArrayLike, expected: npt.ArrayLike, what: str = "result") -> None:
        """Assert that ``got`` is close enough.

        Raises:
            AssertionError: it is not; the message names ``what`` and the worst element.
        """
        problem = self.mismatch(got, expected)
        if problem is not None:
            raise AssertionError(f"{what}: {problem}")

    def _limit(self, expected: Array) -> Array:
        limit = self.atol + self.rtol * np.abs(expected)
        if self.ulps:
            kind: Any = np.float16 if self.half else np.float32
            top = float(np.finfo(kind).max)
            one = np.spacing(np.minimum(np.abs(expected), top).astype(kind)).astype(np.float64)
            limit = np.maximum(limit, self.ulps * one)
        return limit

    def _mean_mismatch(self, a: Array, b: Array, x: Array, y: Array) -> str | None:
        error, power = np.mean((x - y) ** 2), np.mean(y**2)
        # An expected result of zeros has no power to compare with.
        power = max(float(power), (_F16_TINY if self.half else _F32_TINY) ** 0.5)
        nmse = float(error) / power
        if nmse > self.nmse:
            summary = f"have a normalised mean square error of {nmse:.3g}, above {self.nmse:.3g}"
            return self._worst(a, b, np.abs(x - y), summary, count=False)
        over = np.abs(x - y) - _OUTLIER * np.sqrt(self.nmse * power)
        return self._worst(a, b, over, "stand out") if (over > 0).any() else None

    def _worst(self, a: Array, b: Array, badness: Array, how: str, *, count: bool = True) -> str:
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(badness)), badness.shape))
        number = f"{int((badness > 0).sum())} of " if count else ""
        return (
            f"{number}{a.size} elements {how} ({self.name}); the worst is at {list(at)}: "
            f"expected {b[at]!r}, got {a[at]!r}"
        )


def _as_stored_in_f16(values: Array) -> Array:
    """Beyond f16's range it is the same infinity; 65504 may come for what rounds to it."""
    huge = np.abs(values) >= _F16_MAX
    return np.asarray(np.where(huge, np.copysign(np.inf, values), values))
