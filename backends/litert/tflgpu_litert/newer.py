"""Options that tflgpu's schema has no words for, read and written by the schema that comes with
LiteRT: what that does not know either, LiteRT's kernels do not look at."""

from __future__ import annotations

import struct
from typing import Any

from tflgpu.ir.graph import FileOptions
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.spec import PackedOptions

# What generated code does with a table that is none.
_DAMAGED = (
    struct.error,
    IndexError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    MemoryError,
)


def _names_subgraphs(options: Any) -> bool:
    """Whether options have the numbers of subgraphs, which are others in a model of one part."""
    return any("subgraph" in name.lower() for name in vars(options))


def repack(source: FileOptions) -> PackedOptions | None:
    """An operator's options as LiteRT's schema has them; None where it has not, or is not there."""
    try:
        from ai_edge_litert import schema_py_generated as schema
    except ImportError:
        return None
    code = BUILTIN_CODES.get(source.name)
    if code is None and source.name.startswith("BUILTIN_") and not source.is_custom:
        code = int(source.name.removeprefix("BUILTIN_"))
    if code is None or source.place is None:
        return None
    try:
        found: Any = schema.OperatorT.InitFromBuf(*source.place)
    except _DAMAGED:
        return None
    unions = (
        ("builtin_options2", found.builtinOptions2Type, found.builtinOptions2),
        ("builtin_options", found.builtinOptionsType, found.builtinOptions),
    )
    for union, kind, options in unions:
        if kind and (options is None or _names_subgraphs(options)):
            return None
        if kind:
            return PackedOptions(code, union, int(kind), options.Pack)
    return PackedOptions(code)
