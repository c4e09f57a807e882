"""Mutations that put a new operator on an edge of a model, or beside it."""

from __future__ import annotations

import random
from typing import Any

import attrs
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.spec import OperatorSpec

from tests.differential.edits import Draft

_UNARY = ("RELU", "RELU6", "TANH", "LOGISTIC", "ABS", "NEG", "EXP", "SQRT", "RSQRT", "LOG", "SIN",
          "FLOOR", "ROUND", "HARD_SWISH", "ELU", "GELU", "SQUARE", "RELU_N1_TO_1", "RELU_0_TO_1",
          "LEAKY_RELU", "ZEROS_LIKE", "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION")  # fmt: skip


def insert(d: Draft, rng: random.Random) -> None:
    """One operator between what makes a tensor and those (or one of those) that read it."""
    live = list(dict.fromkeys([*d.inputs, *(o for op in d.operators for o in op.outputs)]))
    if not live:
        raise LookupError
    at = rng.choice(live)
    kind = rng.choice(_INSERTS)
    made, operators = kind(d, rng, at)
    makers = [p for p, op in enumerate(d.operators) if at in op.outputs]
    first = makers[-1] + 1 if makers else 0
    readers = [p for p, op in enumerate(d.operators) if at in op.inputs and p >= first]
    if readers and rng.random() < 0.3:
        readers = [rng.choice(readers)]
    for p in readers:
        op = d.operators[p]
        d.operators[p] = attrs.evolve(op, inputs=[made if i == at else i for i in op.inputs])
    d.operators[first:first] = operators
    if at in d.outputs and (not readers or rng.random() < 0.5):
        d.outputs = [made if o == at else o for o in d.outputs]
    elif rng.random() < 0.1:
        d.outputs.append(made)


def unused(d: Draft, rng: random.Random) -> None:
    """An operator whose result nobody reads."""
    before = list(d.operators), list(d.outputs)
    live = list(dict.fromkeys([*d.inputs, *(o for op in d.operators for o in op.outputs)]))
    if not live:
        raise LookupError
    _, operators = rng.choice(_INSERTS)(d, rng, rng.choice(live))
    d.operators, d.outputs = [*before[0], *operators], before[1]


def _same(d: Draft, at: int, name: str, fields: Any = None, extra: tuple[int, ...] = (),
          version: int = 1, **changes: Any) -> tuple[int, list[OperatorSpec]]:  # fmt: skip
    t = d.tensors[at]
    shape, dtype = changes.get("shape", t.shape), changes.get("dtype", t.dtype)
    made = d.add(shape, dtype, quant=changes.get("quant", t.quantization))
    return made, [OperatorSpec(name, fields or {}, (at, *extra), (made,), version=version)]


def _unary(d: Draft, rng: random.Random, at: int) -> Any:
    name = rng.choice([u for u in _UNARY if u in BUILTIN_CODES])
    whole = d.tensors[at].quantization is not None
    return _same(d, at, name, {"beta": 1.0} if name == "SOFTMAX" else {}, version=2 if whole else 1)


def _binary(d: Draft, rng: random.Random, at: int) -> Any:
    name = rng.choice(
        ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "POW", "SQUARED_DIFFERENCE")
    )
    t = d.tensors[at]
    if rng.random() < 0.4:
        other = at
    elif t.dtype is DType.F32:
        other = d.const(rng.choice((0.0, 1.0, -1.0, 0.5, 2.0)), DType.F32)
    else:
        same = [i for i in d.inputs if d.tensors[i].dtype is t.dtype]
        other = rng.choice(same) if same else at
    fields = {}
    if name in ("ADD", "SUB", "MUL", "DIV") and rng.random() < 0.3:
        fields = {"fused_activation_function": rng.choice((0, 1, 2, 3))}
    return _same(d, at, name, fields, (other,), version=2 if t.quantization else 1)


