"""Files that say something odd of a tensor or operator, and that LiteRT runs: so do we, to the
same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import ResizeError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.base import Activation
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

F32, I8, U8, I16, I32, I64 = DType.F32, DType.I8, DType.U8, DType.I16, DType.I32, DType.I64
X = np.array([[1.5, -2, 0.25, 9]], np.float32)


def one(
    tensors: list[TensorSpec], *operators: OperatorSpec, inputs: tuple[int, ...] = (0,)
) -> bytes:
    """A model of operators whose last tensor is the result."""
    return write_model(ModelSpec(tensors, operators, inputs, [len(tensors) - 1]))


@pytest.fixture(
    scope="module",
    params=[
        {"backend": "cpu_ref"},
        {"backend": "cpu_ref", "device": 1},
        {"backend": "cpu_ref", "device": 1, "quantized_numerics": "integer"},
        {"backend": "cpu_ref", "device": 1, "cpu_backend": "litert"},
    ],
    ids=["references", "kernels", "integers", "litert"],
)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[bytes], tflgpu.Interpreter]]:
    """Opens a model on one of some devices."""
    with tflgpu.GpuDelegate(**request.param) as delegate:
        yield lambda content: tflgpu.Interpreter(
            model_content=content, experimental_delegates=[delegate]
        )


def theirs(content: bytes) -> Any:
    """LiteRT's own kernels: XNNPACK believes the types of the file."""
    return litert.Interpreter(
        # A copy: what is set in an input that has contents in the file is written to them.
        model_content=bytes(bytearray(content)),
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )


def run(interpreter: Any, *inputs: Array | None) -> Array:
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        if value is not None:
            interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def assert_same(
    make: Callable[[bytes], tflgpu.Interpreter],
    content: bytes,
    *inputs: Array | None,
    steps: int = 0,
) -> None:
    """That both give one result, of one type; of quantized numbers ``steps`` may lie between."""
    wanted = run(theirs(content), *inputs)
    with make(content) as interpreter:
        found = run(interpreter, *inputs)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if steps:
        assert np.abs(found.astype(np.int64) - wanted).max(initial=0) <= steps
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


# Types of results


@pytest.mark.parametrize("given", [F32, U8, I64])
@pytest.mark.parametrize("op", ["ADD", "SUB", "MAXIMUM"])
def test_the_type_of_a_tensor_between_quantized_operators_is_wrong(
    make: Callable[[bytes], tflgpu.Interpreter], op: str, given: DType
) -> None:
    """TFLite's kernel gives its result the type of its operand, and the file's scale stays."""
    x, y = Quantization((0.05,), (3,)), Quantization((0.2,), (-5,))
    m = x if op == "MAXIMUM" else Quantization((0.1,), (5,))
    y = x if op == "MAXIMUM" else y
    tensors = [TensorSpec("x", (1, 4), I8, None, x), TensorSpec("z", (1, 4), I8, None, x),
               TensorSpec("m", (1, 4), given, None, m), TensorSpec("y", (1, 4), I8, None,
               y)]  # fmt: skip
    version = 3 if op == "SUB" else 2
    content = one(
        tensors, OperatorSpec(op, {}, [0, 1], [2], version=version),
        OperatorSpec(op, {}, [2, 1], [3], version=version), inputs=(0, 1),
    )  # fmt: skip
    first, second = (np.array([row], np.int8) for row in ([80, -50, 3, 7], [-9, 11, 100, -128]))
    assert_same(make, content, first, second, steps=1)


@pytest.mark.parametrize(
    ("op", "given", "fields"),
    [("FLOOR", I8, {}), ("EXP", I64, {}), ("GATHER", I8, {}), ("SPLIT", I32, {"num_splits": 1}),
     ("ARG_MAX", F32, {"output_type": I64.tflite}), ("SHAPE", I64, {"out_type": I32.tflite}),
     ("FILL", I8, {})],
)  # fmt: skip
def test_the_type_of_a_result_is_wrong(
    make: Callable[[bytes], tflgpu.Interpreter], op: str, given: DType, fields: dict[str, Any]
) -> None:
    """By an operand, or by an option."""
    tensors = [TensorSpec("x", (1, 4)), TensorSpec("i", (), I32, np.array(0, np.int32)),
               TensorSpec("size", (2,), I32, np.array([1, 4], np.int32)),
               TensorSpec("one", (), F32, np.array(1.5, np.float32)), TensorSpec("y", (),
               given)]  # fmt: skip
    operands = {"GATHER": [0, 1], "SPLIT": [1, 0], "ARG_MAX": [0, 1], "FILL": [2, 3]}.get(op, [0])
    assert_same(make, one(tensors, OperatorSpec(op, fields, operands, [4])), X)


