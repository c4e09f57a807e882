"""What is written is what is read back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tflgpu.errors import GraphError, ModelError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite import schema
from tflgpu.tflite.model_file import ModelFile, SignatureInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.small_models import small_spec, tensor_of
from tests.tflite import samples

# The two codes that are not operators.
BUILTINS = sorted(set(schema.BUILTIN_CODES) - {"CUSTOM", "PLACEHOLDER_FOR_GREATER_OP_CODES"})


def assert_same(a: ModelFile, b: ModelFile) -> None:
    assert len(a.subgraphs) == len(b.subgraphs)
    for left, right in zip(a.subgraphs, b.subgraphs, strict=True):
        assert (left.name, left.inputs, left.outputs) == (right.name, right.inputs, right.outputs)
        assert left.operators == right.operators
        assert len(left.tensors) == len(right.tensors)
        for x, y in zip(left.tensors, right.tensors, strict=True):
            for name in [
                "index",
                "name",
                "shape",
                "shape_signature",
                "dtype",
                "quantization",
                "is_variable",
                "has_rank",
            ]:
                assert getattr(x, name) == getattr(y, name), (x.name, name)
            if x.data is None:
                assert y.data is None, x.name
            else:
                assert y.data is not None, x.name
                assert x.data.dtype == y.data.dtype
                np.testing.assert_array_equal(x.data, y.data)
    assert a.signatures == b.signatures
    assert a.metadata == b.metadata
    assert a.description == b.description


@pytest.mark.parametrize("name", samples.ALL)
def test_reading_and_writing_again_changes_nothing(name: str) -> None:
    once = read_model(write_model(samples.ALL[name]()))
    assert_same(once, read_model(write_model(spec_of(once))))


def test_real_model_survives_writing(model_path: Path) -> None:
    model = read_model(model_path)
    assert model.main.operators
    assert_same(model, read_model(write_model(spec_of(model))))


def test_conv_reads_as_written() -> None:
    spec = samples.conv()
    model = read_model(write_model(spec))
    x, w, b, y = model.main.tensors
    assert (x.name, x.shape, x.shape_signature, x.dtype, x.data) == (
        "x",
        (1, 7, 5, 2),
        (1, 7, 5, 2),
        DType.F32,
        None,
    )
    assert w.data is not None
    assert b.data is not None
    np.testing.assert_array_equal(w.data, spec.tensors[1].data)
    np.testing.assert_array_equal(b.data, spec.tensors[2].data)
    assert y.data is None
    (op,) = model.main.operators
    assert (op.name, op.is_custom, op.version, op.inputs, op.outputs) == (
        "CONV_2D",
        False,
        1,
        (0, 1, 2),
        (3,),
    )
    assert op.fields == {
        "padding": 0,
        "stride_w": 2,
        "stride_h": 2,
        "fused_activation_function": 1,
        "dilation_w_factor": 1,
        "dilation_h_factor": 1,
        "quantized_bias_type": 0,
    }
    assert model.signatures == (SignatureInfo("serve", 0, {"image": 0}, {"features": 3}),)
    assert bytes(model.metadata["note"]) == b"made by a test"
    assert model.description == "one convolution"


def test_custom_operator_absent_input_and_quantization() -> None:
    main = read_model(write_model(samples.quantized())).main
    dense, custom = main.operators
    assert dense.inputs == (0, 1, -1)
    assert dense.version == 4
    assert dense.fields["keep_num_dims"] is True
    assert dense.fields["asymmetric_quantize_inputs"] is False
    assert (custom.name, custom.is_custom, custom.fields) == ("Mystery", True, {})
    assert custom.custom_options == b"\x01\x02\x03"
    assert main.tensors[0].quantization == Quantization((np.float32(0.1).item(),), (-3,))
    assert main.tensors[1].quantization == Quantization(
        (0.5, 0.25, 0.125), (0, 0, 0), 0, (-1.0,), (1.0,)
    )
    assert main.tensors[3].quantization is None
    assert main.tensors[3].shape_signature == (-1, 3)


def test_vectors_strings_and_floats_among_the_options() -> None:
    spec = small_spec(
        {"x": (4,), "y": (2, 2)},
        ("y = RESHAPE(x)", {"new_shape": (2, 2)}),
        ("y = SOFTMAX(x)", {"beta": 0.5}),
        ("y = BUCKETIZE(x)", {"boundaries": [0.5, 1.5]}),
        ("y = VAR_HANDLE()", {"shared_name": "é"}),
        ("y = STABLEHLO_PAD(x)", {"edge_padding_low": [1, 2**40]}),
        "y = LOGISTIC(x)",
    )
    ops = read_model(write_model(spec)).main.operators
    assert ops[0].fields == {"new_shape": (2, 2)}
    assert ops[1].fields == {"beta": 0.5}
    assert ops[2].fields == {"boundaries": (0.5, 1.5)}
    assert ops[3].fields == {"container": "", "shared_name": "é"}
    assert ops[4].fields == {
        "edge_padding_low": (1, 2**40),
        "edge_padding_high": (),
        "interior_padding": (),
    }
    assert ops[5].fields == {}


@pytest.mark.parametrize("builtin", BUILTINS)
def test_every_builtin_round_trips_with_every_field_away_from_its_default(builtin: str) -> None:
    ref = schema.options_of(builtin)
    fields = {}
    for f in schema.layout(ref.table).fields.values() if ref else ():
        if f.kind is schema.Kind.STRING:
            fields[f.name] = "text"
        elif f.kind is schema.Kind.NUMBERS:
            numbers = (0, 0) if "subgraph" in f.name else (1, 2, 0)  # of those that there are
            fields[f.name] = (True, False) if f.number.kind == "b" else numbers
        elif f.number.kind == "b":
            fields[f.name] = not f.default
        elif "subgraph" not in f.name:
            fields[f.name] = f.default + 3
    spec = small_spec({"x": (1,)}, (f"x = {builtin}(x)", fields), inputs="x", outputs="x")
    (op,) = read_model(write_model(spec), as_written=True).main.operators
    assert op.name == builtin
    assert not op.is_custom
    assert {k: v for k, v in op.fields.items() if "subgraph" not in k or k in fields} == fields


def test_constants_of_every_type() -> None:
    main = read_model(write_model(samples.constants())).main
    values = {t.name: t.data for t in main.tensors}
    for dtype in DType:
        if dtype.has_numpy:
            data = values[dtype.value]
            assert data is not None
            assert data.dtype == dtype.numpy
            assert data.tolist() == [1, 0, 1]
            assert not data.flags.writeable
    assert values["i4"].tolist() == [-8, 7, 3]
    assert values["i4"].dtype == np.int8
    assert values["bf16"].tolist() == [0x3F80, 0, 0xFFFF]
    assert values["string"].tolist() == [b"a", b"", b"three"]
    assert values["nothing"].shape == (0,)
    assert values["x"] is None


def test_constants_are_views_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "conv.tflite"
    path.write_bytes(write_model(samples.conv()))
    data = read_model(path).main.tensors[1].data
    assert data is not None
    assert not data.flags.owndata
    assert not data.flags.writeable
    assert data.__array_interface__["data"][0] % 16 == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_memory_of_any_kind(kind: type) -> None:
    model = read_model(kind(write_model(samples.conv())))
    data = model.main.tensors[1].data
    assert data is not None
    assert not data.flags.writeable


def test_unread_bool_bytes_become_true() -> None:
    spec = small_spec({"m": tensor_of((4,), DType.BOOL, [True, False, True, True])}, outputs="m")
    raw = bytearray(write_model(spec))
    raw[raw.index(b"\x01\x00\x01\x01")] = 0x80
    data = read_model(raw).main.tensors[0].data
    assert data is not None
    assert data.view(np.uint8).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (OperatorSpec("CONV_2D", {"strde_w": 1}, (0,), (0,)), "no field 'strde_w'; it has padding"),
        (OperatorSpec("CONV_2D", {"stride_w": 1.5}, (0,), (0,)), "stride_w: 1.5 is no scalar"),
        (OperatorSpec("CONV_2D", {"stride_w": 2**31}, (0,), (0,)), "2147483648 is no scalar"),
        (OperatorSpec("CONV_2D", {"stride_w": True}, (0,), (0,)), "True is no scalar of int32"),
        (OperatorSpec("RESHAPE", {"new_shape": (1.5,)}, (0,), (0,)), "is no vector of numbers"),
        (OperatorSpec("VAR_HANDLE", {"container": 3}, (0,), (0,)), "3 is no string"),
        (OperatorSpec("LOGISTIC", {"beta": 1.0}, (0,), (0,)), "operator has no fields"),
        (OperatorSpec("Mystery", {"beta": 1.0}, (0,), (0,)), "custom operator has no fields"),
        (OperatorSpec("RELU", {}, (9,), (0,)), r"operator 0 \(RELU\): input 0 is tensor 9"),
        (OperatorSpec("RELU", {}, (0,), (-1,)), "output 0 is tensor -1"),
    ],
)
def test_writer_refuses_what_does_not_fit(spec: OperatorSpec, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        write_model(ModelSpec([TensorSpec("x", (1,))], [spec], (0,), (0,)))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorSpec("c", (3,), data=np.zeros(4, np.float32)), r"shape \(4,\) for shape \(3,\)"),
        (TensorSpec("c", (3,), data=np.zeros(3, np.float64)), "float64 for a tensor of type f32"),
        (TensorSpec("c", (1,), DType.I4, np.array([8], np.int8)), "run from -8 to 7"),
        (TensorSpec("c", (1,), DType.STRING, ["text"]), "takes bytes"),
        (TensorSpec("c", (1,), DType.RESOURCE, [0]), "cannot be written"),
        (TensorSpec("c", (1,), data=[0.0], is_variable=True), "variable cannot have a constant"),
        (TensorSpec("c", (-1,)), "negative size"),
    ],
)
def test_writer_refuses_constants_that_do_not_fit(tensor: TensorSpec, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        write_model(ModelSpec([tensor], [], (), (0,)))


# Affine quantization values.


def test_one_scale_for_the_whole_tensor() -> None:
    q = Quantization((0.5,), (3,))
    assert not q.per_axis
    scale, zero_point = q.broadcast(4)
    assert scale.shape == zero_point.shape == ()
    stored = np.array([[0, 3], [5, 255]], np.uint8)
    np.testing.assert_array_equal(q.dequantize(stored), [[-1.5, 0], [1, 126]])


def test_scales_along_an_axis() -> None:
    q = Quantization((1.0, 2.0, 4.0), (0, 1, -1), axis=1)
    assert q.per_axis
    scale, zero_point = q.broadcast(3)
    assert scale.shape == zero_point.shape == (1, 3, 1)
    stored = np.array([[[1, 2], [1, 2], [1, 2]]], np.int8)
    np.testing.assert_array_equal(q.dequantize(stored), [[[1, 2], [0, 2], [8, 12]]])


def test_whole_numbers_do_not_overflow_on_the_way() -> None:
    q = Quantization((1.0,), (-128,))
    assert q.dequantize(np.array([127], np.int8)).tolist() == [255.0]
    widest = Quantization((1.0,), (-1,)).dequantize(np.array([2**31 - 1], np.int32))
    assert widest.tolist() == [2.0**31]


@pytest.mark.parametrize(
    ("scale", "zero_point", "axis", "message"),
    [
        ((), (), 0, "at least one, not 0 for 0"),
        ((1.0, 2.0), (0,), 0, "not 1 for 2"),
        ((-1.0,), (0,), 0, "scale -1.0"),
        ((math.nan,), (0,), 0, "scale nan"),
        ((math.inf,), (0,), 0, "scale inf"),
        ((1.0,), (0,), -1, "axis -1 is negative"),
    ],
)
def test_refused(
    scale: tuple[float, ...], zero_point: tuple[int, ...], axis: int, message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        Quantization(scale, zero_point, axis)


def test_axis_beyond_the_rank() -> None:
    with pytest.raises(GraphError, match="axis 2 of a tensor of rank 2"):
        Quantization((1.0, 2.0), (0, 0), 2).broadcast(2)
