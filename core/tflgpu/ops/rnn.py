"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN, versions 1-3, of floats.

    h' = act(W x + R h + b)

The last h is kept in a variable between runs. Of two directions the second goes through time from
the end to the beginning, with weights and a state of its own; `ops/both_ways.py` has what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.activation import apply_activation, computable_activation
from tflgpu.ops.axes import present
from tflgpu.ops.base import Accuracy, Activation, Arg, Fields, OpDef, Operand, Sample
from tflgpu.ops.both_ways import check_second, join, join_specs, sizes_of, steps_of
from tflgpu.ops.facets import Hybrid, OnTheFly, Rounding, Work
from tflgpu.ops.products import floats, needed, take
from tflgpu.ops.quantize_on_the_fly import rounded, rounding_of

_NAMES = ("input", "weights", "recurrent weights", "bias", "hidden state")
_TWO_WAYS = (
    "input",
    *(f"forward {name}" for name in _NAMES[1:]),
    *(f"backward {name}" for name in _NAMES[1:]),
    "second input",
    "forward weights of the second input",
    "backward weights of the second input",
)
#: Where the operands of a direction are: weights, recurrent weights, bias, state.
FORWARD, BACKWARD = (1, 2, 3, 4), (5, 6, 7, 8)
SECOND, SECOND_WEIGHTS = 9, (10, 11)


@attrs.frozen
class Rnn:
    """Options; ``time_major`` says that the first dimension of sequences is time, not the batch.

    ``rounding`` is that of floats that meet 8-bit weights; where ``rounds``, the hidden state is
    rounded so before it is multiplied, a row at a time.
    """

    activation: Activation
    time_major: bool = False
    rounding: Rounding = attrs.field(default=Rounding.SYMMETRIC, kw_only=True)
    rounds: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class BothWays(Rnn):
    """Of two directions; ``merged`` puts their outputs beside each other into one."""

    merged: bool = False


def _parse(fields: Fields) -> Rnn:
    time_major = fields.flag("time_major")
    return Rnn(computable_activation(fields), time_major, rounding=rounding_of(fields))


def _parse_both(fields: Fields) -> BothWays:
    merged = fields.flag("merge_outputs")
    time_major = fields.flag("time_major")
    return BothWays(computable_activation(fields), time_major, merged, rounding=rounding_of(fields))


def _units(
    op: str, names: Sequence[str], operands: Sequence[Operand | None], places: Sequence[int],
    batch: int, inputs: int,
) -> int:  # fmt: skip
    """The units of a direction, whose operands fit each other.

    Raises:
        ModelError: they do not; names one.
    """
    weights, recurrent, bias, state = (
        needed(op, operands[at], names[at], rank)
        for at, rank in zip(places, (2, 2, 1, 2), strict=True)
    )
    units = weights.shape[0]
    wanted = ((units, inputs), (units, units), (units,), (batch, units))
    for at, given, shape in zip(places, (weights, recurrent, bias, state), wanted, strict=True):
        if given.shape != shape:
            raise ModelError(
                f"{op}: the {names[at]} (operand {at}) of shape {list(given.shape)} should be "
                f"{list(shape)}"
            )
    return units


