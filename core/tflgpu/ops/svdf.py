"""SVDF, versions 1-4, of floats and of whole numbers: a layer over the last steps, by filters of
low rank.

    f    = F x                                  a number for each filter
    s'   = s without its oldest column, and f
    y[u] = act(b[u] + sum of T * s' over the ``rank`` filters of unit u and all steps)

The state s, [batch, filters * steps], is kept in a variable between runs.

Of whole numbers (i8 in and out, a state and T of i16, b of i32) sums are made in 32 bits; f is
brought to the state's scale and clamped to 16 bits, y to the result's. TFLite's kernel takes RELU
only, and does nothing about it.

Source of that: TFLite's `kernels/svdf.cc` (Prepare) and `kernels/internal/reference/svdf.h`
(EvalIntegerSVDF).
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.activation import computable_activation
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    Fields,
    FileForm,
    OnDevice,
    OpDef,
    Operands,
    Quantized,
    Sample,
    Variables,
)
from tflgpu.ops.facets import Work
from tflgpu.ops.fixed_point import I8, I16, Multiplier, Scales, clamped, times
from tflgpu.ops.products import check_bias, finish, floats, needed
from tflgpu.ops.quantize_on_the_fly import rounding_of
from tflgpu.ops.quantized import Hybrid, OnTheFly, Rounding
from tflgpu.values import frozen

OP = "SVDF"
INPUT, FEATURES, TIMES, BIAS, STATE = range(5)


@frozen
class StoredSvdf:
    """The arithmetic on stored numbers: what brings sums to the state's scale and to the result's,
    and the stored numbers that stand for 0."""

    features: Multiplier
    result: Multiplier
    input_zero: int
    output_zero: int


@frozen
class Svdf:
    """Options; ``rounding`` is that of float rows where the weights are 8-bit numbers, ``stored``
    says how it is computed on stored ones."""

    rank: int
    activation: Activation
    rounding: Rounding = Rounding.SYMMETRIC
    stored: StoredSvdf | None = None


#: Of the operands of one on whole numbers.
_TYPES = {INPUT: DType.I8, FEATURES: DType.I8, TIMES: DType.I16, BIAS: DType.I32, STATE: DType.I16}


def _parse(fields: Fields) -> Svdf:
    rank, scales = fields.integer("rank", minimum=1), Scales.of_fields(fields)
    if scales.real:
        return Svdf(rank, computable_activation(fields), rounding_of(fields))
    if fields.activation() is not Activation.RELU:
        raise UnsupportedError(f"{OP} of i8: TFLite's kernel takes RELU only, which it leaves out")
    scales.check_types(_TYPES)
    state, result, source = scales.of(STATE), scales.result, scales.of(INPUT)
    features = source.step * scales.of(FEATURES).step / state.step
    times_of_result = state.step * scales.of(TIMES).step / result.step
    made, shown = (Multiplier.of(float(factor)) for factor in (features, times_of_result))
    stored = StoredSvdf(made, shown, source.zero, result.zero)
    return Svdf(rank, Activation.NONE, stored=stored)


def _infer(attributes: Svdf, operands: Operands) -> list[TensorSpec]:
    if len(operands) != STATE + 1:
        raise ModelError(f"{OP} takes 5 operands, got {len(operands)}")
    source = needed(OP, operands[INPUT], "input", 2)
    features = needed(OP, operands[FEATURES], "weights of features", 2)
    times = needed(OP, operands[TIMES], "weights of time", 2)
    state = needed(OP, operands[STATE], "state", 2)
    batch, inputs = source.shape
    filters = features.shape[0]
    if features.shape[1] != inputs or times.shape[0] != filters:
        raise ModelError(
            f"{OP}: weights of shapes {list(features.shape)} and {list(times.shape)} for {inputs} "
            "inputs"
        )
    if filters % attributes.rank:
        raise ModelError(f"{OP}: {filters} filters in groups of {attributes.rank}")
    if state.shape != (batch, filters * times.shape[1]):
        raise ModelError(
            f"{OP}: the state (operand {STATE}) has shape {list(state.shape)}, not "
            f"{[batch, filters * times.shape[1]]}"
        )
    units = filters // attributes.rank
    check_bias(OP, operands[BIAS], units)
    return [TensorSpec((batch, units), source.dtype)]


def _reference(attributes: Svdf, arrays: Arrays) -> list[Array]:
    stored = attributes.stored
    source, features, times_, state = (
        floats(OP, arrays[i]) if stored is None else present(arrays[i]).astype(np.int64)
        for i in (INPUT, FEATURES, TIMES, STATE)
    )
    if stored is None:
        made = source @ features.T
    else:
        made = clamped(times((source - stored.input_zero) @ features.T, stored.features), I16)
    old = state.reshape(len(source), *times_.shape)
    new = np.concatenate([old[:, :, 1:], made[..., None]], axis=2)
    sums = (new * times_).sum(axis=2).reshape(len(source), -1, attributes.rank).sum(axis=2)
    kept = new.reshape(state.shape).astype(present(arrays[STATE]).dtype, copy=False)
    bias = arrays[BIAS]
    if stored is None:
        return [finish(sums, bias, attributes.activation, arrays[INPUT]), kept]
    # Sums of 32 bits go round, in TFLite and on devices.
    sums = (sums if bias is None else sums + bias).astype(np.int32)
    output = clamped(times(sums, stored.result) + stored.output_zero, I8)
    return [output.astype(np.int8), kept]


def _work(node: Node) -> Work:
    features, times = node.input(FEATURES), node.input(TIMES)
    return Work.of(node, 2 * node.input(INPUT).shape[0] * (features.elements + times.elements))


def _samples() -> list[Sample]:
    def case(
        id: str,
        batch: int,
        inputs: int,
        units: int,
        steps: int,
        rank: int = 1,
        activation: Activation = Activation.NONE,
        *,
        bias: bool = True,
    ) -> Sample:
        filters = units * rank
        fields = {"rank": rank, "fused_activation_function": activation.value}
        args = (
            Arg((batch, inputs)),
            Arg((filters, inputs), const=True),
            Arg((filters, steps), const=True),
            Arg((units,), const=True) if bias else None,
            Arg((batch, filters * steps), variable=True),
        )
        return Sample(id, fields, args, accumulates=steps * rank + inputs)

    return [
        case("odd", 2, 5, 7, 3),
        case("rank2", 1, 8, 5, 10, 2, Activation.RELU),
        case("aligned", 3, 4, 8, 4, bias=False),
        case("one_step", 2, 3, 5, 1, 2),
    ]


OPS = (
    OpDef(
        OP,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=4),
        state=Variables(operands=lambda attributes: (STATE,)),
        arithmetic=Arithmetic(activation_field="activation"),
        device=OnDevice(work=_work),
        quantized=Quantized(
            hybrid=lambda node: Hybrid((OnTheFly((1,), node.attrs.rounding),)),
            stored=lambda found: isinstance(found, Svdf) and found.stored is not None,
        ),
    ),
)