# Inputs


def difference(**first: Any) -> bytes:
    """``y = x - z``, of a first input that is something more."""
    tensors = [TensorSpec("x", (1, 4), **first), TensorSpec("z", (1, 4), shape_signature=(-1, 4)),
               TensorSpec("y", (1, 4), shape_signature=(-1, 4))]  # fmt: skip
    return one(tensors, OperatorSpec("SUB", {}, [0, 1], [2]), inputs=(0, 1))


@pytest.mark.parametrize("given", [X, None])
def test_an_input_that_is_marked_as_a_variable(
    make: Callable[[bytes], tflgpu.Interpreter], given: Array | None
) -> None:
    content = difference(is_variable=True)
    assert_same(make, content, given, X[:, ::-1].copy())
    for interpreter in (theirs(content), make(content)):
        run(interpreter, X, X)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(2), np.zeros((1, 4)))
        interpreter.reset_all_variables()
        np.testing.assert_array_equal(interpreter.get_tensor(0), np.zeros((1, 4)))
        np.testing.assert_array_equal(interpreter.get_tensor(1), X)


def test_a_state_that_is_an_input_as_well_goes_on_from_what_is_set(
    make: Callable[[bytes], tflgpu.Interpreter],
) -> None:
    """Of an operator that keeps its state in it, it is both."""
    weights = np.array([[0.5, -1], [1, 0.25]], np.float32)
    tensors = [TensorSpec("x", (1, 2)), TensorSpec("w", (2, 2), data=weights),
               TensorSpec("r", (2, 2), data=weights.T.copy()), TensorSpec("b", (2,), data=[0.5, 0]),
               TensorSpec("h", (1, 2), is_variable=True), TensorSpec("y", (1, 2))]  # fmt: skip
    content = one(tensors, OperatorSpec("RNN", {}, [0, 1, 2, 3, 4], [5]), inputs=(0, 4))
    found = []
    for interpreter in (theirs(content), make(content)):
        made = [run(interpreter, X[:, :2], np.array([[2, 3]], np.float32))]
        for _ in range(2):
            interpreter.invoke()
            made += [interpreter.get_tensor(5), interpreter.get_tensor(4)]
        found.append(made)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.parametrize("given", [X, None])
@pytest.mark.parametrize("known", [False, True])
def test_what_the_file_has_in_an_input_is_there_until_it_is_set(
    make: Callable[[bytes], tflgpu.Interpreter], given: Array | None, known: bool
) -> None:
    content = difference(data=X * 3)
    assert_same(make, content, given, X[:, ::-1].copy())
    read = read_model(content, lambda data: known)
    assert read.main.tensors[0].data is None
    assert spec_of(read).tensors[0].data is not None


def test_what_was_set_in_such_an_input_stays_when_another_is_resized(
    make: Callable[[bytes], tflgpu.Interpreter],
) -> None:
    content, found = difference(data=X * 3), []
    for interpreter in (theirs(content), make(content)):
        made = [run(interpreter, None, X)]
        for rows in (2, 1):
            interpreter.resize_tensor_input(1, [rows, 4])
            made.append(run(interpreter, X if rows == 1 else None, np.repeat(X, rows, 0)))
        interpreter.resize_tensor_input(1, [3, 4])
        made.append(run(interpreter, None, np.zeros((3, 4), np.float32)))
        with pytest.raises(RuntimeError, match="resize a fixed-size tensor") as error:
            interpreter.resize_tensor_input(0, [2, 4])
        found.append(made)
    assert isinstance(error.value, ResizeError)
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_several_items_begin_with_what_the_file_has_for_one() -> None:
    with tflgpu.Interpreter(
        model_content=difference(data=X * 3), experimental_delegates=[], batch=3
    ) as interpreter:
        found = run(interpreter, None, np.repeat(X, 3, 0))
    np.testing.assert_array_equal(found, np.repeat(X * 2, 3, 0))


