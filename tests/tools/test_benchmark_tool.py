"""`tflgpu.benchmark`: what it measures of a small model on NumPy's devices and beside LiteRT."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.plugins.registry import Registry
from tflgpu.tools.measurement import to_csv

from tests.small_models import small_model

DIGITS = Path(tflgpu.__file__).parent / "demo" / "digits.tflite"
#: Of two operators, since the kernel interpreter takes long for those of the digits.
SMALL = small_model(dict.fromkeys("xyz", (2, 3)), "y = NEG(x)", "z = TANH(y)")
#: The kernel interpreter, as short as it can be.
SHORT: dict[str, Any] = {
    "backend": "cpu_ref", "device": 1, "starts": False, "duration": 1e-3, "warm_up": 1e-3,
}  # fmt: skip


def test_what_is_measured() -> None:
    found = tflgpu.benchmark(DIGITS, **SHORT)
    (m,) = found.measurements
    assert (m.runtime, m.precision, m.backend, m.failure) == (
        "tflgpu cpu_ref", "f32", "cpu_ref", "",
    )  # fmt: skip
    assert m.device == "NumPy kernel interpreter"
    assert "7 of 7 operators on NumPy kernel interpreter" in m.note
    assert m.latency is not None
    assert m.latency.count == len(m.times) >= 3
    assert m.latency.min <= m.latency.p50 <= m.latency.p95 <= m.latency.max == max(m.times)
    assert m.stages is not None
    assert m.stages.inputs + m.stages.invoke + m.stages.outputs <= m.latency.max
    assert m.rate == pytest.approx(1e3 * len(m.times) / sum(m.times))
    assert m.first is not None
    assert m.dispatches == 6
    assert m.memory is not None
    assert m.memory.weights == 14416
    assert found.fully_delegated
    assert found.model == str(DIGITS)
    assert found.versions["tflgpu"] == tflgpu.__version__
    assert found.machine["cpus"] >= 1
    assert str(found).splitlines()[1].startswith("tflgpu cpu_ref f32: ")


def test_what_is_not_told_is_none() -> None:
    (m,) = tflgpu.benchmark(DIGITS, backend="cpu_ref", device=0, starts=False, duration=1e-3,
                            warm_up=1e-3).measurements  # fmt: skip
    assert m.stages is not None
    assert m.stages.device is None
    assert (m.stages.copies.upload, m.stages.copies.download) == (None, None)
    assert m.stages.copies.reason == "nothing is copied: the device works in the host's memory"
    assert m.memory is None  # the references run operators
    assert (m.cold, m.kept) == (None, None)
    assert m.energy is not None
    if m.energy.gpu is None:
        assert "energy of NumPy op references" in m.energy.reasons[0]


def test_litert_takes_turns_and_judges() -> None:
    pytest.importorskip("ai_edge_litert")
    found = tflgpu.benchmark(SMALL, compare=["litert"], **SHORT)
    own, litert = found.measurements
    assert own.error is not None
    assert 0 < own.error.rms < 1e-5
    assert litert.runtime == "LiteRT CPU"
    assert litert.error is not None
    assert litert.error.max_abs == 0
    assert litert.latency is not None
    assert litert.report is None
    assert found.fully_delegated


def test_without_litert_no_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ai_edge_litert.interpreter", None)
    found = tflgpu.benchmark(SMALL, **SHORT)
    assert found.model == "bytes"
    assert found.measurements[0].error is None
    assert found.notes == ("no error is told, since ai-edge-litert is not installed",)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"batch": 3}, "one call at a time, 3 items a run"),
        ({"in_flight": 2}, "one thread, 2 runs in flight"),
        ({"threads": 2}, "2 threads, 2 copies of the model"),
        ({"threads": 3, "in_flight": 1, "batch": 2},
         "3 threads, 1 copies of the model, up to 2 items gathered"),
        ({"hint": "latency"}, "one call at a time"),
        ({"hint": "throughput"}, "one thread, 3 runs in flight, 8 items a run"),
        ({"hint": "throughput", "batch": 1, "in_flight": 2}, "one thread, 2 runs in flight"),
    ],
)  # fmt: skip
def test_how_it_is_called(asked: dict[str, Any], said: str) -> None:
    found = tflgpu.benchmark(DIGITS, **{**SHORT, "device": 0}, **asked)
    (m,) = found.measurements
    assert str(found.settings) == said
    assert m.rate is not None
    assert m.rate > 0
    assert (m.stages is None) == found.settings.concurrent
    assert m.error is None or m.error.rms < 1e-5


def test_a_hint_gives_way_where_a_batch_cannot_be() -> None:
    content = small_model(
        {"x": (1, 4), "axes": np.zeros(1, np.int32), "y": (4,)}, "y = SUM(x, axes)"
    )
    found = tflgpu.benchmark(content, **{**SHORT, "device": 0}, hint="throughput")
    assert str(found.settings) == "one thread, 3 runs in flight"
    assert found.notes[0].startswith("one item a run: ")
    with pytest.raises(tflgpu.UnsupportedError):
        tflgpu.benchmark(content, **SHORT, batch=8)


def test_starts_are_in_processes_of_their_own() -> None:
    options = {**SHORT, "starts": True}
    (m,) = tflgpu.benchmark(SMALL, **options).measurements
    assert m.cold is not None
    assert m.kept is not None
    for start in (m.cold, m.kept):
        assert start.device is not None
        assert min(start.device, start.init, start.first) > 0


def test_a_start_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("tflgpu.tools.start._LONGEST", 1e-3)
    (m,) = tflgpu.benchmark(SMALL, **{**SHORT, "starts": True}).measurements
    assert m.cold is None
    assert "a start took more than 0.001 s" in m.warnings


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"hint": "speed"}, "hint is one of latency, throughput, not 'speed'"),
        ({"compare": ["torch"]}, "compare takes litert, litert-gpu, not 'torch'"),
        ({"batch": 0}, "batch is a whole number of at least 1, not 0"),
        ({"threads": 1.5}, "threads is a whole number of at least 1, not 1.5"),
        ({"duration": 0}, "duration is a number of seconds above 0, not 0"),
        ({"warm_up": "long"}, "warm_up is a number of seconds above 0, not 'long'"),
    ],
)
def test_mistakes(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(tflgpu.OptionError, match=message):
        tflgpu.benchmark(DIGITS, **{**SHORT, **asked})


def test_a_backend_that_is_not_there() -> None:
    with pytest.raises(tflgpu.DeviceError, match="there is no backend 'abacus'"):
        tflgpu.benchmark(DIGITS, backend="abacus", starts=False)


def test_all_of_a_backend_that_is_not_there_are_failures() -> None:
    found = tflgpu.benchmark(DIGITS, backend="abacus", all=True, starts=False)
    assert [m.precision for m in found.measurements] == ["f32", "f32_f16", "f16"]
    assert all("there is no backend 'abacus'" in m.failure for m in found.measurements)
    assert not found.fully_delegated


def test_all_of_a_backend() -> None:
    found = tflgpu.benchmark(DIGITS, all=True, **{**SHORT, "device": 0})
    assert [str(m).split(":")[0] for m in found.measurements] == [
        "tflgpu cpu_ref f32", "tflgpu cpu_ref f32_f16", "tflgpu cpu_ref f16",
    ]  # fmt: skip


def test_forms_for_other_programs() -> None:
    found = tflgpu.benchmark(SMALL, **SHORT)
    as_json = json.loads(json.dumps(found.to_dict()))
    assert as_json["measurements"][0]["latency"]["p50"] == found.measurements[0].latency.p50
    assert "times" not in as_json["measurements"][0]
    (row,) = csv.DictReader(io.StringIO(to_csv([found])))
    assert row["runtime"] == "tflgpu cpu_ref"
    assert float(row["latency_p50"]) == found.measurements[0].latency.p50
    assert row["settings_batch"] == "1"
    assert row["cold"] == ""


def test_what_is_left_to_the_cpu_is_not_full_delegation() -> None:
    found = tflgpu.benchmark(SMALL, **SHORT, exclude=(0,))
    assert not found.fully_delegated


def test_progress() -> None:
    told: list[tuple[str, float]] = []
    tflgpu.benchmark(SMALL, **SHORT, progress=lambda what, share: told.append((what, share)))
    whats = list(dict.fromkeys(what for what, _ in told))
    assert whats == [
        "opening tflgpu cpu_ref f32", "warming up tflgpu cpu_ref f32", "measuring",
        "energy of tflgpu cpu_ref f32",
    ]  # fmt: skip
    assert told[-1][1] == 1


def test_only_what_takes_part_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No drivers of other backends are loaded, and nothing runs for its energy where none is
    asked for."""
    probe, asked = Registry.probe, set[str]()

    def noted(self: Registry, backend: str, **more: Any) -> Any:
        asked.add(backend)
        return probe(self, backend, **more)

    monkeypatch.setattr(Registry, "probe", noted)
    told: list[str] = []
    found = tflgpu.benchmark(
        SMALL, **SHORT, energy=False, progress=lambda what, share: told.append(what)
    )
    assert asked == {"cpu_ref"}
    assert {device["backend"] for device in found.machine["devices"]} == {"cpu_ref"}
    assert found.measurements[0].energy is None
    assert told[-1] == "measuring"
