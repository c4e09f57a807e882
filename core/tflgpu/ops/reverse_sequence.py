"""REVERSE_SEQUENCE (TFLite version 1): the beginning of each sequence of a batch, backwards.

``seq_lengths`` says for each batch how many elements along ``seq_dim`` are turned around; the rest
stays. As in TFLite's kernel (reverse_sequence.cc) a length of 1 or less turns nothing, and one
beyond the dimension is an error.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import INDEX_TYPES, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    Movement,
    OnDevice,
    OpDef,
    Operands,
    Sample,
)
from tflgpu.ops.facets import Batched, Items
from tflgpu.values import frozen

_NAME = "REVERSE_SEQUENCE"


@frozen
class ReverseSequenceAttrs:
    """The dimension that is turned around, and the one that the lengths are of."""

    seq_dim: int = 0
    batch_dim: int = 0


def _parse(fields: Fields) -> ReverseSequenceAttrs:
    return ReverseSequenceAttrs(
        fields.integer("seq_dim", minimum=0), fields.integer("batch_dim", minimum=0)
    )


def _check_lengths(lengths: Array, most: int) -> None:
    if lengths.size and lengths.max() > most:
        raise InputError(f"{_NAME}: a length of {lengths.max()} in a dimension of {most}")


def _infer(attributes: ReverseSequenceAttrs, operands: Operands) -> list[TensorSpec]:
    x, lengths = take_operands(_NAME, operands, 2)
    if lengths.dtype not in INDEX_TYPES:
        raise ModelError(f"{_NAME}: lengths (operand 1) are {lengths.dtype.value}")
    need_rank(_NAME, lengths, "lengths (operand 1)", 1)
    for name, dim in (("seq_dim", attributes.seq_dim), ("batch_dim", attributes.batch_dim)):
        if dim >= x.rank:
            raise ModelError(f"{_NAME}: {name} {dim} is outside a rank of {x.rank}")
    if attributes.seq_dim == attributes.batch_dim:
        raise ModelError(f"{_NAME}: seq_dim and batch_dim are both {attributes.seq_dim}")
    if lengths.shape[0] != x.shape[attributes.batch_dim]:
        raise ModelError(
            f"{_NAME}: {lengths.shape[0]} lengths (operand 1) for a batch of "
            f"{x.shape[attributes.batch_dim]}"
        )
    if lengths.data is not None:
        try:
            _check_lengths(lengths.data, x.shape[attributes.seq_dim])
        except InputError as error:
            raise ModelError(f"{error} (constant lengths)") from None
    return [x.spec]


def _reference(attributes: ReverseSequenceAttrs, arrays: Arrays) -> list[Array]:
    x, lengths = present(arrays[0]), present(arrays[1])
    _check_lengths(lengths, x.shape[attributes.seq_dim])
    found = x.copy()
    dims = (attributes.batch_dim, attributes.seq_dim)
    into, source = (np.moveaxis(a, dims, (0, 1)) for a in (found, x))
    for row, length in enumerate(lengths.tolist()):
        if length > 1:
            into[row, :length] = source[row, :length][::-1]
    return [found]


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        seq: int,
        batch: int,
        dtype: DType = DType.F32,
        const: bool = False,
        wide: bool = False,
    ) -> Sample:
        kind = DType.I64 if wide else DType.I32
        lengths = Arg((shape[batch],), kind, -1, shape[seq] + 1, const)
        fields = {"seq_dim": seq, "batch_dim": batch}
        return Sample(id, fields, (Arg(shape, dtype, -9, 9), lengths))

    return [
        sample("rows", (3, 7, 5), 1, 0),
        sample("aligned", (3, 7, 8), 1, 0, const=True),
        sample("time_major", (7, 3, 5), 0, 1),
        sample("channels", (3, 2, 7), 2, 0),
        sample("batch_of_channels", (7, 2, 5), 0, 2),
        sample("matrix", (5, 11), 1, 0),
        sample("i32", (3, 7), 1, 0, DType.I32),
        sample("wide_const", (3, 7, 5), 1, 0, const=True, wide=True),
        sample("wide", (3, 7, 5), 1, 0, wide=True),
    ]


def _batch(node: Node, items: Items) -> Batched | str:
    if node.attrs.batch_dim != 0 or 0 not in items.operands:
        return "its rows are not along axis 0, on which the items lie"
    lengths = node.input(1)
    if 1 in items.operands:
        return Batched(node.attrs)
    if lengths.data is None:
        return "operand 1 is the same for all items, and not a constant"
    return Batched(node.attrs, {1: items.times(lengths.data)})


OPS = (
    OpDef(
        _NAME,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        movement=Movement(keeps_values=True),
        batch=_batch,
        contents=Contents(indices=(1,)),
        device=OnDevice(checked=(1,)),
    ),
)
