"""State that stays on the device between runs: when it goes there, who gets it back, and what
errors leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu.errors import DeviceError, DeviceLostError, StateError
from tflgpu.flow.store import State, VariableStore
from tflgpu.ir.dtypes import DType
from tflgpu.lowering.rule import Unsupported
from tflgpu.runtime.state import QUIET
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.flow.flow_models import const, loop, model, number, subgraph, tensor, up_to
from tests.recovery import recovery_models as models
from tests.recovery.recovery_models import step
from tests.running import allocated, set_and_run
from tests.watched_device import WatchedDevice

HIDDEN, CELL = 15, 16
STREAM = [models.INPUTS[i % 4] * (1 + i % 3) for i in range(QUIET + 4)]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> WatchedDevice:
    return WatchedDevice(monkeypatch)


@pytest.fixture
def streaming() -> Iterator[Callable[..., Any]]:
    """Makes an interpreter whose state is on the device after the inputs that it was given."""
    held: list[Any] = []

    def make(count: int = QUIET + 1, **options: Any) -> Any:
        delegate = tflgpu.GpuDelegate(**{"backend": "cpu_ref", "device": 1, **options})
        held.append(delegate)
        made = tflgpu.Interpreter(
            model_content=models.keeps_state(), experimental_delegates=[delegate]
        )
        held.append(made)
        made.allocate_tensors()
        for x in STREAM[:count]:
            step(made, x)
        return made

    yield make
    while held:
        held.pop().close()


def close_to(found: Any, inputs: list[Any]) -> None:
    np.testing.assert_allclose(found, models.state_results(*inputs)[-1], atol=1e-5)


def goes_on(interpreter: Any, done: int = QUIET + 1) -> None:
    for at in range(done, len(STREAM)):
        close_to(step(interpreter, STREAM[at]), STREAM[: at + 1])


def state_of(inputs: list[Any]) -> list[Any]:
    """LiteRT's state after these inputs."""
    other = allocated(
        LiteRT(model_content=models.keeps_state(), experimental_preserve_all_tensors=True)
    )
    for x in inputs:
        step(other, x)
    return [np.array(other.get_tensor(i)) for i in (HIDDEN, CELL)]


def test_it_goes_when_nobody_asks_and_comes_back_for_who_does(
    device: WatchedDevice, streaming: Callable[..., Any]
) -> None:
    interpreter = streaming(QUIET)
    assert device.moved == (0, 0)
    loads = device.loads
    goes_on(interpreter, QUIET)
    assert device.moved == (2, 0)  # two tensors, once
    assert device.loads == loads + 1
    for index, expected in zip((HIDDEN, CELL), state_of(STREAM), strict=True):
        np.testing.assert_allclose(interpreter.get_tensor(index), expected, atol=1e-5)
    assert device.moved == (2, 2)
    # Asked for again and again, it stays.
    for x in STREAM:
        step(interpreter, x)
        found = interpreter.get_tensor(CELL)
    np.testing.assert_allclose(found, state_of([*STREAM, *STREAM])[1], atol=1e-5)
    assert device.moved == (2, 2)


def test_what_is_written_to_it_is_where_the_next_run_begins(
    device: WatchedDevice, streaming: Callable[..., Any]
) -> None:
    interpreter, fresh = streaming(), streaming(0)
    for index in (HIDDEN, CELL):
        given = np.full((1, models.UNITS), 0.25, np.float32)
        interpreter.set_tensor(index, given)
        fresh.tensor(index)()[...] = given
    for x in models.INPUTS:
        np.testing.assert_allclose(step(interpreter, x), step(fresh, x), atol=1e-6)


def test_reset_lets_it_begin_anew(device: WatchedDevice, streaming: Callable[..., Any]) -> None:
    interpreter = streaming()
    interpreter.reset_all_variables()
    np.testing.assert_array_equal(interpreter.get_tensor(CELL), 0)
    goes_on(interpreter, 0)
    reads = device.reads
    interpreter.reset_all_variables()  # which needs none of what is on the device
    assert device.reads == reads
    goes_on(interpreter, 0)


