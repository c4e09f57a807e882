"""The TFLite schema as data: slots, types and defaults of every table.

The `tflite` package is generated from schema.fbs, so its accessors are the schema. Each is called
once on a probe that stands in for a flatbuffer and notes which slot is asked for, as what type, and
what is answered when the field is absent. Nothing here has to be edited when an op gains a field.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

import numpy as np

from tflgpu.ir.later import LaterMapping
from tflgpu.tflite.common_tables import COMMON
from tflgpu.tflite.layouts import Default, Field, Kind, TableLayout
from tflgpu.values import frozen


@functools.cache
def _defined(name: str) -> Any:
    """What the `tflite` package defines by that name; None where it does not. Only the module of
    the name is imported: the package itself would import hundreds of them."""
    package = find_spec("tflite")
    assert package is not None, "tflgpu needs the package tflite"
    found = PathFinder.find_spec(f"tflite.{name}", package.submodule_search_locations)
    if found is None or found.loader is None:
        return None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, name)


class _Probe:
    """Stands in for a flatbuffer table: notes what an accessor asks for."""

    Bytes = b""
    Pos = 0

    def __init__(self, present: bool) -> None:
        self.present = present
        self.slot = -1
        self.vector = False
        self.kind: Kind | None = None
        self.flags: Any = None

    def Offset(self, vtable_offset: int) -> int:
        self.slot = (vtable_offset - 4) // 2
        return 4 if self.present else 0

    def Get(self, flags: Any, _: int) -> Any:
        self.kind, self.flags = Kind.SCALAR, flags
        return flags.py_type(0)

    def String(self, _: int) -> bytes:
        self.kind = Kind.STRING
        return b""

    def Indirect(self, _: int) -> int:
        self.kind = Kind.TABLE
        return 0

    def Union(self, _: Any, __: int) -> None:
        self.kind = Kind.UNION

    def Vector(self, _: int) -> int:
        self.vector = True
        return 0


_IN_VECTOR = {
    Kind.SCALAR: Kind.NUMBERS,
    Kind.STRING: Kind.STRINGS,
    Kind.TABLE: Kind.TABLES,
}

_INT32 = np.dtype("<i4")

# Younger than the package.
_BY_HAND = {
    "BlockwiseQuantization": (
        Field("scales", 0, Kind.SCALAR, _INT32, 0),
        Field("zero_points", 1, Kind.SCALAR, _INT32, 0),
        Field("block_size", 2, Kind.SCALAR, _INT32, 0),
        Field("block_shape", 3, Kind.NUMBERS, _INT32),
    ),
    "StablehloCaseOptions": (Field("branch_subgraph_indices", 0, Kind.NUMBERS, _INT32),),
}

# Fields younger than the package, which change what a model means if they are not seen.
_ADDED = {
    "FullyConnectedOptions": (Field("quant_spec", 5, Kind.NUMBERS, np.dtype("<u1")),),
}


@functools.cache
def layout(table: str) -> TableLayout:
    """The layout of the table with this schema name, e.g. "Conv2DOptions".

    Raises:
        KeyError: the schema has no such table.
    """
    if table in COMMON:
        return COMMON[table]
    if table in _BY_HAND:
        return TableLayout(table, {f.name: f for f in _BY_HAND[table]})
    cls = _defined(table)
    if cls is None or not hasattr(cls, "Init"):
        raise KeyError(f"the TFLite schema has no table {table}")
    fields = {f.name: f for f in (*_ADDED.get(table, ()), *reflect(cls))}
    return TableLayout(table, dict(sorted(fields.items(), key=lambda item: item[1].slot)))


def reflect(cls: Any) -> list[Field]:
    """The fields of a class that flatc generated for a table."""
    methods = {n for n, m in vars(cls).items() if isinstance(m, types.FunctionType)} - {"Init"}
    of_vectors = {f"{name}{ends}" for name in methods for ends in ("AsNumpy", "Length", "IsNone")}
    fields = [_field(cls, m, vector=f"{m}Length" in methods) for m in methods - of_vectors]
    return sorted(fields, key=lambda f: f.slot)


def _field(cls: Any, accessor: str, vector: bool) -> Field:
    def ask(present: bool) -> tuple[_Probe, Any]:
        table, probe = cls(), _Probe(present)
        table._tab = probe
        method = getattr(table, accessor)
        return probe, method(0) if vector else method()

    probe, _ = ask(present=True)
    assert probe.kind is not None, f"{cls.__name__}.{accessor} reads nothing"
    kind = _IN_VECTOR[probe.kind] if probe.vector else probe.kind
    number = None if probe.flags is None else np.dtype(probe.flags.packer_type.format)
    default: Default = None
    if kind is Kind.SCALAR:
        answer = ask(present=False)[1]
        # The generated code answers 0 or False for booleans, depending on flatc's version.
        default = bool(answer) if probe.flags.py_type is bool else answer
    return Field(snake_case(accessor), probe.slot, kind, number, default)


def snake_case(camel: str) -> str:
    """The schema's field name for flatc's accessor name: DilationHFactor, dilation_h_factor."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", camel).lower()


