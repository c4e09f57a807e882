"""Writing small `.tflite` models, for tests and examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.constants import check_shape, pack, pack_strings, packed_range
from tflgpu.tflite.encode import PackedTable, Record, finish
from tflgpu.tflite.model_file import Blockwise
from tflgpu.tflite.schema import BUILTIN_CODES, CUSTOM, PLACEHOLDER, UNIONS, options_of
from tflgpu.tflite.sparsity import Level, Sparsity
from tflgpu.tflite.spec import (
    ModelSpec,
    OperatorSpec,
    SubgraphSpec,
    TensorSpec,
)

_DENSE, _SPARSE_CSR = 0, 1  # DimensionType in the schema

_VECTORS = {
    np.dtype(np.int32): "Int32Vector",
    np.dtype(np.uint16): "Uint16Vector",
    np.dtype(np.uint8): "Uint8Vector",
}

_Code = tuple[str, int, int]  # name, code, version


def write_model(spec: ModelSpec) -> bytes:
    """The bytes of a `.tflite` file, which LiteRT and `read_model` both read.

    Every constant has a buffer of its own, aligned to 16 bytes. Whether the operators make sense is
    not looked at, so that tests can write models which must be refused.

    Raises:
        ModelError: a constant does not fit its tensor, an index is no tensor's, or an operator has
            no such field.
    """
    return finish(*model_record(spec))


def model_record(spec: ModelSpec) -> tuple[Record, list[bytes | memoryview]]:
    """The root table of a model without its buffers, and the content of each buffer.

    What `encode.finish` takes: the place to step in for a test that wants a model that no spec
    can ask for.

    Raises:
        ModelError: as `write_model`.
    """
    writer = _Writer()
    subgraphs = [writer.subgraph(s, i) for i, s in enumerate((spec.main, *spec.subgraphs))]
    metadata = [
        Record("Metadata", {"name": name, "buffer": writer.buffer(bytes(content))})
        for name, content in spec.metadata.items()
    ]
    signatures = [
        Record(
            "SignatureDef",
            {
                "signature_key": s.key,
                "subgraph_index": s.subgraph,
                "inputs": _arguments(s.inputs),
                "outputs": _arguments(s.outputs),
            },
        )
        for s in spec.signatures
    ]
    root = {
        "version": 3,
        "operator_codes": [_operator_code(*code) for code in writer.codes],
        "subgraphs": subgraphs,
        "description": spec.description,
        "metadata": metadata or None,
        "signature_defs": signatures or None,
    }
    return Record("Model", root), writer.buffers


def _arguments(arguments: Mapping[str, int]) -> list[Record]:
    return [Record("TensorMap", {"name": n, "tensor_index": t}) for n, t in arguments.items()]


def _operator_code(name: str, code: int, version: int) -> Record:
    return Record(
        "OperatorCode",
        {
            "deprecated_builtin_code": min(code, PLACEHOLDER),
            "builtin_code": code,
            "custom_code": name if code == CUSTOM else None,
            "version": version,
        },
    )


class _Writer:
    """The buffers and operator codes that subgraphs share, in the order of their first use."""

    def __init__(self) -> None:
        # Buffer 0 is always empty: the one of tensors without a constant.
        self.buffers: list[bytes | memoryview] = [b""]
        self.codes: dict[_Code, int] = {}

    def buffer(self, content: bytes | memoryview) -> int:
        self.buffers.append(content)
        return len(self.buffers) - 1

    def subgraph(self, spec: SubgraphSpec, index: int) -> Record:
        where = f"subgraph {index}"
        count = len(spec.tensors)
        _check_indices(spec.inputs, count, f"{where}: input")
        _check_indices(spec.outputs, count, f"{where}: output")
        values = {
            "name": spec.name,
            "tensors": [
                self._tensor(t, f"{where}, tensor {i}") for i, t in enumerate(spec.tensors)
            ],
            "inputs": spec.inputs,
            "outputs": spec.outputs,
            "operators": [self._operator(o, i, count) for i, o in enumerate(spec.operators)],
        }
        return Record("SubGraph", values)

    def _tensor(self, spec: TensorSpec, where: str) -> Record:
        where = f"{where} ({spec.name!r})"
        check_shape(spec.shape, spec.dtype, where)
        values = {
            "name": spec.name,
            "shape": spec.shape,
            "type": spec.dtype.tflite,
            "buffer": 0 if spec.data is None else self.buffer(_content(spec, where)),
            "quantization": _quantization(spec.quantization, spec.blockwise),
            "is_variable": spec.is_variable,
            "sparsity": _sparsity(spec.sparsity),
            "shape_signature": spec.shape_signature,
            "has_rank": spec.has_rank,
        }
        return Record("Tensor", values)

    def _code(self, spec: OperatorSpec) -> int:
        known = BUILTIN_CODES.get(spec.name, CUSTOM)
        code = known if spec.packed is None else spec.packed.builtin
        return self.codes.setdefault((spec.name, code, spec.version), len(self.codes))

    def _operator(self, spec: OperatorSpec, index: int, tensors: int) -> Record:
        where = f"operator {index} ({spec.name})"
        _check_indices(spec.inputs, tensors, f"{where}: input", lowest=-1)
        _check_indices(spec.outputs, tensors, f"{where}: output")
        _check_indices(spec.intermediates, tensors, f"{where}: intermediate", lowest=-1)
        values: dict[str, Any] = {
            "opcode_index": self._code(spec),
            "inputs": spec.inputs,
            "outputs": spec.outputs,
            "intermediates": spec.intermediates or None,
            "mutating_variable_inputs": spec.mutating_variable_inputs or None,
            "custom_options": spec.custom_options or None,
        }
        options = options_of(spec.name) if spec.name in BUILTIN_CODES else None
        if spec.packed is not None:
            values[f"{spec.packed.union}_type"] = spec.packed.code
            values[spec.packed.union] = spec.packed.pack and PackedTable(spec.packed.pack)
        elif options is not None:
            values[f"{options.union}_type"] = options.code
            values[options.union] = Record(options.table, spec.fields)
        elif spec.fields:
            kind = "operator" if spec.name in BUILTIN_CODES else "custom operator"
            raise ModelError(f"{where}: this {kind} has no fields, not {sorted(spec.fields)}")
        return Record("Operator", values)


def _check_indices(indices: tuple[int, ...], tensors: int, where: str, lowest: int = 0) -> None:
    for position, tensor in enumerate(indices):
        if not lowest <= tensor < tensors:
            raise ModelError(f"{where} {position} is tensor {tensor}, but there are {tensors}")


def _content(spec: TensorSpec, where: str) -> bytes | memoryview:
    """The bytes of a constant: in place, where they are as the file has them."""
    if spec.is_variable:
        raise ModelError(f"{where}: a variable cannot have a constant value")
    if spec.dtype is DType.STRING:
        strings = np.asarray(spec.data, np.object_).reshape(-1).tolist()
        if len(strings) != int(np.prod(spec.shape)) or not all(
            isinstance(s, bytes) for s in strings
        ):
            raise ModelError(f"{where}: a string tensor takes bytes, one for each element")
        return pack_strings(strings)
    stored = _stored_type(spec.dtype, where)
    # An array says its type and must have the right one; plain lists of numbers take it.
    exact = isinstance(spec.data, (np.ndarray, np.generic))
    values = np.asarray(spec.data, None if exact else stored)
    if values.dtype.newbyteorder("=") != stored:
        raise ModelError(
            f"{where}: data of type {values.dtype} for a tensor of type {spec.dtype.value}"
        )
    if spec.sparsity is not None:
        count = spec.sparsity.count_values(spec.shape, where)
        if values.shape != (count,):
            raise ModelError(f"{where}: data of shape {values.shape} for {count} sparse values")
    elif values.shape != spec.shape:
        raise ModelError(f"{where}: data of shape {values.shape} for shape {spec.shape}")
    if spec.dtype.packed:
        low, high = packed_range(spec.dtype)
        if values.size and not low <= values.min() <= values.max() <= high:
            raise ModelError(f"{where}: {spec.dtype.value} values run from {low} to {high}")
        return pack(values, spec.dtype)
    little = np.ascontiguousarray(values, stored.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def _stored_type(dtype: DType, where: str) -> np.dtype[Any]:
    """The numpy type of a constant's data."""
    if dtype.packed:
        return dtype.unpacked.numpy
    if dtype is DType.BF16:
        return np.dtype(np.uint16)
    if not dtype.has_numpy:
        raise ModelError(f"{where}: a constant of type {dtype.value} cannot be written")
    return dtype.numpy


