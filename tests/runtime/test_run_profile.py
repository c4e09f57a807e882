"""`Interpreter.profile`: what it says adds up, names everything, and is never made up."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.machines import Limits
from tflgpu.compiler.plan import ArenaRef, ConstRef, InputRef, OutputRef, PlannedDispatch
from tflgpu.compiler.report_values import Place
from tflgpu.conformance.plans import affine, chain, io, plan
from tflgpu.contract.device import DispatchTime
from tflgpu.demo import load_digits
from tflgpu.devices import limits
from tflgpu.devices.limits import limits_of, measure_limits
from tflgpu.devices.measured_times import MeasuredTimes
from tflgpu.errors import DeviceError, NotAllocatedError, OptionError, StateError
from tflgpu.lowering.reason import Unsupported
from tflgpu.plugins.registry import registry
from tflgpu.runtime.profile import DispatchProfile, PartProfile, RunProfile
from tflgpu.runtime.profiling import flops_of
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu_cpu_ref.recording import CpuRefRecording

from tests.running import allocated, raising, set_and_run
from tests.small_models import small_model, tensor_of

KERNELS = {"backend": "cpu_ref", "device": 1}
NODES = {"backend": "cpu_ref", "device": 0}
STRIDES = {"stride_h": 1, "stride_w": 1, "padding": 0}


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of this machine are asked where it is said."""
    monkeypatch.setattr(limits, "limits_of", lambda device, owner: Limits(1e9, 1e10))


def profiled(model: bytes, runs: int = 3, **options: Any) -> RunProfile:
    with tflgpu.GpuDelegate(**options) as delegate:
        interpreter = tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
        with interpreter:
            interpreter.allocate_tensors()
            return interpreter.profile(runs)


def three() -> bytes:
    """CONV_2D 3x3 of 5x7x3 to 4 channels, MAX_POOL_2D, RESHAPE."""
    weights, bias = np.ones((4, 3, 3, 3), np.float32), np.zeros(4, np.float32)
    pool = {**STRIDES, "filter_height": 2, "filter_width": 2}
    return small_model(
        {
            "x": (1, 5, 7, 3),
            "weights": tensor_of(weights.shape, data=weights),
            "bias": tensor_of(bias.shape, data=bias),
            "middle": (1, 5, 7, 4),
            "pooled": (1, 5, 7, 4),
            "y": (1, 140),
        },
        ("middle = CONV_2D(x, weights, bias)", STRIDES),
        ("pooled = MAX_POOL_2D(middle)", pool),
        ("y = RESHAPE(pooled)", {"new_shape": (1, 140)}),
    )


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
def test_the_parts_are_the_run(backend: str) -> None:
    options = KERNELS if backend == "cpu_ref" else {"backend": backend}
    found = profiled(load_digits().model, **options)
    if found.no_times:
        assert not found.dispatches
        pytest.skip(found.no_times)
    assert found.report.fully_delegated
    assert len(found.dispatches) == found.report.dispatches
    on_device = {o.node for o in found.report.operators if o.place is Place.DEVICE}
    named = {o for d in found.dispatches for o in d.operators}
    assert named <= on_device
    assert {o.op for o in found.report.operators if o.node not in named} == {"RESHAPE"}
    assert all(d.seconds > 0 and d.nbytes > 0 and d.kernel for d in found.dispatches)
    names = {o.node: o.op for o in found.report.operators}
    assert all(d.ops == tuple(names[o] for o in d.operators) for d in found.dispatches)
    assert sum(found.steps.values()) == pytest.approx(found.seconds, rel=0.05)
    assert sum(d.seconds for d in found.dispatches) <= found.seconds
    assert sum(found.by_operator.values()) == pytest.approx(found.steps["dispatches"])
    assert found.plain > 0
    assert found.runs == 3


def test_what_runs_nodes_says_that_it_has_no_times() -> None:
    found = profiled(three(), **NODES)
    assert found.dispatches == []
    assert found.no_times == "NumPy runs operators as they are, and times none of them"
    assert found.limits is None
    assert found.no_limits == "no part of the model runs kernels on a device"
    assert set(found.steps) == {"parts on the device without timers", "host, outside of parts"}
    assert found.by_operator == {}


def test_what_a_device_without_timers_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def untimed(self: CpuRefRecording) -> Unsupported:
        self._run()
        return Unsupported("its clock was left at home")

    monkeypatch.setattr(CpuRefRecording, "_profile", untimed)
    found = profiled(three(), **KERNELS)
    assert found.no_times == "its clock was left at home"
    assert "dispatches" not in found.steps
    monkeypatch.setattr(CpuRefRecording, "_profile", lambda self: (self._run(), ())[1])
    assert profiled(three(), **KERNELS).no_times == "the device has no timers"


