"""Tables of a model's tensors, as data of the schema.

`tflgpu.tflite.schema` knows all tables by asking the `tflite` package, where a table that has
others imports hundreds of modules, which takes longer than a kept model takes to start. Looking up
what its inputs and outputs are takes only these. A test holds them against the package.
"""

from __future__ import annotations

import numpy as np

from tflgpu.tflite.layouts import Default, Field, Kind, TableLayout

_I1, _U1, _B1 = np.dtype("<i1"), np.dtype("<u1"), np.dtype("?")
_I4, _U4, _F4 = np.dtype("<i4"), np.dtype("<u4"), np.dtype("<f4")
_I8, _U8 = np.dtype("<i8"), np.dtype("<u8")


def _one(name: str, slot: int, number: np.dtype[np.generic], default: Default = 0) -> Field:
    return Field(name, slot, Kind.SCALAR, number, default)


def _many(name: str, slot: int, number: np.dtype[np.generic]) -> Field:
    return Field(name, slot, Kind.NUMBERS, number)


_TABLES = {
    "Model": (
        _one("version", 0, _U4),
        Field("operator_codes", 1, Kind.TABLES),
        Field("subgraphs", 2, Kind.TABLES),
        Field("description", 3, Kind.STRING),
        Field("buffers", 4, Kind.TABLES),
        _many("metadata_buffer", 5, _I4),
        Field("metadata", 6, Kind.TABLES),
        Field("signature_defs", 7, Kind.TABLES),
    ),
    "SubGraph": (
        Field("tensors", 0, Kind.TABLES),
        _many("inputs", 1, _I4),
        _many("outputs", 2, _I4),
        Field("operators", 3, Kind.TABLES),
        Field("name", 4, Kind.STRING),
        _one("debug_metadata_index", 5, _I4, -1),
    ),
    "Tensor": (
        _many("shape", 0, _I4),
        _one("type", 1, _I1),
        _one("buffer", 2, _U4),
        Field("name", 3, Kind.STRING),
        Field("quantization", 4, Kind.TABLE),
        _one("is_variable", 5, _B1, False),
        Field("sparsity", 6, Kind.TABLE),
        _many("shape_signature", 7, _I4),
        _one("has_rank", 8, _B1, False),
        Field("variant_tensors", 9, Kind.TABLES),
        # Younger than the package; it changes what a model means if it is not seen.
        _one("external_buffer", 10, _U4),
    ),
    "QuantizationParameters": (
        _many("min", 0, _F4),
        _many("max", 1, _F4),
        _many("scale", 2, _F4),
        _many("zero_point", 3, _I8),
        _one("details_type", 4, _U1),
        Field("details", 5, Kind.UNION),
        _one("quantized_dimension", 6, _I4),
    ),
    "Buffer": (
        _many("data", 0, _U1),
        _one("offset", 1, _U8),
        _one("size", 2, _U8),
    ),
    "SignatureDef": (
        Field("inputs", 0, Kind.TABLES),
        Field("outputs", 1, Kind.TABLES),
        Field("signature_key", 2, Kind.STRING),
        _one("subgraph_index", 4, _U4),
    ),
    "TensorMap": (Field("name", 0, Kind.STRING), _one("tensor_index", 1, _U4)),
    "Metadata": (Field("name", 0, Kind.STRING), _one("buffer", 1, _U4)),
    # The package's BuiltinCode is not flatc's: it merges two fields.
    "OperatorCode": (
        _one("deprecated_builtin_code", 0, _I1),
        Field("custom_code", 1, Kind.STRING),
        _one("version", 2, _I4, 1),
        _one("builtin_code", 3, _I4),
    ),
}

COMMON = {name: TableLayout(name, {f.name: f for f in fields}) for name, fields in _TABLES.items()}
"""Layouts by the name of the table."""