def _quantization(quantization: Quantization | None, blocks: Blockwise | None) -> Record | None:
    if quantization is None and blocks is None:
        return None
    details: dict[str, Any] = {}
    if blocks is not None:
        codes = {t: code for code, t in UNIONS["details"].items()}
        table = "BlockwiseQuantization"
        fields = attrs.asdict(blocks) | {"block_shape": blocks.block_shape or None}
        details = {"details_type": codes[table], "details": Record(table, fields)}
    if quantization is None:
        return Record("QuantizationParameters", details)
    return Record(
        "QuantizationParameters",
        {
            **details,
            "scale": quantization.scale,
            "zero_point": quantization.zero_point,
            "quantized_dimension": quantization.axis,
            "min": quantization.min or None,
            "max": quantization.max or None,
        },
    )


def _sparsity(sparsity: Sparsity | None) -> Record | None:
    if sparsity is None:
        return None
    return Record(
        "SparsityParameters",
        {
            "traversal_order": sparsity.traversal_order,
            "block_map": sparsity.block_map,
            "dim_metadata": [_level(level) for level in sparsity.levels],
        },
    )


def _level(level: Level) -> Record:
    if level.dense_size is not None:
        return Record("DimensionMetadata", {"format": _DENSE, "dense_size": level.dense_size})
    values: dict[str, Any] = {"format": _SPARSE_CSR}
    for name, array in (("array_segments", level.segments), ("array_indices", level.indices)):
        assert array is not None
        table = _VECTORS[np.asarray(array).dtype.newbyteorder("=")]
        codes = {t: code for code, t in UNIONS["sparse_index"].items()}
        values[f"{name}_type"] = codes[table]
        values[name] = Record(table, {"values": array})
    return Record("DimensionMetadata", values)
