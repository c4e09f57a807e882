"""Every option does something that shows: which operators, how much memory, what is prepared, how
it is run, what is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit import waiting
from tflgpu.backend_kit.recording import BaseRecording
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.memory import Usage, assign
from tflgpu.compiler.plan import Plan
from tflgpu.devices.device_options import objections
from tflgpu.devices.targets import target_on
from tflgpu.ir.graph import Node
from tflgpu.kernels import depthwise
from tflgpu.kernels.registry import builtin_rules
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.rule import GroupRule, Maker, Site
from tflgpu.options import DelegateOptions, WaitType
from tflgpu.plugins.registry import registry
from tflgpu.runtime import tuning
from tflgpu.runtime.opening import compiled_on
from tflgpu.runtime.run_policy import RunPolicy
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.kernels.test_groups import build_joined, joinable
from tests.options.option_models import HERE, SHAPE, block, chain, opened, quantized_conv, run
from tests.running import allocated, raising

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(SHAPE)
FOUR = ("ABS", "NEG", "ABS", "NEG")
MEMORY_FIRST = {"inference_priority1": "min_memory_usage"}


# Which operators


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"exclude": [1]}, {1: "named by exclude"}),
        ({"exclude": ["abs"]}, {0: "named by exclude", 2: "named by exclude"}),
        ({"exclude": ["t4"]}, {3: "operator #3 (NEG) is named by exclude"}),
        ({"include": ["ABS", 1]}, {3: "not among what include names"}),
        ({"include": ["ABS"], "exclude": [0]}, {0: "exclude", 1: "include", 3: "include"}),
        ({"first_delegate_node_index": 2}, {0: "before first_delegate_node_index=2", 1: "before"}),
        ({"last_delegate_node_index": 2}, {3: "behind last_delegate_node_index=2"}),
        ({"first_delegate_node_index": 1, "last_delegate_node_index": 1},
         {0: "before", 2: "behind", 3: "behind"}),
        ({"last_delegate_node_index": 2**31 - 1}, {}),
        ({"max_delegated_partitions": 1, "exclude": [1]}, {1: "exclude", 0: "at most 1 parts"}),
        ({"min_nodes_per_partition": 2, "exclude": [1]}, {0: "fewer than 2", 1: "exclude"}),
    ],
)  # fmt: skip
def test_operators_that_stay_on_the_cpu(options: dict[str, Any], left: dict[int, str]) -> None:
    with opened(chain(*FOUR), **options) as interpreter:
        np.testing.assert_array_equal(run(interpreter, X), -np.abs(X))
        reasons = {r.node: r.reason for r in interpreter.report.refusals}
    assert set(reasons) == set(left)
    for node, words in left.items():
        assert words in reasons[node]


def test_without_fallback_an_operator_that_stays_is_an_error() -> None:
    with (
        pytest.raises(tflgpu.UnsupportedError, match=r"#1 NEG: .*named by exclude"),
        opened(chain(*FOUR), exclude=[1], allow_fallback=False),
    ):
        pass


def test_a_name_of_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "tflgpu"),
        opened(chain("ABS"), exclude=["CONV_2D", "t1"], include=[0, 7]),
    ):
        pass
    (first, second) = [m for m in caplog.messages if "no operator has this" in m]
    assert "include names 7" in first
    assert "exclude names 'CONV_2D'" in second


def test_inside_of_litert(litert: Any) -> None:
    with tflgpu.GpuDelegate(**HERE, exclude=["t2"], memory_limit=10**6) as delegate:
        interpreter = allocated(
            litert.Interpreter(model_content=chain(*FOUR), experimental_delegates=[delegate])
        )
        np.testing.assert_array_equal(run(interpreter, X), -np.abs(X))
        (refusal,) = delegate.reports[0].refusals
        assert (refusal.node, "exclude" in refusal.reason) == (1, True)
        del interpreter


# Memory


def nbytes(delegate: tflgpu.GpuDelegate, model: bytes) -> int:
    graph = build_graph(read_model(model), 0, registry().ops())
    return sum(plan.device_bytes for plan in compiled_on(graph, delegate.provider).plans)


def test_a_part_within_the_limit_is_delegated_and_one_over_it_is_not() -> None:
    with tflgpu.GpuDelegate(**HERE) as delegate:
        needed = nbytes(delegate, chain(*FOUR))
    assert needed == 2 * X.nbytes  # one kernel, between input and output
    with opened(chain(*FOUR), memory_limit=needed) as interpreter:
        assert interpreter.report.fully_delegated
    with opened(chain(*FOUR), memory_limit=needed - 1) as interpreter:
        np.testing.assert_array_equal(run(interpreter, X), -np.abs(X))
        report = interpreter.report
    assert report.partitions == 0
    assert f"takes {needed} bytes on the device, and memory_limit is {needed - 1}" in str(report)


@pytest.mark.parametrize("host", ["tflgpu", "litert"])
def test_parts_share_the_limit(host: str) -> None:
    options = {**HERE, "exclude": [1], "memory_limit": 3 * X.nbytes}
    with tflgpu.GpuDelegate(**options) as delegate:
        if host == "tflgpu":
            kind: Any = tflgpu.Interpreter
        else:
            kind = pytest.importorskip("ai_edge_litert.interpreter").Interpreter
        interpreter = kind(model_content=chain(*FOUR), experimental_delegates=[delegate])
        interpreter.allocate_tensors()
        np.testing.assert_array_equal(run(interpreter, X), -np.abs(X))
        report = interpreter.report if host == "tflgpu" else delegate.reports[0]
        assert report.partitions == 1
        # LiteRT's parts are loaded one by one, in the order of the file.
        taken = f"of which {2 * X.nbytes} staging are taken already"
        said = f"of which other parts leave {X.nbytes}" if host == "tflgpu" else taken
        assert said in str(report)
        del interpreter


def test_a_device_that_does_not_tell_its_memory_refuses_a_limit() -> None:
    with pytest.raises(tflgpu.OptionError, match=r"^memory_limit=9 .*backend cpu_ref .*leave"):
        tflgpu.GpuDelegate(backend="cpu_ref", device=0, memory_limit=9)


def test_memory_first_keeps_quantized_weights_in_their_8_bits() -> None:
    found = {}
    for name, options in {"default": {}, "memory": MEMORY_FIRST}.items():
        with tflgpu.GpuDelegate(**HERE, **options) as delegate:
            found[name] = nbytes(delegate, quantized_conv())
    # On real numbers the weights stay in 8 bits too; the tensors between do not.
    assert found["memory"] < found["default"]
    x = np.random.default_rng(8).integers(-128, 128, (1, 3, 3, 256)).astype(np.int8)
    with opened(quantized_conv(), **MEMORY_FIRST) as interpreter:
        assert interpreter.report.integers == (0,)
        ours = run(interpreter, x)
    with opened(quantized_conv()) as interpreter:
        assert np.abs(run(interpreter, x).astype(int) - ours).max() <= 1
    # Who asks for floats gets them.
    with opened(quantized_conv(), **MEMORY_FIRST, quantized_numerics="float") as interpreter:
        interpreter.allocate_tensors()
        assert interpreter.report.integers == ()


def bytes_on_a_gpu(**options: Any) -> int:
    """Of a model on a device whose cache holds all of it."""
    caps = DeviceCaps(f16_storage=True, f16_arithmetic=True, is_gpu=True, cache_bytes=1 << 20)
    info = SimpleNamespace(backend="cpu_ref", index=1)
    device: Any = SimpleNamespace(info=info, caps=caps, alignment=16)
    target = target_on(
        device, caps, registry(), DelegateOptions(**options),
        broken_rules={}, spares_broken_rules=True,
    )  # fmt: skip
    graph = build_graph(read_model(block()), 0, registry().ops())
    (plan,) = compile_graph(graph, target).plans
    return plan.device_bytes


def test_memory_first_stores_in_16_bits_what_is_not_faster_so() -> None:
    latency = bytes_on_a_gpu(inference_priority1="min_latency", inference_priority2="max_precision")
    memory = bytes_on_a_gpu(**MEMORY_FIRST)
    assert DelegateOptions(**MEMORY_FIRST).wanted_precision is tflgpu.Precision.F32_F16
    # Edges are as the file has them, and so are two biases of 8 channels.
    kept = 4 * (5 * 5 * 3 + 5 * 5 * 7 + 8 + 8)
    assert memory - kept == (latency - kept) / 2


def test_memory_first_searches_for_a_smaller_arena() -> None:
    # Both greedy orders need 8 bytes; no step needs more than 7.
    usages = [Usage(2, 2, 3), Usage(3, 3, 3), Usage(2, 3, 5), Usage(4, 2, 2)]
    assert assign(usages, 1).total == 8
    found = assign(usages, 1, search=True)
    assert found.total == 7
    for i, one in enumerate(usages):
        for j, other in enumerate(usages[:i]):
            apart = (
                found.offsets[i] + one.nbytes <= found.offsets[j]
                or found.offsets[j] + other.nbytes <= found.offsets[i]
            )
            assert apart or not one.overlaps(other)


@pytest.mark.parametrize(
    ("options", "searches"),
    [({}, False), (MEMORY_FIRST, True), ({"inference_priority1": "min_latency"}, False),
     ({"inference_priority2": "min_memory_usage"}, True),
     ({"inference_priority1": "min_latency", "inference_priority2": "min_memory_usage"}, False)],
)  # fmt: skip
def test_when_memory_comes_first(
    options: dict[str, Any], searches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def spy(*given: Any, search: bool) -> Any:
        seen.append(search)
        return assign(*given, search=search)

    monkeypatch.setattr("tflgpu.compiler.levels.assign", spy)
    with tflgpu.GpuDelegate(**HERE, **options) as delegate:
        nbytes(delegate, chain("ABS"))
    assert seen == [searches]


# What is prepared, and how it is run


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to recordings: "run" or "submit"."""
    done: list[str] = []

    def spied(name: str) -> Callable[..., Any]:
        real = getattr(BaseRecording, name)

        def spy(self: Any) -> Any:
            done.append(name)
            return real(self)

        return spy

    for name in ("run", "submit"):
        monkeypatch.setattr(BaseRecording, name, spied(name))
    return done