@pytest.mark.parametrize("error", [DeviceError("no"), KeyboardInterrupt()], ids=["error", "signal"])
def test_a_run_that_did_not_end_leaves_it(
    error: BaseException, device: WatchedDevice, streaming: Callable[..., Any]
) -> None:
    interpreter = streaming()
    keeper = interpreter._main.session._state_buffers[0]
    device.half_written = keeper._pairs[0][1 - keeper._turn].region
    device.fails = [error]
    with pytest.raises(type(error)):
        step(interpreter, STREAM[0])
    assert np.all(device.half_written.bytes == 7)
    expected = state_of(STREAM[: QUIET + 1])
    for index, wanted in zip((HIDDEN, CELL), expected, strict=True):
        np.testing.assert_allclose(interpreter.get_tensor(index), wanted, atol=1e-5)
    goes_on(interpreter)


@pytest.mark.parametrize("on_error", ["cpu", "retry"])
@pytest.mark.parametrize("kind", [DeviceError, DeviceLostError])
def test_who_goes_on_after_an_error_has_it(
    on_error: str, kind: type[DeviceError], device: WatchedDevice, streaming: Callable[..., Any]
) -> None:
    """Whatever becomes of the device: the state was never there only."""
    interpreter = streaming(on_error=on_error)
    assert device.moved == (0, 0)
    device.fails = [kind("no")]
    device.unreadable = DeviceLostError("nothing can be read")
    goes_on(interpreter)
    assert not device.fails


def test_a_device_that_does_not_give_it_back(
    device: WatchedDevice, streaming: Callable[..., Any]
) -> None:
    """Nobody goes on with a state that is not the model's."""
    interpreter = streaming()
    device.fails = [DeviceLostError("gone")]
    device.unreadable = DeviceLostError("nothing can be read")
    with pytest.raises(DeviceLostError):
        step(interpreter, STREAM[0])
    for _ in range(2):
        with pytest.raises(StateError, match=r"nothing can be read.*reset_all_variables"):
            step(interpreter, STREAM[0])
    interpreter.reset_all_variables()
    device.unreadable = None
    goes_on(interpreter, 0)


def refusals(patch: pytest.MonkeyPatch, which: str) -> None:
    from tflgpu_cpu_ref.device import CpuRefDevice
    from tflgpu_cpu_ref.recording import CpuRefRecording

    no = Unsupported("not here")
    if which == "no buffers":
        patch.setattr(CpuRefDevice, "_allocate_buffer", lambda *_: no)
    elif which == "not bound":
        bind = CpuRefRecording.bind

        def refusing(recording: Any, inputs: Any = None, outputs: Any = None) -> Any:
            return no if any(inputs.values()) else bind(recording, inputs, outputs)

        patch.setattr(CpuRefRecording, "bind", refusing)
    else:

        def failing(*_: Any) -> Any:
            raise DeviceError("memory ran out")

        patch.setattr(CpuRefDevice, "_allocate_buffer", failing)