# Operators


@pytest.mark.parametrize("kind", [I8, U8])
def test_softmax_of_8_bits_in_16(make: Callable[[bytes], tflgpu.Interpreter], kind: DType) -> None:
    tensors = [TensorSpec("x", (2, 5), kind, None, Quantization((0.05,), (3,))),
               TensorSpec("y", (2, 5), I16, None, Quantization((2.0**-16,), (-(2**15),
               )))]  # fmt: skip
    content = one(tensors, OperatorSpec("SOFTMAX", {"beta": 1.0}, [0], [1], version=2))
    x = np.array([[0, 5, 100, 50, 9], [120, 7, 3, 3, 77]], kind.numpy)
    assert_same(make, content, x, steps=1)


@pytest.mark.parametrize("kind", ["f32", "hybrid", "i8", "u8", "i16"])
@pytest.mark.parametrize("shape", [(2, 1, 0), (2, 4), (0,)])
@pytest.mark.parametrize("keep", [False, True])
def test_fully_connected_without_columns_is_zeros(
    make: Callable[[bytes], tflgpu.Interpreter], kind: str, shape: tuple[int, ...], keep: bool
) -> None:
    """Stored zeros of quantized results, without the bias, whatever comes after it."""
    dtype = {"i8": I8, "u8": U8, "i16": I16}.get(kind, F32)
    weights = {"f32": F32, "u8": U8}.get(kind, I8)
    zero = 0 if kind == "i16" else 5

    def scaled(dtype: DType, zero: int = 0) -> Quantization | None:
        return None if dtype is F32 else Quantization((0.5,), (zero,))

    bias = {"i16": I64, "i8": I32, "u8": I32}.get(kind, F32)
    tensors = [
        TensorSpec("x", shape, dtype, None, scaled(dtype, zero)),
        TensorSpec("w", (3, 0), weights, np.zeros((3, 0), weights.numpy), scaled(weights)),
        TensorSpec("b", (3,), bias, np.array([1, -2, 3], bias.numpy), scaled(bias)),
        TensorSpec("h", (2, 3), dtype, None, scaled(dtype, zero)),
        TensorSpec("y", (2, 3), dtype, None, scaled(dtype, zero)),
    ]
    fields = {"keep_num_dims": keep, "fused_activation_function": Activation.RELU.value}
    content = one(
        tensors, OperatorSpec("FULLY_CONNECTED", fields, [0, 1, 2], [3], version=9),
        OperatorSpec("ADD", {}, [3, 3], [4], version=2),
    )  # fmt: skip
    x = np.ones(shape, dtype.numpy)
    assert_same(make, content, x, steps=int(dtype is not F32))


@pytest.mark.parametrize(
    ("shape", "new"),
    [((0, 4), (0, -1, 2)), ((0, 4), (0, -1)), ((0, 4), (0, -1, 3)), ((0, 4), (0, 8, -1)),
     ((3, 0, 5), (0, 7, -1)), ((0, 0), (0, -1)), ((0, 6), (-1, 0)), ((0, 4), (-1, 3)),
     ((0, 4), (2, -1))],
)  # fmt: skip
@pytest.mark.parametrize("at_run_time", [False, True])
def test_reshape_of_nothing(
    make: Callable[[bytes], tflgpu.Interpreter], shape: Any, new: Any, at_run_time: bool
) -> None:
    sizes = np.array(new, np.int32)
    given = TensorSpec("s", sizes.shape, I32, None if at_run_time else sizes)
    tensors = [TensorSpec("x", shape), given, TensorSpec("y", (1,) * len(new))]
    content = one(
        tensors, OperatorSpec("RESHAPE", {}, [0, 1], [2]), inputs=(0, 1) if at_run_time else (0,)
    )
    inputs = [np.zeros(shape, np.float32), *([sizes] if at_run_time else [])]
    assert_same(make, content, *inputs)


