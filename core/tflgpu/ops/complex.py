"""COMPLEX_ABS, REAL, IMAG and RFFT2D (TFLite version 1): complex numbers, on the CPU.

RFFT2D transforms the two last dimensions of real numbers, cut off or filled with zeros to the
lengths that operand 1 says, and gives the half of the spectrum that tells the other. LiteRT's
kernel takes lengths that are powers of two, from 2 on along the width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import const_integers, integers, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    FileForm,
    NoAttrs,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import always
from tflgpu.ops.items import each_row

_PARTS = {DType.C64: DType.F32, DType.C128: DType.F64}


def _infer_part(op: str) -> Callable[..., list[TensorSpec]]:
    def infer(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
        (x,) = take_operands(op, operands, 1)
        if x.dtype not in _PARTS:
            raise ModelError(f"{op} takes c64 or c128, not {x.dtype.value}")
        return [TensorSpec(x.shape, _PARTS[x.dtype])]

    return infer


def _reference_part(part: Callable[[Array], Array]) -> Callable[..., list[Array]]:
    def reference(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
        return [np.array(part(present(arrays[0])))]

    return reference


def _lengths(op: str, operand: Operand) -> tuple[int, ...]:
    if operand.dtype is not DType.I32 or operand.rank != 1:
        raise ModelError(f"{op}: lengths (operand 1) are {operand.spec}; two i32 needed")
    found = const_integers(op, operand, "lengths (operand 1)", 2)
    if any(n < 1 or n & (n - 1) for n in found) or found[1] < 2:
        raise ModelError(
            f"{op}: lengths (operand 1) are {list(found)}; powers of two needed, from 2 on along "
            "the width"
        )
    return found


def _infer_rfft(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    op = "RFFT2D"
    x, lengths = take_operands(op, operands, 2)
    if x.dtype is not DType.F32 or x.rank < 2:
        raise ModelError(f"{op}: operand 0 is {x.spec}; f32 of at least two dimensions needed")
    height, width = _lengths(op, lengths)
    return [TensorSpec((*x.shape[:-2], height, width // 2 + 1), DType.C64)]


def _reference_rfft(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, (height, width) = present(arrays[0]), integers(present(arrays[1]))
    used = x[..., :height, :width].astype(np.float64)
    found = np.fft.rfft2(used, s=(height, width), axes=(-2, -1)).astype(np.complex64)
    if height == 1:  # the ends of a spectrum are real; LiteRT's kernel gives them -0
        found.imag[..., [0, -1]] = -0.0
    # Every number has a part in every sum, though a fast transform leaves products with zero out.
    found[~np.isfinite(used).all((-2, -1))] = complex(np.nan, np.nan)
    return [found]


def _part_samples() -> list[Sample]:
    return [
        Sample("vector", {}, (Arg((7,), DType.C64, -3, 3),)),
        Sample("rank4", {}, (Arg((2, 3, 5, 4), DType.C64, -3, 3),)),
        Sample("scalar", {}, (Arg((), DType.C64, -3, 3),)),
        Sample("c128", {}, (Arg((3, 5), DType.C128, -3, 3),)),
    ]


def _rfft_samples() -> list[Sample]:
    def sample(id: str, shape: tuple[int, ...], height: int, width: int) -> Sample:
        return Sample(id, {}, (Arg(shape), Arg.of([height, width], DType.I32)), accumulates=64)

    return [
        sample("whole", (4, 8), 4, 8),
        sample("cut_off", (2, 5, 7), 4, 4),
        sample("filled_up", (3, 5, 3), 8, 4),
        sample("one_row", (2, 1, 16), 1, 16),
        sample("narrow", (1, 3, 8, 2), 8, 2),
    ]


def _part(op: str, part: Callable[[Array], Array], accuracy: Accuracy) -> OpDef:
    return OpDef(
        op,
        no_attrs,
        _infer_part(op),
        _reference_part(part),
        _part_samples,
        accuracy=accuracy,
        device=OnDevice(limits=always("{op}: complex numbers stay on the CPU")),
        batch=each_row(0),
    )


OPS = (
    _part("COMPLEX_ABS", np.abs, Accuracy.ROUNDED),
    _part("REAL", np.real, Accuracy.EXACT),
    _part("IMAG", np.imag, Accuracy.EXACT),
    OpDef(
        "RFFT2D",
        no_attrs,
        _infer_rfft,
        _reference_rfft,
        _rfft_samples,
        accuracy=Accuracy.ACCUMULATE,
        device=OnDevice(limits=always("{op}: complex numbers stay on the CPU")),
        batch=each_row(0, rank=3),
        file=FileForm(result_type=DType.C64),
    ),
)
