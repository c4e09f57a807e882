"""The figures of a machine: found again from made-up times, kept under a key that names it, and not
needed where nobody asks what pays."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compat import CompatEntry, effective_caps, judge
from tflgpu.compat.entry import Judgement
from tflgpu.compiler.machines import ROUND_FIGURES, Machine, TimeModel
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.compiler.times import alone
from tflgpu.contract.device import DeviceInfo
from tflgpu.devices import figures
from tflgpu.devices.choose import Choice
from tflgpu.devices.device_options import partition_by
from tflgpu.devices.figures import measure_machine
from tflgpu.devices.measured_times import MeasuredTimes, figures_key
from tflgpu.errors import DeviceError, OptionError, PluginError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import Graph
from tflgpu.kernels.team import Teams
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.reason import ReasonCode
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.runtime import timing
from tflgpu.runtime.timing import time_model

from tests.running import allocate_and_run, allocated, raising, set_and_run
from tests.small_models import small_model, tensor_of

OPS = builtin_ops()


class Clock:
    """Runs take as long as a machine's figures say; nothing else takes any time."""

    def __init__(self, machine: Machine) -> None:
        self.model = TimeModel(machine, machine)
        self.now = 0.0
        self.open = 0

    def perf_counter(self) -> float:
        return self.now

    def opened(self, graph: Graph) -> Any:
        clock = self
        clock.open += 1

        class Recording:
            inputs = (np.zeros(graph.inputs[0].shape, np.float32),)

            def run(self) -> None:
                clock.now += alone(graph, OPS, clock.model)

            def close(self) -> None:
                clock.open -= 1

        return Recording()


@pytest.mark.parametrize(
    "machine",
    [
        Machine(launch=2e-5, step=3e-6, flop=1e-13, few=5e-13, byte=2e-12, edge=1e-10),
        Machine(launch=2e-6, step=3e-7, flop=1e-11, few=9e-11, byte=5e-11, edge=2e-11),
        Machine(launch=1e-4, step=3e-5, flop=1e-9, few=3e-9, byte=1e-9, edge=1e-11),
    ],
    ids=["GPU", "CPU", "software"],
)
@pytest.mark.parametrize("shapes", [figures.ON_DEVICE, figures.ON_CPU, figures.IN_NUMPY])
def test_figures_are_found_again(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, shapes: figures.Shapes
) -> None:
    clock = Clock(machine)
    monkeypatch.setattr(figures, "time", clock)
    found = measure_machine(clock.opened, OPS, shapes)
    assert attrs.astuple(found) == pytest.approx(attrs.astuple(machine), rel=0.2)
    assert clock.open == 0


def test_a_dear_pool_is_not_what_a_node_costs_where_nothing_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NumPy's pool takes as long as dozens of its small nodes, which made small models look as if
    they took 40 times as long as they do."""
    machine = Machine(launch=2e-6, step=1e-5, flop=1e-11, few=9e-11, byte=5e-11, edge=2e-11)
    clock = Clock(machine)
    monkeypatch.setattr(figures, "time", clock)

    def opened(graph: Graph) -> Any:
        recording, pools = clock.opened(graph), sum(n.op == "MAX_POOL_2D" for n in graph)
        plain = recording.run

        def run() -> None:
            plain()
            clock.now += pools * 5e-4

        recording.run = run
        return recording

    assert measure_machine(opened, OPS, figures.IN_NUMPY).step == pytest.approx(1e-5, rel=0.2)
    assert measure_machine(opened, OPS).step > 2e-4


def test_a_device_is_warm_when_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a quarter of a second its runs take three times as long, as on a GPU whose clocks are
    down."""
    machine = Machine(launch=2e-5, step=3e-6, flop=1e-13, few=5e-13, byte=2e-12, edge=1e-10)
    clock = Clock(machine)
    monkeypatch.setattr(figures, "time", clock)

    def opened(graph: Graph) -> Any:
        recording = clock.opened(graph)
        plain = recording.run

        def run() -> None:
            before = clock.now
            plain()
            clock.now += 2 * (clock.now - before) * (before < 0.25)

        recording.run = run
        return recording

    found = measure_machine(opened, OPS)
    assert attrs.astuple(found) == pytest.approx(attrs.astuple(machine), rel=0.2)


