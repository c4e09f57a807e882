"""`RunGuard`: who is inside of something, and what is released when."""

from __future__ import annotations

import threading

import pytest
from tflgpu.backend_kit.run_guard import RunGuard, after_calls, for_this_thread
from tflgpu.conformance.contract.signals import can_plant, handled, interrupted
from tflgpu.errors import StateError

from tests.running import raising


def test_what_is_closed_inside_is_released_at_the_end_of_the_outermost_call() -> None:
    outer, inner, told = RunGuard("this pool"), RunGuard("this model"), []
    with outer:
        with inner:
            after_calls(lambda: inner.close(lambda: told.append("model")))
            after_calls(lambda: outer.close(lambda: told.append("pool")))
        assert told == []
    assert told == ["model", "pool"]
    for guard, what in ((outer, "pool"), (inner, "model")):
        with pytest.raises(StateError, match=f"this {what} is closed"), guard:
            pass
        guard.close(lambda: told.append("again"))
    assert len(told) == 2


def test_one_error_keeps_nothing_else_from_being_released() -> None:
    guard, told = RunGuard("this model"), []

    with pytest.raises(OSError, match="first"), guard:
        after_calls(lambda: guard.close(raising(OSError("first"))))
        after_calls(lambda: told.append("second"))
    assert told == ["second"]
    assert not guard.closed  # so that it can be closed again
    guard.close(lambda: told.append("third"))
    assert told[1:] == ["third"]


def test_another_thread_waits_or_is_refused() -> None:
    waiting, refusing, told = RunGuard("this model"), RunGuard("this interpreter", waits=False), []

    def use() -> None:
        for guard in (refusing, waiting):
            try:
                with guard:
                    told.append("inside")
            except StateError as error:
                told.append(f"{error}")

    with waiting, refusing:
        thread = threading.Thread(target=use, daemon=True)
        thread.start()
        while not told:
            threading.Event().wait(0.001)
        assert "another thread is using this interpreter" in told[0]
        assert not waiting.closed
    thread.join(30)
    assert told[1:] == ["inside"]


def test_all_that_wait_come_in() -> None:
    guard, inside, most = RunGuard("this model"), [0], [0]

    def use() -> None:
        for _ in range(50):
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                threading.Event().wait(1e-5)  # others have their turn, and find it taken
                inside[0] -= 1

    threads = [threading.Thread(target=use, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert most == [1]


def test_waiting_has_an_end() -> None:
    guard, told = RunGuard("this run"), []
    with guard:
        thread = threading.Thread(target=lambda: told.append(guard.enter_within(0.01)))
        thread.start()
        thread.join(30)
        with pytest.raises(StateError, match="from inside its own call"):
            guard.enter_within(0.01)
    assert told == [False]
    assert guard.enter_within(0.01)
    guard.leave()


def test_another_thread_that_works_for_this_one_is_inside_too() -> None:
    guard, told = RunGuard("this model"), []

    def use() -> None:
        after_calls(lambda: told.append("closed"))
        with pytest.raises(StateError, match="from inside its own call"), guard.call:
            pass
        told.append("refused")

    for its in (guard, guard.call):
        told.clear()
        with its:
            thread = threading.Thread(target=for_this_thread(use), daemon=True)
            thread.start()
            thread.join(30)
            assert told == ["refused"]
        assert told == ["refused", "closed"]


@pytest.mark.skipif(not can_plant(), reason="signals can be planted in CPython's main thread only")
def test_a_signal_while_coming_in_leaves_it_free_or_taken() -> None:
    guard = RunGuard("this model")
    last = interrupted(guard.enter).steps
    guard.leave()
    with handled():
        for at in range(1, last + 1):
            interrupted(guard.enter, at)
            if guard.is_held:
                guard.leave()
            assert guard.enter_within(0), at
            guard.leave()
