"""Views and closing: what an interpreter holds, and when it lets go of it."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu.interpreter.api
from tflgpu import Model, Pool
from tflgpu.errors import DeviceError, StateError
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.runtime.session import Session
from tflgpu.tflite import spec
from tflgpu.tflite.spec import ModelSpec, OperatorSpec
from tflgpu.tflite.spec import TensorSpec as FileTensor
from tflgpu.tflite.write import write_model

from tests.interpreter import closing_child as child
from tests.interpreter import interpreter_models as models
from tests.running import allocated, raising

X = np.array([[1.0, 2.0, 3.0]], np.float32)
Y = (X + models.C) * models.C


def ready(content: bytes | None = None) -> Interpreter:
    return allocated(Interpreter(model_content=content or models.chain()))


@pytest.fixture
def closes(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """The sessions that have been closed, in order."""
    gc.collect()  # not those of tests before this one
    closed: list[Session] = []
    original = Session.close

    def close(self: Session) -> None:
        closed.append(self)
        original(self)

    monkeypatch.setattr(Session, "close", close)
    return closed


# Views


def test_views_read_and_write_the_tensors_themselves() -> None:
    interpreter = ready()
    source, result = interpreter.tensor(0), interpreter.tensor(3)
    for scale in (1, 2):
        source()[...] = X * scale
        interpreter.invoke()
        np.testing.assert_array_equal(result(), (X * scale + models.C) * models.C)
    assert source().__array_interface__ == source().__array_interface__


def test_a_view_of_a_constant_is_read_only() -> None:
    for interpreter in (ready(), Interpreter(model_content=models.chain())):
        view = interpreter.tensor(1)()
        np.testing.assert_array_equal(view, models.C)
        assert not view.flags.writeable


HOLDS: dict[str, Callable[[np.ndarray], Any]] = {
    "the view": lambda v: v,
    "a slice": lambda v: v[:, 1:],
    "a reshaped slice": lambda v: v[0, ::2].reshape(2, 1),
    "another type": lambda v: v.view(np.int32),
    "a memoryview": memoryview,
}


@pytest.mark.parametrize("what", HOLDS)
def test_nothing_runs_while_a_view_is_held(what: str) -> None:
    interpreter = ready()
    held = HOLDS[what](interpreter.tensor(0)())
    for action in (
        interpreter.invoke,
        interpreter.allocate_tensors,
        lambda: interpreter.resize_tensor_input(0, [2, 3]),
    ):
        with pytest.raises(StateError, match="view of a tensor is still held"):
            action()
    interpreter.set_tensor(0, X)
    np.testing.assert_array_equal(interpreter.get_tensor(0), X)
    del held
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(3), Y)


def test_a_copy_of_a_view_holds_nothing() -> None:
    interpreter = ready()
    copy = interpreter.tensor(0)().copy()
    interpreter.invoke()
    assert copy.shape == (1, 3)


def test_a_session_lives_as_long_as_a_view_of_it(closes: list[Session]) -> None:
    interpreter = ready()
    interpreter.set_tensor(0, X)
    view = interpreter.tensor(0)()
    part = view[:, 1:]
    interpreter.close()
    del view
    assert closes == []
    np.testing.assert_array_equal(part, X[:, 1:])
    del part
    assert len(closes) == 1


# Closing


def given_a_delegate(interpreter: Interpreter) -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref") as delegate:
        interpreter.modify_graph_with_delegate(delegate)


USES: dict[str, Callable[[Interpreter], Any]] = {
    "allocate_tensors": lambda i: i.allocate_tensors(),
    "invoke": lambda i: i.invoke(),
    "profile": lambda i: i.profile(1),
    "invoke_async": lambda i: i.invoke_async(),
    "set_tensor": lambda i: i.set_tensor(0, X),
    "get_tensor": lambda i: i.get_tensor(3),
    "constant": lambda i: i.get_tensor(1),
    "tensor": lambda i: i.tensor(0)(),
    "resize_tensor_input": lambda i: i.resize_tensor_input(0, [2, 3]),
    "reset_all_variables": lambda i: i.reset_all_variables(),
    "get_input_details": lambda i: i.get_input_details(),
    "get_output_details": lambda i: i.get_output_details(),
    "get_tensor_details": lambda i: i.get_tensor_details(),
    "_get_ops_details": lambda i: i._get_ops_details(),
    "_get_op_details": lambda i: i._get_op_details(0),
    "_get_tensor_details": lambda i: i._get_tensor_details(0, 0),
    "_get_full_signature_list": lambda i: i._get_full_signature_list(),
    "_safe_to_run": lambda i: i._safe_to_run(),
    "_ensure_safe": lambda i: i._ensure_safe(),
    "experimental_compress_quantization_zero_points": (
        lambda i: i.experimental_compress_quantization_zero_points
    ),
    "num_subgraphs": lambda i: i.num_subgraphs(),
    "get_signature_list": lambda i: i.get_signature_list(),
    "get_signature_runner": lambda i: i.get_signature_runner(),
    "keeps_state": lambda i: i.keeps_state,
    "report": lambda i: i.report,
    "delegation_report": lambda i: i.delegation_report("serving_default"),
    "bind_input": lambda i: i.bind_input(0, X),
    "bind_output": lambda i: i.bind_output(3, X),
    "bind_buffer_to_tensor": lambda i: i.bind_buffer_to_tensor(X, 0),
    "unbind": lambda i: i.unbind(),
    "allocate_buffer": lambda i: i.allocate_buffer(0),
    "allocate_array": lambda i: i.allocate_array(0),
    "allocate_cuda": lambda i: i.allocate_cuda(0),
    "modify_graph_with_delegate": given_a_delegate,
    "copied": lambda i: i.copied,
    "reset_copied": lambda i: i.reset_copied(),
    "set_allow_buffer_handle_output": lambda i: i.set_allow_buffer_handle_output(True),
    "ensure_tensor_data_is_readable": lambda i: i.ensure_tensor_data_is_readable(3),
    "with": lambda i: i.__enter__(),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_after_close_says_so(use: str) -> None:
    interpreter = ready()
    interpreter.close()
    interpreter.close()
    with pytest.raises(StateError, match="interpreter is closed"):
        USES[use](interpreter)


def test_the_uses_are_all_there_are() -> None:
    public = {n for n in dir(Interpreter) if not n.startswith("_")}
    assert public - {"close"} <= set(USES)


def test_a_runner_of_a_closed_interpreter_says_so() -> None:
    with ready() as interpreter:
        runner = interpreter.get_signature_runner()
        np.testing.assert_array_equal(runner(image=X)["scores"], Y)
    for use in (lambda: runner(image=X), runner.get_input_details, runner.get_output_details):
        with pytest.raises(StateError, match="interpreter is closed"):
            use()


def test_close_closes_the_session_once(closes: list[Session]) -> None:
    with ready() as interpreter:
        assert closes == []
    assert len(closes) == 1
    del interpreter
    gc.collect()
    assert len(closes) == 1


def test_resizing_closes_the_old_session(closes: list[Session]) -> None:
    interpreter = ready()
    interpreter.resize_tensor_input(0, [2, 3])
    assert len(closes) == 1
    interpreter.allocate_tensors()
    interpreter.allocate_tensors()
    assert len(closes) == 1


def test_an_interpreter_that_is_dropped_closes_its_session(closes: list[Session]) -> None:
    interpreter = ready()
    view = interpreter.tensor(3)
    gone = weakref.ref(interpreter)
    del interpreter, view
    gc.collect()
    assert gone() is None
    assert len(closes) == 1


def test_a_delegate_outlives_the_interpreters_it_serves() -> None:
    with GpuDelegate(backend="cpu_ref") as delegate:
        for _ in range(2):
            with Interpreter(
                model_content=models.chain(), experimental_delegates=[delegate]
            ) as interpreter:
                np.testing.assert_array_equal(
                    interpreter.get_signature_runner()(image=X)["scores"], Y
                )


def test_a_failing_run_leaves_the_interpreter_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Session, "run", raising(DeviceError("the device is gone")))
        interpreter = ready()
        with pytest.raises(RuntimeError, match="the device is gone"):
            interpreter.invoke()
    assert attrs.asdict(interpreter.report)["total_nodes"] == 2
    interpreter.resize_tensor_input(0, [2, 3])
    interpreter.allocate_tensors()
    interpreter.invoke()


def test_a_stale_shape_in_the_file_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not at each preparation of one interpreter; another one says it again."""
    tensors = [spec.TensorSpec("x", (1, 3)), spec.TensorSpec("y", (1, 5))]
    content = write_model(
        spec.ModelSpec(tensors, [spec.OperatorSpec("RELU", {}, [0], [1])], [0], [1])
    )

    def told() -> int:
        return sum("inferred anew" in r.getMessage() for r in caplog.records)

    interpreter = allocated(tflgpu.Interpreter(model_content=content))
    assert told() == 1
    for size in ([2, 3], [1, 3], [4, 3], [1, 3]):
        interpreter.resize_tensor_input(0, size)
        interpreter.allocate_tensors()
    assert told() == 1
    tflgpu.Interpreter(model_content=content).allocate_tensors()
    assert told() == 2


