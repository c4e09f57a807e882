"""Reads operators: which op, its tensors, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tflgpu.errors import ModelError
from tflgpu.errors.blame import few, quoted
from tflgpu.tflite.bodies import ENDS
from tflgpu.tflite.flat import DAMAGED, FlatFile, Table
from tflgpu.tflite.model_file import FieldValue, OperatorCode, OperatorInfo
from tflgpu.tflite.schema import (
    BUILTINS,
    CUSTOM,
    PLACEHOLDER,
    UNIONS,
    default_fields,
    layout,
    options_of,
)
from tflgpu.values import frozen

_UNIONS = ("builtin_options", "builtin_options2")


@frozen
class Limits:
    """How many of each thing an index may refer to."""

    subgraph: int
    tensors: int
    subgraphs: int


def read_operator_codes(model: Table) -> tuple[OperatorCode, ...]:
    """The model's table of operators in use.

    Raises:
        ModelError: a code is negative, a custom operator has no name, or a version is not positive.
    """
    return tuple(
        _operator_code(t) for t in model.children("operator_codes", "OperatorCode", "operator code")
    )


def builtin_codes(model: Table) -> set[int]:
    """The codes of operators in use, of a model that was read before: without their names.

    Raises:
        ModelError: the table is not within the file.
    """
    return {
        _code(table) for table in model.children("operator_codes", "OperatorCode", "operator code")
    }


def _code(table: Table) -> int:
    # Old files fill only the int8 field and new ones both, with a placeholder in it where the code
    # does not fit. TFLite takes the larger.
    return max(table.integer("deprecated_builtin_code"), table.integer("builtin_code"))


def _operator_code(table: Table) -> OperatorCode:
    code = _code(table)
    version = table.integer("version")
    if code < 0:
        raise ModelError(f"{table.where}: builtin code {code} is negative; {DAMAGED}")
    if code == PLACEHOLDER:
        raise ModelError(f"{table.where}: a placeholder where the real code should be; {DAMAGED}")
    if version < 1:
        raise ModelError(f"{table.where}: version {version}, but versions start at 1; {DAMAGED}")
    if code != CUSTOM:
        return OperatorCode(BUILTINS.get(code, f"BUILTIN_{code}"), False, version)
    custom = table.text("custom_code")
    if not custom:
        raise ModelError(f"{table.where}: a custom operator without a name; {DAMAGED}")
    return OperatorCode(custom, True, version)


def read_operators(
    file: FlatFile, subgraph: Table, codes: Sequence[OperatorCode], limits: Limits
) -> tuple[OperatorInfo, ...]:
    """The operators of a subgraph, in order of execution.

    Raises:
        ModelError: one is malformed, or an index is out of range.
    """
    tables = subgraph.children("operators", "Operator", "operator")
    return tuple(_operator(file, t, i, codes, limits) for i, t in enumerate(tables))


def _operator(
    file: FlatFile, table: Table, index: int, codes: Sequence[OperatorCode], limits: Limits
) -> OperatorInfo:
    opcode = table.integer("opcode_index")
    if opcode >= len(codes):
        raise ModelError(
            f"{table.where}: operator code {opcode}, but the model has {len(codes)} of them"
        )
    code = codes[opcode]
    where = table.where = f"operator {index} ({quoted(code.name) if code.is_custom else code.name})"
    fields, gap = ({}, "") if code.is_custom else _fields(table, code.name)
    _check_subgraphs(fields, where, limits)
    return OperatorInfo(
        index=index,
        name=code.name,
        is_custom=code.is_custom,
        version=code.version,
        inputs=_indices(table, "inputs", f"{where}: input", limits, optional=True),
        outputs=_indices(table, "outputs", f"{where}: output", limits, optional=False),
        intermediates=_indices(
            table, "intermediates", f"{where}: intermediate", limits, optional=True
        ),
        fields=fields,
        custom_options=_custom_options(file, table),
        mutating_variable_inputs=table.numbers("mutating_variable_inputs"),
        gap=gap,
        place=table.place if gap else None,
    )


def _indices(
    table: Table, name: str, where: str, limits: Limits, optional: bool
) -> tuple[int, ...]:
    indices: tuple[int, ...] = table.numbers(name)
    check_indices(indices, where, limits, lowest=-1 if optional else 0)
    return indices


def check_indices(indices: tuple[int, ...], where: str, limits: Limits, lowest: int = 0) -> None:
    """Check that each index is a tensor of the subgraph, or -1 (absent) where ``lowest`` is -1.

    Raises:
        ModelError: one is not.
    """
    for position, tensor in enumerate(indices):
        if not lowest <= tensor < limits.tensors:
            raise ModelError(
                f"{where} {position} is tensor {tensor}, but subgraph {limits.subgraph} has "
                f"{limits.tensors} tensors"
            )


def _fields(table: Table, name: str) -> tuple[Mapping[str, FieldValue], str]:
    """The options of a builtin operator, and why they are not all that the file has.

    LiteRT ignores a table of another operator's options and takes zeros. That would compute
    something the model's author did not ask for, so it is an error here, unless the operator has
    no options anyway.
    """
    if name.startswith("BUILTIN_"):
        return {}, "the operator is younger than the schema known here"
    expected = options_of(name)
    stored = _stored_options(table)
    if stored is None:
        return ({} if expected is None else default_fields(expected.table)), ""
    if expected is None:
        # Whoever writes it again writes no options, which is only right where these say nothing.
        return stored[1], f"it has options of type {stored[0]}" if stored[1] else ""
    if stored[0] != expected.table and layout(expected.table).fields:
        raise ModelError(
            f"{table.where}: options of type {stored[0]} where {expected.table} belong; {DAMAGED}"
        )
    return stored[1], f"its options have {few(stored[2])}" if stored[2] else ""


def _stored_options(table: Table) -> tuple[str, dict[str, Any], list[str]] | None:
    for union in _UNIONS:
        code = table.integer(f"{union}_type")
        kind = UNIONS[union].get(code)
        if kind is None:
            raise ModelError(
                f"{table.where}: options of type {code} are not in the schema known here; "
                "the model may be for a newer runtime"
            )
        if kind == "NONE":
            continue
        options = table.child(union, kind, f"{table.where}: {kind}")
        if options is not None:
            return kind, options.all_fields(), options.left_out()
    return None


def _check_subgraphs(fields: Mapping[str, FieldValue], where: str, limits: Limits) -> None:
    for name, value in fields.items():
        if not name.endswith(ENDS):
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, int) or not 0 <= number < limits.subgraphs:
                raise ModelError(
                    f"{where}: {name} is {number}, but the model has {limits.subgraphs} subgraphs"
                )


def _custom_options(file: FlatFile, table: Table) -> bytes:
    inline = table.content("custom_options")
    if len(inline):
        file.spend(len(inline), table.where)
        return bytes(inline)
    # Files over 2 GB keep large blobs after the flatbuffer.
    start = table.integer("large_custom_options_offset")
    size = table.integer("large_custom_options_size")
    if start <= 1 or size == 0:
        return b""
    file.require(start, size, f"{table.where}: large custom options")
    file.spend(size, table.where)
    return bytes(file.data[start : start + size])
