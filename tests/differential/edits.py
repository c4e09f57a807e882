"""Structured mutations: each takes a model that can be edited and changes one thing in it.

They need not make sense. What matters is that most of what they make gets past the reader, so that
shape inference, passes, partitioning, kernels and sessions see it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.layouts import Kind
from tflgpu.tflite.schema import layout, options_of
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec


@attrs.define
class Draft:
    """A model in the making, and what its inputs shall hold where that is not random."""

    tensors: list[TensorSpec]
    operators: list[OperatorSpec]
    inputs: list[int]
    outputs: list[int]
    values: dict[int, Array] = attrs.field(factory=dict)
    base: ModelSpec | None = None

    @classmethod
    def of(cls, spec: ModelSpec) -> Draft:
        """A copy of a model to edit."""
        return cls(
            list(spec.tensors), list(spec.operators), list(spec.inputs), list(spec.outputs),
            base=spec,
        )  # fmt: skip

    def spec(self) -> ModelSpec:
        """The model as it is now."""
        assert self.base is not None
        return attrs.evolve(
            self.base, tensors=self.tensors, operators=self.operators, inputs=self.inputs,
            outputs=self.outputs, signatures=(),
        )  # fmt: skip

    def add(self, shape: Any, dtype: DType = DType.F32, data: Any = None, quant: Any = None) -> int:
        """A new tensor's index."""
        if data is not None:
            data = np.asarray(data, dtype.numpy)
            shape = data.shape
        self.tensors.append(TensorSpec(f"new{len(self.tensors)}", tuple(shape), dtype, data, quant))
        return len(self.tensors) - 1

    def const(self, data: Any, dtype: DType = DType.I32) -> int:
        """A new constant's index."""
        return self.add((), dtype, data)


Edit = Callable[[Draft, random.Random], None]
_SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 13)
_NUMBERS = (0, 1, -1, 2, 3, 4, 5, 8, 16, 100, 255, 2**15, 2**31 - 1, -(2**31))
_DTYPES = (DType.F32, DType.F32, DType.F16, DType.I32, DType.I64, DType.I8, DType.U8, DType.I16,
           DType.BOOL, DType.F64, DType.U32)  # fmt: skip


def _operator(d: Draft, rng: random.Random) -> int:
    if not d.operators:
        raise LookupError
    return rng.randrange(len(d.operators))


def _tensor(
    d: Draft, rng: random.Random, want: Callable[[TensorSpec], bool] = lambda t: True
) -> int:
    found = [i for i, t in enumerate(d.tensors) if want(t)]
    if not found:
        raise LookupError
    return rng.choice(found)


def _fill(shape: Any, dtype: DType, rng: random.Random, like: Any = None) -> Array:
    if like is not None and np.size(like):
        return np.resize(np.asarray(like), shape).astype(dtype.numpy)
    gen = np.random.default_rng(rng.getrandbits(32))
    return gen.uniform(-1, 1, shape).astype(dtype.numpy)


def attribute(d: Draft, rng: random.Random) -> None:
    at = _operator(d, rng)
    op = d.operators[at]
    ref = options_of(op.name)
    if ref is None:
        raise LookupError
    field = rng.choice(list(layout(ref.table).fields.values()))
    old = op.fields.get(field.name, field.default)
    if field.kind is Kind.SCALAR and field.number is not None:
        if field.number.kind == "b":
            new: Any = not old
        elif field.number.kind == "f":
            new = rng.choice((0.0, 1.0, -1.0, 0.5, 1e30, float("inf"), float("nan")))
        else:
            info = np.iinfo(field.number)
            near = (int(old or 0) + 1, int(old or 0) - 1, 0, 1, 2, 3, 4)
            pool = near if rng.random() < 0.85 else _NUMBERS
            new = min(max(rng.choice(pool), int(info.min)), int(info.max))
    elif field.kind is Kind.NUMBERS:
        numbers = list(old or ())
        if numbers and rng.random() < 0.7:
            numbers[rng.randrange(len(numbers))] = rng.choice((-1, 0, 1, 2, 3, 6))
        else:
            numbers = numbers[:-1] if numbers and rng.random() < 0.5 else [*numbers, 1]
        new = tuple(numbers)
    else:
        raise LookupError
    d.operators[at] = attrs.evolve(op, fields={**op.fields, field.name: new})


