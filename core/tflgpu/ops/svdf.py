"""SVDF, versions 1-4, of floats and of whole numbers: a layer over the last steps, by filters of low rank.

    f    = F x                                  a number for each filter
    s'   = s without its oldest column, and f
    y[u] = act(b[u] + sum of T * s' over the ``rank`` filters of unit u and all steps)

The state s, [batch, filters * steps], is kept in a variable between runs.

Of whole numbers (i8 in and out, a state and T of i16, b of i32) sums are made in 32 bits; f is brought to
the state's scale and clamped to 16 bits, y to the result's. TFLite's kernel takes RELU only, and does nothing about it.

Source of that: TFLite's `kernels/svdf.cc` (Prepare) and `kernels/internal/reference/svdf.h`
(EvalIntegerSVDF).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.activation import computable_activation
from tflgpu.ops.axes import present
from tflgpu.ops.base import Accuracy, Activation, Arg, Fields, OpDef, Operand, Sample
from tflgpu.ops.facets import Hybrid, OnTheFly, Rounding, Work
from tflgpu.ops.fixed_point import Multiplier, multiply
from tflgpu.ops.integer_scales import Scales
from tflgpu.ops.products import check_bias, finish, floats, needed
from tflgpu.ops.quantize_on_the_fly import rounding_of

OP = "SVDF"
INPUT, FEATURES, TIMES, BIAS, STATE = range(5)


@attrs.frozen
class Svdf:
    """Options; ``rounding`` is that of float rows where the weights are 8-bit numbers."""

    rank: int
    activation: Activation
    rounding: Rounding = Rounding.SYMMETRIC


@attrs.frozen
class IntegerSvdf:
    """The arithmetic on stored numbers: what brings sums to the state's scale and to the result's, and
    the stored numbers that stand for 0."""

    rank: int
    features: Multiplier
    result: Multiplier
    input_zero: int
    output_zero: int

    #: What there is none of.
    activation: Activation = Activation.NONE


#: Of the operands of one on whole numbers.
TYPES = {INPUT: DType.I8, FEATURES: DType.I8, TIMES: DType.I16, BIAS: DType.I32, STATE: DType.I16}
_I16, _I8 = (-(1 << 15), (1 << 15) - 1), (-(1 << 7), (1 << 7) - 1)


def _parse(fields: Fields) -> Svdf | IntegerSvdf:
    rank, scales = fields.integer("rank", minimum=1), Scales.of_fields(fields)
    if scales.real:
        return Svdf(rank, computable_activation(fields), rounding_of(fields))
    if fields.activation() is not Activation.RELU:
        raise UnsupportedError(f"{OP} of i8: TFLite's kernel takes RELU only, which it leaves out")
    scales.check_types(TYPES)
    state, result = scales.of(STATE), scales.result
    return IntegerSvdf(
        rank,
        Multiplier.of(float(scales.of(INPUT) * scales.of(FEATURES) / state)),
        Multiplier.of(float(state * scales.of(TIMES) / result)),
        scales.zero(INPUT),
        scales.result_zero,
    )


def _infer(attributes: Svdf | IntegerSvdf, operands: Sequence[Operand | None]) -> list[TensorSpec]:
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


def _reference(attributes: Svdf | IntegerSvdf, arrays: Sequence[Array | None]) -> list[Array]:
    if isinstance(attributes, IntegerSvdf):
        return _on_stored(attributes, arrays)
    source, features, times, state = (
        floats(OP, arrays[i]) for i in (INPUT, FEATURES, TIMES, STATE)
    )
    batch, (filters, steps) = len(source), times.shape
    old = state.reshape(batch, filters, steps)
    new = np.concatenate([old[:, :, 1:], (source @ features.T)[..., None]], axis=2)
    sums = (new * times).sum(axis=2).reshape(batch, -1, attributes.rank).sum(axis=2)
    output = finish(sums, arrays[BIAS], attributes.activation, arrays[INPUT])
    return [output, new.reshape(state.shape).astype(present(arrays[STATE]).dtype, copy=False)]


def _on_stored(attributes: IntegerSvdf, arrays: Sequence[Array | None]) -> list[Array]:
    source, features, times, state = (
        present(arrays[i]).astype(np.int64) for i in (INPUT, FEATURES, TIMES, STATE)
    )
    batch, (filters, steps) = len(source), times.shape
    made = _times((source - attributes.input_zero) @ features.T, attributes.features)
    old = state.reshape(batch, filters, steps)
    new = np.concatenate([old[:, :, 1:], np.clip(made, *_I16)[..., None]], axis=2)
    sums = (new * times).sum(axis=2).reshape(batch, -1, attributes.rank).sum(axis=2)
    bias = arrays[BIAS]
    # Sums of 32 bits go round, in TFLite and on devices.
    sums = (sums if bias is None else sums + bias).astype(np.int32)
    output = np.clip(_times(sums, attributes.result) + attributes.output_zero, *_I8)
    return [output.astype(np.int8), new.reshape(state.shape).astype(np.int16)]


def _times(x: Array, by: Multiplier) -> Array:
    return multiply(x, by.value, by.left, by.right)


def _work(node: Node) -> Work:
    features, times = node.input(FEATURES), node.input(TIMES)
    return Work.of(node, 2 * node.input(INPUT).shape[0] * (features.elements + times.elements))


def _samples() -> list[Sample]:
    def case(
        id: str, batch: int, inputs: int, units: int, steps: int, rank: int = 1,
        activation: Activation = Activation.NONE, *, bias: bool = True,
    ) -> Sample:  # fmt: skip
        filters = units * rank
        fields = {"rank": rank, "fused_activation_function": activation.value}
        args = (
            Arg((batch, inputs)), Arg((filters, inputs), const=True),
            Arg((filters, steps), const=True), Arg((units,), const=True) if bias else None,
            Arg((batch, filters * steps), variable=True),
        )  # fmt: skip
        return Sample(id, fields, args, accumulates=steps * rank + inputs)

    return [
        case("odd", 2, 5, 7, 3),
        case("rank2", 1, 8, 5, 10, 2, Activation.RELU),
        case("aligned", 3, 4, 8, 4, bias=False),
        case("one_step", 2, 3, 5, 1, 2),
    ]


OPS = (
    OpDef(
        OP, _parse, _infer, _reference, _samples, accuracy=Accuracy.ACCUMULATE, max_version=4,
        stateful=True, states=lambda attributes: (STATE,), activation_field="activation", work=_work,
        hybrid=lambda node: Hybrid((OnTheFly((1,), node.attrs.rounding),)),
        stored_where=lambda attributes: isinstance(attributes, IntegerSvdf),
    ),
)  # fmt: skip
