"""What a device has taken, what an estimate says beforehand, and what is refused over a limit."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit.account import Account
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Plan
from tflgpu.conformance.merge import merge_plans
from tflgpu.conformance.plans import affine, dispatch, io, plan
from tflgpu.contract.memory_use import MemoryUse, Use
from tflgpu.errors import DeviceError, MemoryLimitError, OptionError, UnsupportedError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, first_results, results, set_and_run
from tests.small_models import small_model, tensor_of

DEVICES = {"cpu_ref": 1, "opencl": 0, "vulkan": 0, "wgpu": 0}
#: Weights of so many rows and columns are just over the size from which on a sample is looked at,
#: and read back.
WIDE = 67


@pytest.fixture(params=DEVICES)
def backend(request: pytest.FixtureRequest, require_backend: Callable[[str], Any]) -> str:
    require_backend(request.param)
    return request.param


@pytest.fixture
def delegate(backend: str) -> Iterator[tflgpu.GpuDelegate]:
    with tflgpu.GpuDelegate(backend=backend, device=DEVICES[backend]) as made:
        yield made


def dense(rows: int = 3, *, changed: float = 0.0) -> bytes:
    """Two products with `WIDE` * `WIDE` weights, the same in each, and a bias."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((WIDE, WIDE)).astype(np.float32) / 16
    weights[-1, -1] += changed
    bias = rng.standard_normal(WIDE).astype(np.float32)
    options = {"fused_activation_function": 1}
    return small_model(
        {
            "x": (rows, WIDE),
            "w": tensor_of((WIDE, WIDE), data=weights),
            "b": tensor_of((WIDE,), data=bias),
            "h": (rows, WIDE),
            "y": (rows, WIDE),
        },
        ("h = FULLY_CONNECTED(x, w, b)", options),
        ("y = FULLY_CONNECTED(h, w, b)", options),
    )


def halved() -> bytes:
    """A product with weights that the file has as f16."""
    weights = np.random.default_rng(5).standard_normal((WIDE, WIDE)).astype(np.float16)
    return small_model(
        {
            "x": (3, WIDE),
            "w": tensor_of((WIDE, WIDE), DType.F16, data=weights),
            "f": (WIDE, WIDE),
            "y": (3, WIDE),
        },
        "f = DEQUANTIZE(w)",
        "y = FULLY_CONNECTED(x, f)",
    )


def quantized() -> bytes:
    """A convolution of 8-bit numbers."""
    data = np.random.default_rng(1).integers(-128, 128, (9, 3, 3, 5)).astype(np.int8)
    quant = Quantization((0.05,), (3,))
    options = {"padding": 0, "stride_w": 1, "stride_h": 1}
    return small_model(
        {
            "x": tensor_of((1, 13, 11, 5), DType.I8, quantization=quant),
            "w": tensor_of(
                (9, 3, 3, 5), DType.I8, data=data, quantization=Quantization((0.01,), (0,))
            ),
            "y": tensor_of((1, 13, 11, 9), DType.I8, quantization=quant),
        },
        ("y = CONV_2D(x, w)", options),
    )


