"""How long calls took, as a few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

#: A p95 that is so much above the median is worth a warning.
_WIDE = 0.2
#: So are two halves of a measurement whose medians are so far apart.
_DRIFT = 0.05
#: Calls below which halves are not compared.
_FEW = 20


@attrs.frozen
class LatencySpread:
    """Times of calls, in milliseconds.

    Attributes:
        count: How many calls.
        min, p50, p95, p99, max: The fastest call, quantiles, the slowest call.
        mean: Of all calls.
        deviation: Their standard deviation.
        drift: The median of the second half of the calls over that of the first half, less 1.
    """

    count: int
    min: float
    p50: float
    p95: float
    p99: float
    max: float
    mean: float
    deviation: float
    drift: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> LatencySpread:
        """Of the times of calls in seconds, at least one, in their order."""
        times = 1e3 * np.asarray(seconds)
        p50, p95, p99 = (float(q) for q in np.quantile(times, (0.5, 0.95, 0.99)))
        half = len(times) // 2
        drift = 0.0
        if len(times) >= _FEW:
            drift = float(np.median(times[half:]) / np.median(times[:half])) - 1
        fastest, slowest = float(times.min()), float(times.max())
        mean, deviation = float(times.mean()), float(times.std())
        return cls(len(times), fastest, p50, p95, p99, slowest, mean, deviation, drift)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the numbers should not be relied on; empty where they may be."""
        found = []
        if self.p95 > (1 + _WIDE) * self.p50:
            found.append(
                f"the spread is large: one call in 20 takes {self.p95 / self.p50 - 1:.0%} longer "
                "than the median; other programs may be using the machine"
            )
        if abs(self.drift) > _DRIFT:
            found.append(
                f"later calls took {self.drift:+.0%} against earlier ones: the clocks were still "
                "changing, or the load of the machine did; warm up for longer, or measure again"
            )
        return tuple(found)
