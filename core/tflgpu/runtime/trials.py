"""Two ways to compile a graph, tried on the device: the faster is kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import attrs

from tflgpu.compiler.compiled import Compiled
from tflgpu.errors import TflgpuError
from tflgpu.runtime.session import Session

_LOG = logging.getLogger("tflgpu")
#: Seconds for which the two are run, and the least and most runs of each.
_BUDGET, _LEAST, _MOST = 0.5, 3, 50


def faster(
    usual: Session,
    compiled: Compiled,
    other: Compiled,
    load: Callable[[Compiled], Session],
    limit: int | None,
) -> Session:
    """The faster of two sessions of one graph, with a sentence about it in its report; the other is
    closed.

    Args:
        usual: Opened.
        compiled: What it was opened from.
        other: Compiled in another way.
        load: Opens that. Where it fails, the usual one stays.
        limit: Bytes that both may take together; None = any number.
    """
    if _kernels(compiled) == _kernels(other):
        return noted(usual, "inference_preference: there are no other kernels to try")
    if limit is not None and _nbytes(compiled) + _nbytes(other) > limit:
        return noted(
            usual,
            "inference_preference: other kernels are not tried, since memory_limit has no room for "
            "both",
        )
    try:
        rival = load(other)
    except TflgpuError as error:
        _LOG.info("tflgpu: joined kernels are not used: %s", str(error))
        return noted(usual, f"inference_preference: other kernels cannot be loaded: {error}")
    try:
        times = _times(usual, rival)
    except BaseException:
        rival.close()
        raise
    winner, loser = (usual, rival) if times[0] <= times[1] else (rival, usual)
    loser.close()
    taken = "usual" if winner is usual else "joined"
    return noted(
        winner,
        f"inference_preference: the {taken} kernels are used, of {times[0] * 1e3:.3g} ms (usual) "
        f"and {times[1] * 1e3:.3g} ms (a 1x1 and a depthwise convolution joined)",
    )


def _times(usual: Session, rival: Session) -> tuple[float, float]:
    """The least seconds of a run of each, by turns, on zeros."""
    found: tuple[list[float], list[float]] = ([], [])
    spent = 0.0
    while len(found[0]) < _LEAST or (spent < _BUDGET and len(found[0]) < _MOST):
        for session, seconds in zip((usual, rival), found, strict=True):
            start = time.perf_counter()
            session.run()
            seconds.append(time.perf_counter() - start)
            spent += seconds[-1]
    for session in (usual, rival):
        session.reset_variables()
    return min(found[0]), min(found[1])


def _kernels(compiled: Compiled) -> list[tuple[str, str]]:
    return [(d.label, d.kernel.name) for plan in compiled.plans for d in plan.dispatches]


def _nbytes(compiled: Compiled) -> int:
    return sum(plan.device_bytes for plan in compiled.plans)


def noted(session: Session, reason: str) -> Session:
    """A session with a sentence more in its report."""
    session.report = attrs.evolve(session.report, choice=(*session.report.choice, reason))
    return session
