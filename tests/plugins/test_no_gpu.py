"""A process without a GPU is told so, once, and how much slower is what it gets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import attrs
import pytest
import tflgpu
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.devices import no_gpu
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.devices.measured_times import MeasuredTimes, default_folder, figures_key
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry

from tests.plugins import third_party_toys as toys
from tests.plugins.default_runs import nothing_left, ran  # noqa: F401
from tests.plugins.third_party_toys import INFO, PlanToy, install, with_methods

SLOW = attrs.evolve(INFO, is_gpu=False)
FAST = DeviceInfo("fast", 0, "Fast kernels", driver="1")


def emulated(self: Any) -> None:
    PlanToy.__init__(self)
    self.info = SLOW


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A device that computes on the CPU, and kernels for the CPU beside it; nothing was said."""
    monkeypatch.setattr(no_gpu, "_said", set())
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TFLGPU_CPU_BACKEND", raising=False)
    found = {"toy": Probe(True, devices=(SLOW,)), "fast": Probe(True, devices=(FAST,))}
    backends = [
        BackendInfo("toy", API_VERSION, rank=50),
        BackendInfo("fast", API_VERSION, rank=-1, cpu_rank=90),
    ]
    install(
        monkeypatch,
        toys.hooks(
            with_methods(PlanToy, __init__=emulated),
            register_backends=lambda: backends,
            probe=lambda backend: found.get(backend),  # noqa: PLW0108  (hooks are functions)
        ),
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.name == "tflgpu.choice"]


def test_a_delegate_that_computes_on_the_cpu_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        tflgpu.GpuDelegate().close()
    (said,) = warnings(caplog)
    assert "no GPU was found" in said
    assert "usually slower than Fast kernels." in said  # no number: nothing was measured
    assert "TFLGPU_BACKEND=cpu" in said
    assert "GpuDelegate(backend='toy')" in said


def test_a_device_that_was_named_does_not(caplog: pytest.LogCaptureFixture) -> None:
    tflgpu.GpuDelegate(backend="toy").close()
    assert warnings(caplog) == []


def test_what_is_advised_is_quiet(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu")
    tflgpu.GpuDelegate().close()
    assert warnings(caplog) == []


def test_where_numpy_is_beside_it_there_is_nothing_faster(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFLGPU_CPU_BACKEND", "cpu_ref")
    tflgpu.GpuDelegate().close()
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("flop", "expected"), [(4e-11, "take 4.0 times as long, measured"), (1e-12, None)]
)
def test_the_ratio_is_of_figures_that_are_kept(
    flop: float, expected: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    options = DelegateOptions()
    store, settings = MeasuredTimes(default_folder()), CpuSide(registry(), options).settings
    for info, its, figure in ((SLOW, "precision f32", flop), (FAST, settings, 1e-11)):
        key = figures_key(info, registry().distribution(info.backend), its)
        store.store(key, [info], [1e-5, 1e-6, figure, 1e-11, 1e-11, 1e-11])
    tflgpu.GpuDelegate().close()
    said = warnings(caplog)
    assert len(said) == (expected is not None)
    assert expected is None or expected in said[0]


def test_a_model_without_a_delegate_says_that_no_gpu_was_found(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFLGPU_CPU_BACKEND", "cpu_ref")
    with caplog.at_level(logging.INFO, "tflgpu"):
        for _ in range(2):
            assert ran().backend == ""
    (said,) = [r for r in caplog.records if "no GPU was found" in r.message]
    assert said.levelname == "INFO"
    assert "models run on the CPU by NumPy" in said.message