@pytest.mark.parametrize(("preference", "prepared"), [("fast_single_answer", 0), ("balanced", 1)])
def test_the_preference_prepares(preference: str, prepared: int, runs: list[str]) -> None:
    with opened(chain(*FOUR), inference_preference=preference) as interpreter:
        assert runs == ["run"] * prepared
        np.testing.assert_array_equal(run(interpreter, X), -np.abs(X))
    assert runs == ["run"] * (prepared + 1)


@pytest.fixture
def tunable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One kernel can make the convolutions of `block`, where that is measured to be faster."""

    def match(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
        nodes = joinable(node, maker, site)
        return nodes if nodes and site.joins("joined", nodes, predicted=False) else None

    rule = GroupRule("DEPTHWISE_CONV_2D", "joined", match, build_joined)
    with monkeypatch.context() as patch:
        patch.setattr(depthwise, "RULES", (*depthwise.RULES, rule))
        builtin_rules.cache_clear()
        yield
    builtin_rules.cache_clear()


@pytest.mark.usefixtures("tunable")
@pytest.mark.parametrize(("joined", "dispatches"), [(1.0, 1), (3.0, 2)])
def test_sustained_speed_keeps_the_faster(
    joined: float, dispatches: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(9).uniform(-1, 1, (1, 5, 5, 3)).astype(np.float32)
    with opened(block()) as interpreter:
        wanted = run(interpreter, x)
        assert interpreter.report.dispatches == 2

    def seconds(recording: object, plan: Plan) -> list[float]:
        return [1.0, 1.0] if len(plan.dispatches) == 2 else [joined]

    monkeypatch.setattr(tuning, "kernel_seconds", seconds)
    monkeypatch.setattr(
        tuning, "run_seconds", lambda recordings, plans: sum(seconds(None, plans[0]))
    )
    with opened(block(), inference_preference="sustained_speed") as interpreter:
        report = interpreter.report
        np.testing.assert_allclose(run(interpreter, x), wanted, rtol=1e-4, atol=1e-5)
    assert report.dispatches == dispatches
    # It is kept, for other preferences too.
    with opened(block()) as interpreter:
        assert interpreter.report.dispatches == dispatches


@pytest.mark.usefixtures("tunable")
def test_sustained_speed_says_when_it_tunes_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
    with tflgpu.GpuDelegate(**HERE) as delegate:
        limit = nbytes(delegate, block())
    options = {"inference_preference": "sustained_speed", "memory_limit": limit}
    with opened(block(), **options) as interpreter:
        assert interpreter.report.fully_delegated
    assert "inference_preference: kernels are not tuned: " in caplog.text


def test_an_invoke_of_several_runs(runs: list[str]) -> None:
    with opened(chain("ABS", "NEG", "ABS"), invoke_loop_times=3, exclude=[1]) as interpreter:
        np.testing.assert_array_equal(run(interpreter, X), np.abs(X))
        parts = interpreter.report.partitions
    assert parts == 2
    # The CPU's part runs once.
    assert len(runs) in (2 * 3, 2 * 3 + 1)


def test_active_waiting_never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the run takes by the clock."""
    asked: list[str] = []
    clock = SimpleNamespace(
        perf_counter=lambda: 10.0 * len(asked), sleep=lambda seconds: asked.append("sleep")
    )
    monkeypatch.setattr(waiting, "time", clock)

    def is_over() -> bool:
        asked.append("done")
        return asked.count("done") % 3 == 0

    def wait(timeout: float | None = None) -> bool:
        return waiting.wait_until(is_over)

    pending = SimpleNamespace(done=is_over, wait=wait)
    recording: Any = SimpleNamespace(submit=lambda: pending, run=wait)
    policy = RunPolicy(wait=WaitType.ACTIVE)
    policy.run(recording)
    assert asked == ["done"] * 3
    asked.clear()
    policy.submit(recording).wait()
    assert asked == ["done"] * 3
    asked.clear()
    RunPolicy(wait=WaitType.ACTIVE, timeout=60.0).run(recording)
    assert asked == ["done"] * 3
    asked.clear()
    RunPolicy(loops=2).run(recording)
    assert asked == ["done", "sleep", "done", "sleep", "done"] * 2


