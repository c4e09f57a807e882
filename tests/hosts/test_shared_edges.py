"""Where LiteRT's tensors are the session's arrays: no copies in a run, and nothing lost or left
behind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tflgpu
from host_models import chain, host, plain, run
from tflgpu.hosts import callbacks
from tflgpu.hosts.kernel import SubsetKernel
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

pytestmark = pytest.mark.usefixtures("left_out")
SHAPE = (2, 5)
X = np.arange(10, dtype=np.float32).reshape(SHAPE) - 4


@pytest.fixture
def delegate() -> Any:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as made:
        yield made


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def of_tensor(interpreter: Any, index: int) -> int:
    return address(interpreter.tensor(index)())


def only_kernel() -> SubsetKernel:
    (found,) = [k for k, _ in callbacks._kernels.values() if isinstance(k, SubsetKernel)]
    return found


def test_a_whole_model_is_not_copied(delegate: Any) -> None:
    inside = host(chain("NEG", "EXP"), delegate)
    np.testing.assert_allclose(run(inside, X)[0], np.exp(-X), rtol=1e-6)
    arrays = only_kernel()._session.arrays
    assert of_tensor(inside, 0) == address(arrays[0])
    assert of_tensor(inside, 2) == address(arrays[2])
    for factor in (0.5, -1):
        np.testing.assert_allclose(run(inside, factor * X)[0], np.exp(-factor * X), rtol=1e-6)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_part_is(delegate: Any, place: int) -> None:
    """Others read or write its tensors."""
    ops = ["NEG", "EXP"]
    ops.insert(place, "FAKE_QUANT")
    model = chain(*ops, fields={"FAKE_QUANT": {"min": -8.0, "max": 8.0, "num_bits": 8}})
    inside = host(model, delegate)
    assert len(delegate.reports[-1].refusals) == 1
    np.testing.assert_allclose(run(inside, X), run(plain(model), X), rtol=1e-5)
    for kernel, _ in callbacks._kernels.values():
        assert isinstance(kernel, SubsetKernel)
        for index in (*kernel._info.inputs, *kernel._info.outputs):
            assert of_tensor(inside, index) != address(kernel._session.arrays[index])


def two_inputs() -> bytes:
    """NEG of each of two inputs of open shapes."""
    tensors = [TensorSpec(f"t{i}", SHAPE, shape_signature=(-1, 5)) for i in range(4)]
    operators = [OperatorSpec("NEG", {}, (i,), (i + 2,)) for i in range(2)]
    return write_model(ModelSpec(tensors, operators, (0, 1), (2, 3)))


def test_an_input_keeps_its_contents_where_another_is_resized(delegate: Any) -> None:
    """As without a delegate."""
    for inside in (plain(two_inputs()), host(two_inputs(), delegate)):
        run(inside, X, X)
        inside.set_tensor(0, 2 * X)  # into the session's array
        inside.resize_tensor_input(1, (7, 5))
        inside.allocate_tensors()
        np.testing.assert_array_equal(inside.get_tensor(0), 2 * X)
        inside.set_tensor(1, np.ones((7, 5), np.float32))
        for _ in range(2):
            inside.invoke()
            np.testing.assert_array_equal(inside.get_tensor(2), -2 * X)
            np.testing.assert_array_equal(inside.get_tensor(3), -np.ones((7, 5)))


def test_a_resized_input_has_no_memory_before_it_is_allocated(delegate: Any) -> None:
    """So that nobody writes beyond the end of the array that it was."""
    for inside in (plain(two_inputs()), host(two_inputs(), delegate)):
        run(inside, X, X)
        inside.resize_tensor_input(1, (70_000, 5))
        with pytest.raises(ValueError, match="allocate_tensors"):
            inside.set_tensor(1, np.ones((70_000, 5), np.float32))
        inside.allocate_tensors()
        large = np.ones((70_000, 5), np.float32)
        np.testing.assert_array_equal(run(inside, X, large)[1], -large)


def test_a_session_that_is_replaced_takes_inputs_along(delegate: Any) -> None:
    """One run ends in the middle; the next one opens a session anew."""
    inside = host(chain("NEG", "EXP"), delegate)
    run(inside, X)
    kernel = only_kernel()
    before = kernel._session
    arenas = [edge._arena for edge in (*kernel._edges.before, *kernel._edges.after)]
    inside.set_tensor(0, 2 * X)
    before._running = before.parts[0]  # as a driver's error leaves it
    assert before.is_broken
    for _ in range(2):
        inside.invoke()
        np.testing.assert_allclose(inside.get_tensor(2), np.exp(-2 * X), rtol=1e-6)
    assert kernel._session is not before
    # What LiteRT gets back one day is its own, not what the other session had.
    assert [edge._arena for edge in (*kernel._edges.before, *kernel._edges.after)] == arenas


PROGRAM = """
import gc, os, sys
import numpy as np, tflgpu
from ai_edge_litert.interpreter import Interpreter

content = open(sys.argv[1], "rb").read()
delegate = tflgpu.GpuDelegate(backend=sys.argv[2])
interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
interpreter.allocate_tensors()
x = np.linspace(-1, 1, 3 * 5000, dtype=np.float32).reshape(3, 5000)
interpreter.set_tensor(0, x)
interpreter.invoke()

def places():
    return {interpreter.tensor(i)().__array_interface__["data"][0] for i in (0, 2)}

shared = places()
child = os.fork() if hasattr(os, "fork") else None
if child == 0:
    assert not places() & shared  # a driver's memory may not be there in a child
    interpreter.set_tensor(0, 2 * x)
    assert (interpreter.get_tensor(0) == 2 * x).all()
    interpreter.get_tensor(2)
    os._exit(0)
assert child is None or os.waitpid(child, 0)[1] == 0
assert places() == shared
interpreter.invoke()
delegate.close()
del delegate
gc.collect()
np.testing.assert_allclose(interpreter.get_tensor(2), np.exp(-x), rtol=1e-5)
interpreter.set_tensor(0, 2 * x)
assert (interpreter.get_tensor(0) == 2 * x).all()
try:
    interpreter.invoke()
except RuntimeError as error:
    assert "closed" in str(error), error
else:
    raise AssertionError("it ran")
del interpreter
gc.collect()
print("well")
"""


@pytest.mark.parametrize("backend", ["opencl", "vulkan"])
def test_memory_of_a_driver_outlives_the_delegate_and_is_not_a_childs(
    require_backend: Any, tmp_path: Any, backend: str
) -> None:
    require_backend(backend)
    path = tmp_path / "model.tflite"
    path.write_bytes(chain("NEG", "EXP", shape=(3, 5000)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), backend],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "well"
