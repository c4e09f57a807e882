"""Choices among the ways to write a kernel: which counts where something is known of a problem."""

from __future__ import annotations

from typing import Any

from tflgpu.lowering.choices import Choices


def test_a_candidate_that_is_gone_counts_for_nothing() -> None:
    ways = ["short", "longer"]
    for names in ({}, {"p": "gone"}, {"q": "longer"}):
        assert Choices(names).choose(lambda: "p", ways, len, ()) == ("short", "")
    points: dict[str, Any] = {}
    assert Choices({"p": "longer"}, points=points).choose(lambda: "p", ways, len, ()) == (
        "longer",
        "longer",
    )
    assert list(points["p"].candidates.items()) == [("short", 5), ("longer", 6)]
    assert points["p"].chosen == "longer"


def test_a_row_of_a_release_counts_while_the_same_is_predicted() -> None:
    ways = ["short", "longer"]

    def chosen(row: dict[str, str], **names: str) -> str:
        return Choices(names, shipped={"p": row}).choose(lambda: "p", ways, len, ())[1]

    assert chosen({"short": "longer"}) == "longer"
    # Something else is predicted since; the candidate is gone; what was measured here comes first.
    assert chosen({"longest": "longer"}) == chosen({"short": "gone"}) == ""
    assert chosen({"short": "longer"}, p="short") == "short"
