"""Constants of types that converters do not write, and TFLite's kernels read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def model(op: str, fields: dict[str, Any], made: tuple[int, ...], constants: list[Array]) -> bytes:
    """One op of numbers [2, 3, 4] and constants; SPLIT has them the other way round and two
    results."""
    consts = [
        TensorSpec(f"c{i}", c.shape, DType.from_numpy(c.dtype), c) for i, c in enumerate(constants)
    ]
    tensors = [TensorSpec("x", X.shape), TensorSpec("y", made), TensorSpec("z", made), *consts]
    operands = [0, *range(3, len(tensors))]
    results = [1, 2] if op == "SPLIT" else [1]
    operator = OperatorSpec(op, fields, operands[::-1] if op == "SPLIT" else operands, results)
    return write_model(ModelSpec(tensors, [operator], [0], results))


def results(interpreter: Any) -> list[Array]:
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, X)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(
    ("op", "made", "constants"),
    [
        ("TRANSPOSE", (4, 2, 3), [np.array([2, 0, 1], np.uint32)]),
        ("SPLIT", (2, 3, 2), [np.array(2, np.uint32)]),
        ("SPLIT", (2, 3, 2), [np.array(2**32 - 1, np.uint32)]),
        ("SPLIT", (2, 3, 2), [np.array(2**64 - 1, np.uint64)]),
        ("PAD", (3, 4, 4), [np.array([[1, 0], [0, 1], [0, 0]], np.bool_)]),
    ],
)
def test_what_litert_reads_is_read(
    op: str, made: tuple[int, ...], constants: list[Array], device: int
) -> None:
    content = model(op, {"num_splits": 2} if op == "SPLIT" else {}, made, constants)
    theirs = results(litert.Interpreter(model_content=content))
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=device, cpu_backend="cpu_ref")
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[delegate]
    ) as interpreter:
        ours = results(interpreter)
        assert not interpreter.report.refusals
    assert [o.shape for o in ours] == [made] * len(ours)
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint16, np.uint64])
def test_a_permutation_of_other_bits_is_refused(kind: Any) -> None:
    content = model("TRANSPOSE", {}, (4, 2, 3), [np.array([2, 0, 1], kind)])
    delegate = tflgpu.GpuDelegate(backend="cpu_ref")
    with (
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
        pytest.raises(tflgpu.TflgpuError, match=r"TRANSPOSE: perm \(operand 1\) is .* not a whole"),
    ):
        interpreter.allocate_tensors()
