"""Ops of one operand, element by element.

TFLite versions: ABS 1-5; LOGISTIC, TANH, RSQRT, GELU 1-3; EXP, LOG, SIN, COS, SIGN, SQRT 1-2; the
others 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.ops import int16_tables, stored_hard_swish
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Composed,
    Fields,
    FileForm,
    NoAttrs,
    OnDevice,
    OpDef,
    Operands,
    Quantized,
    Reading,
    Sample,
    no_attrs,
)
from tflgpu.ops.composed import there
from tflgpu.ops.elementwise import FLOATS, QUANTIZED, infer_unary, reference_of
from tflgpu.ops.stored_functions import (
    Steps,
    absolute,
    by_steps,
    inverse_square_root,
    logarithm,
    square_root,
)
from tflgpu.values import frozen

_BOOL = frozenset({DType.BOOL})
_I32 = frozenset({DType.I32})
_INTS = frozenset({DType.I32, DType.I64})


@frozen
class Gelu:
    """Whether the tanh approximation is asked for instead of the error function."""

    approximate: bool


def _parse_gelu(fields: Fields) -> Gelu:
    return Gelu(fields.flag("approximate"))


def _read_gelu(fields: Fields, operands: Operands) -> list[Reading]:
    """Composites say it by PyTorch's words, or by a flag, or not at all."""
    there(operands, 1, 1)
    said = fields.get("approximate")
    known = {None: (False, True), "tanh": (True,), "none": (False,), True: (True,), False: (False,)}
    if said not in known:
        raise UnsupportedError(f"its approximation {said!r} is not known")
    return [Reading(Gelu(approximate)) for approximate in known[said]]


_COMPOSED_GELU = Composed(
    ("odml.gelu", "aten.gelu.default"), _read_gelu, frozenset({"approximate"})
)


def _erf(x: Array) -> Array:
    values = np.fromiter((math.erf(v) for v in x.reshape(-1).tolist()), np.float64, x.size)
    return np.asarray(values.reshape(x.shape))


def _gelu(attributes: Gelu, x: Array) -> Array:
    wide = x.astype(np.float64)
    if attributes.approximate:
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return np.asarray(0.5 * wide * (1 + np.tanh(inner)))
    return np.asarray(0.5 * wide * (1 + _erf(wide / math.sqrt(2))))


def _tabulated_exp(node: Node, x: Array) -> Array:
    return np.asarray(np.exp(x))


def _tabulated_log(node: Node, x: Array) -> Array:
    quant = node.outputs[0].quant
    assert quant is not None
    # What has no logarithm becomes the lowest number.
    lowest = np.float32(quant.scale[0]) * np.float32(-(1 << 15) - quant.zero_point[0])
    return np.where(x > 0, np.log(np.where(x > 0, x, 1)), lowest)


def _tabulated_rsqrt(node: Node, x: Array) -> Array:
    quant = node.outputs[0].quant
    assert quant is not None
    # Of 0 the highest number; what is negative LiteRT refuses to run.
    highest = np.float32(quant.scale[0]) * np.float32((1 << 15) - 1 - quant.zero_point[0])
    return np.where(x > 0, 1 / np.sqrt(np.where(x > 0, x, 1)), highest)


def _tabulated_gelu(node: Node, x: Array) -> Array:
    """Rounded after each operation, as TFLite's function of f32."""
    half = np.float32(0.5) * x
    if node.attrs.approximate:
        cubic = np.float32(1) + np.float32(0.044715) * x * x
        inner = np.float32(math.sqrt(2 / math.pi)) * x * cubic
        return np.asarray(half * (np.float32(1) + np.tanh(inner)))
    inner = x * np.float32(-math.sqrt(0.5))
    rest = np.fromiter((math.erfc(v) for v in inner.reshape(-1).tolist()), np.float32, x.size)
    return np.asarray(half * rest.reshape(x.shape))


def _logistic(attributes: NoAttrs, x: Array) -> Array:
    small = np.exp(-np.abs(x))  # in (0, 1]: never overflows
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


def _elu(attributes: NoAttrs, x: Array) -> Array:
    return np.asarray(np.where(x > 0, x, np.expm1(np.minimum(x, 0))))


def _hard_swish(attributes: NoAttrs, x: Array) -> Array:
    # The quotient first, as TFLite: x * 6 overflows for the largest numbers.
    return np.asarray(x * (np.clip(x + 3, 0, 6) / 6))


def _samples(
    low: float = -4.0,
    high: float = 4.0,
    *,
    ints: bool = False,
    version: int = 1,
    fields: dict[str, Any] | None = None,
    label: str = "",
) -> list[Sample]:
    options = fields or {}

    def sample(name: str, *shape: int, dtype: DType = DType.F32, at: int = 1) -> Sample:
        args = (Arg(shape, dtype, low, high),)
        return Sample(name + label, options, args, version=at)

    found = [
        sample("rank0"),
        sample("rank1", 7),
        sample("rank2", 3, 13),
        sample("rank3", 5, 3, 6),
        sample("rank4", 1, 5, 7, 3),
        sample("rank4_batch", 3, 2, 5, 8),
        sample("rank5", 2, 3, 1, 5, 5),
        sample("one_channel", 1, 7, 11, 1),
    ]
    if ints:
        found += [
            sample("i32", 2, 3, 5, 7, dtype=DType.I32, at=version),
            sample("i32_rank1", 9, dtype=DType.I32, at=version),
        ]
    return found