def test_the_cpu_parts_are_told_with_their_operators() -> None:
    found = profiled(three(), exclude="MAX_POOL_2D", **KERNELS)
    (on_cpu,) = [part for part in found.parts if part.on_cpu]
    assert (on_cpu.operators, on_cpu.ops) == ((1,), ("MAX_POOL_2D",))
    assert on_cpu.runs_on == "NumPy references"
    assert found.steps["parts on the CPU"] == on_cpu.seconds
    starts = [part.start for part in found.parts]
    assert starts == sorted(starts)
    assert found.by_operator[1] == on_cpu.seconds
    assert sum(found.steps.values()) == pytest.approx(found.seconds, rel=0.05)


def test_all_on_the_cpu() -> None:
    with allocated(
        tflgpu.Interpreter(model_content=three(), experimental_delegates=[])
    ) as interpreter:
        found = interpreter.profile(1)
    assert found.no_times == ""
    assert [part.operators for part in found.parts] == [(0, 1, 2)]
    assert set(found.steps) == {"parts on the CPU", "host, outside of parts"}


def test_operations_are_those_of_the_file() -> None:
    found = profiled(three(), **KERNELS)
    graph = build_graph(read_model(three()), 0, registry().ops())
    flops = flops_of(graph, registry().ops())
    assert flops[0] == 2 * 5 * 7 * 4 * 27
    assert 2 not in flops  # RESHAPE only moves
    assert sum(d.flops for d in found.dispatches if 0 in d.operators) == pytest.approx(flops[0])


def test_a_kernel_of_several_operators_is_divided_by_their_operations() -> None:
    both = DispatchProfile("#0 CONV_2D", "k", (0, 1), ("CONV_2D", "RELU"), 4e-3)
    moves = DispatchProfile("#2 PACK", "k", (2, 3), ("PACK", "RESHAPE"), 2e-3)
    part = PartProfile("", 0, False, (0, 1, 2, 3), (), "", 0.0, 7e-3, (both, moves))
    inside = attrs.evolve(part, subgraph=None)
    report = tflgpu.DelegationReport(4, 4)
    found = RunProfile(report, 1e-2, 1e-2, 1, (part, inside), {0: 300.0, 1: 100.0})
    assert found.by_operator == pytest.approx({0: 3e-3, 1: 1e-3, 2: 1e-3, 3: 1e-3})


def test_clocks_that_disagree_are_not_hidden() -> None:
    """A device that says it took longer than the host waited: the steps are more than the run."""
    slow = DispatchProfile("#0 RELU", "relu", (0,), ("RELU",), 9e-3, 0.0)
    part = PartProfile("", 0, False, (0,), ("RELU",), "", 0.0, 1e-3, (slow,))
    found = RunProfile(tflgpu.DelegationReport(1, 1), 2e-3, 2e-3, 1, (part,))
    assert sum(found.steps.values()) > 1.05 * found.seconds


def test_time_between_dispatches() -> None:
    one, two = (
        DispatchProfile(f"#{i} RELU", "relu", (i,), ("RELU",), 1e-3, start)
        for i, start in enumerate((0.0, 1.5e-3))
    )
    part = PartProfile("", 0, False, (0, 1), (), "", 0.0, 4e-3, (one, two))
    found = RunProfile(tflgpu.DelegationReport(2, 2), 5e-3, 5e-3, 1, (part,))
    assert found.steps == pytest.approx(
        {
            "dispatches": 2e-3,
            "between dispatches": 0.5e-3,
            "submission, copies, waiting": 1.5e-3,
            "host, outside of parts": 1e-3,
        }
    )
    unknown = attrs.evolve(part, dispatches=tuple(attrs.evolve(d, start=None) for d in (one, two)))
    assert "between dispatches" not in attrs.evolve(found, parts=(unknown,)).steps


def test_bytes_of_a_dispatch_are_those_of_its_buffers() -> None:
    refs = (InputRef(0), ConstRef(0), ArenaRef(256, 64), ArenaRef(256, 64), OutputRef(0))
    one = PlannedDispatch(affine(8), (1, 1, 1), refs, "one")
    made = plan([one], [io("x", (8,))], [io("y", (2,))], constants=[np.zeros(3, np.float32)])
    assert made.outline.traffic(one) == 32 + 12 + 64 + 8


def test_state_moves_on_as_by_so_many_runs() -> None:
    def total() -> bytes:
        return small_model(
            {
                "x": (1, 2),
                "kernel": tensor_of((2, 2), data=np.eye(2, dtype=np.float32)),
                "again": tensor_of((2, 2), data=np.eye(2, dtype=np.float32)),
                "bias": tensor_of((2,), data=np.zeros(2, np.float32)),
                "state": tensor_of((1, 2), is_variable=True),
                "y": (1, 2),
            },
            "y = RNN(x, kernel, again, bias, state)",
        )

    with tflgpu.GpuDelegate(**KERNELS) as delegate:
        opened = tflgpu.Interpreter(model_content=total(), experimental_delegates=[delegate])
        with opened:
            opened.allocate_tensors()
            opened.set_tensor(0, np.array([[1, 2]], np.float32))
            opened.profile(2)
            opened.invoke()
            got = opened.get_tensor(5)
    # One, three that warm up, two plain, one for the timers, two timed, and the last.
    assert got.tolist() == [[10.0, 20.0]]


