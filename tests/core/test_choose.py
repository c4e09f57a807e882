"""Which device is taken: with one GPU, two, none, a broken driver, and when somebody asks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tflgpu.compat import CompatEntry, Verdict
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.devices import choose
from tflgpu.devices.choose import open_best
from tflgpu.devices.measured_times import MeasuredTimes
from tflgpu.errors import DeviceError
from tflgpu.language.caps import DeviceCaps
from tflgpu.options import DelegateOptions
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry

from tests.toy_device import ToyDevice

EMPTY: Mapping[str, str] = {}


@attrs.define
class Opened(ToyDevice):
    """As much of a device as choosing needs."""

    info: DeviceInfo
    caps: DeviceCaps = attrs.field(factory=DeviceCaps)
    closed: bool = False

    def close(self) -> None:
        self.closed = True


class Backend:
    """A plugin with one backend. Devices are given as (name, is_gpu)."""

    def __init__(
        self,
        name: str,
        *devices: tuple[str, bool],
        rank: int = 0,
        broken: tuple[int, ...] = (),
        reason: str = "",
        driver: str = "toy 1.0",
        entries: tuple[CompatEntry, ...] = (),
        hint: str = "",
    ) -> None:
        self.info = BackendInfo(name, API_VERSION, rank=rank, system_hint=hint)
        self.devices = tuple(
            DeviceInfo(name, i, text, is_gpu=gpu, driver=driver)
            for i, (text, gpu) in enumerate(devices)
        )
        self.broken, self.reason, self.entries = broken, reason, entries
        self.opened: list[Opened] = []

    @hookimpl
    def tflgpu_register_backends(self) -> list[BackendInfo]:
        return [self.info]

    @hookimpl
    def tflgpu_probe(self, backend: str) -> Probe | None:
        if backend != self.info.name:
            return None
        return Probe(bool(self.devices), self.reason, self.devices)

    @hookimpl
    def tflgpu_open_device(self, backend: str, index: int, options: DelegateOptions) -> Any:
        if backend != self.info.name:
            return None
        if index in self.broken:
            raise DeviceError(f"{backend} {index} is on fire")
        self.opened.append(Opened(self.devices[index]))
        return self.opened[-1]

    @hookimpl
    def tflgpu_compat_entries(self, backend: str) -> list[CompatEntry]:
        return list(self.entries) if backend == self.info.name else []


GPU = ("Toy GPU", True)
LLVMPIPE = ("llvmpipe (LLVM 15.0.6, 256 bits)", False)
POCL = ("pthread-skylake", False)


@attrs.define
class Stopwatch:
    """Stands in for measuring: seconds, or what goes wrong, by "backend index"."""

    seconds: dict[str, float | BaseException] = attrs.field(factory=dict)
    measured: list[str] = attrs.field(factory=list)

    def __call__(self, device: Any) -> float:
        name = f"{device.info.backend} {device.info.index}"
        self.measured.append(name)
        result = self.seconds[name]
        if isinstance(result, BaseException):
            raise result
        return result


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    made = Stopwatch()
    monkeypatch.setattr(choose, "measure", made)
    return made


@pytest.fixture
def pick(tmp_path: Path) -> Any:
    """``pick(backend, ..., environ=..., device=...)``: the choice, and that it was opened."""

    def call(*backends: Backend, environ: Mapping[str, str] = EMPTY, **options: Any) -> Any:
        registry = Registry.of({b.info.name: b for b in backends})
        assert registry.failures == ()
        times = MeasuredTimes(tmp_path)
        choice, device = open_best(registry, DelegateOptions(**options), environ, times)
        assert (None if device is None else device.info) == choice.device
        still_open = [d.info for b in backends for d in b.opened if not d.closed]
        assert still_open == ([] if device is None else [device.info])
        return choice

    return call


def of(choice: Any) -> str | None:
    return None if choice.device is None else f"{choice.device.backend} {choice.device.index}"


def said(choice: Any) -> str:
    return "\n".join(choice.reasons)


class TestWhatIsThere:
    def test_one_gpu_is_taken_without_measuring(self, pick: Any, watch: Stopwatch) -> None:
        choice = pick(Backend("one", GPU, rank=20))
        assert of(choice) == "one 0"
        assert not choice.explicit
        assert watch.measured == []
        assert "one device 0 (Toy GPU): a GPU, rank 20" in choice.reasons

    def test_a_gpu_beats_software_of_a_higher_rank(self, pick: Any, watch: Stopwatch) -> None:
        choice = pick(Backend("high", LLVMPIPE, POCL, rank=90), Backend("low", GPU, rank=1))
        assert of(choice) == "low 0"
        assert watch.measured == []

    @pytest.mark.parametrize("name", [LLVMPIPE[0], "SwiftShader Device (LLVM 10.0.0)"])
    def test_a_renderer_that_claims_to_be_a_gpu_is_known(self, pick: Any, name: str) -> None:
        choice = pick(Backend("high", (name, True), rank=90), Backend("low", GPU, rank=1))
        assert of(choice) == "low 0"

    def test_software_alone_is_used_and_said_to_be_so(self, pick: Any) -> None:
        choice = pick(Backend("soft", LLVMPIPE))
        assert of(choice) == "soft 0"
        assert "no GPU, but the best there is: it computes on the CPU" in said(choice)

    def test_nothing_means_the_cpu_in_one_clear_sentence(self, pick: Any) -> None:
        choice = pick(Backend("none", reason="no loader found"))
        assert choice.device is None
        assert choice.reasons == (
            "none: not available: no loader found",
            (
                "no device can run kernels, so everything runs on the CPU; `tflgpu devices` says "
                "what each backend needs"
            ),
        )

    def test_a_backend_below_rank_zero_waits_to_be_asked(self, pick: Any) -> None:
        reference = Backend("ref", ("NumPy", False), rank=-100)
        choice = pick(reference)
        assert choice.device is None
        assert "ref: only used when asked for" in choice.reasons
        assert of(pick(reference, backend="ref")) == "ref 0"


class TestTwoGpus:
    TWO = ("Small GPU", True), ("Large GPU", True)

    def test_the_faster_one_is_taken(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"toy 0": 3e-3, "toy 1": 1e-3}
        choice = pick(Backend("toy", *self.TWO))
        assert of(choice) == "toy 1"
        assert "toy device 0 (Small GPU): 3 ms for the test plan" in choice.reasons

    def test_the_faster_backend_of_one_gpu_is_taken(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"cl 0": 3e-3, "vk 0": 1e-3}
        assert of(pick(Backend("cl", GPU, rank=20), Backend("vk", GPU, rank=10))) == "vk 0"

    def test_about_as_fast_goes_by_rank(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"cl 0": 1.05e-3, "vk 0": 1e-3}
        assert of(pick(Backend("cl", GPU, rank=20), Backend("vk", GPU, rank=10))) == "cl 0"

    def test_software_is_not_measured_beside_gpus(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"toy 0": 1e-3, "toy 2": 2e-3}
        pick(Backend("toy", GPU, LLVMPIPE, GPU))
        assert watch.measured == ["toy 0", "toy 2"]

    def test_software_devices_are_measured_among_themselves(
        self, pick: Any, watch: Stopwatch
    ) -> None:
        watch.seconds = {"soft 0": 2e-3, "soft 1": 1e-3}
        assert of(pick(Backend("soft", LLVMPIPE, POCL))) == "soft 1"

    def test_times_are_remembered(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"toy 0": 3e-3, "toy 1": 1e-3}
        pick(Backend("toy", *self.TWO))
        again = pick(Backend("toy", *self.TWO))
        assert of(again) == "toy 1"
        assert watch.measured == ["toy 0", "toy 1"]
        assert "toy device 1 (Large GPU): 1 ms for the test plan, measured before" in again.reasons

    def test_another_driver_is_measured_anew(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"toy 0": 3e-3, "toy 1": 1e-3}
        pick(Backend("toy", *self.TWO, driver="toy 9"))
        watch.seconds = {"toy 0": 1e-3, "toy 1": 3e-3}
        assert of(pick(Backend("toy", *self.TWO, driver="toy 10"))) == "toy 0"
        assert len(watch.measured) == 4

    def test_a_failed_test_plan_comes_last(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"toy 0": DeviceError("its result is wrong"), "toy 1": 1e-3}
        choice = pick(Backend("toy", *self.TWO))
        assert of(choice) == "toy 1"
        assert ("toy device 0 (Small GPU): tried last, it failed the test plan: its result is "
               "wrong") in (
            choice.reasons
        )  # fmt: skip

    def test_a_crash_in_a_backend_is_a_failure_like_any(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"toy 0": ZeroDivisionError("oops"), "toy 1": 1e-3}
        choice = pick(Backend("toy", *self.TWO))
        assert of(choice) == "toy 1"
        assert "oops" in said(choice)

    def test_failures_are_not_remembered(self, pick: Any, watch: Stopwatch, tmp_path: Path) -> None:
        watch.seconds = {"toy 0": DeviceError("out of memory"), "toy 1": 3e-3}
        pick(Backend("toy", *self.TWO))
        assert list(tmp_path.iterdir()) == []
        watch.seconds["toy 0"] = 1e-3
        assert of(pick(Backend("toy", *self.TWO))) == "toy 0"


class TestBrokenDrivers:
    def test_the_next_device_is_taken_with_the_reason(self, pick: Any) -> None:
        choice = pick(Backend("bad", GPU, rank=9, broken=(0,)), Backend("soft", POCL))
        assert of(choice) == "soft 0"
        who = "backend bad (plugin bad from explicit)"
        reason = f"bad device 0 (Toy GPU): cannot be opened: {who}: bad 0 is on fire"
        assert reason in choice.reasons

    def test_broken_among_several_gpus(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"good 0": 1e-3}
        choice = pick(Backend("bad", GPU, rank=9, broken=(0,)), Backend("good", GPU))
        assert of(choice) == "good 0"
        assert re.search("tried last, it failed the test plan: .*bad 0 is on fire", said(choice))

    def test_all_broken_means_the_cpu(self, pick: Any) -> None:
        choice = pick(Backend("bad", GPU, broken=(0,)))
        assert choice.device is None
        assert "bad 0 is on fire" in said(choice)
        assert "so everything runs on the CPU;" in choice.reasons[-1]

    def test_one_that_was_asked_for_is_an_error(self, pick: Any) -> None:
        bad, good = Backend("bad", GPU, broken=(0,)), Backend("good", GPU)
        with pytest.raises(DeviceError, match="bad 0 is on fire"):
            pick(bad, good, backend="bad")
        with pytest.raises(DeviceError, match="bad 0 is on fire"):
            pick(bad, good, environ={"TFLGPU_BACKEND": "bad"})

    def test_another_device_of_the_backend_that_was_asked_for(
        self, pick: Any, watch: Stopwatch
    ) -> None:
        watch.seconds = {"bad 1": 1e-3}
        choice = pick(Backend("bad", GPU, GPU, broken=(0,)), backend="bad")
        assert of(choice) == "bad 1"

    def test_every_device_of_the_backend_that_was_asked_for(
        self, pick: Any, watch: Stopwatch
    ) -> None:
        with pytest.raises(DeviceError, match=r"bad 0 is on fire(.|\n)*bad 1 is on fire"):
            pick(Backend("bad", GPU, GPU, broken=(0, 1)), backend="bad")


class TestAsking:
    A = Backend("a", GPU, LLVMPIPE, rank=9)
    B = Backend("b", ("Other GPU", True), rank=1)

    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        self.A.opened.clear()
        self.B.opened.clear()

    def test_by_options(self, pick: Any) -> None:
        choice = pick(self.A, self.B, backend="b")
        assert of(choice) == "b 0"
        assert choice.explicit
        assert "backend b was asked for by the option backend" in choice.reasons

    def test_by_environment(self, pick: Any) -> None:
        choice = pick(self.A, self.B, environ={"TFLGPU_BACKEND": "b"})
        assert of(choice) == "b 0"
        assert choice.explicit
        assert "backend b was asked for by TFLGPU_BACKEND" in choice.reasons

    def test_options_have_the_last_word(self, pick: Any) -> None:
        assert of(pick(self.A, self.B, environ={"TFLGPU_BACKEND": "b"}, backend="a")) == "a 0"

    @pytest.mark.parametrize(
        ("wanted", "expected"), [("1", "a 1"), ("OTHER", "b 0"), ("llvm", "a 1")]
    )
    def test_a_device(self, pick: Any, wanted: str, expected: str) -> None:
        choice = pick(self.A, self.B, environ={"TFLGPU_DEVICE": wanted})
        assert of(choice) == expected
        assert choice.explicit
        assert "asked for by TFLGPU_DEVICE" in said(choice)

    def test_what_is_not_there_is_an_error_that_says_what_is(self, pick: Any) -> None:
        with pytest.raises(DeviceError, match="known: a, b"):
            pick(self.A, self.B, backend="c")
        with pytest.raises(DeviceError, match="0: Toy GPU, 1: llvmpipe"):
            pick(self.A, self.B, backend="a", device=7)
        with pytest.raises(DeviceError, match="no backend has a device 'abacus'"):
            pick(self.A, self.B, device="abacus")
        with pytest.raises(
            DeviceError, match=r"by the option backend.*cannot run here: no loader found$"
        ):
            pick(Backend("none", reason="no loader found"), backend="none")
        with pytest.raises(DeviceError, match=r"no loader found; it may need: a loader$"):
            pick(Backend("none", reason="no loader found", hint="a loader"), backend="none")

    @pytest.mark.parametrize("name", ["OpenCL", "opncl", "OPENCL"])
    def test_a_misspelt_backend_is_guessed(self, pick: Any, name: str) -> None:
        with pytest.raises(DeviceError, match=r"\(did you mean opencl\?\); known: opencl"):
            pick(Backend("opencl", GPU), backend=name)


class TestDatabase:
    DENIED = (
        CompatEntry(
            name="old-toys",
            reason="drivers before 10 hang",
            device="^Toy",
            driver_version="<10",
            verdict=Verdict.DENY,
        ),
    )

    def test_a_denied_device_is_left_out(self, pick: Any) -> None:
        denied = Backend("toy", GPU, rank=9, driver="toy 9.1", entries=self.DENIED)
        choice = pick(denied, Backend("soft", POCL))
        assert of(choice) == "soft 0"
        assert "toy device 0 (Toy GPU): left out: drivers before 10 hang [old-toys]" in (
            choice.reasons
        )

    def test_a_newer_driver_is_not(self, pick: Any) -> None:
        newer = Backend("toy", GPU, driver="toy 10.0", entries=self.DENIED)
        assert of(pick(newer, Backend("soft", POCL, rank=9))) == "toy 0"

    def test_nothing_but_denied_devices_means_the_cpu(self, pick: Any) -> None:
        choice = pick(Backend("toy", GPU, entries=self.DENIED))
        assert choice.device is None
        assert "drivers before 10 hang" in said(choice)

    def test_who_asks_for_a_denied_device_gets_it_and_is_told(self, pick: Any) -> None:
        for asked in ({"backend": "toy"}, {"device": "toy"}):
            choice = pick(Backend("toy", GPU, entries=self.DENIED), **asked)
            assert of(choice) == "toy 0"
            assert "drivers before 10 hang" in said(choice)

    def test_of_a_backend_that_is_asked_for_denied_devices_come_last(self, pick: Any) -> None:
        toy = Backend("toy", GPU, ("Good GPU", True), entries=self.DENIED)
        assert of(pick(toy, backend="toy")) == "toy 1"


def test_looking_opens_and_measures_nothing(watch: Stopwatch) -> None:
    toy = Backend("toy", GPU, GPU, broken=(0, 1))
    found = choose.find_candidates(Registry.of({"toy": toy}), DelegateOptions(), EMPTY).found
    assert [c.info.index for c in found] == [0, 1]
    assert watch.measured == []


def test_choosing_is_opening_and_closing_again(
    watch: Stopwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TFLGPU_BACKEND", "TFLGPU_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
    watch.seconds = {"toy 0": 2e-3, "toy 1": 1e-3}
    toy = Backend("toy", GPU, GPU)
    choice = choose.default_choice(Registry.of({"toy": toy}))
    assert of(choice) == "toy 1"
    assert toy.opened
    assert all(device.closed for device in toy.opened)


class TestConsidered:
    """What became of each device, as data."""

    def test_times_and_who_is_chosen(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"cl 0": 3e-3, "vk 0": 1e-3}
        for remembered in (False, True):
            backends = Backend("cl", GPU, LLVMPIPE, rank=20), Backend("vk", GPU, rank=10)
            seen = {f"{c.device.backend} {c.device.index}": c for c in pick(*backends).considered}
            assert {n: (c.seconds, c.remembered, c.chosen) for n, c in seen.items()} == {
                "cl 0": (3e-3, remembered, False),
                "vk 0": (1e-3, remembered, True),
                "cl 1": (None, False, False),
            }
        assert seen["cl 0"].why == "not faster than vk device 0 (Toy GPU)"
        assert seen["vk 0"].why == "chosen: a GPU"
        assert seen["cl 1"].why == "not needed: it computes on the CPU, and there is a GPU"

    def test_a_faster_one_of_a_lower_rank(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"cl 0": 1.05e-3, "vk 0": 1e-3}
        seen = pick(Backend("cl", GPU, rank=20), Backend("vk", GPU, rank=10)).considered
        assert [(c.device.backend, c.chosen) for c in seen] == [("cl", True), ("vk", False)]
        assert seen[1].why == (
            "not enough faster than cl device 0 (Toy GPU), whose backend has a higher rank"
        )

    def test_broken_and_denied(self, pick: Any, watch: Stopwatch) -> None:
        watch.seconds = {"good 0": 1e-3, "good 1": DeviceError("its result is wrong")}
        denied = CompatEntry(name="no", reason="it hangs", device="Old", verdict=Verdict.DENY)
        good = Backend("good", GPU, GPU, ("Old GPU", True), entries=(denied,))
        seen = pick(good, Backend("bad", GPU, broken=(0,))).considered
        why = {f"{c.device.backend} {c.device.index}": c.why for c in seen}
        assert why["good 0"] == "chosen: a GPU"
        assert why["good 1"].endswith("failed the test plan: its result is wrong")
        assert "bad 0 is on fire" in why["bad 0"]
        assert why["good 2"] == "left out by the device database"
        assert seen[-1].judgement.reasons == ("it hangs [no]",)

    def test_none_is_chosen(self, pick: Any) -> None:
        (seen,) = pick(Backend("bad", GPU, broken=(0,))).considered
        assert not seen.chosen
        assert seen.why.startswith("cannot be opened: ")


def test_the_cache_folder_is_used(
    watch: Stopwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
    watch.seconds = {"toy 0": 2e-3, "toy 1": 1e-3}
    open_best(Registry.of({"toy": Backend("toy", GPU, GPU)}), DelegateOptions(), EMPTY)
    assert len(list((tmp_path / "devices").glob("*.json"))) == 1
