"""What is written is what is read back."""

from __future__ import annotations

import math
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
import tflite
from tflgpu.errors import GraphError, ModelError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite import schema
from tflgpu.tflite.common_tables import COMMON
from tflgpu.tflite.model_file import ModelFile, SignatureInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.sparsity import Level, Sparsity
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


# Sparse constants become dense.


def test_blocks() -> None:
    pattern, values = samples.sparse_constant()
    want = np.zeros((4, 6), np.float32)
    want[0:2, 2:4] = [[1, 2], [3, 4]]
    want[2:4, 0:2] = [[5, 6], [7, 8]]
    want[2:4, 4:6] = [[9, 10], [11, 12]]
    np.testing.assert_array_equal(pattern.densify(values, (4, 6)), want)


def test_compressed_rows_in_another_order() -> None:
    dense = np.array([[0, 0, 7], [5, 0, 0], [0, 0, 0], [1, 0, 2]], np.int8)
    # Columns are traversed first.
    columns = [np.flatnonzero(dense[:, c]) for c in range(3)]
    pattern = Sparsity(
        (1, 0),
        (),
        (
            Level(3),
            Level(
                None,
                np.cumsum([0, *map(len, columns)]).astype(np.int32),
                np.concatenate(columns).astype(np.uint16),
            ),
        ),
    )
    values = np.concatenate([dense[rows, c] for c, rows in enumerate(columns)])
    np.testing.assert_array_equal(pattern.densify(values, (4, 3)), dense)


def test_nothing_stored() -> None:
    empty = np.empty(0, np.uint8)
    pattern = Sparsity((0, 1), (), (Level(2), Level(None, np.zeros(3, np.uint8), empty)))
    dense = pattern.densify(np.empty(0, np.float32), (2, 5))
    assert dense.shape == (2, 5)
    assert not dense.any()


def test_counting_values_allocates_nothing_for_a_huge_shape() -> None:
    """All dense: as many values as the shape has elements, more than any memory."""
    sizes = (2**31 - 1,) * 2
    pattern = Sparsity((0, 1), (), tuple(Level(s) for s in sizes))
    assert pattern.count_values(sizes, "here") == sizes[0] ** 2


def test_too_few_values() -> None:
    pattern, values = samples.sparse_constant()
    with pytest.raises(ModelError, match="11 values stored, the layout has 12"):
        pattern.densify(values[:-1], (4, 6))


def test_a_scalar() -> None:
    """It has no dimensions to be sparse in, and one value."""
    dense = Sparsity((), (), ()).densify(np.array([3], np.float32), ())
    assert dense.shape == ()
    assert dense == 3


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


# The schema that reflection finds is the schema that flatc was given.


def test_slots_types_and_defaults_of_a_table() -> None:
    fields = schema.layout("Conv2DOptions").fields
    assert [(f.slot, f.name, str(f.number), f.default) for f in fields.values()] == [
        (0, "padding", "int8", 0),
        (1, "stride_w", "int32", 0),
        (2, "stride_h", "int32", 0),
        (3, "fused_activation_function", "int8", 0),
        (4, "dilation_w_factor", "int32", 1),
        (5, "dilation_h_factor", "int32", 1),
        (6, "quantized_bias_type", "int8", 0),
    ]


def test_a_deprecated_slot_stays_empty() -> None:
    fields = schema.layout("ResizeBilinearOptions").fields
    assert {f.name: f.slot for f in fields.values()} == {
        "align_corners": 2,
        "half_pixel_centers": 3,
    }


def test_kinds() -> None:
    assert {f.name: f.kind.value for f in schema.layout("Operator").fields.values()} == {
        "opcode_index": "scalar",
        "inputs": "vector of numbers",
        "outputs": "vector of numbers",
        "builtin_options_type": "scalar",
        "builtin_options": "union",
        "custom_options": "vector of numbers",
        "custom_options_format": "scalar",
        "mutating_variable_inputs": "vector of numbers",
        "intermediates": "vector of numbers",
        "large_custom_options_offset": "scalar",
        "large_custom_options_size": "scalar",
        "builtin_options2_type": "scalar",
        "builtin_options2": "union",
        "debug_metadata_index": "scalar",
    }


def test_every_options_table_belongs_to_an_operator() -> None:
    used = {ref.table for b in schema.BUILTIN_CODES if (ref := schema.options_of(b))}
    every = {t for u in ("builtin_options", "builtin_options2") for t in schema.UNIONS[u].values()}
    assert every - used == {"NONE"}