def test_what_cannot_be_profiled() -> None:
    with tflgpu.Interpreter(model_content=three(), experimental_delegates=[]) as interpreter:
        with pytest.raises(NotAllocatedError):
            interpreter.profile()
        interpreter.allocate_tensors()
        with pytest.raises(OptionError, match="runs"):
            interpreter.profile(0)
    guard = tflgpu.AccuracyGuard(runs=1000)
    with pytest.raises(StateError, match="accuracy guard still compares"):
        profiled(three(), accuracy_guard=guard, **KERNELS)


def test_a_run_that_fails_is_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuRefRecording, "_profile", raising(DeviceError("the cable is out")))
    with pytest.raises(DeviceError, match="the cable is out"):
        profiled(three(), **KERNELS)
    with pytest.raises(DeviceError, match="failed while it was profiled"):
        profiled(three(), on_error="cpu", **KERNELS)


def test_after_a_profile_runs_are_plain_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with tflgpu.GpuDelegate(**KERNELS) as delegate:
        opened = tflgpu.Interpreter(model_content=three(), experimental_delegates=[delegate])
        with opened:
            opened.allocate_tensors()
            x = np.arange(105, dtype=np.float32).reshape(1, 5, 7, 3)
            set_and_run(opened, {0: x})
            before = opened.get_tensor(5)
            opened.profile(1)
            monkeypatch.setattr(CpuRefRecording, "_profile", None)
            opened.invoke()
            assert (opened.get_tensor(5) == before).all()
            assert opened.invoke_async({0: x}).results()[0].shape == (1, 140)


# Limits


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_limits_are_measured_once(backend: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "_LARGEST", 4 << 20)
    monkeypatch.setattr(limits, "_RUNS", 3)
    with tflgpu.GpuDelegate(backend=backend) as delegate:
        device: Any = delegate.device
        if isinstance(device.load(chain(8, device.alignment)).profile(), Unsupported):
            pytest.skip("no timers")
        store = MeasuredTimes(tmp_path)
        found = limits_of(device, "tflgpu", store)
        assert isinstance(found, Limits)
        assert found.bandwidth > 1e6
        assert found.arithmetic > 1e6
        monkeypatch.setattr(limits, "measure_limits", None)
        assert limits_of(device, "tflgpu", store) == pytest.approx(found)


class Clock:
    """A device whose dispatches take a second each."""

    def __init__(self, times: Any) -> None:
        from tflgpu_cpu_ref.device import CpuRefDevice

        inner = CpuRefDevice()
        self.info, self.caps, self.alignment = inner.info, inner.caps, inner.alignment
        self.times, self.closed = times, 0
        self.inputs = [np.zeros(4, np.float32)]

    def load(self, plan: Any) -> Clock:
        self.plan = plan
        return self

    def profile(self) -> Any:
        return self.times

    def close(self) -> None:
        self.closed += 1


def test_limits_by_a_known_clock() -> None:
    device: Any = Clock([DispatchTime("", "", 1.0)] * 3)
    found = measure_limits(device)
    assert isinstance(found, Limits)
    assert found.bandwidth == 8 << 20  # 4 MiB read and written
    assert found.arithmetic == (4 << 20) / 16 * 8 * 128 * 8
    assert device.closed == 2


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (Unsupported("no clock"), "no clock"),
        ((), "the device has no timers"),
        ([DispatchTime("", "", 0.0)] * 3, "its timers gave no time"),
    ],
)
def test_without_times_there_are_no_limits(times: Any, said: str, tmp_path: Any) -> None:
    device: Any = Clock(times)
    found = limits_of(device, "tflgpu", MeasuredTimes(tmp_path))
    assert isinstance(found, str)
    assert said in found
    assert list(tmp_path.iterdir()) == []


def test_limits_of_a_device_that_fails(tmp_path: Any) -> None:
    device: Any = Clock(())
    device.load = lambda plan: (_ for _ in ()).throw(DeviceError("no memory"))
    said = limits_of(device, "tflgpu", MeasuredTimes(tmp_path))
    assert said == "they could not be measured: no memory"


def test_the_share_of_the_limit_is_the_larger_one() -> None:
    one = DispatchProfile("", "", (), (), 1e-3, None, nbytes=500_000, flops=2e6)
    assert one.of_limit(Limits(1e9, 1e10)) == pytest.approx(0.5)
    assert one.of_limit(Limits(1e10, 2e9)) == pytest.approx(1.0)
    assert attrs.evolve(one, seconds=0.0).of_limit(Limits(1.0, 1.0)) is None
