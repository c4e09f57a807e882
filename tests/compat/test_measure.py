"""Measuring: right devices get a time, wrong ones a reason; times on disk are only a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.contract.device import DeviceInfo
from tflgpu.devices.measure import measure
from tflgpu.devices.measured_times import MeasuredTimes, candidates_key, default_folder
from tflgpu.errors import DeviceError
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry


class Altered:
    """A device whose results are changed on the way."""

    def __init__(self, device: Any, change: Any) -> None:
        self._device, self._change = device, change
        self.alignment, self.caps = device.alignment, device.caps
        self.closed = 0

    def load(self, plan: Any) -> Any:
        outer, recording = self, self._device.load(plan)

        class Recording:
            inputs, outputs = recording.inputs, recording.outputs

            def run(self) -> None:
                recording.run()
                outer._change(recording.outputs[0])

            def close(self) -> None:
                outer.closed += 1
                recording.close()

        return Recording()


@pytest.fixture
def interpreter() -> Any:
    """The kernel interpreter: slow, and right."""
    return registry().open_device("cpu_ref", 1, DelegateOptions())


def test_a_device_that_computes_right_gets_a_time(interpreter: Any) -> None:
    assert 0 < measure(interpreter) < 60


@pytest.mark.needs("opencl")
def test_opencl_gets_a_time() -> None:
    device: Any = registry().open_device("opencl", 0, DelegateOptions())
    assert 0 < measure(device) < 60
    device.close()


def test_a_device_with_small_workgroups(interpreter: Any) -> None:
    interpreter.caps = attrs.evolve(interpreter.caps, max_workgroup=48)
    assert measure(interpreter) > 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e3])
def test_one_wrong_element_is_noticed(interpreter: Any, value: float) -> None:
    def spoil(output: Any) -> None:
        output[517, 3] = value

    device = Altered(interpreter, spoil)
    with pytest.raises(DeviceError, match="its result is wrong"):
        measure(device)  # type: ignore[arg-type]
    assert device.closed == 1


def test_16_bits_are_not_enough(interpreter: Any) -> None:
    """The tolerance tells f32 from a driver that quietly computes in f16."""

    def round_to_f16(output: Any) -> None:
        output[...] = output.astype(np.float16)

    with pytest.raises(DeviceError, match="its result is wrong"):
        measure(Altered(interpreter, round_to_f16))  # type: ignore[arg-type]


DEVICES = (
    DeviceInfo("toy", 0, "Toy", driver="toy 1"),
    DeviceInfo("toy", 1, "Toy", driver="toy 1"),
)
OWNERS = {"toy": "tflgpu"}


class TestRemembered:
    def test_what_was_stored_is_loaded(self, tmp_path: Path) -> None:
        times = MeasuredTimes(tmp_path / "deep" / "er")
        assert times.load("key", 2) is None
        times.store("key", DEVICES, [0.5, 0.25])
        assert times.load("key", 2) == [0.5, 0.25]
        assert times.load("key", 3) is None
        assert [p.name for p in times.path("key").parent.iterdir()] == ["key.json"]

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\xff\xfe",
            b"{",
            b"[" * 100_000,
            b"[0.5, 0.25]",
            b'{"seconds": 3}',
            b'{"seconds": [0.5, -1.0]}',
            b'{"seconds": [0.5, NaN]}',
            b'{"seconds": [0.5, Infinity]}',
            b'{"seconds": [0.5, "1"]}',
            b'{"seconds": [0.5, true]}',
            b'{"seconds": [0.5, 1e300]}',
            b'{"seconds": [0.5, 0.0]}',
            b'{"seconds": [0.5, [0.25]]}',
            b'{"seconds": [0.5, 1e999]}',
            b'{"a":' * 100_000,
        ],
    )
    @pytest.mark.parametrize("digest", ["wrong", "right"])
    def test_a_damaged_file_is_ignored_and_replaced(
        self, tmp_path: Path, content: bytes, digest: str
    ) -> None:
        times = MeasuredTimes(tmp_path)
        if digest == "right":
            DiskCache(tmp_path, ".json").store("key", content)
        else:
            times.path("key").write_bytes(content)
        assert times.load("key", 2) is None
        assert not times.path("key").exists()
        times.store("key", DEVICES, [0.5, 0.25])
        assert times.load("key", 2) == [0.5, 0.25]

    def test_times_of_other_devices_under_this_name(self, tmp_path: Path) -> None:
        times = MeasuredTimes(tmp_path)
        times.store("other", DEVICES, [0.5, 0.25])
        times.path("other").rename(times.path("key"))
        assert times.load("key", 2) is None

    def test_a_folder_that_cannot_be_written_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        times = MeasuredTimes(tmp_path / "file")
        times.store("key", DEVICES, [0.5, 0.25])
        assert times.load("key", 2) is None

    def test_anything_that_could_matter_changes_the_key(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = candidates_key(DEVICES, OWNERS)
        assert key == candidates_key(DEVICES, OWNERS)
        changed = [
            (attrs.evolve(DEVICES[0], driver="toy 2"), DEVICES[1]),
            (attrs.evolve(DEVICES[0], name="Other"), DEVICES[1]),
            DEVICES[:1],
        ]
        keys = {candidates_key(devices, OWNERS) for devices in changed}
        monkeypatch.setattr("tflgpu.devices.measured_times.version", lambda name: "999")
        keys.add(candidates_key(DEVICES, OWNERS))
        monkeypatch.setattr("tflgpu.devices.measured_times.version", lambda name: "1000")
        for machine in ("one", "two"):  # which share a home folder
            monkeypatch.setattr("platform.node", lambda name=machine: name)
            keys.add(candidates_key(DEVICES, OWNERS))
        assert len(keys | {key}) == 7

    def test_the_folder_follows_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
        assert default_folder() == tmp_path / "devices"