@pytest.mark.parametrize("which", ["no buffers", "not bound", "no memory"])
def test_a_device_that_cannot_keep_it(
    which: str,
    device: WatchedDevice,
    streaming: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals(monkeypatch, which)
    interpreter = streaming()
    goes_on(interpreter)
    assert device.moved == (0, 0)
    assert not interpreter._main.session._state_buffers[0]._may_leave  # and is not asked again


def test_it_stays_where_a_device_may_never_give_it_back(
    device: WatchedDevice, streaming: Callable[..., Any]
) -> None:
    interpreter = streaming(run_timeout=60)
    goes_on(interpreter)
    assert device.moved == (0, 0)


def test_bound_tensors_and_state(device: WatchedDevice, streaming: Callable[..., Any]) -> None:
    """Both recordings read and write what is bound, before the state goes and after it went."""
    interpreter = streaming()
    loads = device.loads
    with interpreter.allocate_buffer(0) as x, interpreter.allocate_buffer(1) as y:
        interpreter.bind_input(0, x)
        interpreter.bind_output(1, y)
        for more in range(70):
            x.write(STREAM[more % 3])
            interpreter.invoke()
        past = [*STREAM[: QUIET + 1], *(STREAM[i % 3] for i in range(70))]
        close_to(y.read(), past)
        assert device.loads == loads + 1
        interpreter.unbind(0)
        interpreter.unbind(1)
        close_to(step(interpreter, STREAM[3]), [*past, STREAM[3]])


def test_a_device_that_nobody_asked_for_has_no_state_of_its_own(
    device: WatchedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the CPU goes on whatever becomes of the device."""
    monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    with allocated(tflgpu.Interpreter(model_content=models.keeps_state())) as interpreter:
        for x in STREAM[: QUIET + 1]:
            step(interpreter, x)
        assert device.moved == (0, 0)
        device.fails = [DeviceLostError("gone")]
        device.unreadable = DeviceLostError("nothing can be read")
        goes_on(interpreter)
        assert not device.fails


@pytest.mark.needs("opencl")
def test_a_thousand_calls_are_as_litert_computes_them(streaming: Callable[..., Any]) -> None:
    interpreter = streaming(0, backend="opencl", device=0)
    other = allocated(
        LiteRT(model_content=models.keeps_state(), experimental_preserve_all_tensors=True)
    )
    rng = np.random.default_rng(3)
    for x in rng.normal(size=(1000, *models.X.shape)).astype(np.float32):
        found, expected = step(interpreter, x), step(other, x)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert interpreter._main.session._state_buffers[0].is_away
    for index in (HIDDEN, CELL):
        np.testing.assert_allclose(
            interpreter.get_tensor(index), other.get_tensor(index), atol=1e-5
        )


# A model of several graphs whose device fails, and fails once more when it is opened anew.


def doubled_three_times() -> bytes:
    """The negative of x, doubled in a loop; the output is tensor 4."""
    i, one = tensor("i", (), DType.I32), number("one", 1)
    made = [tensor("i2", (), DType.I32), tensor("y")]
    main = subgraph(
        [i, tensor("x"), tensor("z"), *made],
        [("NEG", "x", "z"), ("WHILE", "i z", "i2 y", loop(1, 2))], "i x", "i2 y",
    )  # fmt: skip
    body = subgraph(
        [i, tensor("x"), one, *made], [("ADD", "i one", "i2"), ("ADD", "x x", "y")], "i x", "i2 y"
    )
    return model(main, up_to(3), body)


def test_it_is_opened_anew_as_often_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = WatchedDevice(monkeypatch)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, partitioning="all") as delegate,
        allocated(
            tflgpu.Interpreter(
                model_content=doubled_three_times(), experimental_delegates=[delegate]
            )
        ) as one,
    ):
        one.set_tensor(0, np.int32(0))
        one.set_tensor(1, np.ones(2, np.float32))

        def result() -> Any:
            one.invoke()
            return one.get_tensor(4).tolist()

        assert result() == [-8, -8]
        for _ in range(2):
            faults.fails = [DeviceError("the run")]
            with pytest.raises(DeviceError, match="the run"):
                one.invoke()
            broken = one._main.session
            assert broken is not None
            faults.fails_to_load = [DeviceError("not now")] * 2
            for _ in range(2):
                with pytest.raises(DeviceError, match="not now"):
                    one.invoke()
                assert broken.is_broken
            with pytest.raises(StateError, match="closed"):
                broken.run()
            assert result() == [-8, -8]
            assert one._main.session is not broken


def sliced_state(two_signatures: bool = False) -> bytes:
    """Of as many steps of x as ``n`` says an LSTM, which the CPU runs, and a softmax. The output is
    tensor 3."""
    units, size = models.UNITS, models.SIZE
    tensors = [
        tensor("x", (1, 3, size)), tensor("n", (3,), DType.I32), number("zero", [0, 0, 0]),
        tensor("y", (1, 1, units)), tensor("part", (1, 1, size)), tensor("h", (1, 1, units)),
    ]  # fmt: skip
    for name, arrays in (("w", models.W), ("r", models.R), ("b", models.B)):
        tensors += [const(f"{name}{i}", array) for i, array in enumerate(arrays)]
    first = 6
    tensors += [TensorSpec(n, (1, units), is_variable=True) for n in ("output", "cell")]
    no = (-1,)
    operands = (4, *range(first, first + 8), *no * 3, *range(first + 8, first + 12), *no * 2,
                first + 12, first + 13, *no * 4)  # fmt: skip
    operators = [
        OperatorSpec("SLICE", {}, (0, 2, 1), (4,)),
        OperatorSpec("UNIDIRECTIONAL_SEQUENCE_LSTM", {"fused_activation_function": 4}, operands, (5,
        )),
        OperatorSpec("SOFTMAX", {"beta": 1.0}, (5,), (3,)),
    ]  # fmt: skip
    if not two_signatures:
        return write_model(ModelSpec(tensors, operators, (0, 1), (3,)))
    other = subgraph(
        [tensor("n", (1,), DType.I32), tensor("v", (1,)), number("at", [0]), tensor("s", ()),
         tensor("y", (1,))],
        [("SUM", "v at", "s", {"keep_dims": False}), ("FILL", "n s", "y")], "n v", "y",
    )  # fmt: skip
    signatures = [
        SignatureInfo("keep", 0, {"x": 0, "n": 1}, {"y": 3}),
        SignatureInfo("other", 1, {"n": 0, "v": 1}, {"y": 4}),
    ]
    return write_model(ModelSpec(tensors, operators, (0, 1), (3,), signatures, subgraphs=(other,)))


def test_state_is_what_it_was_where_the_first_run_at_other_shapes_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = WatchedDevice(monkeypatch)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, partitioning="all") as delegate,
        allocated(
            tflgpu.Interpreter(model_content=sliced_state(), experimental_delegates=[delegate])
        ) as one,
    ):
        steps = np.concatenate(models.INPUTS[:3], axis=1)

        def run(*numbers: int) -> Any:
            """Of some steps, that follow each other."""
            x = np.zeros_like(steps)
            x[:, : len(numbers)] = steps[:, list(numbers)]
            set_and_run(one, {0: x, 1: np.array([1, len(numbers), models.SIZE], np.int32)})
            return one.get_tensor(3)[0]

        wanted = np.concatenate(models.state_results(*(steps[:, i] for i in (0, 1, 2, 0))))[:, 0]
        np.testing.assert_allclose(run(0), wanted[:1], atol=1e-5)
        for count in (2, 2):
            faults.fails = [DeviceError("no")]
            with pytest.raises(DeviceError, match="no"):
                run(*range(count))
        np.testing.assert_allclose(run(1), wanted[1:2], atol=1e-5)
        np.testing.assert_allclose(run(2, 0), wanted[2:], atol=1e-5)


def test_runs_in_flight_at_other_shapes_take_no_state_along() -> None:
    steps = np.concatenate(models.INPUTS[:3], axis=1)
    wanted = np.concatenate(models.state_results(*(steps[:, i] for i in (0, 1, 2))))[:, 0]
    with allocated(
        tflgpu.Interpreter(model_content=sliced_state(), experimental_delegates=[])
    ) as one:

        def given(step: int, room: int) -> dict[int, Any]:
            x = np.zeros((1, room, models.SIZE), np.float32)
            x[:, 0] = steps[:, step]
            return {0: x, 1: np.array([1, 1, models.SIZE], np.int32)}

        for room in (3, 4):  # the second time the runs in flight of the first end late
            one.resize_tensor_input(0, (1, room, models.SIZE))
            one.allocate_tensors()
            for step in (0, 1, 2):
                if step == 1:
                    found = one.invoke_async(given(step, room)).results()[0]
                else:
                    set_and_run(one, given(step, room))
                    found = one.get_tensor(3)
                np.testing.assert_allclose(found[0, 0], wanted[step], atol=1e-5)


def test_a_signature_s_other_shapes_leave_the_state_of_another() -> None:
    steps = np.concatenate(models.INPUTS[:3], axis=1)
    wanted = np.concatenate(models.state_results(*(steps[:, i] for i in (0, 1, 2))))[:, 0]
    with tflgpu.Interpreter(model_content=sliced_state(True), experimental_delegates=[]) as one:
        keep, other = (one.get_signature_runner(key) for key in ("keep", "other"))

        def kept(x: Any, count: int) -> Any:
            return keep(x=x, n=np.array([1, count, models.SIZE], np.int32))["y"][0]

        np.testing.assert_allclose(kept(steps, 1), wanted[:1], atol=1e-5)
        for count in (2, 3):
            found = other(n=np.array([4], np.int32), v=np.full(count, 3, np.float32))["y"]
            assert found.tolist() == [3 * count] * 4
        np.testing.assert_allclose(kept(np.roll(steps, -1, 1), 2), wanted[1:], atol=1e-5)


def test_a_state_begins_at_its_zero_point() -> None:
    store = VariableStore()
    states = store.states(0)
    states[3] = State(np.full(2, 9, np.int8), -5)
    store.reset()
    assert states[3].array.tolist() == [-5, -5]
    before = store.snapshot()
    states[3].array[:] = 8
    states[3] = State(np.full(2, 7, np.int8), -5)
    states[4] = State(np.full(2, 7, np.int8), 6)
    late = [states[3], states[4]]
    store.restore(before)
    assert list(states) == [3]
    assert states[3].array.tolist() == [-5, -5]
    assert [state.array.tolist() for state in late] == [[-5, -5], [6, 6]]