@pytest.mark.parametrize("new", [(0, -1), (5, -1)])
def test_elements_do_not_become_nothing(
    make: Callable[[bytes], tflgpu.Interpreter], new: tuple[int, ...]
) -> None:
    tensors = [TensorSpec("x", (1, 4)), TensorSpec("s", (2,), I32, np.array(new, np.int32)),
               TensorSpec("y", (1, 4))]  # fmt: skip
    content = one(tensors, OperatorSpec("RESHAPE", {}, [0, 1], [2]))
    for interpreter in (theirs(content), make(content)):
        with pytest.raises(RuntimeError):
            interpreter.allocate_tensors()


# Fused activations

WINDOW = {"padding": 1, "stride_h": 1, "stride_w": 1}
FILTER = (4, 2, 2, 4)
#: By op: options, its filter, and the result's shape, of images [1, 3, 3, 4].
FUSED: dict[str, tuple[dict[str, int], tuple[int, ...], tuple[int, ...]]] = {
    "ADD": ({}, (), (1, 3, 3, 4)),
    "SUB": ({}, (), (1, 3, 3, 4)),
    "MUL": ({}, (), (1, 3, 3, 4)),
    "CONV_2D": (WINDOW, FILTER, (1, 2, 2, 4)),
    "DEPTHWISE_CONV_2D": (WINDOW | {"depth_multiplier": 1}, (1, 2, 2, 4), (1, 2, 2, 4)),
    "TRANSPOSE_CONV": (WINDOW, FILTER, (1, 4, 4, 4)),
    "MAX_POOL_2D": (WINDOW | {"filter_height": 2, "filter_width": 2}, (), (1, 2, 2, 4)),
    "AVERAGE_POOL_2D": (WINDOW | {"filter_height": 2, "filter_width": 2}, (), (1, 2, 2, 4)),
}


def fused(op: str, activation: Activation, kind: DType) -> tuple[bytes, list[Array]]:
    """One operator with an activation, and its inputs, of which results are beyond all limits."""
    fields, filters, shape = FUSED[op]
    rng = np.random.default_rng(3)
    is_real = kind is F32

    def scaled(scale: float) -> Quantization | None:
        return None if is_real else Quantization((scale,), (0,))

    step = 0.25 if is_real else 1
    images = [(rng.integers(-40, 40, (1, 3, 3, 4)) * step).astype(kind.numpy) for _ in "xz"]
    bias = F32 if is_real else I32
    tensors = [
        TensorSpec("x", (1, 3, 3, 4), kind, None, scaled(0.25)),
        TensorSpec("z", (1, 3, 3, 4), kind, None, scaled(0.25)),
        TensorSpec(
            "w", filters, kind, rng.integers(-3, 4, filters).astype(kind.numpy), scaled(0.125)
        ),
        TensorSpec("b", (4,), bias, np.zeros(4, bias.numpy), scaled(0.25 * 0.125)),
        TensorSpec("s", (4,), I32, np.array(shape, np.int32)),
        TensorSpec("y", shape, kind, None, scaled(0.25)),
    ]
    pair = op in ("ADD", "SUB", "MUL")
    operands = [0, 1] if pair else [4, 2, 0, 3] if op == "TRANSPOSE_CONV" else [0, 2, 3]
    operator = OperatorSpec(
        op, fields | {"fused_activation_function": activation.value},
        operands if filters or pair else [0], [5], version=3 if filters else 1 if is_real else 2,
    )  # fmt: skip
    return one(tensors, operator, inputs=(0, 1) if pair else (0,)), images[: 1 + pair]


@pytest.mark.parametrize("kind", [F32, I8])
@pytest.mark.parametrize("op", FUSED)
def test_what_is_left_out_of_fused_activations(
    make: Callable[[bytes], tflgpu.Interpreter], op: str, kind: DType
) -> None:
    """No kernel of LiteRT's computes TANH or SIGN_BIT there, and the three clamps all do."""
    for activation in Activation:
        content, inputs = fused(op, activation, kind)
        assert_same(make, content, *inputs, steps=int(kind is not F32))
