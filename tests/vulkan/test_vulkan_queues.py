"""Several queues: recordings take them in turn, and each waits for its own.

Drivers that compute on a CPU have one queue. Here it stands for three, so that what is tested is
who uses which, and not what a GPU does with several.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu import GpuDelegate, Interpreter
from tflgpu.backend_kit.run_commands import Between
from tflgpu.conformance.plans import affine, biased, chain, chain_expected, dispatch, io, plan
from tflgpu.contract.offers import Lender, offers
from tflgpu.errors import DeviceError, StateError
from tflgpu.interpreter.invocation import Invocation
from tflgpu.tflite.write import write_model

from tests.running import allocated, raising, set_and_run
from tests.small_models import small_spec


@attrs.frozen(eq=False)
class Stand:
    """One of three names of the only queue."""

    number: int
    real: Any


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of the queues that were submitted to."""
    from tflgpu_vulkan import context, features

    taken: list[int] = []
    submit, family = context.lib.vkQueueSubmit, features._compute_queue
    queue = context.Context._queue

    class Lib:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def vkQueueSubmit(self, queue: Any, *rest: Any) -> Any:
            taken.append(queue.number)
            return submit(queue.real, *rest)

    def three(handle: Any) -> Any:
        found = family(handle)
        return None if found is None else (*found[:2], 3)

    real = context.lib
    device = context.Context._device
    monkeypatch.setenv(context.QUEUES, "8")
    monkeypatch.setattr(context, "lib", Lib())
    monkeypatch.setattr(features, "_compute_queue", three)
    monkeypatch.setattr(context.Context, "_device", lambda self, queues: device(self, 1))
    monkeypatch.setattr(context.Context, "_queue", lambda self, i: Stand(i, queue(self, 0)))
    yield taken


@pytest.mark.needs("vulkan")
def test_recordings_take_turns(used: list[int]) -> None:
    from tflgpu_vulkan.device import VulkanDevice

    device = VulkanDevice()
    assert len(device._context.queues) == 3
    recordings = [device.load(chain(257, device.alignment)) for _ in range(4)]
    first = recordings[0]._commands.queue.number
    used.clear()
    values = [np.full(257, n, np.float32) for n in range(4)]
    for recording, x in zip(recordings, values, strict=True):
        recording.inputs[0][...] = x
    pending = [recording.submit() for recording in recordings]
    for recording, run, x in zip(recordings, pending, values, strict=True):
        assert run.wait(30)
        np.testing.assert_array_equal(recording.outputs[0], chain_expected(x))
    assert used == [(first + n) % 3 for n in range(4)]
    used.clear()
    recordings[1]._wait_idle()
    assert used == [(first + 1) % 3]
    used.clear()
    for recording in recordings:
        recording.close()
    device.close()
    assert {0, 1, 2} <= set(used)  # closing waits for all