# `close` and calls from inside a call of the same thread: by a signal's handler, an input, a
# callback.


#: Seconds for all cases of a backend; one that waits for ever ends its process long before.
LIMIT = 300


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan"])
def test_nothing_waits_for_ever(backend: str) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    done = subprocess.run(
        [sys.executable, "-m", child.__name__, backend], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    said = [line[5:] for line in done.stdout.splitlines() if line.startswith("case ")]
    left = [name for name in child.cases_of(backend) if name not in said]
    assert not left and not done.returncode, f"in {left[:1]}: {done.stderr[-3000:]}"


# What holds a device is not copied and not pickled.


MODEL = write_model(
    ModelSpec(
        [FileTensor("x", (2,)), FileTensor("y", (2,))], [OperatorSpec("TANH", {}, (0,), (1,))],
        (0,), (1,),
    )
)  # fmt: skip
MAKERS: dict[str, Callable[[], Any]] = {
    "GpuDelegate": lambda: GpuDelegate(backend="cpu_ref"),
    "Interpreter": lambda: Interpreter(model_content=MODEL, experimental_delegates=[]),
    "Model": lambda: Model(MODEL, backend="cpu_ref"),
    "Pool": lambda: Pool(MODEL, backend="cpu_ref"),
}


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", MAKERS)
def test_it_says_so(name: str, way: Callable[[Any], Any]) -> None:
    with MAKERS[name]() as made, pytest.raises(StateError, match=f"a {name} cannot be copied"):
        way(made)