def version(d: Draft, rng: random.Random) -> None:
    at = _operator(d, rng)
    d.operators[at] = attrs.evolve(
        d.operators[at], version=rng.choice((0, 1, 2, 3, 4, 5, 7, 12, 99))
    )


def shape(d: Draft, rng: random.Random) -> None:
    at = _tensor(d, rng)
    t = d.tensors[at]
    dims = list(t.shape)
    how = rng.random()
    if dims and how < 0.6:
        dims[rng.randrange(len(dims))] = rng.choice(_SIZES)
    elif dims and how < 0.7:
        dims.pop(rng.randrange(len(dims)))
    elif how < 0.8:
        dims.insert(rng.randint(0, len(dims)), rng.choice((1, 1, 2, 3)))
    elif how < 0.9:
        rng.shuffle(dims)
    else:
        dims = [rng.choice(_SIZES) for _ in range(rng.randint(0, 6))]
    data = None if t.data is None else _fill(dims, t.dtype, rng, t.data)
    d.tensors[at] = attrs.evolve(t, shape=dims, data=data, shape_signature=None)


def huge_shape(d: Draft, rng: random.Random) -> None:
    at = _tensor(d, rng, lambda t: t.data is None and len(t.shape) > 0)
    t = d.tensors[at]
    dims = list(t.shape)
    dims[rng.randrange(len(dims))] = rng.choice((2**15, 2**24, 2**31 - 1))
    d.tensors[at] = attrs.evolve(t, shape=dims)


def signature(d: Draft, rng: random.Random) -> None:
    at = _tensor(d, rng, lambda t: t.data is None and len(t.shape) > 0)
    t = d.tensors[at]
    dims = tuple(-1 if rng.random() < 0.5 else s for s in t.shape)
    d.tensors[at] = attrs.evolve(t, shape_signature=dims)


def batch(d: Draft, rng: random.Random) -> None:
    count = rng.choice((2, 3))
    for i in d.inputs:
        t = d.tensors[i]
        if t.shape and t.data is None:
            d.tensors[i] = attrs.evolve(t, shape=(t.shape[0] * count, *t.shape[1:]))


def dtype(d: Draft, rng: random.Random) -> None:
    at = _tensor(d, rng, lambda t: t.dtype.has_numpy)
    t = d.tensors[at]
    kind = rng.choice(_DTYPES)
    data = None
    if t.data is not None:
        with np.errstate(all="ignore"):
            data = np.asarray(t.data).astype(kind.numpy)
    d.tensors[at] = attrs.evolve(t, dtype=kind, data=data)


def whole_dtype(d: Draft, rng: random.Random) -> None:
    """All tensors of one type get another: more often a model that makes sense."""
    old = d.tensors[_tensor(d, rng, lambda t: t.dtype.has_numpy)].dtype
    new = rng.choice(_DTYPES)
    for i, t in enumerate(d.tensors):
        if t.dtype is old:
            data = None if t.data is None else np.asarray(t.data).astype(new.numpy)
            d.tensors[i] = attrs.evolve(t, dtype=new, data=data)


