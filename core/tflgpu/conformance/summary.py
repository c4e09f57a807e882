"""What is said of a run of the suite in the end: first how much it covered, then why not more."""

from __future__ import annotations

from collections.abc import Iterator

from tflgpu.conformance.report import Report, ran_of

#: Reasons of a level that are written out; ``support.json`` has all.
_MOST_REASONS = 12


def summary(report: Report) -> Iterator[tuple[str, bool]]:
    """Lines, and whether one is about something that a glance at the colours would miss."""
    counts = report.counts
    if not counts:
        yield "nothing ran", True
        return
    ran, cases = ran_of(counts), sum(counts.values())
    if not report.levels.keys().isdisjoint(("ops", "generated")):
        share = f"{len(report.ran)} of {len(report.ops)} ops"
        yield f"coverage: {share} ran, in {_share(ran, cases)} cases", 2 * ran < cases
    else:
        yield f"coverage: {_share(ran, cases)} cases ran, none of them an op's", True
    yield ", ".join(f"{n} {status}" for status, n in sorted(counts.items())), False
    for level, of_level in report.levels.items():
        done, there = ran_of(of_level), sum(of_level.values())
        rest = [f"{of_level[s]} {s}" for s in ("refused", "inapplicable") if of_level[s]]
        more = f" ({', '.join(rest)})" if rest else ""
        if done:
            yield f"level {level}: {done} of {there} cases ran{more}", False
        else:
            yield f"level {level}: NOTHING RAN of {there} cases{more}", True
    for op, reason in sorted(report.hollow.items()):
        yield f"{op} has kernels here, and every case of it was refused: {reason}", True
    if report.tolerance_scale != 1:
        yield f"tolerances were widened by {report.tolerance_scale:g}", True
    for level in report.levels:
        reasons = report.reasons(level).most_common()
        for reason, count in reasons[:_MOST_REASONS]:
            yield f"not run, level {level}, {count} cases: {reason}", False
        if len(reasons) > _MOST_REASONS:
            left = reasons[_MOST_REASONS:]
            text = f"{sum(n for _, n in left)} cases for {len(left)} more reasons"
            yield f"not run, level {level}, {text}: --tflgpu-report writes all of them", False


def _share(some: int, of: int) -> str:
    return f"{some} of {of} ({100 * some / of:.1f} %)"
