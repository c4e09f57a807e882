"""`compile`: what a graph becomes for a target, without any device."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit import kernel_cache
from tflgpu.backend_kit.kernel_cache import KernelCache, OwnedKernels
from tflgpu.backend_kit.kernel_probe import computes_in_half, runs_matrix_tiles
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.report_of import refusals_of, report_of
from tflgpu.compiler.target import Target
from tflgpu.conformance.plans import affine
from tflgpu.contract.device import Device
from tflgpu.errors import CompileError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.passes.registry import default_passes
from tflgpu.plugins.registry import registry
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.small_models import small_model, tensor_of

TARGET = attrs.evolve(Target.plain(DeviceCaps(), Precision.F32), passes=tuple(default_passes(())))


@pytest.fixture(scope="module")
def graph() -> Graph:
    """``y = exp(tanh(x) @ weights)``, operators 0, 1 and 2."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    content = small_model(
        {
            "x": (2, 3),
            "t": (2, 3),
            "weights": tensor_of((4, 3), data=weights),
            "z": (2, 4),
            "y": (2, 4),
        },
        "t = TANH(x)",
        "z = FULLY_CONNECTED(t, weights, -)",
        "y = EXP(z)",
    )
    return build_graph(read_model(content), 0, builtin_ops())


def origins(compiled: Compiled) -> list[tuple[int, ...]]:
    return [d.origins for plan in compiled.plans for d in plan.dispatches]


def test_dispatches_know_their_operators(graph: Graph) -> None:
    compiled = compile_graph(graph, TARGET)
    # TANH is computed in the loads of the product, EXP in its store.
    assert origins(compiled) == [(0, 1, 2)]
    report = report_of(graph, compiled)
    assert report.fully_delegated
    assert (report.partitions, report.dispatches) == (1, 1)


def test_an_objection_leaves_a_node_on_the_cpu(graph: Graph) -> None:
    def objection(node: object) -> Unsupported | None:
        return Unsupported("not today") if getattr(node, "op", "") == "FULLY_CONNECTED" else None

    compiled = compile_graph(graph, attrs.evolve(TARGET, objection=objection))
    assert [part.delegated for part in compiled.parts] == [True, False, True]
    assert origins(compiled) == [(0,), (2,)]
    assert [(r.node, r.reason) for r in refusals_of(graph, compiled)] == [(1, "not today")]


def test_a_part_can_go_to_the_cpu_afterwards(graph: Graph) -> None:
    compiled = compile_graph(graph, TARGET)
    moved = compiled.on_cpu(0, "it did not load")
    assert moved.plans == ()
    assert moved.parts[0].nodes == compiled.parts[0].nodes
    assert {r.node for r in refusals_of(graph, moved)} == {0, 1, 2}
    assert report_of(graph, moved).delegated_nodes == 0
    assert len(compiled.plans) == 1, "the first value is as it was"


def test_a_device_that_runs_nodes_gets_no_plans(graph: Graph) -> None:
    compiled = compile_graph(graph, attrs.evolve(TARGET, rules=None))
    assert [(len(p.nodes), p.delegated, p.plan) for p in compiled.parts] == [(3, True, None)]


def test_the_graph_is_not_changed(graph: Graph) -> None:
    before = [(n.op, len(n.inputs), n.origins) for n in graph]
    compile_graph(graph, TARGET)
    assert [(n.op, len(n.inputs), n.origins) for n in graph] == before


def test_repeated_blocks_share_their_kernels() -> None:
    weights = np.ones((1, 2, 2, 1), np.float32)
    tensors = [TensorSpec(f"x{i}", (1, 7, 7, 1)) for i in range(5)]
    tensors += [TensorSpec("w", weights.shape, data=weights)]
    fields = {"padding": 0, "stride_h": 1, "stride_w": 1}
    convolutions = [OperatorSpec("CONV_2D", fields, (i, 5, -1), (i + 1,)) for i in range(4)]
    content = write_model(ModelSpec(tensors, convolutions, (0,), (4,)))
    graph = build_graph(read_model(content), 0, builtin_ops())
    (plan,) = compile_graph(graph, TARGET).plans
    first, second, third, last = (dispatch.kernel for dispatch in plan.dispatches)
    assert second is third
    # At the part's edges tensors lie otherwise than inside it.
    assert len({id(first), id(second), id(last)}) == 3
    (again,) = compile_graph(graph, TARGET).plans
    assert [d.kernel for d in again.dispatches] == [first, second, third, last]


# What a network repeats is written once in a plan, and printed and compiled once on a device,
# however often it is loaded.


