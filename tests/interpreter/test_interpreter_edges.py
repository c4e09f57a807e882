"""Graphs with odd edges (results that are inputs, constants, given twice, ...) on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tflgpu.contract.device import Probe
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter")

F, I32, I64, BOOL = DType.F32, DType.I32, DType.I64, DType.BOOL


def row(name: str, dtype: DType = F) -> TensorSpec:
    return TensorSpec(name, (1, 3), dtype)


def op(name: str, inputs: tuple[int, ...], output: int) -> OperatorSpec:
    return OperatorSpec(name, {}, inputs, (output,))


def new_shape() -> TensorSpec:
    return TensorSpec("shape", (2,), I32, [1, 3])


C = np.array([1.0, -2.0, 3.0], np.float32)

# Tensors, operators, inputs, outputs.
GRAPHS: dict[str, ModelSpec] = {
    "a no-op makes the output": ModelSpec(
        [row("x"), row("h"), new_shape(), row("y")],
        [op("ABS", (0,), 1), op("RESHAPE", (1, 2), 3)], (0,), (3,),
    ),
    "nothing but a no-op": ModelSpec(
        [row("x"), new_shape(), row("y")], [op("RESHAPE", (0, 1), 2)], (0,), (2,)
    ),
    "an input is an output": ModelSpec([row("x"), row("y")], [op("ABS", (0,), 1)], (0,), (0, 1)),
    "an output given twice": ModelSpec([row("x"), row("y")], [op("ABS", (0,), 1)], (0,), (1, 1)),
    "an output that is constant": ModelSpec(
        [row("x"), TensorSpec("c", (3,), data=C), TensorSpec("d", (3,)), row("y")],
        [op("ABS", (1,), 2), op("ADD", (0, 2), 3)], (0,), (2, 3),
    ),
    "an input that nobody reads": ModelSpec(
        [row("x"), row("unused"), row("y")], [op("ABS", (0,), 2)], (0, 1), (2,)
    ),
    "an intermediate is an output": ModelSpec(
        [row("x"), row("h"), row("y")], [op("ABS", (0,), 1), op("RELU", (1,), 2)], (0,), (1, 2)
    ),
    "int32": ModelSpec([row("x", I32), row("y", I32)], [op("ADD", (0, 0), 1)], (0,), (1,)),
    "int64": ModelSpec([row("x", I64), row("y", I64)], [op("ADD", (0, 0), 1)], (0,), (1,)),
    "bool in and out": ModelSpec(
        [row("x", BOOL), row("y", BOOL)], [op("LOGICAL_NOT", (0,), 1)], (0,), (1,)
    ),
    "bool between": ModelSpec(
        [row("x"), row("z"), row("b", BOOL), row("y")],
        [op("GREATER", (0, 1), 2), op("SELECT_V2", (2, 0, 1), 3)], (0, 1), (3,),
    ),
    "no dimensions": ModelSpec(
        [TensorSpec("x", ()), TensorSpec("y", ())], [op("ABS", (0,), 1)], (0,), (1,)
    ),
}  # fmt: skip


@pytest.fixture(params=["none", "cpu_ref 0", "cpu_ref 1", "opencl 0"])
def delegates(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Probe]
) -> Iterator[list[GpuDelegate]]:
    """No delegate, and one of each device."""
    if request.param == "none":
        yield []
        return
    backend, device = request.param.split()
    require_backend(backend)
    with GpuDelegate(backend=backend, device=int(device), guard_bands=True) as delegate:
        yield [delegate]


@pytest.mark.parametrize("name", GRAPHS)
def test_it_runs_as_in_litert(name: str, delegates: list[GpuDelegate]) -> None:
    content = write_model(GRAPHS[name])
    rng = np.random.default_rng(5)
    theirs = litert.Interpreter(model_content=content)
    theirs.allocate_tensors()
    with Interpreter(model_content=content, experimental_delegates=delegates) as ours:
        ours.allocate_tensors()
        for _ in range(2):
            for details in theirs.get_input_details():
                value = (5 * rng.standard_normal(details["shape"])).astype(details["dtype"])
                ours.set_tensor(details["index"], value)
                theirs.set_tensor(details["index"], value)
            ours.invoke()
            theirs.invoke()
            for details in theirs.get_output_details():
                got = ours.get_tensor(details["index"])
                expected = theirs.get_tensor(details["index"])
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(got, expected)
        report = ours.report
    # An operator of constants is evaluated while the graph is built, and is no node of it.
    evaluated = 1 if name == "an output that is constant" else 0
    assert report.total_nodes == len(GRAPHS[name].operators) - evaluated
    assert len(report.refusals) == report.total_nodes - report.delegated_nodes