def _infer_step(attributes: Rnn, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    source = needed("RNN", take("RNN", operands, _NAMES)[0], "input", 2)
    units = _units("RNN", _NAMES, operands, FORWARD, *source.shape)
    return [TensorSpec((source.shape[0], units), source.dtype)]


def _infer_sequence(attributes: Rnn, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    op = "UNIDIRECTIONAL_SEQUENCE_RNN"
    source = needed(op, take(op, operands, _NAMES)[0], "input", 3)
    batch = sizes_of(source.shape, attributes.time_major)[0]
    units = _units(op, _NAMES, operands, FORWARD, batch, source.shape[2])
    return [TensorSpec((*source.shape[:2], units), source.dtype)]


def _infer_both(attributes: BothWays, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    op = "BIDIRECTIONAL_SEQUENCE_RNN"
    given = take(op, operands, _TWO_WAYS, 3)
    source = needed(op, given[0], "input", 3)
    check_second(op, source, given[SECOND], [given[at] for at in SECOND_WEIGHTS])
    batch = sizes_of(source.shape, attributes.time_major)[0]
    units = [
        _units(op, _TWO_WAYS, given, places, batch, source.shape[2])
        for places in (FORWARD, BACKWARD)
    ]
    for at, size in zip(SECOND_WEIGHTS, units, strict=True):
        second = given[at]
        if second is not None and second.shape != (size, present_shape(given[SECOND])[2]):
            raise ModelError(
                f"{op}: the {_TWO_WAYS[at]} (operand {at}) have shape {list(second.shape)}"
            )
    return join_specs(source, units, merged=attributes.merged)


def present_shape(operand: Operand | None) -> tuple[int, ...]:
    """The shape of an operand that is there."""
    assert operand is not None
    return operand.shape


def _hybrid(node: Node) -> Hybrid:
    """Rows of the input, and of the second one, and the hidden state."""
    attributes: Rnn = node.attrs
    operands = (0, SECOND) if isinstance(attributes, BothWays) else (0,)
    axes = (len(node.input(0).shape) - 1,)
    data = tuple(OnTheFly(axes, attributes.rounding, operand=at) for at in operands)
    return Hybrid(data, attrs.evolve(attributes, rounds=True))


def _run(
    op: str, attributes: Rnn, steps: Array, arrays: Sequence[Array | None]
) -> tuple[Array, Array]:
    """Outputs [time, batch, units], and the last of them as the new state; ``arrays`` are those of a
    direction."""
    weights, recurrent, bias, hidden = (floats(op, a) for a in arrays)
    outputs = np.empty((*steps.shape[:2], len(weights)), steps.dtype)
    for time, x in enumerate(steps):
        seen = rounded(hidden, (1,), attributes.rounding) if attributes.rounds else hidden
        sums = x @ weights.T + seen @ recurrent.T + bias
        hidden = apply_activation(attributes.activation, sums)
        outputs[time] = hidden
    return outputs, hidden.astype(present(arrays[3]).dtype, copy=False)


def _reference_step(attributes: Rnn, arrays: Sequence[Array | None]) -> list[Array]:
    source = floats("RNN", arrays[0])
    outputs, state = _run("RNN", attributes, source[None], arrays[1:5])
    return [outputs[0].astype(present(arrays[0]).dtype, copy=False), state]


def _reference_sequence(attributes: Rnn, arrays: Sequence[Array | None]) -> list[Array]:
    op, source = "UNIDIRECTIONAL_SEQUENCE_RNN", present(arrays[0])
    steps = steps_of(floats(op, source), attributes.time_major)
    outputs, state = _run(op, attributes, steps, arrays[1:5])
    return [*join([outputs], source, attributes.time_major), state]


def _reference_both(attributes: BothWays, arrays: Sequence[Array | None]) -> list[Array]:
    op, source = "BIDIRECTIONAL_SEQUENCE_RNN", present(arrays[0])
    arrays = [*arrays, *[None] * (len(_TWO_WAYS) - len(arrays))]
    second = arrays[SECOND]
    outputs, states = [], []
    for way, places in enumerate((FORWARD, BACKWARD)):
        own = [arrays[at] for at in places]
        extra = arrays[SECOND_WEIGHTS[way]]
        x = floats(op, source)
        if second is not None and extra is not None:
            x = np.concatenate([x, floats(op, second)], axis=2)
            own[0] = np.concatenate([floats(op, own[0]), floats(op, extra)], axis=1)
        steps = steps_of(x, attributes.time_major)[:: -1 if way else 1]
        found, state = _run(op, attributes, steps, own)
        outputs.append(found[:: -1 if way else 1])
        states.append(state)
    joined = join(outputs, source, attributes.time_major, merged=attributes.merged)
    return [*joined, *states]


def _work(node: Node) -> Work:
    """Every matrix is used once a batch and time step."""
    weights = sum(v.elements for v in node.inputs[1:] if v is not None and len(v.shape) == 2)
    return Work.of(node, 2 * weights * math.prod(node.input(0).shape[:-1]))


def _way(batch: int, inputs: int, units: int) -> tuple[Arg, ...]:
    shapes = ((units, inputs), (units, units), (units,))
    return (*(Arg(s, const=True) for s in shapes), Arg((batch, units), variable=True))


def _fields(activation: Activation, **more: Any) -> dict[str, Any]:
    return {"fused_activation_function": activation.value, **more}


def _step_samples() -> list[Sample]:
    def case(id: str, batch: int, inputs: int, units: int, activation: Activation) -> Sample:
        args = (Arg((batch, inputs)), *_way(batch, inputs, units))
        return Sample(id, _fields(activation), args, accumulates=inputs + units)

    return [case("odd", 2, 5, 7, Activation.TANH), case("aligned", 1, 8, 4, Activation.RELU)]


def _sequence_samples() -> list[Sample]:
    def case(id: str, shape: tuple[int, int, int], units: int, *, time_major: bool) -> Sample:
        batch = sizes_of(shape, time_major)[0]
        fields = _fields(Activation.TANH, time_major=time_major)
        args = (Arg(shape), *_way(batch, shape[2], units))
        return Sample(id, fields, args, accumulates=shape[2] + units)

    return [
        case("batch_major", (2, 5, 3), 7, time_major=False),
        case("time_major", (4, 3, 5), 6, time_major=True),
    ]


def _both_samples() -> list[Sample]:
    def case(
        id: str, shape: tuple[int, int, int], units: tuple[int, int], second: int = 0,
        *, time_major: bool = False, merged: bool = False, weights: bool = False,
    ) -> Sample:  # fmt: skip
        batch, inputs = sizes_of(shape, time_major)[0], shape[2]
        fields = _fields(Activation.TANH, time_major=time_major, merge_outputs=merged)
        args: list[Arg | None] = [Arg(shape)]
        args += [*_way(batch, inputs, units[0]), *_way(batch, inputs, units[1])]
        args += [Arg((*shape[:2], second)) if second else None]
        args += [Arg((u, second), const=True) if weights else None for u in units]
        return Sample(id, fields, tuple(args), accumulates=inputs + second + max(units))

    return [
        case("apart", (2, 4, 5), (7, 3)),
        case("merged", (3, 2, 4), (5, 6), time_major=True, merged=True),
        case("second_unread", (1, 3, 5), (4, 7), 5),
        case("second_weighted", (2, 3, 4), (5, 4), 3, merged=True, weights=True),
    ]


OPS = (
    OpDef(
        "RNN", _parse, _infer_step, _reference_step, _step_samples,
        accuracy=Accuracy.ACCUMULATE, max_version=3, stateful=True,
        states=lambda attributes: (4,), work=_work, hybrid=_hybrid,
    ),
    OpDef(
        "UNIDIRECTIONAL_SEQUENCE_RNN", _parse, _infer_sequence, _reference_sequence,
        _sequence_samples, accuracy=Accuracy.ACCUMULATE, max_version=3, stateful=True,
        states=lambda attributes: (4,), work=_work, hybrid=_hybrid,
    ),
    OpDef(
        "BIDIRECTIONAL_SEQUENCE_RNN", _parse_both, _infer_both, _reference_both, _both_samples,
        accuracy=Accuracy.ACCUMULATE, max_version=3, stateful=True,
        states=lambda attributes: (4, 8), work=_work, hybrid=_hybrid,
    ),
)  # fmt: skip
