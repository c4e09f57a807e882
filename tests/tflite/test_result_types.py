"""Results whose type TFLite's kernel sets: the file's word on it is replaced, as LiteRT replaces
it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.result_types import settled_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

X = np.array([[1.5, -2, 0], [4, 0, 8]], np.float32)


def model(op: str, given: DType, **fields: Any) -> bytes:
    """One op of two rows of numbers, whose result has a type in the file that it does not make."""
    operands = [0, 1] if op in ("LESS", "EQUAL") else [0, 2] if op == "RFFT2D" else [0]
    lengths = np.array([2, 2], np.int32)
    tensors = [
        TensorSpec("x", (2, 3)),
        TensorSpec("c", (2, 3), data=np.full((2, 3), 1, np.float32)),
        TensorSpec("n", (2,), DType.I32, lengths),
        TensorSpec("y", (), given),
    ]
    version = 2 if op == "DEQUANTIZE" else 1
    operator = OperatorSpec(op, fields, operands, [3], version=version)
    return write_model(ModelSpec(tensors, [operator], [0], [3]))


def results(interpreter: Any, x: Array = X) -> tuple[Array, Any]:
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    return interpreter.get_tensor(3), interpreter.get_output_details()[0]["dtype"]


def ours(content: bytes, **options: Any) -> Any:
    delegate = tflgpu.GpuDelegate(**{"backend": "cpu_ref", **options})
    return tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])


@pytest.mark.parametrize(
    ("op", "made"),
    [("LESS", np.bool_), ("EQUAL", np.bool_), ("RANK", np.int32), ("BUCKETIZE", np.int32),
     ("RFFT2D", np.complex64), ("WHERE", np.int64), ("DEQUANTIZE", np.float32)],
)  # fmt: skip
@pytest.mark.parametrize("given", [DType.I8, DType.I4, DType.F64, DType.BF16])
def test_a_type_that_the_kernel_sets(op: str, made: Any, given: DType) -> None:
    content = model(op, given, **({"boundaries": [-1.0, 2.0]} if op == "BUCKETIZE" else {}))
    if op == "DEQUANTIZE":  # f32 is not what LiteRT takes there
        spec = [TensorSpec("x", (2, 3), DType.F16), *(TensorSpec(n, (1,)) for n in "cn"),
                TensorSpec("y", (2, 3), given)]  # fmt: skip
        cast = OperatorSpec("DEQUANTIZE", {}, [0], [3], version=3)
        content = write_model(ModelSpec(spec, [cast], [0], [3]))
    x = X.astype(np.float16) if op == "DEQUANTIZE" else X
    theirs, their_type = results(litert.Interpreter(model_content=content), x)
    assert their_type is made  # else the facet is wrong
    with ours(content) as interpreter:
        if given is not DType.BF16:
            found, our_type = results(interpreter, x)
            assert our_type is made
        else:
            interpreter.allocate_tensors()
            interpreter.set_tensor(0, x)
            interpreter.invoke()
            found = interpreter.get_tensor(3)
    assert found.dtype == theirs.dtype
    np.testing.assert_allclose(found, theirs, rtol=1e-6)


def test_before_it_is_allocated_the_file_is_right_too() -> None:
    """As in LiteRT, which sets the type when it prepares the operator."""
    content = model("LESS", DType.I8)
    theirs = litert.Interpreter(model_content=content)
    with ours(content) as interpreter:
        before = interpreter.get_output_details()[0]["dtype"]
        assert before is theirs.get_output_details()[0]["dtype"] is np.int8


def test_what_reads_such_a_result_reads_what_was_made() -> None:
    """Also between pieces of a model whose shapes come at run time."""
    tensors = [
        TensorSpec("x", (2, 3)),
        TensorSpec("c", (2, 3), data=np.full((2, 3), 1, np.float32)),
        TensorSpec("less", (2, 3), DType.I8),
        TensorSpec("y", (1, 2), DType.F32),
        TensorSpec("is", (1, 2), DType.U8),
        TensorSpec("seven", (), DType.I64, np.array(1, np.int64)),
    ]
    operators = [
        OperatorSpec("LESS", {}, [0, 1], [2]),
        OperatorSpec("WHERE", {}, [2], [3]),
        OperatorSpec("EQUAL", {}, [3, 5], [4]),
    ]
    content = write_model(ModelSpec(tensors, operators, [0], [4, 3]))
    theirs = litert.Interpreter(model_content=content)
    theirs.allocate_tensors()
    theirs.set_tensor(0, X)
    theirs.invoke()
    with ours(content) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, X)
        interpreter.invoke()
        for index in (3, 4):
            assert interpreter.get_tensor(index).dtype == theirs.get_tensor(index).dtype
            np.testing.assert_array_equal(interpreter.get_tensor(index), theirs.get_tensor(index))
        assert len(interpreter.get_tensor(3)) == np.count_nonzero(X < 1)


@pytest.mark.parametrize("known", [False, True])
def test_a_model_is_settled_as_a_whole(known: bool) -> None:
    """Also one of a known file, which is read only where somebody asks."""
    read = read_model(model("LESS", DType.I8), lambda data: known)
    assert type(read).__name__ == ("LaterModel" if known else "ModelFile")
    made = settled_model(read, builtin_ops())
    assert [t.dtype for t in made.main.tensors] == [DType.F32, DType.F32, DType.I32, DType.BOOL]
    assert settled_model(made, builtin_ops()) is made


def test_another_op_still_has_to_have_the_type_that_it_makes() -> None:
    tensors = [TensorSpec("x", (2, 3)), TensorSpec("y", (2, 3), DType.I32)]
    content = write_model(ModelSpec(tensors, [OperatorSpec("SIN", {}, [0], [1])], [0], [1]))
    with pytest.raises(ModelError, match="is i32 in the file, but the operator makes f32"):
        build_graph(read_model(content), 0, builtin_ops())


@pytest.mark.parametrize("kind", [DType.I8, DType.U8, DType.I16])
@pytest.mark.parametrize("side", ["cpu_ref", "litert"])
def test_dequantized_numbers_without_a_scale_are_zeros(kind: DType, side: str) -> None:
    """TFLite takes a scale that is not there for 0."""
    tensors = [TensorSpec("x", (2, 3), kind), TensorSpec("y", (2, 3))]
    tensors[1:1] = [TensorSpec(n, (1,)) for n in "cn"]
    content = write_model(
        ModelSpec(tensors, [OperatorSpec("DEQUANTIZE", {}, [0], [3], version=3)], [0], [3])
    )
    x = np.array([[1, 2, 3], [4, 5, 255 if kind is DType.U8 else -6]], kind.numpy)
    theirs, _ = results(litert.Interpreter(model_content=content), x)
    with ours(content, backend=side) as interpreter:
        found, _ = results(interpreter, x)
    np.testing.assert_array_equal(found, theirs)
    np.testing.assert_array_equal(found, np.zeros((2, 3), np.float32))