def quantization(d: Draft, rng: random.Random) -> None:
    quantized = rng.random() < 0.8
    at = _tensor(d, rng, lambda t: (t.quantization is not None) or not quantized)
    t = d.tensors[at]
    if rng.random() < 0.2 and t.quantization is not None:
        d.tensors[at] = attrs.evolve(t, quantization=None)
        return
    scale = rng.choice((0.1, 0.02, 1.0, 0.5, 1e-6, 1e6, 0.0))
    zero = rng.choice((0, 0, 1, -1, 5, 127, -128, 128, 255, -(2**31)))
    if rng.random() < 0.3 and t.shape:
        axis = rng.randrange(len(t.shape))
        count = max(1, t.shape[axis] + rng.choice((0, 0, 0, 1, -1)))
        quant = Quantization((scale,) * count, (zero,) * count, axis)
    elif t.quantization is not None and rng.random() < 0.5:
        quant = attrs.evolve(t.quantization, scale=tuple(s * 2 for s in t.quantization.scale))
    else:
        quant = Quantization((scale,), (zero,))
    d.tensors[at] = attrs.evolve(t, quantization=quant)


def const_to_input(d: Draft, rng: random.Random) -> None:
    used = {i for op in d.operators for i in op.inputs}
    found = [
        i
        for i, t in enumerate(d.tensors)
        if t.data is not None and i in used and t.sparsity is None and t.dtype.has_numpy
    ]
    if not found:
        raise LookupError
    at = rng.choice(found)
    # Shapes, axes and paddings are where an operand at run time changes most.
    whole = [i for i in found if d.tensors[i].dtype in (DType.I32, DType.I64)
             and d.tensors[i].quantization is None]  # fmt: skip
    if whole and rng.random() < 0.7:
        at = rng.choice(whole)
    t = d.tensors[at]
    d.values[at] = np.asarray(t.data)
    d.tensors[at] = attrs.evolve(t, data=None)
    d.inputs.append(at)


def const_computed(d: Draft, rng: random.Random) -> None:
    """A constant becomes what an operator makes: of constants, or of an input too."""
    used = {i for op in d.operators for i in op.inputs}
    at = _tensor(d, rng, lambda t: t.data is not None and t.sparsity is None
                 and t.quantization is None and t.dtype in (DType.I32, DType.F32))  # fmt: skip
    if at not in used:
        raise LookupError
    t = d.tensors[at]
    whole = d.add((), t.dtype, np.asarray(t.data))
    if rng.random() < 0.5:
        zero = d.add(t.shape, t.dtype)
        d.inputs.append(zero)
        d.values[zero] = np.zeros(t.shape, t.dtype.numpy)
    else:
        zero = d.add((), t.dtype, np.zeros(t.shape, t.dtype.numpy))
    # The file's shape of it is kept: the true one, or a placeholder.
    placeholder = t.shape if rng.random() < 0.7 else (1,) * len(t.shape)
    d.tensors[at] = attrs.evolve(t, data=None, shape=placeholder)
    d.operators.insert(0, OperatorSpec("ADD", {}, (whole, zero), (at,)))


def placeholder_shapes(d: Draft, rng: random.Random) -> None:
    """What operators make gets the file's shape of something else: shapes in files may be wrong."""
    made = [o for op in d.operators for o in op.outputs]
    if not made:
        raise LookupError
    for at in made:
        if rng.random() < 0.4:
            other = d.tensors[rng.randrange(len(d.tensors))].shape
            new = other if rng.random() < 0.5 else (1,) * len(d.tensors[at].shape)
            d.tensors[at] = attrs.evolve(d.tensors[at], shape=new, shape_signature=None)


def operands(d: Draft, rng: random.Random) -> None:
    at = _operator(d, rng)
    op = d.operators[at]
    inputs = list(op.inputs)
    how = rng.random()
    if len(inputs) > 1 and how < 0.35:
        a, b = rng.sample(range(len(inputs)), 2)
        inputs[a], inputs[b] = inputs[b], inputs[a]
    elif inputs and how < 0.5:
        inputs[rng.randrange(len(inputs))] = rng.choice(inputs)
    elif inputs and how < 0.6:
        inputs[rng.randrange(len(inputs))] = -1
    elif inputs and how < 0.7:
        inputs.pop()
    elif inputs and how < 0.8:
        inputs.append(rng.choice(inputs))
    elif inputs:
        p = rng.randrange(len(inputs))
        like = d.tensors[inputs[p]].dtype if inputs[p] >= 0 else DType.F32
        inputs[p] = _tensor(d, rng, lambda t: t.dtype is like)
    d.operators[at] = attrs.evolve(op, inputs=inputs)