@pytest.mark.parametrize(
    ("builtin", "table"),
    [
        ("CONV_2D", "Conv2DOptions"),
        ("AVERAGE_POOL_2D", "Pool2DOptions"),
        ("SUM", "ReducerOptions"),
        ("PADV2", "PadV2Options"),
        ("STABLEHLO_COMPOSITE", "StableHLOCompositeOptions"),
        ("LOGISTIC", None),
        ("PRELU", None),
    ],
)
def test_options_of(builtin: str, table: str | None) -> None:
    ref = schema.options_of(builtin)
    assert (ref and ref.table) == table


def test_options_fields_hold_what_the_reader_returns() -> None:
    for union in ("builtin_options", "builtin_options2"):
        for table in schema.UNIONS[union].values():
            if table != "NONE":
                for f in schema.layout(table).fields.values():
                    assert f.kind in (schema.Kind.SCALAR, schema.Kind.NUMBERS, schema.Kind.STRING)


def test_slots_are_those_that_flatc_s_own_writer_uses() -> None:
    """Write each number of each options table with flatc's code, and find it in our slot."""
    checked = 0
    for union in ("builtin_options", "builtin_options2"):
        for table in schema.UNIONS[union].values():
            for f in schema.layout(table).fields.values() if table != "NONE" else ():
                if f.kind is not schema.Kind.SCALAR:
                    continue
                camel = "".join(part.capitalize() for part in f.name.split("_"))
                builder = flatbuffers.Builder(64)
                getattr(tflite, f"{table}Start")(builder)
                getattr(tflite, f"{table}Add{camel}")(builder, not f.default)
                builder.Finish(getattr(tflite, f"{table}End")(builder))
                raw = flatbuffers.table.Table(
                    builder.Output(), int.from_bytes(builder.Output()[:4], "little")
                )
                assert raw.Offset(4 + 2 * f.slot) != 0, (table, f.name)
                checked += 1
    assert checked > 150


def test_unknown_table() -> None:
    with pytest.raises(KeyError, match="no table NoSuchOptions"):
        schema.layout("NoSuchOptions")


# What LiteRT's schema has and ours has not, and what a model with it comes to: tables of features
# that are refused by their type code, and weights in other files, refused at each tensor.
NOT_OURS = {
    "ExternalBuffer",
    "ExternalBufferGroup",
    "MultiAxisQuantization",
    "StablehloCaseOptions",
    "Model.external_buffer_groups",
    "Model.external_buffers",
}


def test_every_field_is_litert_s() -> None:
    """LiteRT ships its own schema, which may be younger than the `tflite` package."""
    litert = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="no LiteRT schema")
    compared, missing = 0, set()
    for table, cls in vars(litert).items():
        if not hasattr(cls, "Init"):
            continue
        try:
            ours = schema.layout(table).fields
        except KeyError:
            missing.add(table)
            continue
        theirs = {f.name: f for f in schema.reflect(cls)}
        missing |= {f"{table}.{name}" for name in set(theirs) - set(ours)}
        assert not set(ours) - set(theirs), table
        for name, field in ours.items():
            assert field == theirs[name], table
            compared += 1
    assert compared > 300
    assert missing <= NOT_OURS


def test_every_code_is_litert_s() -> None:
    litert = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="no LiteRT schema")
    for name, code in schema.BUILTIN_CODES.items():
        assert getattr(litert.BuiltinOperator, name) == code
    enumerations = {
        "builtin_options": litert.BuiltinOptions,
        "builtin_options2": litert.BuiltinOptions2,
        "details": litert.QuantizationDetails,
        "sparse_index": litert.SparseIndexVector,
    }
    for union, enumeration in enumerations.items():
        for code, name in schema.UNIONS[union].items():
            assert getattr(enumeration, name) == code
    for dtype in DType:
        assert dtype.tflite in vars(litert.TensorType).values()


@pytest.mark.parametrize("name", sorted(set(COMMON) - {"OperatorCode"}))
def test_tables_by_hand_are_the_package_s(name: str) -> None:
    found = {field.name: field for field in schema.reflect(getattr(tflite, name))}
    # Younger than the package.
    younger = {"Tensor": {"external_buffer"}}.get(name, set())
    assert {n: f for n, f in COMMON[name].fields.items() if n not in younger} == found
    slots = [field.slot for field in COMMON[name].fields.values()]
    assert slots == sorted(set(slots))


def test_codes_by_hand_are_the_package_s() -> None:
    codes = schema.BUILTIN_CODES
    assert codes["CUSTOM"] == schema.CUSTOM
    assert codes["STABLEHLO_COMPOSITE"] == schema.COMPOSITE
    assert codes["PLACEHOLDER_FOR_GREATER_OP_CODES"] == schema.PLACEHOLDER
