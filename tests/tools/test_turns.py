"""`race`: who is run when, and which calls count, by a clock that only runs move."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.tools import turns
from tflgpu.tools.contestants import Contestant
from tflgpu.tools.turns import Racer, Settings, race

from tests.running import raising

SETS = [{0: np.float32(n)} for n in range(3)]


class Clock:
    """Seconds that are counted by whoever works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs: list[str] = []


@attrs.define
class Fake:
    """A model whose runs take so many seconds each; the last ones for ever."""

    name: str
    clock: Clock
    seconds: Sequence[float]
    broken_at: int | None = None
    note: str = ""
    run: int = 0
    closed: bool = False
    _held: Array | None = None

    def put(self, inputs: Mapping[int, Array]) -> None:
        self._held = inputs[0]
        self.clock.now += 0.001

    def invoke(self) -> None:
        if self.run == self.broken_at:
            raise UnsupportedError("no more")
        self.clock.now += self.seconds[min(self.run, len(self.seconds) - 1)]
        self.clock.runs.append(self.name)
        self.run += 1

    def take(self) -> list[Array]:
        assert self._held is not None
        self.clock.now += 0.002
        return [2 * self._held]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(turns.time, "perf_counter", lambda: made.now)
    return made


def raced(*fakes: Fake, **settings: float) -> list[Racer]:
    racers = [Racer(Contestant(f.name, "f32", lambda path, batch, f=f: f)) for f in fakes]
    told: list[float] = []
    race(racers, Path("x"), Settings(**settings), SETS, lambda what, share: told.append(share))
    assert told == sorted(told)
    assert all(0 <= share <= 1 for share in told)
    return racers


def test_blocks_take_turns(clock: Clock) -> None:
    a, b = Fake("a", clock, [0.01]), Fake("b", clock, [0.01])
    raced(a, b, duration=0.5, warm_up=0.05)
    opened, warmed = "aaabbb", "aaaabbbb"
    assert "".join(clock.runs) == opened + warmed + "".join(15 * who for who in "abbaab")


def test_the_first_two_of_a_block_do_not_count(clock: Clock) -> None:
    slow_then_fast = [0.01] * 8 + ([0.05] * 2 + [0.01] * 13) * 9
    a, b = Fake("a", clock, slow_then_fast), Fake("b", clock, [0.01])
    racers = raced(a, b, duration=0.5, warm_up=0.06)
    assert max(racers[0].times) == pytest.approx(0.013)
    assert len(racers[0].times) == racers[0].count == 2 * 13


def test_blocks_are_on_one_processor_after_another(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[set[int]] = []
    patched = {
        "sched_getaffinity": lambda thread: {0, 3, 5},
        "sched_setaffinity": lambda thread, cores: places.append(cores),
    }
    for name, function in patched.items():
        monkeypatch.setattr(os, name, function, raising=False)
    (racer,) = raced(Fake("a", clock, [0.01]), duration=0.6, warm_up=0.05)
    assert places == [{0}, {3}, {5}, {0}, {0, 3, 5}]
    assert len(racer.times) == 4 * 13
    places.clear()
    raced(Fake("a", clock, [0.01]), duration=0.6, warm_up=0.05, in_flight=2)
    assert places == [{0, 3, 5}]


def test_alone_on_one_processor_all_count(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {1}, raising=False)
    (racer,) = raced(Fake("a", clock, [0.01]), duration=0.5, warm_up=0.05)
    assert len(racer.times) == racer.count == 45
    assert racer.times == pytest.approx([0.013] * 45)
    assert racer.steps[0] == pytest.approx((0.001, 0.01, 0.002))
    assert racer.seconds == pytest.approx(45 * 0.013)


def test_the_warm_up_takes_its_time(clock: Clock) -> None:
    (racer,) = raced(Fake("a", clock, [0.5] * 9 + [0.01]), duration=0.1, warm_up=3.0)
    assert max(racer.times) == pytest.approx(0.013)


def test_slow_models_have_short_blocks(clock: Clock) -> None:
    (racer,) = raced(Fake("a", clock, [10.0]), duration=1, warm_up=0.1)
    assert racer.count == 3


def test_the_first_run_is_apart(clock: Clock) -> None:
    (racer,) = raced(Fake("a", clock, [5.0, 0.01]), duration=0.1, warm_up=0.1)
    assert racer.first == pytest.approx(5.003)
    assert racer.outputs == [[0], [2], [4]]


@pytest.mark.parametrize("run", [0, 4, 40])
def test_who_fails_is_out(clock: Clock, run: int) -> None:
    a, b = Fake("a", clock, [0.01], broken_at=run), Fake("b", clock, [0.01])
    first, second = raced(a, b, duration=0.5, warm_up=0.05)
    assert first.failure == "no more"
    assert second.failure == ""
    assert second.spent >= 0.5


def test_other_errors_have_their_types(clock: Clock) -> None:
    racer = Racer(Contestant("a", "f32", raising(KeyError("x"))))
    race([racer], Path("x"), Settings(), SETS, lambda what, share: None)
    assert racer.failure == "KeyError: 'x'"


def test_differences_are_the_largest(clock: Clock) -> None:
    (racer,) = raced(Fake("a", clock, [0.01]), duration=0.1, warm_up=0.1)
    expected = [[np.float32(0)], [np.float32(2)], [np.float32(5)]]
    assert racer.gap(expected).max_abs == 1