def repeated(device: Any) -> Plan:
    """Four convolutions, of which the two in the middle have one kernel."""
    graph = Graph()
    values = [graph.add_value((1, 7, 7, 5), DType.F32) for _ in range(5)]
    graph.inputs, graph.outputs = values[:1], values[-1:]
    attributes = builtin_ops()["CONV_2D"].parse(Fields("CONV_2D", {"stride_h": 1, "stride_w": 1}))
    for i in range(4):
        weights = np.full((5, 1, 1, 5), 1.0 + i, np.float32)
        graph.add_node(
            "CONV_2D", attributes, [values[i], graph.add_const(weights)], [values[i + 1]]
        )
    target = Target.plain(device.caps, Precision.F32, alignment=device.alignment)
    return plan_of(graph.nodes, graph.inputs, graph.outputs, target)


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_compiled_once(backend: str) -> None:
    device: Any = registry().open_device(backend, 0, DelegateOptions())
    assert isinstance(device, Device)
    before = device.compiled
    for _ in range(2):
        recording = device.load(repeated(device))
        recording.inputs[0][...] = 1
        recording.run()
        # Five channels of ones go through weights of 1, 2, 3 and 4.
        assert np.array_equal(recording.outputs[0], np.full((1, 7, 7, 5), 5.0**4 * 24))
        recording.close()
    assert device.compiled - before == 3
    device.close()


@pytest.mark.needs("opencl")
def test_printed_once() -> None:
    from tflgpu_opencl.device import OpenCLDevice
    from tflgpu_opencl.dialect import OpenCLDialect

    printed: Counter[str] = Counter()

    class Counting:
        def source(self, kernel: Kernel) -> str:
            text = OpenCLDialect().source(kernel)
            printed[text] += 1
            return text

    device = OpenCLDevice(0, dialect=Counting())
    plan = repeated(device)
    device.load(plan).close()
    device.load(plan).close()
    assert len(plan.dispatches) == 4
    assert len(printed) == 3
    assert set(printed.values()) == {1}
    device.close()


def test_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Kernel] = []
    build = Builder.build

    def noted(self: Builder) -> Kernel:
        built.append(build(self))
        return built[-1]

    monkeypatch.setattr(Builder, "build", noted)
    plan = repeated(SimpleNamespace(caps=DeviceCaps(), alignment=64))
    kernels = [dispatch.kernel for dispatch in plan.dispatches]
    assert len(built) == 3
    assert kernels == [built[0], built[1], built[1], built[2]]


# What was compiled of kernels: once for equal code, the last of it kept, whatever ends a call.


