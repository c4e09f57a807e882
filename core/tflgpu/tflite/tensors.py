"""Reads tensors: shape, type, constant, quantization and sparsity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import quoted
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.constants import check_shape, constant, packed_range, typed
from tflgpu.tflite.flat import DAMAGED, FlatFile, Table
from tflgpu.tflite.model_file import Blockwise, TensorInfo
from tflgpu.tflite.schema import UNIONS
from tflgpu.tflite.sparsity import Level, Sparsity

_DENSE, _SPARSE_CSR = 0, 1  # DimensionType in the schema

# Types whose constants are scanned or copied when read, so that sharing one buffer has a price.
_COPIED = (DType.STRING, DType.I2, DType.I4, DType.U4, DType.BOOL)


def read_tensors(
    file: FlatFile, subgraph: Table, buffers: Sequence[memoryview]
) -> list[TensorInfo]:
    """The tensors of a subgraph.

    Raises:
        ModelError: one is malformed.
    """
    count = subgraph.count("tensors")
    tables = subgraph.children("tensors", "Tensor", f"{subgraph.where}, tensor")
    return [read_tensor(file, table, i, count, buffers) for i, table in enumerate(tables)]


def read_tensor(
    file: FlatFile, table: Table, index: int, count: int, buffers: Sequence[memoryview]
) -> TensorInfo:
    """The tensor of a table, which is one of ``count``.

    Raises:
        ModelError: it is malformed.
    """
    name = table.text("name")
    where = table.where = f"{table.where} ({quoted(name)})" if name else table.where
    dtype = _dtype(table)
    shape = table.numbers("shape")
    check_shape(shape, dtype, where)
    buffer = table.integer("buffer")
    if buffer >= len(buffers):
        raise ModelError(f"{where}: buffer {buffer}, but the model has {len(buffers)} buffers")
    content = buffers[buffer]
    if table.integer("external_buffer"):
        raise ModelError(
            f"{where}: its constant is in another file (external buffer "
            f"{table.integer('external_buffer')}), which is not supported; "
            "convert the model again with its weights inside"
        )
    sparsity = _sparsity(file, table)
    is_variable = bool(table.scalar("is_variable"))
    data: Array | None = None
    if len(content):
        if is_variable:
            raise ModelError(f"{where}: a variable with a constant value; {DAMAGED}")
        if dtype in _COPIED:
            file.spend(len(content), where)
        if sparsity is None:
            data = constant(content, dtype, shape, where)
        else:
            data = _stored(content, dtype, shape, sparsity, where)
    is_i4 = data is not None and dtype is DType.I4 and sparsity is None
    quantization, blockwise = _quantization(table, dtype, shape, count)
    return TensorInfo(
        index=index,
        name=name,
        shape=shape,
        shape_signature=_signature(table, shape),
        dtype=dtype,
        data=data,
        quantization=quantization,
        sparsity=sparsity,
        blockwise=blockwise,
        is_variable=is_variable,
        has_rank=bool(table.scalar("has_rank")),
        buffer=buffer,
        packed_data=np.frombuffer(content, np.uint8) if is_i4 else None,
    )


def _dtype(table: Table) -> DType:
    code = table.integer("type")
    try:
        return DType.from_tflite(code)
    except KeyError:
        raise ModelError(
            f"{table.where}: element type {code} is not in the schema known here; "
            "the model may be for a newer runtime"
        ) from None


def _signature(table: Table, shape: tuple[int, ...]) -> tuple[int, ...]:
    signature = table.numbers("shape_signature")
    if not signature:
        return shape
    if len(signature) != len(shape) or any(d < -1 for d in signature):
        raise ModelError(f"{table.where}: shape signature {signature} for shape {shape}")
    return signature


def _quantization(
    table: Table, dtype: DType, shape: tuple[int, ...], tensors: int
) -> tuple[Quantization | None, Blockwise | None]:
    where = f"{table.where}: quantization"
    params = table.child("quantization", "QuantizationParameters", where)
    if params is None:
        return None, None
    details = UNIONS["details"].get(params.integer("details_type"))
    if details is None:
        raise ModelError(
            f"{where}: details of type {params.integer('details_type')} are not in the schema "
            "known here; the model may be for a newer runtime"
        )
    blockwise = None
    if details == "BlockwiseQuantization":
        blockwise = _blockwise(params, where, tensors)
    scale, zero_point = params.numbers("scale"), params.numbers("zero_point")
    if not scale:
        return None, blockwise
    axis = params.integer("quantized_dimension")
    if len(zero_point) != len(scale):
        raise ModelError(f"{where}: {len(zero_point)} zero points for {len(scale)} scales")
    for value in scale:
        if not math.isfinite(value) or value < 0:
            raise ModelError(f"{where}: scale {value} is not a finite number >= 0")
    low, high = _stored_range(dtype)
    for point in zero_point:
        if not -(2**31) <= point < 2**31:
            raise ModelError(f"{where}: zero point {point} is not a 32-bit number")
        if not low <= point <= high:
            raise ModelError(
                f"{where}: zero point {point} is outside [{low}, {high}], which tensors of type "
                f"{dtype.value} can have"
            )
    if len(scale) > 1 and (not 0 <= axis < len(shape) or shape[axis] != len(scale)):
        raise ModelError(f"{where}: {len(scale)} scales along axis {axis} of shape {shape}")
    calibration = params.numbers("min"), params.numbers("max")
    # The axis of a single scale has no meaning, so a wrong one does no harm.
    return Quantization(scale, zero_point, axis if len(scale) > 1 else 0, *calibration), blockwise


def _stored_range(dtype: DType) -> tuple[int, int]:
    """The lowest and the highest zero point of a type: a number that it stores, in 32 bits."""
    if dtype.packed:
        return packed_range(dtype)
    if dtype.is_int and dtype.itemsize < 4:
        info = np.iinfo(dtype.numpy)
        return int(info.min), int(info.max)
    return -(2**31), 2**31 - 1  # of 64-bit numbers and floats too: so TFLite keeps it


def _blockwise(params: Table, where: str, tensors: int) -> Blockwise:
    details = params.child("details", "BlockwiseQuantization", where)
    if details is None:
        raise ModelError(f"{where}: blockwise, but without its details; {DAMAGED}")
    scales, zero_points = details.integer("scales"), details.integer("zero_points")
    block = details.integer("block_size")
    if not 0 <= scales < tensors or not -1 <= zero_points < tensors or block < 0:
        raise ModelError(
            f"{where}: blocks of {block} with scales in tensor {scales} and zero points in tensor "
            f"{zero_points}, but the subgraph has {tensors} tensors"
        )
    return Blockwise(scales, zero_points, block, details.numbers("block_shape"))


def _sparsity(file: FlatFile, table: Table) -> Sparsity | None:
    where = f"{table.where}: sparsity"
    params = table.child("sparsity", "SparsityParameters", where)
    if params is None:
        return None
    levels = tuple(
        _level(file, level)
        for level in params.children("dim_metadata", "DimensionMetadata", f"{where}: level")
    )
    return Sparsity(params.numbers("traversal_order"), params.numbers("block_map"), levels)


def _level(file: FlatFile, table: Table) -> Level:
    kind = table.integer("format")
    if kind == _DENSE:
        return Level(table.integer("dense_size"))
    if kind != _SPARSE_CSR:
        raise ModelError(f"{table.where}: dimension format {kind} is not in the schema")
    return Level(None, *(_indices(file, table, n) for n in ("array_segments", "array_indices")))


def _indices(file: FlatFile, table: Table, name: str) -> Array:
    where = f"{table.where}: {name}"
    kind = UNIONS["sparse_index"].get(table.integer(f"{name}_type"), "NONE")
    vector = None if kind == "NONE" else table.child(name, kind, where)
    if vector is None:
        raise ModelError(f"{where}: a compressed dimension without it; {DAMAGED}")
    values = vector.array("values")
    # Checking sparsity widens these to int64.
    file.spend(8 * values.size, where)
    return values


def _stored(
    content: memoryview, dtype: DType, shape: tuple[int, ...], sparsity: Sparsity, where: str
) -> Array:
    """The values that a sparse constant stores, flat."""
    if dtype.itemsize == 0:
        raise ModelError(f"{where}: a sparse constant of type {dtype.value} is not defined")
    count = sparsity.count_values(shape, where)
    if len(content) != count * dtype.itemsize:
        raise ModelError(
            f"{where}: buffer of {len(content):,} bytes for {count:,} sparse values of "
            f"{dtype.value}; {DAMAGED}"
        )
    return typed(content, dtype)


def as_input(tensor: TensorInfo) -> TensorInfo:
    """A tensor that is an input of its subgraph, where a constant of the file is only what it
    begins with. (A sparse one stays a constant, which no graph takes for an input.)"""
    if tensor.data is None or tensor.sparsity is not None:
        return tensor
    return attrs.evolve(tensor, data=None, default=tensor.data)


def with_empty_constants(tensors: list[TensorInfo], written: set[int]) -> tuple[TensorInfo, ...]:
    """The tensors, where those without elements that nothing writes are constants too.

    A constant of no elements, such as the new shape of a RESHAPE to a scalar, has an empty buffer,
    as runtime tensors have; that nothing writes it tells them apart.
    """
    return tuple(
        attrs.evolve(t, data=constant(memoryview(b""), t.dtype, t.shape, t.name))
        if t.data is None
        and 0 in t.shape
        and t.dtype.itemsize
        and not t.is_variable
        and t.index not in written
        else t
        for t in tensors
    )
