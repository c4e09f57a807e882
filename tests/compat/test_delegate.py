"""The database and a failing device, as users meet them: through the delegate and the list."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from rich.console import Console
from tflgpu.compat import CompatEntry, Verdict
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.devices import choose
from tflgpu.errors import CompileError, DeviceError, UnsupportedError
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.reason import ReasonCode
from tflgpu.lowering.rule import Unsupported
from tflgpu.options import DelegateOptions
from tflgpu.plugins import registry as plugins
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import first_results
from tests.small_models import small_model, tensor_of

GPU = DeviceInfo("toy", 0, "Toy GPU", is_gpu=True, driver="toy 9.1")


class Interpreting:
    """A device of another name that runs kernels by the interpreter, if it loads them."""

    def __init__(self, info: DeviceInfo, device: Any, fails: Callable[[Any], str]) -> None:
        self._device, self._fails = device, fails
        self.info, self.caps, self.alignment = info, device.caps, device.alignment
        self.source, self.close = device.source, device.close
        self.allocate, self.import_buffer = device.allocate, device.import_buffer

    def load(self, plan: Any, *, guard_bands: bool = False) -> Any:
        problem = self._fails(plan)
        if problem:
            raise CompileError(problem)
        return self._device.load(plan, guard_bands=guard_bands)


class Toy:
    """A plugin with one backend."""

    def __init__(
        self,
        *devices: DeviceInfo,
        entries: tuple[CompatEntry, ...] = (),
        fails: Callable[[Any], str] = lambda plan: "",
        refuses: str = "",
        reference: Any,
    ) -> None:
        self.devices, self.entries, self.fails = devices, entries, fails
        self.refuses, self.reference = refuses, reference
        self.opened = 0
        self.broken: int | None = None

    @hookimpl
    def tflgpu_register_backends(self) -> list[BackendInfo]:
        return [BackendInfo("toy", API_VERSION, rank=5)]

    @hookimpl
    def tflgpu_probe(self, backend: str) -> Probe | None:
        return Probe(bool(self.devices), "no toys", self.devices) if backend == "toy" else None

    @hookimpl
    def tflgpu_open_device(self, backend: str, index: int, options: DelegateOptions) -> Any:
        if backend != "toy":
            return None
        self.opened += 1
        if index == self.broken:
            raise DeviceError(f"toy {index} is on fire")
        device = self.reference.tflgpu_open_device("cpu_ref", 1, options)
        return Interpreting(self.devices[index], device, self.fails)

    @hookimpl
    def tflgpu_compat_entries(self, backend: str) -> list[CompatEntry]:
        return list(self.entries)

    @hookimpl
    def tflgpu_node_support(self, backend: str, node: Any, site: Any) -> Unsupported | None:
        return Unsupported("not today") if node.op == self.refuses else None


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Toy]:
    """``install(device, ..., entries=, fails=)``: a toy backend beside the reference one."""
    reference = next(p.target for p in plugins.registry().plugins if p.name == "cpu_ref")
    for name in ("TFLGPU_BACKEND", "TFLGPU_DEVICE"):
        monkeypatch.delenv(name, raising=False)

    def put(*devices: DeviceInfo, **fields: Any) -> Toy:
        toy = Toy(*devices, reference=reference, **fields)
        made = Registry.of({"toy": toy, "cpu_ref": reference})
        assert made.failures == ()
        monkeypatch.setattr(plugins, "_registry", made)
        return toy

    return put


@pytest.fixture(scope="module")
def model() -> bytes:
    """``y = tanh(x) @ weights``."""
    return small_model(
        {"x": (2, 3), "t": (2, 3), "weights": tensor_of((4, 3), data=WEIGHTS), "y": (2, 4)},
        "t = TANH(x)",
        "y = FULLY_CONNECTED(t, weights)",
    )


X = np.array([[0.5, -1, 2], [0, 1, -3]], np.float32)
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def run(model: bytes, delegate: Any) -> tuple[Any, Any]:
    """The result for X, and the report."""
    with tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter:
        y = first_results(interpreter, {interpreter.get_input_details()[0]["index"]: X})[0]
        return y, interpreter.report


def check(y: Any) -> None:
    """What `model` gives for X."""
    np.testing.assert_allclose(y, np.tanh(X) @ WEIGHTS.T, rtol=1e-5, atol=1e-5)


class TestQuirks:
    NO_F16 = CompatEntry(
        name="toy-f16",
        reason="toys before 10 round wrong",
        device="^Toy",
        driver_version="<10",
        caps={"f16_arithmetic": False, "max_workgroup": 64},
    )

    def test_a_broken_feature_is_not_used(self, install: Any, model: bytes) -> None:
        install(GPU, entries=(self.NO_F16,))
        with tflgpu.GpuDelegate(precision="f16") as delegate:
            assert delegate.device is not None
            assert delegate.device.caps.f16_arithmetic
            assert not delegate.caps.f16_arithmetic
            assert delegate.precision is Precision.F32_F16
            assert any("toys before 10 round wrong" in r for r in delegate.choice.reasons)

    def test_a_repaired_driver_is_used_in_full(self, install: Any) -> None:
        install(attrs.evolve(GPU, driver="toy 10.0"), entries=(self.NO_F16,))
        with tflgpu.GpuDelegate(precision="f16") as delegate:
            assert delegate.precision is Precision.F16

    def test_kernels_keep_to_a_lowered_limit(self, install: Any, model: bytes) -> None:
        sizes: list[int] = []

        def note(plan: Any) -> str:
            sizes.extend(int(np.prod(d.kernel.workgroup)) for d in plan.dispatches)
            return ""

        install(GPU, entries=(self.NO_F16,), fails=note)
        with tflgpu.GpuDelegate() as delegate:
            check(run(model, delegate)[0])
        assert sizes
        assert max(sizes) <= 64


class TestPartsThatDoNotLoad:
    @staticmethod
    def fails(plan: Any) -> str:  # noqa: ARG004
        return "the compiler gave up\nwith a thousand lines"

    def test_run_on_the_cpu_with_the_reason(
        self, install: Any, model: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        install(GPU, fails=self.fails)
        with tflgpu.GpuDelegate() as delegate, caplog.at_level(logging.WARNING, "tflgpu"):
            y, report = run(model, delegate)
        check(y)
        who = "backend toy (plugin toy from explicit)"
        reason = f"toy device 0 (Toy GPU) could not load it: {who}: the compiler gave up"
        assert [(r.node, r.op, r.reason) for r in report.refusals] == [
            (0, "TANH", reason),
            (1, "FULLY_CONNECTED", reason),
        ]
        assert (report.delegated_nodes, report.partitions, report.dispatches) == (0, 0, 0)
        part, whole = [record.getMessage() for record in caplog.records]
        assert "a part of the model runs on the CPU" in part
        assert "with a thousand lines" in part
        assert "0 of 2 operators run on toy" in whole
        assert {r.code for r in report.refusals} == {ReasonCode.DEVICE_FAILED}

    def test_are_an_error_without_fallback(self, install: Any, model: bytes) -> None:
        install(GPU, fails=self.fails)
        with (
            tflgpu.GpuDelegate(allow_fallback=False) as delegate,
            pytest.raises(CompileError, match="the compiler gave up"),
        ):
            run(model, delegate)

    @pytest.mark.parametrize("asked", [{"backend": "toy"}, {"device": 0}])
    def test_are_an_error_of_a_device_that_was_asked_for(
        self, install: Any, model: bytes, asked: Any
    ) -> None:
        install(GPU, fails=self.fails)
        with tflgpu.GpuDelegate(**asked) as delegate, pytest.raises(CompileError):
            run(model, delegate)

    def test_leave_the_other_parts_on_the_device(self, install: Any) -> None:
        """A refused operator divides the graph; the part after it does not load."""
        tensors = [TensorSpec(n, (2, 3)) for n in ("x", "t1", "t2", "y")]
        operators = [
            OperatorSpec("TANH", {}, (0,), (1,)),
            OperatorSpec("EXP", {}, (1,), (2,)),
            OperatorSpec("TANH", {}, (2,), (3,)),
        ]
        install(
            GPU,
            refuses="EXP",
            fails=lambda plan: "no" if any("t2" in i.name for i in plan.inputs) else "",
        )
        with tflgpu.GpuDelegate() as delegate:
            y, report = run(write_model(ModelSpec(tensors, operators, (0,), (3,))), delegate)
        np.testing.assert_allclose(y, np.tanh(np.exp(np.tanh(X))), rtol=1e-5)
        assert [(r.node, r.reason.rsplit(": ", 1)[-1]) for r in report.refusals] == [
            (1, "not today"),
            (2, "no"),
        ]
        assert (report.delegated_nodes, report.partitions) == (1, 1)


def test_no_device_and_no_fallback_is_an_error(install: Any, model: bytes) -> None:
    install()
    check(run(model, tflgpu.GpuDelegate())[0])
    with pytest.raises(
        UnsupportedError, match="allow_fallback is off: toy: not available: no toys"
    ):
        run(model, tflgpu.GpuDelegate(allow_fallback=False))


class TestCompatibilityList:
    DENY = CompatEntry(name="deny", reason="toys hang", verdict=Verdict.DENY, device="^Toy")
    TUNE = CompatEntry(
        name="tune", reason="16 bits are fast and right", options={"precision": "f32_f16"}
    )

    def test_a_gpu(self, install: Any) -> None:
        toy = install(GPU, entries=(self.TUNE,))
        known = tflgpu.CompatibilityList()
        assert known.is_delegate_supported_on_this_device
        assert known.best_options_for_this_device == DelegateOptions(
            backend="toy", device=0, precision=Precision.F32_F16
        )
        assert known.verdict(GPU).reasons == ("16 bits are fast and right [tune]",)
        assert known.devices == (GPU,)
        assert toy.opened == 1  # a list asks once

    def test_the_best_options_are_taken_by_the_delegate(self, install: Any) -> None:
        install(GPU, entries=(self.TUNE,))
        best = tflgpu.CompatibilityList().best_options_for_this_device
        with tflgpu.GpuDelegate(best) as delegate:
            assert delegate.precision is Precision.F32_F16
            assert delegate.choice.device == GPU

    def test_a_denied_gpu(self, install: Any) -> None:
        install(GPU, entries=(self.DENY,))
        known = tflgpu.CompatibilityList()
        assert not known.is_delegate_supported_on_this_device
        assert known.best_options_for_this_device == DelegateOptions()
        assert known.verdict(GPU).denied
        assert known.devices == ()

    def test_software_is_no_reason_for_a_delegate(self, install: Any) -> None:
        install(DeviceInfo("toy", 0, "llvmpipe (LLVM 15)", is_gpu=True))
        known = tflgpu.CompatibilityList()
        assert not known.is_delegate_supported_on_this_device
        assert known.best_options_for_this_device.backend == "toy"

    def test_nothing(self, install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        install()
        assert not tflgpu.CompatibilityList().is_delegate_supported_on_this_device
        monkeypatch.setenv("TFLGPU_BACKEND", "abacus")
        known = tflgpu.CompatibilityList()
        assert not known.is_delegate_supported_on_this_device
        assert known.devices == ()
        assert "no backend 'abacus'" in known.choice.reasons[0]

    def test_a_device_of_an_unknown_backend(self, install: Any) -> None:
        install(GPU)
        with pytest.raises(DeviceError, match="no backend 'abacus'"):
            tflgpu.CompatibilityList().verdict(DeviceInfo("abacus", 0, "beads"))


class TestTheSameAnswer:
    """The list and `GpuDelegate()` agree, whatever was measured, remembered, denied or broken."""

    TWO = DeviceInfo("toy", 0, "Toy GPU", is_gpu=True), DeviceInfo("toy", 1, "Toy 2", is_gpu=True)

    @pytest.fixture(autouse=True)
    def own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))

    @staticmethod
    def times(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[int]:
        measured: list[int] = []

        def measure(device: Any) -> float:
            measured.append(device.info.index)
            return seconds[device.info.index]

        monkeypatch.setattr(choose, "measure", measure)
        return measured

    def agree(self) -> tflgpu.CompatibilityList:
        known = tflgpu.CompatibilityList()
        best = known.best_options_for_this_device
        with tflgpu.GpuDelegate() as plain, tflgpu.GpuDelegate(best) as told:
            assert plain.choice.device == told.choice.device == known.choice.device
            assert (best.backend, best.device) == (
                (None, None) if plain.choice.device is None
                else (plain.choice.device.backend, plain.choice.device.index)
            )  # fmt: skip
        return known

    def test_the_faster_one(self, install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        install(*self.TWO)
        measured = self.times(monkeypatch, 25e-3, 1.5e-3)
        known = self.agree()
        assert known.best_options_for_this_device.device == 1
        assert known.devices == self.TWO[::-1]
        assert measured == [0, 1]  # by the list; the delegate remembers

    def test_what_was_measured_before(self, install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        install(*self.TWO)
        self.times(monkeypatch, 1e-3, 3e-3)
        tflgpu.GpuDelegate().close()
        measured = self.times(monkeypatch, 3e-3, 1e-3)
        assert self.agree().best_options_for_this_device.device == 0
        assert measured == []

    def test_a_new_list_sees_what_is_new(
        self, install: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        toy = install(self.TWO[0])
        self.times(monkeypatch, 3e-3, 1e-3)
        old = self.agree()
        toy.devices = self.TWO  # plugged in
        assert self.agree().best_options_for_this_device.device == 1
        assert old.best_options_for_this_device.device == 0
        for file in (tmp_path / "devices").iterdir():
            file.unlink()
        self.times(monkeypatch, 1e-3, 3e-3)
        assert self.agree().best_options_for_this_device.device == 0
        toy.devices = ()
        assert not self.agree().is_delegate_supported_on_this_device

    def test_the_environment(self, install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        install(*self.TWO)
        self.times(monkeypatch, 1e-3, 3e-3)
        monkeypatch.setenv("TFLGPU_DEVICE", "Toy 2")
        assert self.agree().best_options_for_this_device.device == 1

    def test_a_device_that_does_not_open(
        self, install: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        toy = install(*self.TWO)
        self.times(monkeypatch, 1e-3, 3e-3)
        toy.broken = 0
        known = self.agree()
        assert known.best_options_for_this_device.device == 1
        assert "toy 0 is on fire" in str(known.explain())

    def test_explained(self, install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        note = CompatEntry(name="slow", reason="toys are slow", source="a toy shop", device="Toy 2")
        install(*self.TWO, entries=(note,))
        self.times(monkeypatch, 1e-3, 3e-3)
        found = tflgpu.CompatibilityList().explain()
        assert found.chosen is not None
        assert found.chosen.device == self.TWO[0]
        text = str(found)
        assert "* toy device 0: Toy GPU" in text
        assert "test plan: 1 ms\n    database: no entry\n    chosen: a GPU" in text
        assert "test plan: 3 ms\n    database: toys are slow [slow]; a toy shop\n" in text
        assert "not faster than toy device 0 (Toy GPU)" in text
        assert "cpu_ref: only used when asked for" in text
        console = Console(width=200, file=io.StringIO())
        console.print(found)
        table = console.file.getvalue()  # type: ignore[attr-defined]
        for word in (
            "toy 0",
            "1 ms",
            "chosen: a GPU",
            "toys are slow [slow]",
            "cpu_ref: only used",
        ):
            assert word in table
        console.print(tflgpu.CompatibilityList().explain())
        assert "1 ms, measured before" in console.file.getvalue()  # type: ignore[attr-defined]

    def test_nothing_to_explain(self, install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        install()
        monkeypatch.setenv("TFLGPU_BACKEND", "abacus")
        found = tflgpu.CompatibilityList().explain()
        assert found.chosen is None
        assert "no backend 'abacus'" in str(found)


def test_a_plugin_whose_entry_is_wrong_is_named() -> None:
    class Bad:
        @hookimpl
        def tflgpu_compat_entries(self, backend: str) -> Any:
            return [CompatEntry(name="x", reason="y", driver_version="ten")]

    class Worse:
        @hookimpl
        def tflgpu_compat_entries(self, backend: str) -> Any:
            return ["deny everything"]

    reference = next(p.target for p in plugins.registry().plugins if p.name == "cpu_ref")
    made = Registry.of({"bad": Bad(), "worse": Worse(), "cpu_ref": reference})
    assert {f.name: f.error for f in made.failures} == {
        "bad": "PluginError: 'ten' in 'ten' is no bound such as '>=24.0.1'",
        "worse": "tflgpu_compat_entries gave a str, not a CompatEntry",
    }
    assert list(made.backends) == ["cpu_ref"]