def parted() -> bytes:
    """Two parts on the device with one set of weights, and a CPU's in f64 between them."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((WIDE, WIDE)).astype(np.float32) / 16
    return small_model(
        {
            "x": (3, WIDE),
            "w": tensor_of((WIDE, WIDE), data=weights),
            "h": (3, WIDE),
            "d": tensor_of((3, WIDE), DType.F64),
            "k": (3, WIDE),
            "y": (3, WIDE),
        },
        "h = FULLY_CONNECTED(x, w)",
        "d = CAST(h)",
        "k = CAST(d)",
        "y = FULLY_CONNECTED(k, w)",
    )


def opened(delegate: tflgpu.GpuDelegate, model: bytes, rows: int = 0) -> tflgpu.Interpreter:
    made = tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
    if rows:
        made.resize_tensor_input(0, (rows, WIDE))
    made.allocate_tensors()
    return made


def result(interpreter: tflgpu.Interpreter) -> Any:
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    values = np.random.default_rng(0).integers(-9, 9, x["shape"]).astype(x["dtype"])
    set_and_run(interpreter, {x["index"]: values})
    return interpreter.get_tensor(y["index"])


MODELS: dict[str, Callable[[], bytes]] = {
    "f32": dense, "f16 weights": halved, "8 bits": quantized, "parts": parted,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "precision"), [*((m, "f32") for m in MODELS), ("f32", "f16"), ("8 bits", "f32_f16")]
)
def test_an_estimate_is_what_is_taken(backend: str, model: str, precision: str) -> None:
    content = MODELS[model]()
    options: Any = {"backend": backend, "device": DEVICES[backend], "precision": precision}
    with tflgpu.GpuDelegate(**options) as delegate:
        found = tflgpu.estimate(content, delegate=delegate)
        assert delegate.memory == MemoryUse()
        with opened(delegate, content) as interpreter:
            report = interpreter.report
            assert delegate.memory == found.memory
            assert len(found.parts) == report.partitions == (2 if model == "parts" else 1)
            parts: Any = interpreter._main.session.parts  # type: ignore[union-attr]
            assert found.dispatches == sum(p.recording.dispatches for p in parts if not p.on_cpu)
        assert delegate.memory == MemoryUse()
    assert found.memory.weights > 0
    assert found.memory.staging > 0
    assert tflgpu.estimate(content, **options) == found


def test_an_estimate_of_other_shapes(delegate: tflgpu.GpuDelegate) -> None:
    content = dense()
    found = tflgpu.estimate(content, delegate=delegate, shapes={0: (17, WIDE)})
    with opened(delegate, content, rows=17):
        assert delegate.memory == found.memory
    assert found.memory.staging > tflgpu.estimate(content, delegate=delegate).memory.staging


def test_no_estimate(require_backend: Callable[[str], Any]) -> None:
    with pytest.raises(UnsupportedError, match="runs operators itself"):
        tflgpu.estimate(dense(), backend="cpu_ref", device=0)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        pytest.raises(OptionError, match="not both"),
    ):
        tflgpu.estimate(dense(), delegate=delegate, backend="cpu_ref")


@pytest.mark.needs("litert")
def test_no_estimate_of_branches() -> None:
    """LiteRT knows their shapes, so that there is a graph; but a device runs what is in them."""
    x, y, c = TensorSpec("x", (2,)), TensorSpec("y", (2,)), TensorSpec("c", (), DType.BOOL)
    one = SubgraphSpec([x, y], [OperatorSpec("NEG", {}, (0,), (1,))], (0,), (1,))
    chosen = {"then_subgraph_index": 1, "else_subgraph_index": 1}
    content = write_model(
        ModelSpec(
            [c, x, y], [OperatorSpec("IF", chosen, (0, 1), (2,))], (0, 1), (2,), subgraphs=(one,)
        )
    )
    with pytest.raises(UnsupportedError, match=r"several graphs to run them, 1 operators: #0 IF"):
        tflgpu.estimate(content, backend="cpu_ref", device=1, cpu_backend="litert")


def test_two_interpreters_have_one_set_of_weights(delegate: tflgpu.GpuDelegate) -> None:
    """Whichever is closed first, whatever its shapes, and both compute the same as one alone."""
    with opened(delegate, dense()) as alone:
        one, expected = delegate.memory, result(alone)
    for first_to_close in (0, 1):
        pair = [opened(delegate, dense()), opened(delegate, dense())]
        both = delegate.memory
        assert both.weights == one.weights
        assert both.arena == 2 * one.arena
        assert both.staging == 2 * one.staging
        for interpreter in pair:
            np.testing.assert_array_equal(result(interpreter), expected)
        pair.pop(first_to_close).close()
        assert delegate.memory.weights == one.weights
        np.testing.assert_array_equal(result(pair[0]), expected)
        pair[0].close()
        assert delegate.memory == MemoryUse()


def test_weights_that_differ_in_one_number_are_not_shared(delegate: tflgpu.GpuDelegate) -> None:
    """Also where that number is in no sample, and a file that changed is another one."""
    with opened(delegate, dense()) as one, opened(delegate, dense(changed=0.5)) as other:
        assert not np.array_equal(result(one), result(other))
        apart = result(other)
    with opened(delegate, dense(changed=0.5)) as alone:
        np.testing.assert_array_equal(result(alone), apart)


def test_the_copies_of_a_pool_share_weights(delegate: tflgpu.GpuDelegate) -> None:
    with opened(delegate, dense()) as alone:
        one, expected = delegate.memory, result(alone)
    values = np.random.default_rng(0).integers(-9, 9, (3, WIDE)).astype(np.float32)
    with tflgpu.Pool(dense(), size=3, delegates=[delegate]) as pool:
        taken = delegate.memory
        assert (taken.weights, taken.arena) == (one.weights, 3 * one.arena)
        np.testing.assert_array_equal(pool(values)[0], expected)
    assert delegate.memory == MemoryUse()


def test_one_that_fails_leaves_the_others_weights(delegate: tflgpu.GpuDelegate) -> None:
    device: Any = delegate.device
    with opened(delegate, dense()) as one:
        before, expected = delegate.memory, result(one)
        # Room for nothing: the next is refused when it has the weights already.
        device.inner._account.limit = before.total + 1
        device.inner._added = lambda plan: MemoryUse()
        with opened(delegate, dense(rows=5)) as other:
            assert other.report.delegated_nodes == 0
        del device.inner._added
        device.inner._account.limit = None
        gc.collect()
        assert delegate.memory == before
        np.testing.assert_array_equal(result(one), expected)


def test_a_limit_over_several_interpreters(backend: str) -> None:
    """What does not fit runs on the CPU, and the report says how much it takes, of what, and what
    there is; when others are closed it fits."""
    options: Any = {"backend": backend, "device": DEVICES[backend]}
    needed = tflgpu.estimate(dense(), **options).memory
    second = needed.arena + needed.staging
    limit = needed.total + second - 1
    with tflgpu.GpuDelegate(**options, memory_limit=limit) as delegate:
        first = opened(delegate, dense())
        expected = result(first)
        with opened(delegate, dense()) as other:
            assert delegate.memory == needed
            (reason,) = {r.reason for r in other.report.refusals}
            for said in (
                f"takes {second} bytes", f"{needed.arena} arena", f"memory_limit is {limit}",
                f"{needed.weights} weights", "are taken already; raise memory_limit",
            ):  # fmt: skip
                assert said in reason
            np.testing.assert_allclose(result(other), expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(MemoryLimitError, match=r"the buffer takes \d+ bytes.*memory_limit is"):
            delegate.device.allocate(second)  # type: ignore[union-attr]
        with first.allocate_buffer(0) as buffer:
            assert delegate.memory.buffers == buffer.nbytes
        assert delegate.memory == needed
        first.close()
        with opened(delegate, dense()) as other:
            assert other.report.fully_delegated
    with tflgpu.GpuDelegate(**options, memory_limit=limit, allow_fallback=False) as delegate:
        with opened(delegate, dense()), pytest.raises(UnsupportedError, match="memory_limit is"):
            opened(delegate, dense())
        assert delegate.memory == MemoryUse()


def test_what_was_dropped_is_not_counted(delegate: tflgpu.GpuDelegate) -> None:
    opened(delegate, dense())
    gc.collect()
    with opened(delegate, dense()):
        pass
    gc.collect()
    assert delegate.memory == MemoryUse()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_shares_among_its_own() -> None:
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        opened(delegate, dense()) as one,
    ):
        before, expected = delegate.memory, result(one)
        child = os.fork()
        if not child:
            code = 1
            try:
                with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as own:
                    pair = [opened(own, dense()), opened(own, dense())]
                    same = all(np.array_equal(result(each), expected) for each in pair)
                    code = 0 if same and own.memory.weights == before.weights else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert delegate.memory == before
        np.testing.assert_array_equal(result(one), expected)


def test_an_account() -> None:
    account = Account()
    account.limit = 10
    ledger = account.ledger()
    ledger.take(Use.ARENA, 7, "a")
    with pytest.raises(
        MemoryLimitError, match=r"b takes 4 bytes.*memory_limit is 10, of which 7 arena"
    ):
        ledger.take(Use.WEIGHTS, 4, "b")
    account.check(MemoryUse(staging=3), "c")
    with pytest.raises(MemoryLimitError, match=r"c takes 4 bytes.* \(4 staging\)"):
        account.check(MemoryUse(staging=4), "c")
    del ledger
    gc.collect()
    assert account.use == MemoryUse()


# A model whose tensors together are over a device's largest buffer, and each by itself is not.


SHAPE = (1, 8, 8, 4)
NBYTES = 4 * 8 * 8 * 4
ARENAS_DEVICES = [("cpu_ref", 1), ("opencl", 0), ("vulkan", 0), ("wgpu", 0)]


def wide_model() -> bytes:
    """Five tensors that are all alive together: the sum of softmaxes of five temperatures."""
    count = 5
    tensors = [TensorSpec(f"t{i}", SHAPE) for i in range(count + 2)]
    operators = [OperatorSpec("SOFTMAX", {"beta": 1.0 + i}, (0,), (1 + i,)) for i in range(count)]
    operators.append(OperatorSpec("ADD_N", {}, tuple(range(1, count + 1)), (count + 1,)))
    return write_model(ModelSpec(tensors, operators, (0,), (count + 1,)))


@pytest.fixture(params=ARENAS_DEVICES, ids=lambda d: d[0])
def small_device(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:  # fmt: skip
    """``open(limit)``: a delegate whose device has buffers of at most so many bytes."""
    backend, index = request.param
    require_backend(backend)
    opened = []

    def make(limit: int) -> Any:
        delegate = tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=False)
        found: Any = delegate.device
        inner = found.inner
        inner.caps = found.caps = attrs.evolve(found.caps, max_buffer_bytes=limit)
        if backend == "vulkan":
            inner._heaps.limit = limit
        opened.append(delegate)
        return delegate

    yield make
    for delegate in opened:
        delegate.close()


def loaded_plans(monkeypatch: pytest.MonkeyPatch, delegate: Any) -> list[Plan]:
    plans: list[Plan] = []
    load = delegate.device.load

    def spied(plan: Plan, **options: Any) -> Any:
        plans.append(plan)
        return load(plan, **options)

    monkeypatch.setattr(delegate.device, "load", spied)
    return plans


@pytest.mark.parametrize("guard_bands", [False, True])
def test_a_model_runs_in_several_arenas(
    small_device: Any, guard_bands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bands of 4 KiB lie around every tensor where there are some.
    limit = 2 * NBYTES + 64 if not guard_bands else 2 * NBYTES + (16 << 10)
    delegate = small_device(limit)
    opened = delegate.provider.opened
    opened.options = attrs.evolve(opened.options, guard_bands=guard_bands)
    plans = loaded_plans(monkeypatch, delegate)
    model = wide_model()
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    with allocated(
        tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
    ) as interpreter:
        assert interpreter.report.fully_delegated
        for _ in range(2):
            y = results(interpreter, {0: x})[0]
    with tflgpu.Interpreter(model_content=model) as reference:
        want = first_results(reference, {0: x})[0]
    np.testing.assert_allclose(y, want, atol=1e-5)
    (made,) = plans
    if not guard_bands:
        assert len(made.arenas) > 1
    assert all(size <= limit for size in made.arenas)


def two_arenas() -> Plan:
    """The same bytes of two arenas, in use at once."""
    one, two = ArenaRef(0, 132), ArenaRef(0, 132, 1)
    return plan(
        [
            dispatch(affine(33, 2.0), 33, [InputRef(0), one]),
            dispatch(affine(33, 3.0), 33, [InputRef(0), two]),
            dispatch(affine(33, 1.0, 0.0), 33, [one, OutputRef(0)]),
            dispatch(affine(33, 1.0, 0.0), 33, [two, OutputRef(1)]),
        ],
        [io("x", (33,))], [io("y", (33,)), io("z", (33,))], arena=0, alignment=256,
    )  # fmt: skip


@pytest.mark.parametrize("guard_bands", [False, True])
def test_arenas_are_apart(small_device: Any, guard_bands: bool) -> None:
    device = small_device(1 << 20).device
    made = attrs.evolve(two_arenas(), arenas=(256, 132))
    twice = merge_plans([made, made])
    assert twice.arenas == (256, 132, 256, 132)
    x = np.arange(33, dtype=np.float32)
    for each in (made, twice):
        recording = device.load(each, guard_bands=guard_bands)
        for array in recording.inputs:
            array[...] = x
        recording.run()
        for i, y in enumerate(recording.outputs):
            np.testing.assert_array_equal(y, x * (2 + i % 2) + 1)
        recording.close()


def test_an_arena_that_there_is_not_is_refused(small_device: Any) -> None:
    device = small_device(1 << 20).device
    with pytest.raises(DeviceError, match="dst is in arena 1, and the plan has 1 of them"):
        device.load(attrs.evolve(two_arenas(), arenas=(256,)))
    with pytest.raises(DeviceError, match="is bytes 0 to 132 of an arena of 128 bytes"):
        device.load(attrs.evolve(two_arenas(), arenas=(256, 128)))
