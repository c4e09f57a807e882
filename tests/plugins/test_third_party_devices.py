"""What a third party's device returns or raises: an error that names it, or a part on the CPU with
a reason that does. Both kinds of device, from opening to the recording; what happens after is in
test_third_party_runs.py."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError
from tflgpu.language.caps import DeviceCaps

from tests.plugins import third_party_toys as toys
from tests.plugins.third_party_toys import (
    ERRORS,
    INFO,
    KINDS,
    LOAD,
    WANTED,
    WHO,
    device,
    install,
    read_only,
    run,
    with_recording,
)
from tests.running import raising


def on_cpu(caplog: pytest.LogCaptureFixture, match: str) -> None:
    """The model runs on the CPU, with a reason and a warning."""
    with caplog.at_level(logging.WARNING, "tflgpu"):
        y, report = run()
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    assert report.delegated_nodes == 0
    assert len(report.refusals) == 2
    for refusal in report.refusals:
        assert re.search(match, refusal.reason, re.DOTALL), refusal.reason
    assert any(re.search(match, r.getMessage(), re.DOTALL) for r in caplog.records)


def test_good_ones_work(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(KINDS[kind]))
    y, report = run()
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    assert report.fully_delegated
    assert report.backend == "toy"


# Opening

OPENED: dict[str, tuple[dict[str, Any], str]] = {
    "info of another type": ({"info": "Toy"}, "info is 'Toy', not a DeviceInfo"),
    "info of another backend": ({"info": attrs.evolve(INFO, backend="opencl")}, "not toy"),
    "info of another index": ({"info": attrs.evolve(INFO, index=4)}, "index 4"),
    "info without a name": ({"info": attrs.evolve(INFO, name=None)}, "name None"),
    "caps of another type": ({"caps": {}}, "caps is {}, not a DeviceCaps"),
    "caps with a wrong number": ({"caps": DeviceCaps(max_workgroup=0)}, "max_workgroup 0"),
    "caps with a wrong tuple": ({"caps": DeviceCaps(max_groups=(1, 2))}, "max_groups"),
    "caps with a wrong flag": ({"caps": DeviceCaps(f16_storage="yes")}, "f16_storage 'yes'"),
    "no close": ({"close": None}, "it has no close"),
}


def _opened(changes: dict[str, Any], kind: str) -> Callable[[], Any]:
    made = KINDS[kind]

    def make() -> Any:
        opened = made()
        for name, value in changes.items():
            setattr(opened, name, value)
        return opened

    return make


@pytest.mark.parametrize("fault", OPENED)
def test_a_device_that_is_none_is_not_opened(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changes, match = OPENED[fault]
    install(monkeypatch, toys.hooks(_opened(changes, kind)))
    with pytest.raises(DeviceError, match=f"{WHO}: .*{re.escape(match)}"):
        tflgpu.GpuDelegate(backend="toy")
    with tflgpu.GpuDelegate() as delegate:
        assert delegate.device is None or delegate.device.info.backend != "toy"
        assert any(re.search(WHO, r) and match in r for r in delegate.choice.reasons)


@pytest.mark.parametrize("found", [7, "device", object(), (), True], ids=lambda x: type(x).__name__)
def test_something_else_than_a_device(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(lambda: found))
    with pytest.raises(DeviceError, match=f"{WHO}: it opened a .*which is not a Device"):
        tflgpu.GpuDelegate(backend="toy")


@pytest.mark.parametrize("alignment", [0, -4, 1.5, True, None, "64"], ids=repr)
def test_an_alignment_that_is_none(alignment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(_opened({"alignment": alignment}, "plans")))
    with pytest.raises(DeviceError, match=f"{WHO}: .*alignment"):
        tflgpu.GpuDelegate(backend="toy")


@pytest.mark.parametrize("error", ERRORS)
def test_opening_raises(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(raising(ERRORS[error])))
    with pytest.raises(DeviceError, match=WHO):
        tflgpu.GpuDelegate(backend="toy")


@pytest.mark.parametrize("name", ["info", "caps", "alignment"])
@pytest.mark.parametrize("error", ERRORS)
def test_an_attribute_that_raises(name: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        load = source = allocate = import_buffer = close = lambda self: None
        caps, alignment, info = DeviceCaps(), 64, INFO

    setattr(Broken, name, property(raising(ERRORS[error])))
    install(monkeypatch, toys.hooks(Broken))
    with pytest.raises(DeviceError, match=WHO):
        tflgpu.GpuDelegate(backend="toy")


# Questions


@pytest.mark.parametrize("answer", [True, False, "no", 0, tflgpu.errors], ids=repr)
def test_an_answer_that_is_no_reason(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(device("nodes", supports=lambda self, node, ops: answer)))
    y, report = run()
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    for refusal in report.refusals:
        assert re.match(f"{WHO}: supports answered .*neither None nor", refusal.reason)
    assert len(report.refusals) == 2


@pytest.mark.parametrize("error", ERRORS)
def test_a_question_that_raises(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = raising(ERRORS[error])
    install(monkeypatch, toys.hooks(device("nodes", supports=fails)))
    _, report = run()
    assert [r.op for r in report.refusals] == ["RELU", "TANH"]
    assert all(re.match(f"{WHO}: supports failed on it", r.reason) for r in report.refusals)
    with pytest.raises(tflgpu.errors.UnsupportedError, match=WHO):
        run(allow_fallback=False)


# Loading


@pytest.mark.parametrize("error", ERRORS)
def test_loading_raises(
    kind: str, error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = device(kind, **{LOAD[kind]: raising(ERRORS[error])})
    install(monkeypatch, toys.hooks(made))
    on_cpu(caplog, WHO)
    for options in ({"backend": "toy"}, {"allow_fallback": False}):
        with pytest.raises(DeviceError, match=WHO):
            run(**options)


def _with(name: str, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A recording of which one attribute is what ``value`` makes of the good one."""

    def change(recording: Any) -> Any:
        setattr(recording, name, value(getattr(recording, name)))
        return recording

    return change