def test_times_that_contradict_each_other_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands, or a machine with so much else to do that all graphs take as long."""
    clock = Clock(Machine(1e-6, 0, 0, 0, 0, 0))
    monkeypatch.setattr(figures, "time", clock)
    monkeypatch.setattr(figures, "_WARM", 0)
    with pytest.raises(DeviceError, match="too much else to do"):
        measure_machine(clock.opened, OPS)
    assert clock.open == 0


def test_what_is_lost_in_the_noise_is_a_figure_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(Machine(1e-6, 1e-9, 0, 0, 1e-18, 0))
    monkeypatch.setattr(figures, "time", clock)
    monkeypatch.setattr(figures, "_WARM", 0)
    assert all(0 < figure < 1 for figure in attrs.astuple(measure_machine(clock.opened, OPS)))


INFO = DeviceInfo("toy", 0, "Toy", driver="toy 1")


def test_anything_that_figures_depend_on_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        figures_key(INFO, "tflgpu", "precision f32"),
        figures_key(INFO, "tflgpu", "precision f16"),
        figures_key(attrs.evolve(INFO, driver="toy 2"), "tflgpu", "precision f32"),
        figures_key(attrs.evolve(INFO, name="Toy 2"), "tflgpu", "precision f32"),
        figures_key(INFO, "attrs", "precision f32"),
    ]
    assert len(set(keys)) == len(keys)
    monkeypatch.setattr("platform.node", lambda: "another machine")
    assert figures_key(INFO, "tflgpu", "precision f32") != keys[0]


SLOW = TimeModel(Machine(1.0, 0, 0, 0, 0, 0), Machine(0, 1e-6, 0, 0, 0, 0), True, "made up")
FAST = TimeModel(Machine(0, 0, 0, 0, 0, 0), Machine(0, 1e-6, 0, 0, 0, 0), True, "made up")


class TestTimeModel:
    """Of the NumPy references as the device: it is there everywhere, and quick to open."""

    @pytest.fixture
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        asked: list[Any] = []

        def measure(open_graph: Any, ops: Any, shapes: Any) -> Machine:
            asked.append(open_graph)
            return Machine(*([1e-6 * len(asked)] * 6))

        monkeypatch.setattr(timing, "measure_machine", measure)
        return asked

    @staticmethod
    def model(store: MeasuredTimes, **options: Any) -> TimeModel:
        with tflgpu.GpuDelegate(backend="cpu_ref", **options) as delegate:
            assert delegate.device is not None
            opened = delegate.provider.opened
            assert opened is not None
            return time_model(delegate.device, opened.target(), opened.cpu, opened.registry, store)

    def test_measured_once(self, measured: list[Any], tmp_path: Path) -> None:
        store = MeasuredTimes(tmp_path)
        first = self.model(store)
        assert len(measured) == 2
        assert first.measured
        assert (first.device.launch, first.host.launch) == (1e-6, 2e-6)
        assert self.model(store) == first
        assert len(measured) == 2
        # Another number of threads is another CPU side, beside the same device.
        assert self.model(store, num_threads=3).host.launch == 3e-6
        assert len(measured) == 3

    def test_a_damaged_file_is_measured_again(self, measured: list[Any], tmp_path: Path) -> None:
        store = MeasuredTimes(tmp_path)
        first = self.model(store)
        for path in tmp_path.glob("*.json"):
            path.write_bytes(path.read_bytes().replace(b"1e-06", b"1e-09"))
        assert self.model(store).device == attrs.evolve(first.device, **dict.fromkeys(
            ("launch", "step", "flop", "few", "byte", "edge"), 3e-6))  # fmt: skip

    def test_what_cannot_be_measured_has_round_figures(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(timing, "measure_machine", raising(DeviceError("out of toys")))
        found = self.model(MeasuredTimes(tmp_path))
        assert (found.device, found.host) == (ROUND_FIGURES.device, ROUND_FIGURES.host)
        assert not found.measured
        assert found.note.startswith("round figures: NumPy op references could not be measured")
        assert "out of toys" in found.note
        assert list(tmp_path.glob("*.json")) == []

    def test_the_real_thing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(figures, "_RUNS", (2, 2))
        monkeypatch.setattr(figures, "_WARM", 0)
        monkeypatch.setattr(figures, "_IMAGE", (1, 5, 5, 64))
        monkeypatch.setattr(figures, "_LAYERS", 2)
        monkeypatch.setattr(figures, "_PIXELS", (1, 5, 5, 64))
        found = self.model(MeasuredTimes(tmp_path))
        assert found.measured, found.note
        assert "NumPy op references (cpu_ref) and NumPy references" in found.note
        assert all(0 < figure < 60 for figure in attrs.astuple(found.device))


class TestWhoDecides:
    GPU = Choice(DeviceInfo("toy", 0, "Toy", is_gpu=True), (), Judgement())

    @pytest.mark.parametrize(
        ("choice", "options", "wanted"),
        [
            (GPU, {}, PartitionBy.GAIN),
            (attrs.evolve(GPU, explicit=True), {}, PartitionBy.ALL),
            (Choice(INFO, ()), {}, PartitionBy.ALL),
            (Choice(None, ()), {}, PartitionBy.ALL),
            (GPU, {"allow_fallback": False}, PartitionBy.ALL),
            (Choice(INFO, ()), {"partitioning": "gain"}, PartitionBy.GAIN),
            (GPU, {"partitioning": "all"}, PartitionBy.ALL),
            (attrs.evolve(GPU, explicit=True), {"partitioning": "gain"}, PartitionBy.GAIN),
        ],
    )
    def test_who(self, choice: Choice, options: Any, wanted: PartitionBy) -> None:
        found, why = partition_by(DelegateOptions(**options), choice)
        assert found is wanted
        assert why

    @pytest.mark.parametrize(
        ("said", "wanted"), [("gain", PartitionBy.GAIN), (" ALL ", PartitionBy.ALL)]
    )
    def test_the_environment(self, said: str, wanted: PartitionBy) -> None:
        environ = {"TFLGPU_PARTITIONING": said}
        assert DelegateOptions.gathered({}, environ=environ).partitioning is wanted

    def test_a_variable_that_says_neither(self) -> None:
        with pytest.raises(OptionError, match=r"TFLGPU_PARTITIONING.* is one of GAIN"):
            DelegateOptions.gathered({}, environ={"TFLGPU_PARTITIONING": "most"})

    def test_a_clash(self) -> None:
        with pytest.raises(OptionError, match="allow_fallback=False forbids"):
            DelegateOptions(partitioning="gain", allow_fallback=False)  # type: ignore[arg-type]


def small(quantized: bool = False) -> bytes:
    quant = Quantization((0.05,), (3,)) if quantized else None
    dtype = DType.I8 if quantized else DType.F32
    return small_model(
        dict.fromkeys("xmy", tensor_of((2, 3), dtype, quantization=quant)),
        "m = ABS(x)",
        "y = RELU(m)",
    )


def run(model: bytes, **options: Any) -> tuple[Any, Any]:
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, **options) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
        ) as interpreter,
    ):
        detail = interpreter.get_input_details()[0]
        x = np.arange(-3, 3).reshape(2, 3).astype(detail["dtype"])
        set_and_run(interpreter, {detail["index"]: x})
        output = interpreter.get_output_details()[0]["index"]
        return interpreter.get_tensor(output), interpreter.report


class TestInADelegate:
    def test_nothing_pays(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(timing, "time_model", lambda *_: SLOW)
        with caplog.at_level(logging.WARNING, "tflgpu"):
            y, report = run(small(), partitioning="gain")
        np.testing.assert_array_equal(y, [[3, 2, 1], [0, 1, 2]])
        assert (report.delegated_nodes, report.partitions) == (0, 0)
        assert {r.code for r in report.refusals} == {ReasonCode.NOT_WORTH_IT}
        assert (report.partitioning, report.estimates, report.measured) == ("gain", "made up", True)
        assert report.seconds == report.cpu_seconds == pytest.approx(2e-6)
        (record,) = caplog.records
        assert record.getMessage() == (
            "tflgpu: 0 of 2 operators run on cpu_ref (NumPy kernel interpreter, f32); 2 on the "
            "CPU: ABS, RELU: the model: 1 s with 2 nodes on the device, 2.0 us wholly on the CPU "
            "(estimates) (2 operators); see the report"
        )

    def test_all_of_it_pays(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(timing, "time_model", lambda *_: FAST)
        with caplog.at_level(logging.WARNING, "tflgpu"):
            _, report = run(small(), partitioning="gain")
        assert report.fully_delegated
        assert report.parts[0].gain == pytest.approx(2e-6)
        assert [o.gain for o in report.operators] == pytest.approx([1e-6, 1e-6])
        assert not caplog.records

    def test_nobody_is_measured_where_everything_goes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timing, "time_model", raising(AssertionError))
        _, report = run(small(), partitioning="all")
        assert report.fully_delegated
        assert (report.measured, report.estimates) == (False, ROUND_FIGURES.note)

    def test_a_quantized_model_that_stays_runs_as_the_file_has_it(
        self, monkeypatch: pytest.MonkeyPatch, litert: Any
    ) -> None:
        monkeypatch.setattr(timing, "time_model", lambda *_: SLOW)
        y, report = run(small(quantized=True), partitioning="gain", cpu_backend="litert")
        oracle = litert.Interpreter(model_content=small(quantized=True))
        allocate_and_run(oracle, {0: np.arange(-3, 3, dtype=np.int8).reshape(2, 3)})
        np.testing.assert_array_equal(y, oracle.get_tensor(2))
        assert all(r.runs_on.startswith("LiteRT") for r in report.refusals)
        # Two operators, and none that rounds: those are of the device's view of the model.
        assert report.seconds == report.cpu_seconds == pytest.approx(2e-6)

    def test_inside_of_litert_too(self, monkeypatch: pytest.MonkeyPatch, litert: Any) -> None:
        for model, wanted in ((SLOW, 0), (FAST, 2)):
            monkeypatch.setattr(timing, "time_model", lambda *_, made=model: made)
            options = {"backend": "cpu_ref", "device": 1, "partitioning": "gain"}
            delegate = tflgpu.GpuDelegate(**options)  # type: ignore[arg-type]
            interpreter = allocated(
                litert.Interpreter(model_content=small(), experimental_delegates=[delegate])
            )
            report = delegate.reports[-1]
            assert report.delegated_nodes == wanted
            codes = {r.code for r in report.refusals}
            assert codes == (set() if wanted else {ReasonCode.NOT_WORTH_IT})
            assert report.partitioning == "gain"
            del interpreter
            delegate.close()


# The database can take shuffles away from a device, and give it none.


DEVICE = DeviceInfo("vulkan", 0, "card", "amd", True, "driver 1.2")


@pytest.mark.parametrize(("has", "said", "left"), [
    (32, 0, 0), (32, 8, 8), (8, 32, 8), (0, 32, 0), (32, 12, 12),
])  # fmt: skip
def test_shuffles_are_lowered_and_never_raised(has: int, said: int, left: int) -> None:
    entry = CompatEntry(name="test", reason="a test", caps={"subgroup_shuffle": said})
    caps = effective_caps(DeviceCaps(subgroup_shuffle=has), judge(DEVICE, [entry]))
    assert caps.subgroup_shuffle == left
    near = Teams.of(caps, 1, 32, lanes_first=True).near
    assert near == {0: 1, 8: 8, 12: 8}[left]


def test_a_switch_is_no_number() -> None:
    with pytest.raises(PluginError, match="caps subgroup_shuffle is False"):
        CompatEntry(name="test", reason="a test", caps={"subgroup_shuffle": False})
