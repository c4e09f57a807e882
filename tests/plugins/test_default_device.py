"""The default delegate's device: one for all interpreters, threads and models, and gone with the
last. The GPU is a third party's toy."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import StateError

from tests.plugins import third_party_toys as toys
from tests.plugins.default_runs import VARIABLE, counted, nothing_left, ran, why  # noqa: F401
from tests.plugins.third_party_toys import (
    WANTED,
    NodeToy,
    PlanToy,
    X,
    install,
)
from tests.running import allocated


@pytest.fixture
def made() -> Any:
    """A class of devices that counts them."""
    return counted(PlanToy)


def ready() -> Any:
    opened = allocated(tflgpu.Interpreter(model_content=toys.model()))
    opened.set_tensor(0, X)
    return opened


def test_interpreters_share_a_device_until_the_last_is_closed(
    monkeypatch: pytest.MonkeyPatch,
    made: Any,
) -> None:
    install(monkeypatch, toys.hooks(made))
    first, second = ready(), ready()
    assert (made.opened, made.closed) == (1, 0)
    first.invoke()
    first.close()
    first.close()
    assert made.closed == 0
    second.invoke()
    np.testing.assert_allclose(second.get_tensor(2), WANTED, rtol=1e-6)
    second.close()
    assert (made.opened, made.closed) == (1, 1)
    ready().close()
    assert (made.opened, made.closed) == (2, 2)


def test_one_that_is_dropped_lets_go_as_well(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    install(monkeypatch, toys.hooks(made))
    for _ in range(3):
        ready().invoke()
    gc.collect()
    assert made.opened == made.closed > 0


def test_a_view_outlives_it(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    install(monkeypatch, toys.hooks(made))
    opened = ready()
    opened.invoke()
    view = opened.tensor(2)()
    opened.close()
    assert made.closed == 1
    np.testing.assert_allclose(view, WANTED, rtol=1e-6)


def test_another_environment_is_another_device(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    install(monkeypatch, toys.hooks(made))
    with ready():
        monkeypatch.setenv("TFLGPU_DEVICE", "toy")
        with ready():
            assert made.opened == 2


def test_threads_share_it_too(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    install(monkeypatch, toys.hooks(made))
    gate, right = threading.Barrier(4), []

    def work() -> None:
        gate.wait()
        for _ in range(3):
            with ready() as opened:
                opened.invoke()
                right.append(np.allclose(opened.get_tensor(2), WANTED, rtol=1e-6))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 12
    assert made.opened == made.closed <= 12


# A fork


def in_child(action: Callable[[], None]) -> int:
    """0 where ``action`` ended well in a forked child."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            action()
        except BaseException as error:  # noqa: BLE001
            os.write(2, f"in the child: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_opens_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(NodeToy)
    install(monkeypatch, toys.hooks(made))
    opened = ready()
    opened.invoke()

    def child() -> None:
        for use in (opened.invoke, lambda: opened.get_tensor(2)):
            with pytest.raises(StateError, match="was opened before this process was forked"):
                use()
        with ready() as another:
            another.invoke()
            np.testing.assert_allclose(another.get_tensor(2), WANTED, rtol=1e-6)
        opened.close()
        assert (made.opened, made.closed) == (2, 1)  # its own, not the parent's

    assert in_child(child) == 0
    np.testing.assert_allclose(opened.get_tensor(2), WANTED, rtol=1e-6)
    opened.close()
    assert (made.opened, made.closed) == (1, 1)


# Model


def test_a_model_has_the_same_default(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    install(monkeypatch, toys.hooks(made))
    with tflgpu.Model(toys.model()) as model, ready():
        (y,) = model(X)
        np.testing.assert_allclose(y, WANTED, rtol=1e-6)
        assert model.report.backend == "toy"
        assert made.opened == 1
    assert made.closed == 1
