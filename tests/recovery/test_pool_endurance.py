"""What `benchmarks.endurance` does for half an hour, for some hundred requests."""

from __future__ import annotations

from benchmarks.endurance import run


def test_nothing_is_lost_while_models_are_replaced() -> None:
    """By three ways to ask, with requests that do not fit and a queue that fills up."""
    outcome = run(
        requests=600, replacements=5, threads=6, pause=0.001, every=0.01, backend="cpu_ref"
    )
    assert not outcome.examples
    assert set(outcome.counts) <= {"answered", "did not fit", "queue full"}
    assert outcome.counts["answered"] > 0
    assert sum(outcome.counts.values()) >= 600
    assert outcome.replacements >= 5