def _strided(arrays: Any) -> Any:
    return [np.zeros((a.shape[0], a.shape[1] * 2), a.dtype)[:, ::2] for a in arrays]


LOADED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda r: None, "which is no recording"),
    "a number": (lambda r: 3, "which is no recording"),
    "no run": (_with("run", lambda v: None), "it has no run"),
    "no submit": (_with("submit", lambda v: None), "it has no submit"),
    "no bind": (_with("bind", lambda v: None), "it has no bind"),
    "no profile": (_with("profile", lambda v: None), "it has no profile"),
    "inputs: None": (_with("inputs", lambda v: None), "it has no inputs"),
    "inputs: number": (_with("inputs", lambda v: 4), "inputs is 4"),
    "dispatches: text": (_with("__dict__", lambda v: {**v, "dispatches": "many"}), "'many'"),
    "inputs: read-only": (_with("inputs", read_only), "cannot be written"),
}
for side in ("inputs", "outputs"):
    LOADED |= {
        f"{side}: one too many": (_with(side, lambda v: [*v, v[0].copy()]), f"{side} has 2"),
        f"{side}: none": (_with(side, lambda v: []), f"{side} has 0 arrays, not 1"),
        f"{side}: lists": (_with(side, lambda v: [a.tolist() for a in v]), "is a list"),
        f"{side}: None inside": (_with(side, lambda v: [None]), "is a NoneType"),
        f"{side}: shape": (_with(side, lambda v: [a.T.copy() for a in v]), r"float32\[3, 2\]"),
        f"{side}: flat": (_with(side, lambda v: [a.reshape(-1) for a in v]), r"float32\[6\]"),
        f"{side}: f64": (_with(side, lambda v: [a.astype("f8") for a in v]), "is float64"),
        f"{side}: i32": (_with(side, lambda v: [a.astype("i4") for a in v]), "is int32"),
        f"{side}: byte order": (_with(side, lambda v: [a.astype(">f4") for a in v]), "is >f4"),
        f"{side}: strided": (_with(side, _strided), "not packed row-major"),
    }


@pytest.mark.parametrize("fault", LOADED)
def test_a_recording_that_is_none(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change, match = LOADED[fault]
    good = KINDS[kind].recording
    made = staticmethod(lambda inner: change(good(inner)))
    install(monkeypatch, toys.hooks(device(kind, recording=made)))
    on_cpu(caplog, f"{WHO}.*{match}")
    with pytest.raises(DeviceError, match=f"{WHO}.*{match}"):
        run(backend="toy")


def test_a_recording_of_other_dispatches_than_the_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change = _with("__dict__", lambda v: {**v, "dispatches": 7})
    made = staticmethod(lambda inner: change(KINDS["plans"].recording(inner)))
    install(monkeypatch, toys.hooks(device("plans", recording=made)))
    on_cpu(caplog, rf"{WHO}.*dispatches is 7, and the plan has \d")


@pytest.mark.parametrize("name", ["inputs", "outputs"])
@pytest.mark.parametrize("error", ERRORS)
def test_arrays_that_raise(
    kind: str, name: str, error: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    fails = property(raising(ERRORS[error]), lambda self, value: None)
    install(monkeypatch, toys.hooks(with_recording(kind, **{name: fails})))
    on_cpu(caplog, WHO)


def test_a_recording_that_is_refused_is_closed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def make(inner: Any) -> Any:
        made = KINDS[kind].recording(inner)
        made.inputs = []
        made.close = lambda: closed.append(True)
        return made

    install(monkeypatch, toys.hooks(device(kind, recording=staticmethod(make))))
    run()
    assert closed == [True]