def _reshape(d: Draft, rng: random.Random, at: int) -> Any:
    t = d.tensors[at]
    count = 1
    for size in t.shape:
        count *= size
    shape = rng.choice(
        ((count,), (1, count), (-1,), (1, *t.shape), t.shape, (-1, t.shape[-1] if t.shape else 1))
    )
    known = tuple(count if s < 0 and len(shape) == 1 else s for s in shape)
    if known and min(known) < 0:
        known = (count // max(1, known[-1]), known[-1])
    if rng.random() < 0.3:
        return _same(d, at, "RESHAPE", {"new_shape": shape}, shape=known)
    return _same(d, at, "RESHAPE", {}, (d.const(list(shape)),), shape=known)


def _back_and_forth(d: Draft, rng: random.Random, at: int) -> Any:
    """RESHAPE to the shape that SHAPE says, a placeholder shape in the file."""
    t = d.tensors[at]
    shape = d.add((len(t.shape),), DType.I32)
    made, operators = _same(d, at, "RESHAPE", {}, (shape,))
    return made, [OperatorSpec("SHAPE", {"out_type": 2}, (at,), (shape,)), *operators]


def _pad(d: Draft, rng: random.Random, at: int) -> Any:
    t = d.tensors[at]
    pads = [[rng.choice((0, 0, 1)), rng.choice((0, 0, 1))] for _ in t.shape]
    shape = [s + sum(p) for s, p in zip(t.shape, pads, strict=True)]
    name = rng.choice(("PAD", "PAD", "MIRROR_PAD"))
    return _same(d, at, name, {}, (d.const(pads),), shape=shape, version=2 if t.quantization else 1)


def _transpose(d: Draft, rng: random.Random, at: int) -> Any:
    t = d.tensors[at]
    order = list(range(len(t.shape)))
    rng.shuffle(order)
    shape = [t.shape[i] for i in order]
    made, first = _same(d, at, "TRANSPOSE", {}, (d.const(order),), shape=shape)
    if rng.random() < 0.5:
        return made, first
    # And back, so that what follows still fits.
    back = [order.index(i) for i in range(len(order))]
    final, second = _same(d, made, "TRANSPOSE", {}, (d.const(back),), shape=t.shape)
    return final, [*first, *second]


def _cast(d: Draft, rng: random.Random, at: int) -> Any:
    via = rng.choice((DType.I32, DType.F16, DType.I64, DType.BOOL, DType.U8, DType.I8, DType.F64))
    t = d.tensors[at]
    made, first = _same(d, at, "CAST", {"in_data_type": t.dtype.tflite,
    "out_data_type": via.tflite},
                        dtype=via, quant=None)  # fmt: skip
    final, second = _same(d, made, "CAST", {"in_data_type": via.tflite,
    "out_data_type": t.dtype.tflite},
                          dtype=t.dtype, quant=t.quantization)  # fmt: skip
    return final, [*first, *second]


def _quantize(d: Draft, rng: random.Random, at: int) -> Any:
    via = rng.choice((DType.I8, DType.U8, DType.I16))
    zero = 0 if via is DType.I16 else rng.choice((0, 3))
    quant = Quantization((rng.choice((0.02, 0.1)),), (zero,))
    t = d.tensors[at]
    made, first = _same(d, at, "QUANTIZE", {}, dtype=via, quant=quant)
    if t.quantization is not None:
        final, second = _same(d, made, "QUANTIZE", {})
    else:
        final, second = _same(d, made, "DEQUANTIZE", {}, version=2)
    return final, [*first, *second]


def _shape_of(d: Draft, rng: random.Random, at: int) -> Any:
    """SHAPE, read by nobody but the model's outputs."""
    t = d.tensors[at]
    shape = d.add((len(t.shape),), DType.I32)
    d.outputs.append(shape)
    made, operators = _same(d, at, "ABS", {})
    return made, [OperatorSpec("SHAPE", {"out_type": 2}, (at,), (shape,)), *operators]


def _slice(d: Draft, rng: random.Random, at: int) -> Any:
    t = d.tensors[at]
    begin = [rng.choice((0, 0, 1)) if s > 1 else 0 for s in t.shape]
    size = [rng.choice((s - b, -1, max(1, s - b - 1))) for s, b in zip(t.shape, begin, strict=True)]
    shape = [s - b if z < 0 else z for s, b, z in zip(t.shape, begin, size, strict=True)]
    return _same(d, at, "SLICE", {}, (d.const(begin), d.const(size)), shape=shape)


def _concat(d: Draft, rng: random.Random, at: int) -> Any:
    t = d.tensors[at]
    axis = rng.randrange(-1, len(t.shape)) if t.shape else 0
    shape = [2 * s if i == axis % max(1, len(t.shape)) else s for i, s in enumerate(t.shape)]
    return _same(d, at, "CONCATENATION", {"axis": axis}, (at,), shape=shape)


def _reduce(d: Draft, rng: random.Random, at: int) -> Any:
    t = d.tensors[at]
    axis = rng.randrange(len(t.shape)) if t.shape else 0
    shape = [1 if i == axis else s for i, s in enumerate(t.shape)]
    name = rng.choice(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"))
    return _same(d, at, name, {"keep_dims": True}, (d.const([axis]),), shape=shape)


def _broadcast(d: Draft, rng: random.Random, at: int) -> Any:
    t = d.tensors[at]
    shape = [rng.choice((2, 3)) if s == 1 else s for s in t.shape]
    return _same(d, at, "BROADCAST_TO", {}, (d.const(shape),), shape=shape, version=2)


_INSERTS = (_unary, _unary, _unary, _binary, _binary, _reshape, _back_and_forth, _pad, _transpose,
            _cast, _quantize, _shape_of, _slice, _concat, _reduce, _broadcast)  # fmt: skip
