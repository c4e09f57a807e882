"""Writes TFLite metadata: tables by the layouts that the reader has, and files behind a model."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import attrs
import flatbuffers
import numpy as np
from tflgpu.tflite.encode import _FLAGS
from tflgpu.tflite.layouts import Kind
from tflgpu.tflite.spec import ModelSpec
from tflgpu.tflite.write import write_model
from tflgpu.tools.metadata import _TABLES, _UNITS, IDENTIFIER, NAME

#: Which table a field has, where it has one.
_INNER = {
    "subgraph_metadata": "SubGraphMetadata", "associated_files": "AssociatedFile",
    "vocab_file": "AssociatedFile", "model": "AssociatedFile", "content": "Content",
    "input_tensor_metadata": "TensorMetadata", "output_tensor_metadata": "TensorMetadata",
    "process_units": "ProcessUnit", "input_process_units": "ProcessUnit", "stats": "Stats",
    "default_size": "ImageSize",
}  # fmt: skip


def unit(table: str, **values: Any) -> dict[str, Any]:
    """A process unit."""
    return {"options_type": _UNITS.index(table), "options": (table, values)}


def file(name: str, kind: int) -> dict[str, Any]:
    """An associated file, by the number of its kind."""
    return {"name": name, "type": kind}


def buffer(values: Mapping[str, Any]) -> bytes:
    """The flatbuffer of a ModelMetadata with these fields."""
    builder = flatbuffers.Builder(256)
    builder.Finish(_table(builder, "ModelMetadata", values), IDENTIFIER)
    return bytes(builder.Output())


def _table(builder: Any, name: str, values: Mapping[str, Any]) -> int:
    fields = _TABLES[name].fields
    ready = [(fields[key], _value(builder, fields[key], value)) for key, value in values.items()]
    builder.StartObject(_TABLES[name].slots)
    for field, value in ready:
        if field.kind is Kind.SCALAR:
            builder.PrependSlot(_FLAGS[field.number], field.slot, value, field.default)
        else:
            builder.PrependUOffsetTRelativeSlot(field.slot, value, 0)
    return builder.EndObject()


def _value(builder: Any, field: Any, value: Any) -> Any:
    if field.kind is Kind.SCALAR:
        return value
    if field.kind is Kind.STRING:
        return builder.CreateString(value)
    if field.kind is Kind.NUMBERS:
        return builder.CreateNumpyVector(np.array(value, field.number))
    if field.kind is Kind.TABLE:
        inner, values = value if isinstance(value, tuple) else (_INNER[field.name], value)
        return _table(builder, inner, values)
    if field.kind is Kind.STRINGS:
        offsets = [builder.CreateString(text) for text in value]
    else:
        offsets = [_table(builder, _INNER[field.name], values) for values in value]
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def archive(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    to = io.BytesIO()
    with zipfile.ZipFile(to, "w", method) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return to.getvalue()


def with_metadata(
    spec: ModelSpec,
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
    files: Mapping[str, bytes] | None = None,
    **said: Any,
) -> bytes:
    """A model with metadata of its tensors, and with files behind it."""
    subgraph = {"input_tensor_metadata": inputs, "output_tensor_metadata": outputs}
    subgraph |= said.pop("subgraph", {})
    content = buffer({"name": "a model", **said, "subgraph_metadata": [subgraph]})
    return write_model(attrs.evolve(spec, metadata={NAME: content})) + archive(files or {})
