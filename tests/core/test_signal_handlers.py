"""What a signal's handler raises is nobody's fault: it gets through whatever code it came in."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tflgpu.checks.plugin_caller import PluginCaller
from tflgpu.errors import DeviceError, PluginError
from tflgpu.errors.blame import Failed, attempt, of_signal
from tflgpu.ir.dtypes import DType
from tflgpu.ops.foreign import checked_op
from tflgpu.plugins.registry import registry

USED = getattr(signal, "SIGUSR1", signal.SIGTERM)


class _Server:
    """Something with handlers."""

    def method(self, number: int, frame: Any) -> None:
        raise SystemExit(3)

    def __call__(self, *_: object) -> None:
        raise SystemExit(3)

    @staticmethod
    def static(number: int, frame: Any) -> None:  # noqa: ARG004
        raise SystemExit(3)


def _plain(number: int, frame: Any) -> None:
    raise SystemExit(3)


def _deeper(number: int, frame: Any) -> None:
    _raise()


def _raise() -> None:
    raise SystemExit(3)


def _restores(number: int, frame: Any) -> None:
    signal.signal(USED, signal.SIG_DFL)
    raise SystemExit(3)


def _forgets(number: int, frame: Any) -> None:
    del number, frame
    raise SystemExit(3)


def _named(extra: str, number: int, frame: Any) -> None:
    signal.signal(USED, signal.SIG_DFL)
    raise SystemExit(3)


def _nested(number: int, frame: Any) -> None:
    held = frame  # used by the function inside, so that it is kept in another place

    def inner() -> Any:
        return held, frame

    signal.signal(USED, signal.SIG_DFL)
    inner()
    raise SystemExit(3)


HANDLERS: dict[str, Callable[..., Any]] = {
    "function": _plain,
    "lambda": lambda *_: _raise(),
    "deeper": _deeper,
    "restores": _restores,
    "forgets": _forgets,
    "closure": _nested,
    "method": _Server().method,
    "static": _Server.static,
    "object": _Server(),
    "partial": functools.partial(_forgets),
    "partial of a method": functools.partial(_Server().method),
    "partial of an object": functools.partial(_Server()),
    "partial with arguments": functools.partial(_named, "x"),
}


@pytest.fixture(params=HANDLERS)
def handler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each kind of handler, installed."""
    before = signal.signal(USED, HANDLERS[request.param])
    yield
    signal.signal(USED, before)


def _code_of_others(*_: Any, **__: Any) -> Any:
    signal.raise_signal(USED)
    return None


@pytest.mark.usefixtures("handler")
def test_it_gets_through_attempt() -> None:
    with pytest.raises(SystemExit):
        attempt(_code_of_others)


@pytest.mark.usefixtures("handler")
def test_it_gets_through_a_device() -> None:
    with pytest.raises(SystemExit):
        PluginCaller("a device").call("run", _code_of_others)


@pytest.mark.usefixtures("handler")
def test_it_gets_through_an_op() -> None:
    import attrs

    relu = registry().ops()["RELU"]
    op = checked_op(attrs.evolve(relu, reference=_code_of_others), "toy")
    with pytest.raises(SystemExit):
        op.reference(None, [])


def test_other_exits_are_still_faults() -> None:
    """The same exceptions where no handler is on the way, though one is installed."""
    before = signal.signal(USED, _plain)
    try:
        assert isinstance(attempt(_raise), Failed)
        # Called by somebody who is no interpreter: with a number and another frame, or none.
        assert isinstance(attempt(_restores_not, 1, None), Failed)
        with pytest.raises(DeviceError, match="SystemExit"):
            PluginCaller("a device").call("run", _raise)
        relu = registry().ops()["RELU"]
        import attrs

        op = checked_op(attrs.evolve(relu, reference=lambda *_: _raise()), "toy")
        with pytest.raises(PluginError, match="SystemExit"):
            op.reference(None, [])
    finally:
        signal.signal(USED, before)


def _restores_not(number: int, frame: Any) -> None:
    raise SystemExit(3)


def test_an_error_in_an_enumeration_is_no_handler_s() -> None:
    """`signal.SIG_DFL`, which is installed for most signals, is of one."""
    assert isinstance(attempt(DType, "no such type"), Failed)


def test_an_error_without_a_traceback() -> None:
    assert not of_signal(SystemExit(3))


class _Late(ValueError):
    """As a program's own time limit may raise it: of a kind that libraries raise, too."""


@pytest.mark.parametrize("where", ["build", "fold", "reference", "choose"])
def test_a_time_limit_is_no_fault_of_what_it_ends(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that catches what libraries raise does not take a handler's error for theirs."""
    import numpy as np
    import tflgpu
    from tflgpu.devices import choose
    from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
    from tflgpu.tflite.write import write_model

    def late(*_: object) -> None:
        raise _Late("out of time")

    before = signal.signal(USED, late)
    try:
        # Small constants are folded when the model is read, others by a pass.
        size = 50_000 if where == "fold" else 3
        constant = None if where == "reference" else np.ones(size, np.float32)
        model = write_model(
            ModelSpec(
                [TensorSpec("x", (size,)), TensorSpec("c", (size,), data=constant),
                 TensorSpec("y", (size,)), TensorSpec("z", (size,))],
                [OperatorSpec("ABS", {}, (1,), (2,)), OperatorSpec("ADD", {}, (0, 2), (3,))],
                (0, 1) if where == "reference" else (0,), (3,),
            )
        )  # fmt: skip
        if where == "choose":
            monkeypatch.setattr(choose, "_opened", _code_of_others)
            candidate: Any = type("C", (), {"info": None, "label": "toy"})()
            store: Any = type("S", (), {"load": lambda *_: None})()
            monkeypatch.setattr(choose.measured_times, "candidates_key", lambda *_: "")
            fake: Any = type("R", (), {"distribution": lambda *_: ""})()
            candidate.info = type("I", (), {"backend": "toy"})()
            with pytest.raises(_Late):
                choose._by_speed(fake, tflgpu.DelegateOptions(), [candidate] * 2, store, [])
            return
        ops = dict(registry().ops())
        import attrs

        ops["ABS"] = attrs.evolve(ops["ABS"], reference=_code_of_others)
        monkeypatch.setattr(type(registry()), "ops", lambda _: ops)
        if where != "reference":
            delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1)
            interpreter = tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
            with pytest.raises(_Late):
                interpreter.allocate_tensors()
        else:
            interpreter = tflgpu.Interpreter(model_content=model)
            interpreter.allocate_tensors()
            with pytest.raises(_Late):
                interpreter.invoke()
    finally:
        signal.signal(USED, before)
