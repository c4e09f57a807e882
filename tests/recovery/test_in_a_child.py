"""Forked while another thread was at it: a child does not wait for a thread that it has not."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu

from tests.recovery import recovery_models as models
from tests.running import allocate_and_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
X = np.full((1, 1024), 3, np.float32)
_PATIENCE = 20  # seconds


def in_a_child(action: Callable[[], Any]) -> str:
    """What an action gives in a child that is forked now."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE)
        try:
            said = f"{action()}"
        except BaseException as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "it waited for ever"
    return said


def held_elsewhere(lock: Any, action: Callable[[], str]) -> str:
    """Do something while another thread has a lock."""
    has_it, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_it.set()
            enough.wait(_PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    has_it.wait(_PATIENCE)
    try:
        return action()
    finally:
        enough.set()
        thread.join()


def test_a_model_that_was_being_called() -> None:
    with tflgpu.Model(models.large(1), cpu_backend="cpu_ref") as model:
        told = held_elsewhere(model._guard, lambda: in_a_child(lambda: model(X)[0][0, 0]))
    assert told == "6.0"


def test_an_interpreter_that_was_being_made_ready() -> None:
    with tflgpu.Interpreter(
        model_content=models.large(1), experimental_delegates=[], cpu_backend="cpu_ref"
    ) as one:

        def run() -> Any:
            allocate_and_run(one, {0: X})
            return one.get_tensor(2)[0, 0]

        assert held_elsewhere(one._opener.lock, lambda: in_a_child(run)) == "6.0"


@pytest.mark.parametrize("freezes", [True, False])
def test_what_a_program_froze_stays_so(freezes: bool) -> None:
    """A fork holds the collector off; in the parent that ends, but for the program's own."""
    gc.collect()  # garbage that is frozen would stay, which later tests would find
    before = gc.get_freeze_count()
    (gc.freeze if freezes else gc.unfreeze)()
    frozen = gc.get_freeze_count()
    try:
        told = int(in_a_child(gc.get_freeze_count))
        assert told > frozen // 2 or not freezes
        assert (gc.get_freeze_count() > frozen // 2) is freezes
    finally:
        (gc.freeze if before else gc.unfreeze)()