class Texts(KernelCache[int, str, list[str]]):
    """Compiles names of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.forgotten: list[list[str]] = []

    def _write(self, kernel: Kernel, way: int) -> str:
        self.written += 1
        return f"{len(kernel.body)} {kernel.workgroup} {way % 2}"

    def _make(self, kernel: Kernel, code: str) -> list[str]:
        self.count()
        if code.endswith("1"):
            raise CompileError(f"refused: {code}")
        return [code]

    def _forget(self, made: list[str]) -> None:
        self.forgotten.append(made)


def test_equal_code_is_compiled_once_and_each_kernel_written_once_a_way() -> None:
    cache, kernels = Texts(), [affine(8, 2), affine(8, 3)]
    made = cache.get([(k, way) for k in kernels for way in (0, 2)] * 2)
    assert cache.compiled == 1
    assert cache.written == 4
    assert len({id(each) for each in made.values()}) == 1
    assert cache.get([(kernels[0], 0)])[kernels[0], 0] is made[kernels[1], 2]
    assert (cache.compiled, cache.written) == (1, 4)


def test_a_refusal_is_told_and_what_else_was_made_is_kept() -> None:
    cache, kernel = Texts(), affine(8, 2)
    with pytest.raises(CompileError, match="refused"):
        cache.get([(kernel, 0), (kernel, 1)])
    before = cache.compiled
    assert cache.get([(kernel, 0)])
    assert cache.compiled == before
    with pytest.raises(CompileError, match="refused"):
        cache.get([(kernel, 1)])


def test_what_was_begun_is_not_compiled_again() -> None:
    cache, kernel = Texts(), affine(8, 2)
    for way in (0, 1, 2):
        cache.begin(kernel, way)  # 2 has the code of 0
    made = cache.get([(kernel, 0)])
    assert made[kernel, 0] == [f"{len(kernel.body)} {kernel.workgroup} 0"]
    assert cache.compiled == 2
    with pytest.raises(CompileError, match="refused"):
        cache.get([(kernel, 1)])
    assert cache.compiled == 2
    cache.begin(kernel, 0)
    assert cache.get([(kernel, 2)])[kernel, 2] is made[kernel, 0]
    assert cache.compiled == 2


def test_what_was_begun_and_never_asked_for_is_forgotten_when_it_is_there() -> None:
    going_on = threading.Event()

    class Slow(Texts):
        def _make(self, kernel: Kernel, code: str) -> list[str]:
            assert going_on.wait(60)
            return super()._make(kernel, code)

    cache, kernel = Slow(), affine(8, 2)
    cache.begin(kernel, 0)
    clearing = threading.Thread(target=cache.clear)
    clearing.start()
    clearing.join(0.05)
    assert clearing.is_alive()  # a driver is at work yet
    going_on.set()
    clearing.join(60)
    assert len(cache.forgotten) == 1


def test_the_oldest_are_forgotten_and_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "KEPT", 2)
    monkeypatch.setattr(Texts, "_write", lambda self, kernel, way: f"{way} 0")
    cache, kernel = Texts(), affine(8, 2)
    for way in range(4):
        cache.get([(kernel, way)])
    assert cache.forgotten == [["0 0"]]
    cache.get([(kernel, 0)])
    assert cache.compiled == 5
    cache.clear()
    assert len(cache.forgotten) == 5


def test_owned_kernels_are_destroyed_when_nobody_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[str] = []

    class Made:
        def __init__(self, code: str) -> None:
            self.code = code

    class Owned(OwnedKernels[int, str, Made]):
        def _write(self, kernel: Kernel, way: int) -> str:
            return str(way)

        def _make(self, kernel: Kernel, code: str) -> Made:
            return Made(code)

        def _handle_of(self, made: Made) -> str:
            return made.code

        def _destroy(self, handle: str) -> None:
            destroyed.append(handle)

    monkeypatch.setattr(kernel_cache, "KEPT", 1)
    cache, kernel = Owned(), affine(8, 2)
    used = cache.get([(kernel, 0)])
    for way in (1, 2, 3):
        cache.get([(kernel, way)])
    assert destroyed == ["1"]  # 0 is in use, and 2 was forgotten in the last call
    used.clear()
    cache.get([(kernel, 4)])
    assert sorted(destroyed) == ["0", "1", "2"]
    cache.destroy()
    assert sorted(destroyed) == ["0", "1", "2", "3", "4"]


@pytest.fixture
def interpreted() -> Iterator[Any]:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        yield delegate.device


def test_a_probe_believes_results_only(interpreted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert computes_in_half(interpreted)
    assert runs_matrix_tiles(interpreted)
    load = type(interpreted).load

    class Wide:
        """Adds in 32 bits."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner
            self.inputs, self.outputs = inner.inputs, inner.outputs

        def run(self) -> None:
            self.inner.run()
            self.outputs[0][0] = np.float16(2050)

        def close(self) -> None:
            self.inner.close()

    monkeypatch.setattr(type(interpreted), "load", lambda *a, **k: Wide(load(*a, **k)))
    assert not computes_in_half(interpreted)


def test_a_device_that_refuses_a_probe_cannot(interpreted: Any) -> None:
    interpreted.close()
    assert not computes_in_half(interpreted)


@pytest.mark.needs("opencl")
def test_what_nvidia_does_not_list_is_tried_and_not_believed_elsewhere() -> None:
    """The way that only NVIDIA's driver takes, on another that refuses `half`."""
    from tflgpu_opencl.device import OpenCLDevice

    device = OpenCLDevice(0)
    try:
        caps = device.caps
        if caps.f16_arithmetic:
            pytest.skip(f"{device.info.name} computes in f16")
        device._try_what_nvidia_does_not_list()
        assert device.caps == caps
    finally:
        device.close()


def test_a_factor_that_f16_lacks_is_multiplied_in_f32() -> None:
    # A transformer's mask: 0 or 1 times the least f32. In f16 that is 0 times an infinity.
    least = np.float32(np.finfo(np.float32).min)
    content = small_model(
        {"scores": (1, 4), "hidden": (1, 4), "least": least, **dict.fromkeys("myp", (1, 4))},
        "m = MUL(hidden, least)",
        "y = ADD(scores, m)",
        ("p = SOFTMAX(y)", {"beta": 1.0}),
    )
    scores, hidden = np.array([[1, 2, 3, 4]], np.float32), np.array([[0, 0, 1, 1]], np.float32)
    with tflgpu.Model(content, backend="cpu_ref", device=1, precision="f16") as model:
        (found,) = model(scores, hidden)
    with tflgpu.Model(content, backend="cpu") as model:
        (expected,) = model(scores, hidden)
    np.testing.assert_allclose(found, expected, atol=1e-3)
