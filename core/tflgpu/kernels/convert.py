"""Conversions between element types.

Tensors of 8 bits are on a device only for these ops to convert, where the device can store them;
those of 16 or 64 bits stay on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.quantize_and_dequantize import round_to_steps
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.rule import ANY, BYTES, FLOATS, ElementwiseRule, Site, takes
from tflgpu.ops.convert import Dequantize, Quantize
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize


def _cast(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = operands[0]
    if attributes.output is DType.BOOL:
        return k.cast(x.ne(0), Scalar.I32)
    if attributes.output.is_float:
        # Between floats only the storage differs, and the store converts.
        return x if x.type.is_float else k.cast(x, Scalar.F32)
    info = np.iinfo(attributes.output.numpy)
    low, high = int(info.min), int(info.max)
    if not x.type.is_float:
        whole = k.cast(x, Scalar.I32)
        if attributes.output.itemsize == 4:
            return whole
        # The lowest 8 bits, of which the first is the sign where there is one.
        byte = whole & 255
        return (byte ^ 128) - 128 if low else byte
    x = k.let(x, "x")
    whole = k.cast(x, Scalar.I32)  # clamps, but makes 0 of a NaN
    if attributes.output.itemsize < 4:
        whole = k.clamp(whole, low, high)
    return k.select(x.ne(x), high, whole)


def _dequantize(k: Builder, attributes: Dequantize, operands: Sequence[Expr]) -> Expr:
    quant = attributes.quantization
    if quant is None:
        return operands[0]
    steps = k.cast(operands[0] - quant.zero_point[0], Scalar.F32)
    return steps * quant.scale[0]


def _quantize(k: Builder, attributes: Quantize, operands: Sequence[Expr]) -> Expr:
    stored = QuantizeAndDequantize.of(attributes.quantization, attributes.output)
    stored = attrs.evolve(stored, even=True)
    steps = round_to_steps(k, stored, k.cast(operands[0], Scalar.F32))
    return k.cast(steps, Scalar.I32) + attributes.quantization.zero_point[0]


def _accepts_dequantize(node: Node, site: Site) -> str | None:
    quant = node.attrs.quantization
    if quant is not None and quant.per_axis:
        return f"DEQUANTIZE: operand {node.input(0).name} has several scales"
    return takes(BYTES if quant is not None else FLOATS)(node, site)


def _accepts_quantize(node: Node, site: Site) -> str | None:
    (out,) = node.outputs
    if node.attrs.quantization.per_axis:
        return f"QUANTIZE: result {out.name} has several scales"
    if not node.attrs.quantization.scale[0] > 0:
        return f"QUANTIZE: result {out.name} has scale 0"
    return takes(FLOATS, results=BYTES)(node, site)


RULES = (
    ElementwiseRule("CAST", _cast, takes(ANY | BYTES, results=ANY | BYTES)),
    ElementwiseRule("DEQUANTIZE", _dequantize, _accepts_dequantize),
    ElementwiseRule("QUANTIZE", _quantize, _accepts_quantize),
)
