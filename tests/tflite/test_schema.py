"""The schema that reflection finds is the schema that flatc was given."""

from __future__ import annotations

import flatbuffers
import pytest
import tflite
from tflgpu.ir.dtypes import DType
from tflgpu.tflite import schema
from tflgpu.tflite.common_tables import COMMON


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
