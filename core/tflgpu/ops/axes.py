"""Shared by ops that move data: axes, constant vectors of sizes, checked operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.base import Operand, Operands

INDEX_TYPES = (DType.I16, DType.I32, DType.I64)
#: Of constants of whole numbers. TFLite's kernels that do not ask for a type read those of 32 bits.
CONSTANT_TYPES = (*INDEX_TYPES, DType.U32)


def take_operands(
    op: str, operands: Operands, least: int, most: int | None = None
) -> list[Operand]:
    """The operands, all of them present.

    Raises:
        ModelError: there are fewer than ``least`` or more than ``most`` (default: ``least``), or
            one is absent.
    """
    most = least if most is None else most
    if not least <= len(operands) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ModelError(f"{op} takes {wanted} operands, got {len(operands)}")
    present = [operand for operand in operands if operand is not None]
    if len(present) != len(operands):
        raise ModelError(f"{op}: operand {list(operands).index(None)} is absent")
    return present


def normal_axis(op: str, axis: int, rank: int, what: str = "axis") -> int:
    """``axis`` counted from the front; a negative one counts from the back.

    Raises:
        ModelError: it is not in [-rank, rank).
    """
    if not -rank <= axis < rank:
        raise ModelError(f"{op}: {what} {axis} is outside a rank of {rank}")
    return axis + rank if axis < 0 else axis


def integers(array: Array) -> tuple[int, ...]:
    """An array's elements as Python integers, in row-major order; the bits of unsigned ones are
    read as those of signed numbers, as in TFLite's kernels: an axis of 2^32 - 1 is -1."""
    found = np.asarray(array).reshape(-1)
    if found.dtype.kind == "u":
        found = found.view(f"i{found.dtype.itemsize}")
    return tuple(int(v) for v in found)


def const_integers(
    op: str, operand: Operand, what: str, count: int | None = None, *, also: Sequence[DType] = ()
) -> tuple[int, ...]:
    """The elements of a constant operand of whole numbers; those of types ``also`` are some.

    Raises:
        ModelError: it is not constant, of another type, or does not have ``count`` elements.
    """
    taken = (*CONSTANT_TYPES, *also)
    if operand.dtype not in taken:
        raise ModelError(
            f"{op}: {what} is {operand.dtype.value}, not a whole number of a type that it may "
            f"have: {', '.join(t.value for t in taken)}"
        )
    values = integers(operand.const(op, what))
    if count is not None and len(values) != count:
        raise ModelError(f"{op}: {what} has {len(values)} elements {listed(values)}, needs {count}")
    return values


def const_integer(op: str, operand: Operand, what: str, *, also: Sequence[DType] = ()) -> int:
    """A constant operand that is one whole number.

    Raises:
        ModelError: as `const_integers`.
    """
    return const_integers(op, operand, what, 1, also=also)[0]


def need_rank(op: str, operand: Operand, what: str, *ranks: int) -> None:
    """That an operand has one of the given ranks.

    Raises:
        ModelError: it has not.
    """
    if operand.rank not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ModelError(f"{op}: {what} has shape {list(operand.shape)}, rank {wanted} needed")


def elements(shape: Sequence[int]) -> int:
    """Number of elements."""
    return math.prod(shape)


def present(array: Array | None) -> Array:
    """An operand's contents; shape inference has seen that it is there."""
    assert array is not None
    return array


def at_least_f32(array: Array) -> Array:
    """Floats as references compute: those of 16 bits in 32; of 64 bits, which conformance gives to
    learn what is true, in 64."""
    return np.asarray(array.astype(np.result_type(array.dtype, np.float32)))
