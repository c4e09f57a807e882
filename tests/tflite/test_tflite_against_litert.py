"""The reader and LiteRT agree about the same file, and LiteRT runs what the writer writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.model_file import ModelFile, SignatureInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.result_types import settled_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, first_results
from tests.small_models import small_model, small_spec, tensor_of
from tests.tflite import samples

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def open_litert(model: bytes | Path) -> Any:
    source = {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
    return litert.Interpreter(
        **source,
        # A delegate would replace operators, and so change what LiteRT says of the file.
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )


def run(model: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    interpreter = open_litert(model)
    return first_results(interpreter, inputs)


def assert_agrees(model: ModelFile, interpreter: Any) -> None:
    main = model.main
    theirs = {d["index"]: d for d in interpreter.get_tensor_details()}
    compared = 0
    for tensor in main.tensors:
        # LiteRT leaves tensors without a name out of its list.
        detail = theirs.get(tensor.index)
        if detail is None:
            assert not tensor.name
            continue
        compared += 1
        assert detail["name"] == tensor.name
        assert tuple(detail["shape"]) == tensor.shape, tensor
        assert tuple(detail["shape_signature"]) == tensor.shape_signature, tensor
        if tensor.dtype.has_numpy:
            assert np.dtype(detail["dtype"]) == tensor.dtype.numpy, tensor
        params = detail["quantization_parameters"]
        quantization = tensor.quantization
        assert tuple(params["scales"].tolist()) == (quantization.scale if quantization else ())
        points = quantization.zero_point if quantization else ()
        assert tuple(params["zero_points"].tolist()) == points
        if quantization and quantization.per_axis:
            assert params["quantized_dimension"] == quantization.axis
        assert bool(detail["sparsity_parameters"]) == (tensor.sparsity is not None)
    assert compared > 0
    details = interpreter._get_ops_details()
    assert [d["op_name"] for d in details] == [o.name for o in main.operators]
    for detail, op in zip(details, main.operators, strict=True):
        assert tuple(detail["inputs"]) == op.inputs, op
        assert tuple(detail["outputs"]) == op.outputs, op
    assert tuple(d["index"] for d in interpreter.get_input_details()) == main.inputs
    assert tuple(d["index"] for d in interpreter.get_output_details()) == main.outputs
    signatures = {
        s.key: {"inputs": sorted(s.inputs), "outputs": sorted(s.outputs)} for s in model.signatures
    }
    theirs = {
        key: {kind: sorted(names) for kind, names in value.items()}
        for key, value in interpreter.get_signature_list().items()
    }
    assert theirs == signatures


def test_real_model_reads_as_in_litert(model_path: Path) -> None:
    assert_agrees(read_model(model_path), open_litert(model_path))


def test_constants_of_a_real_model_are_litert_s(model_path: Path) -> None:
    model, interpreter = read_model(model_path), open_litert(model_path)
    if any(o.is_custom and o.name != "TFLite_Detection_PostProcess" for o in model.main.operators):
        pytest.skip("LiteRT has no kernel for a custom operator of it, so gives no tensors")
    interpreter.allocate_tensors()
    compared = 0
    for tensor in model.main.tensors:
        if tensor.data is not None and tensor.data.size:
            np.testing.assert_array_equal(interpreter.get_tensor(tensor.index), tensor.data)
            compared += 1
    assert compared > 0


@pytest.mark.parametrize("name", ["conv", "quantized", "loop", "sparse"])
def test_written_model_reads_as_in_litert(name: str) -> None:
    data = write_model(samples.ALL[name]())
    assert_agrees(read_model(data), open_litert(data))


@pytest.mark.parametrize(
    "name", ["tflm_mnist_lstm_fp32", "mobilenet_v1_0.25_224_float", "dtln_model_quant_1"]
)
def test_rewritten_model_computes_the_same(find_model: Callable[[str], Path], name: str) -> None:
    original = find_model(name).read_bytes()
    rewritten = write_model(spec_of(read_model(original)))
    main = read_model(original).main
    rng = np.random.default_rng(0)
    inputs = [rng.random(main.tensors[i].shape, np.float32) for i in main.inputs]
    for a, b in zip(run(original, *inputs), run(rewritten, *inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_conv_computes_in_litert() -> None:
    spec = samples.conv()
    x = np.random.default_rng(1).standard_normal((1, 7, 5, 2)).astype(np.float32)
    (y,) = run(write_model(spec), x)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    weights, bias = (np.asarray(spec.tensors[i].data) for i in (1, 2))
    want = np.empty((1, 4, 3, 5), np.float32)
    for row in range(4):
        for column in range(3):
            patch = padded[0, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            want[0, row, column] = np.tensordot(weights, patch, 3) + bias
    np.testing.assert_allclose(y, np.maximum(want, 0), rtol=1e-5, atol=1e-5)


def test_loop_runs_in_litert() -> None:
    (end,) = run(write_model(samples.loop()), np.array([2], np.int32))
    assert end.tolist() == [11]


def test_densify_in_litert_is_what_our_densify_makes() -> None:
    pattern, values = samples.sparse_constant()
    tensor = read_model(write_model(samples.sparse())).main.tensors[0]
    assert tensor.sparsity is not None
    assert tensor.data is not None
    dense = tensor.sparsity.densify(tensor.data, tensor.shape)
    (want,) = run(write_model(samples.sparse()), np.zeros((4, 6), np.float32))
    np.testing.assert_array_equal(dense, want)
    np.testing.assert_array_equal(pattern.densify(values, (4, 6)), want)


def test_signature_runs_in_litert() -> None:
    interpreter = open_litert(write_model(samples.conv()))
    runner = interpreter.get_signature_runner("serve")
    result = runner(image=np.zeros((1, 7, 5, 2), np.float32))
    assert result["features"].shape == (1, 4, 3, 5)


SINGLE = {
    "POOL": (
        OperatorSpec(
            "AVERAGE_POOL_2D",
            {"padding": 1, "stride_w": 2, "stride_h": 1, "filter_width": 2, "filter_height": 3},
            (0,),
            (1,),
        ),
        (1, 3, 4, 1),
        (1, 1, 2, 1),
        lambda x: x.reshape(1, 3, 2, 2, 1).mean((1, 3)).reshape(1, 1, 2, 1),
    ),
    "SOFTMAX": (
        OperatorSpec("SOFTMAX", {"beta": 2.0}, (0,), (1,)),
        (2, 5),
        (2, 5),
        lambda x: np.exp(2 * x) / np.exp(2 * x).sum(-1, keepdims=True),
    ),
    "LEAKY_RELU": (
        OperatorSpec("LEAKY_RELU", {"alpha": 0.25}, (0,), (1,)),
        (7,),
        (7,),
        lambda x: np.where(x < 0, x * np.float32(0.25), x),
    ),
    "SQUEEZE": (
        OperatorSpec("SQUEEZE", {"squeeze_dims": [0, 2]}, (0,), (1,)),
        (1, 3, 1, 2),
        (3, 2),
        lambda x: x.reshape(3, 2),
    ),
    "SIGN": (OperatorSpec("SIGN", {}, (0,), (1,)), (6,), (6,), np.sign),
    "DEPTH_TO_SPACE": (
        OperatorSpec("DEPTH_TO_SPACE", {"block_size": 2}, (0,), (1,)),
        (1, 1, 1, 4),
        (1, 2, 2, 1),
        lambda x: x.reshape(1, 2, 2, 1),
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single_operator_computes_in_litert(name: str) -> None:
    op, shape, out, formula = SINGLE[name]
    spec = ModelSpec([TensorSpec("x", shape), TensorSpec("y", out)], [op], (0,), (1,))
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    (y,) = run(write_model(spec), x)
    np.testing.assert_allclose(y, formula(x), rtol=1e-5, atol=1e-6)


def test_operator_of_the_second_options_union_computes_in_litert() -> None:
    fields = {"edge_padding_low": [1], "edge_padding_high": [2], "interior_padding": [1]}
    spec = small_spec(
        {"x": (3,), "p": tensor_of((), data=np.float32(9)), "y": (8,)},
        ("y = STABLEHLO_PAD(x, p)", fields),
    )
    (y,) = run(write_model(spec), np.array([1, 2, 3], np.float32))
    assert y.tolist() == [9, 1, 9, 2, 9, 3, 9, 9]


def test_int4_constant_is_unpacked_as_litert_does() -> None:
    values = np.array([[-8, 7, 3], [0, -1, 5]], np.int8)
    spec = small_spec(
        {
            "w": tensor_of((2, 3), DType.I4, values, Quantization((0.5,), (0,))),
            "y": (2, 3),
            "x": (2, 3),
            "z": (2, 3),
        },
        ("y = DEQUANTIZE(w)", {}, {"version": 6}),
        "z = ADD(y, x)",
    )
    data = write_model(spec)
    (z,) = run(data, np.zeros((2, 3), np.float32))
    tensor = read_model(data).main.tensors[0]
    assert tensor.quantization is not None
    assert tensor.data is not None
    np.testing.assert_array_equal(tensor.quantization.dequantize(tensor.data), z)


def test_signatures_of_several_subgraphs() -> None:
    spec = samples.loop()
    more = ModelSpec(
        spec.tensors,
        spec.operators,
        spec.inputs,
        spec.outputs,
        subgraphs=spec.subgraphs,
        signatures=(
            SignatureInfo("main", 0, {"i": 0}, {"end": 1}),
            SignatureInfo("step", 2, {"i": 0}, {"next": 2}),
        ),
    )
    data = write_model(more)
    assert read_model(data).signatures == more.signatures
    runner = open_litert(data).get_signature_runner("step")
    assert runner(i=np.array([4], np.int32))["next"].tolist() == [7]


# Results whose type TFLite's kernel sets: the file's word on it is replaced, as LiteRT replaces
# it.


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
    allocate_and_run(interpreter, {0: x})
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
        content = small_model(
            {
                "x": tensor_of((2, 3), DType.F16),
                **dict.fromkeys("cn", (1,)),
                "y": tensor_of((2, 3), given),
            },
            ("y = DEQUANTIZE(x)", {}, {"version": 3}),
            inputs="x",
        )
    x = X.astype(np.float16) if op == "DEQUANTIZE" else X
    theirs, their_type = results(litert.Interpreter(model_content=content), x)
    assert their_type is made  # else the facet is wrong
    with ours(content) as interpreter:
        if given is not DType.BF16:
            found, our_type = results(interpreter, x)
            assert our_type is made
        else:
            allocate_and_run(interpreter, {0: x})
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
    content = small_model(
        {
            "x": (2, 3),
            "c": tensor_of((2, 3), data=np.full((2, 3), 1, np.float32)),
            "less": tensor_of((2, 3), DType.I8),
            "y": tensor_of((1, 2), DType.F32),
            "is": tensor_of((1, 2), DType.U8),
            "seven": tensor_of((), DType.I64, np.array(1, np.int64)),
        },
        "less = LESS(x, c)",
        "y = WHERE(less)",
        "is = EQUAL(y, seven)",
        outputs="is y",
    )
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, {0: X})
    with ours(content) as interpreter:
        allocate_and_run(interpreter, {0: X})
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
    content = small_model({"x": (2, 3), "y": tensor_of((2, 3), DType.I32)}, "y = SIN(x)")
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