def _logical_samples() -> list[Sample]:
    shapes = [(), (7,), (3, 13), (1, 5, 7, 3), (2, 3, 5, 8), (2, 3, 1, 5, 5)]
    return [Sample(f"rank{len(s)}_{i}", {}, (Arg(s, DType.BOOL),)) for i, s in enumerate(shapes)]


def _gelu_samples() -> list[Sample]:
    exact = _samples(-6, 6)
    return exact + _samples(-6, 6, fields={"approximate": True}, label="_tanh")


def _inverse_root(attributes: Any, x: Array) -> Any:
    return 1 / np.sqrt(x)


def _op(
    name: str,
    compute: Callable[[Any, Array], Any],
    samples: Callable[[], Sequence[Sample]],
    allowed: frozenset[DType] = FLOATS,
    accuracy: Accuracy = Accuracy.ROUNDED,
    version: int = 1,
    parse: Callable[[Fields], Any] = no_attrs,
    computes: Activation = Activation.NONE,
    largest_operand: float = math.inf,
    plain: frozenset[DType] = frozenset(),
    table: Callable[[Node], Array | None] | None = None,
    stored: bool = False,
    composed: tuple[Composed, ...] = (),
    steps: Steps | None = None,
    results: Callable[[Node], Any] | None = None,
    result_type: int | None = None,
) -> OpDef:
    if steps is not None:
        results = by_steps(steps, compute)
    return OpDef(
        name, parse, infer_unary(name, allowed), reference_of(name, compute, plain), samples,
        accuracy=accuracy,
        file=FileForm(max_version=version, composed=composed, result_type=result_type),
        elementwise=True, arithmetic=Arithmetic(computes=computes),
        device=OnDevice(largest_operand=largest_operand),
        quantized=Quantized(table=table, stored=stored, results=results)
    )  # fmt: skip


# Devices promise sines of numbers up to 2^15.
_LARGEST_ANGLE = 3e4
_APPROXIMATE = Accuracy.TRANSCENDENTAL
_SCALED = FLOATS | QUANTIZED

OPS = (
    _op("ABS", lambda a, x: np.abs(x), lambda: _samples(ints=True, version=5),
        _SCALED | _I32, Accuracy.EXACT, 5, plain=frozenset({DType.I16}), steps=absolute),
    # TFLite's kernel looks at no scale and no zero point.
    _op("NEG", lambda a, x: -x, lambda: _samples(ints=True), _SCALED | _INTS, Accuracy.EXACT,
        plain=frozenset({DType.I8, DType.I16}), stored=True, result_type=0),
    _op("SIGN", lambda a, x: np.sign(x), lambda: _samples(ints=True, version=2), _SCALED | _I32,
    Accuracy.EXACT, 2),
    _op("SQUARE", lambda a, x: x * x, _samples),
    _op("SQRT", lambda a, x: np.sqrt(x), lambda: _samples(0.01, 9), _SCALED, version=2,
        steps=square_root),
    _op("RSQRT", _inverse_root, lambda: _samples(0.05, 9), _SCALED, version=3,
        table=int16_tables.interpolated(_tabulated_rsqrt),
        results=by_steps(inverse_square_root, _inverse_root, few=0.0)),
    _op("EXP", lambda a, x: np.exp(x), _samples, _SCALED, _APPROXIMATE, 2,
        table=int16_tables.interpolated(_tabulated_exp), result_type=0),
    _op("LOG", lambda a, x: np.log(x), lambda: _samples(0.05, 9), _SCALED, _APPROXIMATE, 2,
        table=int16_tables.interpolated(_tabulated_log), steps=logarithm),
    _op("SIN", lambda a, x: np.sin(x), lambda: _samples(-7, 7), FLOATS, _APPROXIMATE, 2,
        largest_operand=_LARGEST_ANGLE),
    _op("COS", lambda a, x: np.cos(x), lambda: _samples(-7, 7), FLOATS, _APPROXIMATE, 2,
        largest_operand=_LARGEST_ANGLE),
    _op("TANH", lambda a, x: np.tanh(x), _samples, _SCALED, _APPROXIMATE, 3,
        computes=Activation.TANH, table=int16_tables.tanh),
    _op("LOGISTIC", _logistic, lambda: _samples(-9, 9), _SCALED, _APPROXIMATE, 3,
        table=int16_tables.logistic),
    _op("ELU", _elu, _samples, _SCALED, _APPROXIMATE),
    _op("GELU", _gelu, _gelu_samples, _SCALED, _APPROXIMATE, 3, _parse_gelu,
        table=int16_tables.interpolated(_tabulated_gelu), composed=(_COMPOSED_GELU,)),
    # Near -3 the sum cancels, and implementations order it differently.
    _op("HARD_SWISH", _hard_swish, lambda: _samples(-5, 5), _SCALED, _APPROXIMATE,
        results=stored_hard_swish.as_stored),
    _op("FLOOR", lambda a, x: np.floor(x), lambda: _samples(-9, 9), FLOATS, Accuracy.EXACT,
        result_type=0),
    _op("CEIL", lambda a, x: np.ceil(x), lambda: _samples(-9, 9), FLOATS, Accuracy.EXACT,
        result_type=0),
    _op("ROUND", lambda a, x: np.rint(x), lambda: _samples(-9, 9), FLOATS, Accuracy.EXACT,
        result_type=0),
    _op("LOGICAL_NOT", lambda a, x: ~x, _logical_samples, _BOOL, Accuracy.EXACT),
)  # fmt: skip
