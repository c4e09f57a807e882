"""Whether two outcomes are the same, and if not, one sentence that says how they differ."""

from __future__ import annotations

import attrs
import numpy as np
from tflgpu.ir.dtypes import Array

from tests.differential.case import Outcome


@attrs.frozen
class Difference:
    """The first output that differs.

    Attributes:
        kind: "count", "dtype", "shape", "nan", "infinite" or "value".
        sentence: what a reader should know.
        run: which invoke.
        output: which output.
        steps: of whole numbers, the most that two elements differ by.
        got: our output; None where there is none.
        wanted: LiteRT's.
    """

    kind: str
    sentence: str
    run: int = 0
    output: int = 0
    steps: int = 0
    got: Array | None = None
    wanted: Array | None = None


def difference(
    ours: Outcome, theirs: Outcome, spread: list[list[Array]] | None, *, exact: bool, rtol: float
) -> Difference | None:
    """How our outputs differ from LiteRT's, None where they do not.

    Args:
        ours: finished.
        theirs: finished.
        spread: how far rounding errors carry, as `spread.spread` says; None where not known.
        exact: whether the operators only move numbers, so that floats must be the same bits.
        rtol: relative to the largest number of an output, what is allowed without a spread.
    """
    for run, (a, b) in enumerate(zip(ours.outputs, theirs.outputs, strict=False)):
        if len(a) != len(b):
            return Difference("count", f"{len(a)} outputs, LiteRT has {len(b)}", run)
        for output, (got, wanted) in enumerate(zip(a, b, strict=True)):
            known = None if spread is None else spread[run][output]
            found = _one(got, wanted, known, exact, rtol)
            if found is not None:
                where = f"run {run}, output {output}: {found.sentence}"
                return attrs.evolve(found, sentence=where, run=run, output=output)
    return None


def _one(
    got: Array, wanted: Array, spread: Array | None, exact: bool, rtol: float
) -> Difference | None:
    if got.dtype != wanted.dtype:
        return Difference(
            "dtype", f"{got.dtype}, LiteRT has {wanted.dtype}", got=got, wanted=wanted
        )
    if got.shape != wanted.shape:
        sentence = f"shape {list(got.shape)}, LiteRT has {list(wanted.shape)}"
        return Difference("shape", sentence, got=got, wanted=wanted)
    if got.size == 0 or got.dtype == object:
        return None
    if spread is not None and spread.shape != got.shape:
        spread = None
    if got.dtype.kind not in "fc":
        return _whole(got, wanted, spread)
    a, b = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64), wanted
    b = b.astype(a.dtype)
    nan = np.isnan(a) != np.isnan(b)
    if nan.any():
        return _worst("nan", "NaN in one of the two", nan, got, wanted)
    both = np.isnan(a)
    a, b = np.where(both, 0, a), np.where(both, 0, b)
    limit = np.zeros(a.shape)
    if not exact:
        finite = np.abs(b[np.isfinite(b)])
        largest = float(finite.max()) if finite.size else 0.0
        # Numbers below the smallest normal one may be flushed to zero.
        limit = limit + rtol * largest + rtol * np.abs(np.where(np.isfinite(b), b, 0)) + 1.2e-38
    if spread is not None:
        finite_spread = spread[np.isfinite(spread)]
        typical = float(finite_spread.mean()) if finite_spread.size else 0.0
        limit = limit + 8 * np.nan_to_num(spread, nan=0.0, posinf=np.inf) + 8 * typical
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b))
    # Where the last rounding overflows, one of the two is infinite and the other enormous.
    over = (np.isinf(a) != np.isinf(b)) & ~np.isinf(limit)
    if not exact:
        top = float(np.finfo(np.float32).max) * (1 - 4 * rtol)
        over &= ~((np.abs(a) >= top) & (np.abs(b) >= top))
        apart = np.where(
            (np.abs(a) >= top) & (np.abs(b) >= top) & (np.sign(a) == np.sign(b)), 0.0, apart
        )
    if over.any():
        return _worst("infinite", "infinite in one of the two", over, got, wanted)
    wrong = apart > limit
    return _worst("value", "differ", wrong, got, wanted, apart) if wrong.any() else None


def _whole(got: Array, wanted: Array, spread: Array | None) -> Difference | None:
    apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    wrong = got != wanted
    if spread is not None:
        wrong = wrong & (apart > 2 * spread)
    if not wrong.any():
        return None
    found = _worst("value", "differ", wrong, got, wanted, apart)
    return attrs.evolve(found, steps=int(min(apart.max(), 2**31)))


def _worst(
    kind: str, what: str, wrong: Array, got: Array, wanted: Array, apart: Array | None = None
) -> Difference:
    bad = wrong * 1.0 if apart is None else np.where(wrong, np.nan_to_num(apart, posinf=1e300), -1)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), wrong.shape))
    sentence = (
        f"{int(wrong.sum())} of {wrong.size} elements {what}; at {list(at)} ours is "
        f"{got[at]!r}, LiteRT's {wanted[at]!r}"
    )
    return Difference(kind, sentence, got=got, wanted=wanted)
