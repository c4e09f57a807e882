"""A model of several graphs whose device fails, and fails once more when it is opened anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, StateError
from tflgpu.flow.store import State, VariableStore
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.watched_device import WatchedDevice

sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))
sys.path.insert(0, str(Path(__file__).parent))
import recovery_models as models
from flow_models import const, loop, model, number, subgraph, tensor, up_to


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
        tflgpu.Interpreter(
            model_content=doubled_three_times(), experimental_delegates=[delegate]
        ) as one,
    ):
        one.allocate_tensors()
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
        tflgpu.Interpreter(model_content=sliced_state(), experimental_delegates=[delegate]) as one,
    ):
        one.allocate_tensors()
        steps = np.concatenate(models.INPUTS[:3], axis=1)

        def run(*numbers: int) -> Any:
            """Of some steps, that follow each other."""
            x = np.zeros_like(steps)
            x[:, : len(numbers)] = steps[:, list(numbers)]
            one.set_tensor(0, x)
            one.set_tensor(1, np.array([1, len(numbers), models.SIZE], np.int32))
            one.invoke()
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
    with tflgpu.Interpreter(model_content=sliced_state(), experimental_delegates=[]) as one:
        one.allocate_tensors()

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
                    for index, value in given(step, room).items():
                        one.set_tensor(index, value)
                    one.invoke()
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
