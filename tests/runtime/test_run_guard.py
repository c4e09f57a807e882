"""`RunGuard`: who is inside of something, and what is released when."""

from __future__ import annotations

import threading

import pytest
from tflgpu.backend_kit.run_guard import RunGuard, after_calls
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