@pytest.mark.needs("vulkan")
def test_runs_in_flight_use_several(used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from tflgpu.demo import __path__ as where

    with (
        tflgpu.GpuDelegate(backend="vulkan") as delegate,
        allocated(
            tflgpu.Interpreter(
                f"{where[0]}/digits.tflite", experimental_delegates=[delegate], max_in_flight=3
            )
        ) as interpreter,
    ):
        (given,) = interpreter.get_input_details()
        image = np.random.default_rng(0).random(given["shape"], np.float32)
        set_and_run(interpreter, {given["index"]: image})
        wanted = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        used.clear()
        # A run that is over already would leave its lane to the next.
        monkeypatch.setattr(Invocation, "done", lambda self: False)
        flying = [interpreter.invoke_async() for _ in range(3)]
        for run in flying:
            np.testing.assert_array_equal(run.results()[0], wanted)
        assert set(used) == {0, 1, 2}


@pytest.mark.parametrize("said", ["0", "many", "-1", "1.5"])
@pytest.mark.needs("vulkan")
def test_nonsense_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tflgpu_vulkan.context import QUEUES
    from tflgpu_vulkan.device import VulkanDevice

    monkeypatch.setenv(QUEUES, said)
    with pytest.raises(DeviceError, match="TFLGPU_VULKAN_QUEUES is"):
        VulkanDevice()


_COMPUTE, _GRAPHICS, _TRANSFER = 2, 1, 4


def family(flags: int, count: int, bits: int = 64) -> SimpleNamespace:
    """What a driver says of a queue family."""
    return SimpleNamespace(queueFlags=flags, queueCount=count, timestampValidBits=bits)


@pytest.mark.parametrize(
    ("families", "wanted"),
    [
        # An NVIDIA H200's: one that draws, one that copies, one that computes.
        ([family(15, 16), family(12, 2), family(14, 8)], (2, 64, 8)),
        # Several of one that draws compute no faster than one.
        ([family(_GRAPHICS | _COMPUTE, 16), family(_TRANSFER, 2)], (0, 64, 1)),
        ([family(_COMPUTE, 1)], (0, 64, 1)),
        # Times are worth more than turns.
        ([family(_COMPUTE, 4, 0), family(_GRAPHICS | _COMPUTE, 1)], (1, 64, 1)),
        ([family(_GRAPHICS | _COMPUTE, 1, 0), family(_COMPUTE, 4, 0)], (1, 0, 4)),
        ([family(_TRANSFER, 2)], None),
    ],
)
@pytest.mark.needs("vulkan")
def test_the_family_of_queues(
    families: list[SimpleNamespace],
    wanted: tuple[int, int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tflgpu_vulkan import features

    monkeypatch.setattr(features, "listed", lambda *_: families)
    assert features._compute_queue(None) == wanted


# Barriers in recorded command buffers: where `tflgpu.backend_kit.run_commands` asks for one, and
# nowhere else.


def test_a_chain_is_recorded_with_its_barriers(open_device: Any, monkeypatch: Any) -> None:
    from tflgpu.compiler.plan import InputRef, OutputRef
    from tflgpu_vulkan.record import Writer

    counted: list[Any] = []
    original = Writer.barrier

    def barrier(writer: Writer, between: Between) -> None:
        if between is Between.DISPATCHES:
            counted.append(writer)
        original(writer, between)

    monkeypatch.setattr(Writer, "barrier", barrier)
    device = open_device()
    device.load(chain(64, device.alignment, steps=5))
    assert len(counted) == 4
    counted.clear()
    apart = [dispatch(affine(8), 8, [InputRef(0), OutputRef(i)]) for i in range(5)]
    device.load(plan(apart, [io("x", (8,))], [io(f"y{i}", (8,)) for i in range(5)]))
    assert not counted


def test_bound_buffers_are_read_behind_a_barrier(open_device: Any, monkeypatch: Any) -> None:
    """Waiting for a run makes what it wrote available; reading it on another queue takes a barrier
    there (Vulkan, "Memory Dependencies")."""
    from tflgpu_vulkan.record import Writer

    seen: list[Any] = []
    barrier, launch = Writer.barrier, Writer.launch

    def noted(writer: Writer, between: Between) -> None:
        seen.append(between)
        barrier(writer, between)

    def launched(writer: Writer, each: Any) -> None:
        seen.append("launch")
        launch(writer, each)

    monkeypatch.setattr(Writer, "barrier", noted)
    monkeypatch.setattr(Writer, "launch", launched)
    device = open_device()
    recording = device.load(chain(64, device.alignment, steps=2))
    assert Between.SUBMISSIONS not in seen
    buffer = device.allocate(256)
    seen.clear()
    recording.bind({0: buffer})
    assert seen[0] is Between.SUBMISSIONS
    assert seen.index("launch") > 0
    assert seen.count(Between.SUBMISSIONS) == 1


@pytest.mark.needs("vulkan")
def test_what_a_barrier_orders() -> None:
    """Drivers that run on a CPU do without; those of GPUs do what the masks say."""
    from tflgpu_vulkan.api import vk
    from tflgpu_vulkan.barriers import _ENDS

    shader, copies = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, vk.VK_PIPELINE_STAGE_TRANSFER_BIT
    host = vk.VK_PIPELINE_STAGE_HOST_BIT
    written, read = vk.VK_ACCESS_SHADER_WRITE_BIT, vk.VK_ACCESS_SHADER_READ_BIT
    stored = shader, written
    copied = copies, vk.VK_ACCESS_TRANSFER_WRITE_BIT
    looked_at = host, vk.VK_ACCESS_HOST_READ_BIT
    assert _ENDS[Between.DISPATCHES] == (stored, (shader, read | written))
    assert _ENDS[Between.UPLOADS_AND_DISPATCHES] == (copied, (shader, read | written))
    fetched = copies, vk.VK_ACCESS_TRANSFER_READ_BIT
    assert _ENDS[Between.DISPATCHES_AND_DOWNLOADS] == (stored, fetched)
    assert _ENDS[Between.DOWNLOADS_AND_HOST] == (copied, looked_at)
    assert _ENDS[Between.DISPATCHES_AND_HOST] == (stored, looked_at)


# Outputs that are lent: the caller keeps what a run wrote, and later runs write elsewhere.


#: So many floats are copied to the host; fewer would be stored there by the kernel.
COUNT = 40_000
BIAS = np.arange(COUNT, dtype=np.float32)  # what `biased` adds


@pytest.fixture
def recording(open_device: Callable[..., Any]) -> Any:
    return open_device(share_memory=False).load(biased(COUNT))


def run(recording: Any, value: float) -> None:
    recording.inputs[0][...] = value
    recording.run()


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_what_is_lent_stays_as_it_is(recording: Any) -> None:
    assert offers(recording, Lender)
    kept = []
    for value in (1, 2, 3):
        run(recording, value)
        assert (recording.outputs[0] == value + BIAS).all()
        kept.append(recording.lend(0))
    run(recording, 50)
    assert all((a == value + BIAS).all() for a, value in zip(kept, (1, 2, 3), strict=True))
    assert (recording.outputs[0] == 50 + BIAS).all()
    assert len({address(a) for a in kept}) == 3


def test_the_caller_may_change_it(recording: Any) -> None:
    """And still gets the results again."""
    run(recording, 1)
    first = recording.lend(0)
    first[...] = -7
    second = recording.lend(0)
    assert (second == 1 + BIAS).all()
    second[...] = -8
    recording.settle()
    assert (recording.outputs[0] == 1 + BIAS).all()
    assert (first == -7).all()
    run(recording, 4)
    assert (first == -7).all()
    assert (second == -8).all()


def test_memory_comes_back_when_it_is_dropped(recording: Any) -> None:
    seen = set()
    for value in range(20):
        run(recording, value)
        lent = recording.lend(0)
        part = lent[5:9]
        del lent
        gc.collect()
        assert (part == value + BIAS[5:9]).all()
        seen.add(address(part) - 5 * 4)
        del part
    assert len(seen) <= 2


def test_who_keeps_everything_gets_copies_in_the_end(recording: Any) -> None:
    kept = []
    for value in range(12):
        run(recording, value)
        lent = recording.lend(0)
        kept.append(recording.outputs[0].copy() if lent is None else lent)
    assert len({address(a) for a in kept}) == 12
    assert all((a == value + BIAS).all() for value, a in enumerate(kept))
    run(recording, 0)
    assert recording.lend(0) is None
    kept.clear()
    gc.collect()
    assert recording.lend(0) is not None


def test_nothing_is_lent_before_the_first_run(recording: Any) -> None:
    assert recording.lend(0) is None
    assert (recording.outputs[0] == 0).all()


def test_small_outputs_and_shared_memory_are_not_lent(open_device: Callable[..., Any]) -> None:
    small = open_device(share_memory=False).load(biased(64))
    shared_device = open_device()
    shared = shared_device.load(biased(COUNT)) if shared_device.in_place else None
    guarded = open_device(share_memory=False).load(biased(COUNT), guard_bands=True)
    for each in filter(None, (small, shared, guarded)):
        run(each, 1)
        assert each.lend(0) is None
        each.settle()
        assert (each.outputs[0] == 1 + BIAS[: each.outputs[0].size]).all()


def test_memory_that_is_slow_to_read_is_not_lent(open_device: Callable[..., Any]) -> None:
    device = open_device(share_memory=False)
    device._heaps.has_cached = False
    slow = device.load(biased(COUNT))
    run(slow, 1)
    assert slow.lend(0) is None
    assert (slow.outputs[0] == 1 + BIAS).all()


def test_profiling_leaves_it_alone(recording: Any) -> None:
    run(recording, 1)
    lent = recording.lend(0)
    recording.inputs[0][...] = 9
    recording.profile()
    assert (lent == 1 + BIAS).all()
    assert (recording.outputs[0] == 9 + BIAS).all()


def test_it_outlives_the_recording_and_the_device(open_device: Callable[..., Any]) -> None:
    device = open_device(share_memory=False)
    recording = device.load(biased(COUNT))
    context = device._context
    lent = []
    for value in (1, 2):
        run(recording, value)
        lent.append(recording.lend(0))
    recording.close()
    with pytest.raises(StateError):
        recording.lend(0)
    with pytest.raises(StateError):
        recording.settle()
    device.close()
    lent[0] += 1
    assert (lent[0] == 2 + BIAS).all()
    assert (lent[1] == 2 + BIAS).all()
    assert context._users > 0
    del lent, recording
    gc.collect()
    assert context._users == 0


# Through the interpreter


@pytest.fixture
def interpreter(
    require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Interpreter]:
    """RELU of 300 x 300 floats, on a device that copies its outputs."""
    require_backend("vulkan")
    from tflgpu_vulkan.device import VulkanDevice

    made = VulkanDevice.__init__

    def copying(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **{**options, "share_memory": False})

    monkeypatch.setattr(VulkanDevice, "__init__", copying)
    shape = (1, 300, 300, 1)
    spec = small_spec({"x": shape, "y": shape}, "y = RELU(x)")
    with (
        GpuDelegate(backend="vulkan") as delegate,
        allocated(
            Interpreter(model_content=write_model(spec), experimental_delegates=[delegate])
        ) as opened,
    ):
        yield opened


def invoke(interpreter: Interpreter, value: float) -> None:
    set_and_run(interpreter, {0: np.full((1, 300, 300, 1), value, np.float32)})


def test_results_are_the_caller_s_own(interpreter: Interpreter) -> None:
    results = []
    for value in range(8):
        invoke(interpreter, value)
        result = interpreter.get_tensor(1)
        result += 0.5
        assert (interpreter.get_tensor(1) == value).all()
        results.append(result)
    assert [float(r[0, 7, 7, 0]) for r in results] == [v + 0.5 for v in range(8)]


def test_results_are_not_copied(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke(interpreter, 3)

    monkeypatch.setattr("tflgpu.interpreter.subgraph.copy", raising(AssertionError("a copy")))
    assert (interpreter.get_tensor(1) == 3).all()


def test_views_and_results_do_not_share_memory(interpreter: Interpreter) -> None:
    invoke(interpreter, 5)
    result = interpreter.get_tensor(1)
    view = interpreter.tensor(1)()
    assert (view == 5).all()
    result[...] = -1
    assert (view == 5).all()
    other = interpreter.get_tensor(1)
    assert not np.shares_memory(other, view)
    view[...] = 8
    assert (other == 5).all()
    del view
    invoke(interpreter, 6)
    assert (interpreter.tensor(1)() == 6).all()
    assert (result == -1).all()


def test_results_outlive_the_interpreter(interpreter: Interpreter) -> None:
    invoke(interpreter, 2)
    result = interpreter.get_tensor(1)
    interpreter.close()
    gc.collect()
    assert (result == 2).all()