def operator_name(d: Draft, rng: random.Random) -> None:
    groups = (
        ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV",
         "FLOOR_MOD"),
        ("RELU", "RELU6", "TANH", "LOGISTIC", "ABS", "NEG", "EXP", "SQRT", "RSQRT", "SQUARE", "SIN",
         "COS", "LOG", "FLOOR", "CEIL", "ROUND", "HARD_SWISH", "ELU", "GELU", "RELU_N1_TO_1",
         "SIGN"),
        ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"),
        ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"),
        ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"),
        ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), ("ARG_MAX", "ARG_MIN"),
        ("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"), ("PAD", "MIRROR_PAD"), ("TILE", "RESHAPE",
        "BROADCAST_TO"),
    )  # fmt: skip
    at = _operator(d, rng)
    op = d.operators[at]
    group = next((g for g in groups if op.name in g), None)
    if group is None:
        raise LookupError
    name = rng.choice(group)
    ref = options_of(name)
    known = set(layout(ref.table).fields) if ref else set()
    d.operators[at] = attrs.evolve(
        op, name=name, fields={k: v for k, v in op.fields.items() if k in known}
    )


def remove(d: Draft, rng: random.Random) -> None:
    at = _operator(d, rng)
    op = d.operators.pop(at)
    source = next((i for i in op.inputs if i >= 0 and d.tensors[i].data is None), None)
    if source is None or not op.outputs:
        return
    place = dict.fromkeys(op.outputs, source)
    if rng.random() < 0.8:
        d.operators = [
            attrs.evolve(p, inputs=[place.get(i, i) for i in p.inputs]) for p in d.operators
        ]
    d.outputs = [place.get(o, o) for o in d.outputs]


def graph_outputs(d: Draft, rng: random.Random) -> None:
    how = rng.randrange(6)
    if how == 0 and d.outputs:
        d.outputs.append(rng.choice(d.outputs))
    elif how == 1 and d.inputs:
        d.outputs.append(rng.choice(d.inputs))
    elif how == 2:
        d.outputs.append(_tensor(d, rng, lambda t: t.data is not None))
    elif how == 3 and len(d.outputs) > 1:
        d.outputs.pop(rng.randrange(len(d.outputs)))
    elif how == 4:
        made = [o for op in d.operators for o in op.outputs]
        if made:
            d.outputs.append(rng.choice(made))
    elif d.inputs:
        d.inputs.append(rng.choice(d.inputs))


def variable(d: Draft, rng: random.Random) -> None:
    at = _tensor(d, rng, lambda t: t.data is None)
    d.tensors[at] = attrs.evolve(d.tensors[at], is_variable=not d.tensors[at].is_variable)
    if rng.random() < 0.5:
        d.inputs = [i for i in d.inputs if i != at]


def special_constants(d: Draft, rng: random.Random) -> None:
    at = _tensor(d, rng, lambda t: t.data is not None and t.dtype.has_numpy and np.size(t.data) > 0
                 and t.sparsity is None)  # fmt: skip
    t = d.tensors[at]
    data = np.array(t.data)
    flat = data.reshape(-1)
    spot = slice(None) if rng.random() < 0.2 else rng.randrange(flat.size)
    if data.dtype.kind == "f":
        flat[spot] = rng.choice((float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 3e38, 1e-39)
                                if data.dtype != np.float16 else (float("nan"), float("inf"),
                                0.0))  # fmt: skip
    elif data.dtype.kind in "iu":
        info = np.iinfo(data.dtype)
        pool = (
            (-1, 0, 1, 2, 3, 5, int(flat[0]) + 1) if rng.random() < 0.85 else (info.min, info.max)
        )
        flat[spot] = min(max(int(rng.choice(pool)), int(info.min)), int(info.max))
    else:
        flat[spot] = False
    d.tensors[at] = attrs.evolve(t, data=data)
