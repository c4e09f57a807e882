"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN, versions 1-3, of floats.

    h' = act(W x + R h + b)

The last h is kept in a variable between runs. Of two directions the second goes through time from
the end to the beginning, with weights and a state of its own (`ops/recurrent.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tflgpu.errors import ModelError
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.activation import computable_activation
from tflgpu.ops.base import Activation, Arg, Fields, OpDef, Operands, Sample
from tflgpu.ops.cell_operands import CellOperands
from tflgpu.ops.cell_steps import Cell
from tflgpu.ops.products import needed, take
from tflgpu.ops.quantize_on_the_fly import rounding_of
from tflgpu.ops.recurrent import (
    Recurrent,
    check_second_input,
    recurrent_op,
    result_specs,
    sizes_of,
)

_NAMES = ("weights", "recurrent weights", "bias", "hidden state")
#: What messages call the operands, by position.
_OPERANDS = (
    "input",
    *(f"forward {name}" for name in _NAMES),
    *(f"backward {name}" for name in _NAMES),
    "second input",
    "forward weights of the second input",
    "backward weights of the second input",
)
FORWARD = CellOperands((1,), (2,), (3,), (4,), second=9, second_weights=(10,))
BACKWARD = CellOperands((5,), (6,), (7,), (8,), second=9, second_weights=(11,))
ONE_WAY = CellOperands((1,), (2,), (3,), (4,))


def _parse(fields: Fields) -> Recurrent:
    cell = Cell(computable_activation(fields), rounding=rounding_of(fields))
    return Recurrent(cell, fields.flag("time_major"), fields.flag("merge_outputs"))


def _infer(
    op: str,
    ways: tuple[CellOperands, ...],
    rank: int,
    attributes: Recurrent,
    operands: Operands,
) -> list[TensorSpec]:
    names = ("input", *_NAMES) if len(ways) == 1 else _OPERANDS
    given = take(op, operands, names, 0 if len(ways) == 1 else 3)
    source = needed(op, given[0], "input", rank)
    second = None if len(ways) == 1 else given[9]
    extra = [at for way in ways for at in way.second_weights]
    check_second_input(op, source, second, [given[at] for at in extra])
    batch = sizes_of(source.shape, attributes.time_major)[0]
    units = [_units(op, names, given, way, batch, source.shape[-1]) for way in ways]
    for at, size in zip(extra, units, strict=False):
        own = given[at]
        if own is not None and second is not None and own.shape != (size, second.shape[2]):
            raise ModelError(f"{op}: the {names[at]} (operand {at}) have shape {list(own.shape)}")
    return result_specs(source, units, merged=attributes.merged)


def _units(
    op: str,
    names: Sequence[str],
    operands: Operands,
    places: CellOperands,
    batch: int,
    inputs: int,
) -> int:
    """The units of a direction, whose operands fit each other.

    Raises:
        ModelError: they do not; names one.
    """
    at = (*places.weights, *places.recurrent, *places.biases, *places.states)
    given = [needed(op, operands[i], names[i], r) for i, r in zip(at, (2, 2, 1, 2), strict=True)]
    units = given[0].shape[0]
    wanted = ((units, inputs), (units, units), (units,), (batch, units))
    for index, operand, shape in zip(at, given, wanted, strict=True):
        if operand.shape != shape:
            raise ModelError(
                f"{op}: the {names[index]} (operand {index}) of shape {list(operand.shape)} "
                f"should be {list(shape)}"
            )
    return units


def _case(
    id: str,
    shape: tuple[int, ...],
    *units: int,
    second: int = 0,
    weights: bool = False,
    activation: Activation = Activation.TANH,
    **options: Any,
) -> Sample:
    """A case of as many directions as there are numbers of ``units``; with a ``second`` input of
    that size, which has ``weights`` or none."""
    batch, inputs = sizes_of(shape, options.get("time_major", False))[0], shape[-1]
    args: list[Arg | None] = [Arg(shape)]
    for size in units:
        args += [Arg(s, const=True) for s in ((size, inputs), (size, size), (size,))]
        args.append(Arg((batch, size), variable=True))
    if len(units) > 1:
        args.append(Arg((*shape[:2], second)) if second else None)
        args += [Arg((size, second), const=True) if weights else None for size in units]
    fields = {"fused_activation_function": activation.value, **options}
    return Sample(id, fields, tuple(args), accumulates=inputs + second + max(units))


def _step_samples() -> list[Sample]:
    return [
        _case("odd", (2, 5), 7),
        _case("aligned", (1, 8), 4, activation=Activation.RELU),
    ]


def _sequence_samples() -> list[Sample]:
    return [
        _case("batch_major", (2, 5, 3), 7, time_major=False),
        _case("time_major", (4, 3, 5), 6, time_major=True),
    ]


def _both_samples() -> list[Sample]:
    return [
        _case("apart", (2, 4, 5), 7, 3, time_major=False, merge_outputs=False),
        _case("merged", (3, 2, 4), 5, 6, time_major=True, merge_outputs=True),
        _case("second_unread", (1, 3, 5), 4, 7, second=5, time_major=False, merge_outputs=False),
        _case(
            "second_weighted",
            (2, 3, 4),
            5,
            4,
            second=3,
            weights=True,
            time_major=False,
            merge_outputs=True,
        ),
    ]


def _op(name: str, rank: int, samples: Callable[[], list[Sample]], *ways: CellOperands) -> OpDef:
    infer = partial(_infer, name, ways, rank)
    return recurrent_op(name, ways, parse=_parse, infer=infer, samples=samples, version=3)


OPS = (
    _op("RNN", 2, _step_samples, ONE_WAY),
    _op("UNIDIRECTIONAL_SEQUENCE_RNN", 3, _sequence_samples, ONE_WAY),
    _op("BIDIRECTIONAL_SEQUENCE_RNN", 3, _both_samples, FORWARD, BACKWARD),
)