# On this device a submission is a run.
@pytest.mark.parametrize("options", [{"wait_type": "active"}, {"wait_type": "passive"}])
def test_waiting(options: Any, runs: list[str]) -> None:
    with opened(chain("ABS"), **options) as interpreter:
        np.testing.assert_array_equal(run(interpreter, X), np.abs(X))
    assert runs == ["run"]


def test_a_part_that_cannot_be_warmed_up_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    real = BaseRecording.close
    monkeypatch.setattr(BaseRecording, "close", lambda self: closed.append(self) or real(self))

    monkeypatch.setattr(BaseRecording, "run", raising(tflgpu.DeviceError("it caught fire")))
    with (
        tflgpu.GpuDelegate(**HERE, inference_preference="balanced") as delegate,
        tflgpu.Interpreter(
            model_content=chain("ABS"), experimental_delegates=[delegate]
        ) as interpreter,
    ):
        with pytest.raises(tflgpu.DeviceError, match="it caught fire"):
            interpreter.allocate_tensors()
        assert len(closed) == 1


# What is kept


@pytest.mark.needs("vulkan")
def test_pipelines_are_kept_where_the_options_say(tmp_path: Path) -> None:
    kept = {"serialization_dir": tmp_path, "model_token": "digits"}
    with opened(chain("ABS"), backend="vulkan", device=0, **kept) as interpreter:
        np.testing.assert_array_equal(run(interpreter, X), np.abs(X))
    assert list((tmp_path / "digits" / "vulkan").glob("*.bin"))
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_compiled_models_are_kept_where_the_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu.saved import location

    kept = {"serialization_dir": tmp_path, "model_token": "digits"}

    def result(**other: Any) -> Any:
        with opened(chain("ABS"), backend="cpu_ref", device=1, **{**kept, **other}) as interpreter:
            return run(interpreter, X)

    first = result()
    assert len(location.entries(tmp_path / "digits" / "models")) == 1

    monkeypatch.setattr("tflgpu.compiler.compile.compile", raising(AssertionError("it compiles")))
    np.testing.assert_array_equal(result(), first)
    with pytest.raises(AssertionError, match="it compiles"):
        result(model_token="others")


@pytest.mark.needs("opencl")
def test_binaries_are_kept_where_the_options_say(tmp_path: Path) -> None:
    """As far as that shows on PoCL, which keeps its programs itself."""
    options = DelegateOptions(serialization_dir=tmp_path, model_token="digits")
    device: Any = registry().open_device("opencl", 0, options)
    compiler = device.inner._kernels
    assert compiler._cache.path("key").parent == tmp_path / "digits" / "opencl"
    device.close()


def test_a_backend_that_keeps_nothing_refuses(caplog: pytest.LogCaptureFixture) -> None:
    kept: dict[str, Any] = {"serialization_dir": "x", "model_token": "y"}
    with pytest.raises(
        tflgpu.OptionError, match=r"serialization_dir=x .*backend cpu_ref: it runs operators"
    ):
        tflgpu.GpuDelegate(backend="cpu_ref", device=0, **kept)
    options = DelegateOptions(**kept)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=0) as nodes,
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, **kept) as plans,
    ):
        assert nodes.device is not None
        assert not any("has no effect" in reason for reason in plans.choice.reasons)
        (reason,) = objections(options, nodes.device, explicit=False)
        assert "has no effect with backend cpu_ref" in reason