def _names(enumeration: Any) -> dict[int, str]:
    return {v: k for k, v in vars(enumeration).items() if isinstance(v, int)}


#: What an enumeration has that is younger than the package.
_YOUNGER = {
    "BuiltinOperator": {209: "STABLEHLO_CASE"},
    "BuiltinOptions2": {23: "StablehloCaseOptions"},
}


def _union(name: str) -> Mapping[int, str]:
    return LaterMapping(lambda: {**_YOUNGER.get(name, {}), **_names(_defined(name))})


BUILTINS: Mapping[int, str] = _union("BuiltinOperator")
"""BuiltinOperator: code to name, as far as they are known."""

BUILTIN_CODES: Mapping[str, int] = LaterMapping(
    lambda: {name: code for code, name in BUILTINS.items()}
)

# Codes that are asked of every file, so that nobody imports the package for them.
CUSTOM = 32
COMPOSITE = 206

# Deprecated codes are int8; operators above 126 keep their code in a second field.
PLACEHOLDER = 127

UNIONS: Mapping[str, Mapping[int, str]] = {
    "builtin_options": _union("BuiltinOptions"),
    "builtin_options2": _union("BuiltinOptions2"),
    "details": {0: "NONE", 1: "CustomQuantization", 2: "BlockwiseQuantization"},
    "sparse_index": _union("SparseIndexVector"),
}
"""Type code to table name of the unions that this package reads; code 0 is NONE."""

# Operators whose options table is not called after them.
_IRREGULAR = {
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "MULTINOMIAL": "RandomOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "REDUCE_ALL": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "SUM": "ReducerOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
}


@frozen
class OptionsRef:
    """Where an operator's options live: which union field, its type code, and the table's name."""

    union: str
    code: int
    table: str


@functools.cache
def options_of(builtin: str) -> OptionsRef | None:
    """The options table of a builtin operator, or None where it has none (LOGISTIC, RELU, ...)."""
    wanted = _IRREGULAR.get(builtin, builtin.replace("_", "") + "Options").lower()
    found = (
        OptionsRef(union, code, table)
        for union in ("builtin_options", "builtin_options2")
        for code, table in UNIONS[union].items()
        if table.lower() == wanted
    )
    return next(found, None)


def default_fields(table: str) -> dict[str, Any]:
    """The value of every field of an options table that the file leaves out.

    A scalar reads as the schema's default, a vector as ``()``, a string as ``""``.
    """
    empty: dict[Kind, Any] = {Kind.NUMBERS: (), Kind.STRINGS: (), Kind.STRING: ""}
    fields = layout(table).fields.values()
    return {f.name: empty.get(f.kind, f.default) for f in fields}
