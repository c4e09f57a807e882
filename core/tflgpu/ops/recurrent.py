"""Recurrent operators: a cell that goes through time, in one direction or in both.

A cell is described by two tables. `CellOperands` says at which positions of the node its operands
are, and so what it is made of; `Cell` (of real numbers) or `StoredCell` (of stored ones) says what
is done with them: activation, clips, scales. `ops/cell_steps.py` computes a step of either.

Of two directions the second goes from the end to the beginning, with weights and states of its own.
A second input of such an operator comes from the backward direction of one before. With weights of
its own, both directions read it beside the input; without any, LiteRT's kernels do not read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Union

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Arrays,
    FileForm,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Quantized,
    Variables,
)
from tflgpu.ops.cell_operands import CellOperands, CellWeights
from tflgpu.ops.cell_steps import Cell, CellStep, StoredCellStep
from tflgpu.ops.facets import Work
from tflgpu.ops.products import floats, needed
from tflgpu.ops.quantized import Hybrid, OnTheFly
from tflgpu.ops.stored_cell import StoredCell


@attrs.frozen
class Recurrent:
    """Options of a recurrent operator.

    Attributes:
        cell: What a step computes.
        time_major: Whether the first dimension of sequences is time, not the batch.
        merged: Whether the outputs of both directions lie beside each other in one result.
    """

    cell: Union[Cell, StoredCell]
    time_major: bool = False
    merged: bool = False


def sizes_of(shape: Sequence[int], time_major: bool) -> tuple[int, int]:
    """Batch and time steps of sequences [time, batch, inputs] or [batch, time, inputs], or of a
    single step [batch, inputs]."""
    if len(shape) == 2:
        return shape[0], 1
    return (shape[1], shape[0]) if time_major else (shape[0], shape[1])


def check_second_input(op: str, source: Operand, second: Operand | None, weights: Operands) -> None:
    """Check a second input and its weights.

    Raises:
        ModelError: they do not fit each other or the input.
    """
    there = [w is not None for w in weights]
    if any(there) and not (all(there) and second is not None):
        raise ModelError(f"{op}: a second input has weights for both directions, or there are none")
    if second is None:
        return
    needed(op, second, "second input", 3)
    if second.shape[:2] != source.shape[:2]:
        raise ModelError(
            f"{op}: the second input of shape {list(second.shape)} is for other sequences than the "
            f"input, {list(source.shape)}"
        )


def result_specs(
    source: Operand, units: Sequence[int], *, merged: bool = False
) -> list[TensorSpec]:
    """Of the outputs: one for each direction, of so many units, or one for both."""
    sizes = [sum(units)] if merged else units
    return [TensorSpec((*source.shape[:-1], size), source.dtype) for size in sizes]


def recurrent_op(
    name: str,
    ways: Sequence[CellOperands],
    *,
    version: int,
    stored: bool | Callable[[Any], bool] = False,
    **definition: Any,
) -> OpDef:
    """An operator with the operands ``ways``, one for each direction, and what is left to say of
    it."""
    return OpDef(
        name,
        reference=partial(run, name, ways),
        accuracy=Accuracy.ACCUMULATE,
        state=Variables(operands=lambda attributes: tuple(i for way in ways for i in way.states)),
        device=OnDevice(work=_work),
        file=FileForm(max_version=version),
        quantized=Quantized(stored=stored, hybrid=partial(hybrid, ways[0])),
        **definition,
    )


def hybrid(places: CellOperands, node: Node) -> Hybrid:
    """What is rounded: rows of the input, and of a second one, and what the cell multiplies
    inside."""
    cell = node.attrs.cell
    assert isinstance(cell, Cell)  # one on stored numbers has no float data
    axes = (len(node.input(0).shape) - 1,)
    inputs = (0,) if places.second is None else (0, places.second)
    data = tuple(OnTheFly(axes, cell.rounding, operand=at) for at in inputs)
    return Hybrid(data, attrs.evolve(node.attrs, cell=attrs.evolve(cell, rounds=True)))


def _work(node: Node) -> Work:
    """Every matrix is used once a batch and time step."""
    weights = sum(v.elements for v in node.inputs[1:] if v is not None and len(v.shape) == 2)
    return Work.of(node, 2 * weights * math.prod(node.input(0).shape[:-1]))


def run(
    op: str,
    ways: Sequence[CellOperands],
    attributes: Recurrent,
    arrays: Arrays,
) -> list[Array]:
    """The reference: outputs and new states."""
    source, outputs, states = present(arrays[0]), [], []
    for backward, places in enumerate(ways):
        olds = [present(arrays[i]) for i in places.states]
        x, weights = _joined(op, attributes.cell, arrays, places)
        steps = x[None] if x.ndim == 2 else x if attributes.time_major else x.swapaxes(0, 1)
        cell: CellStep
        if isinstance(attributes.cell, StoredCell):
            together = x.ndim == 2 or attributes.time_major
            cell = StoredCellStep(attributes.cell, weights, together=together)
            state = [old.astype(np.int64) for old in olds]
        else:
            cell, state = CellStep(attributes.cell, weights), [floats(op, old) for old in olds]
        state = [old.reshape(steps.shape[1], -1) for old in state]
        found, turn = [], slice(None, None, -1 if backward else 1)
        for step in steps[turn]:
            state = cell.step(step, state)
            found.append(state[0])
        outputs.append(np.stack(found[turn]))
        states += [
            new.reshape(old.shape).astype(old.dtype) for new, old in zip(state, olds, strict=True)
        ]
    results = [np.concatenate(outputs, axis=2)] if attributes.merged else outputs
    if source.ndim == 2:
        results = [result[0] for result in results]
    elif not attributes.time_major:
        results = [np.ascontiguousarray(result.swapaxes(0, 1)) for result in results]
    return [*(result.astype(source.dtype, copy=False) for result in results), *states]


def _joined(
    op: str, cell: Cell | StoredCell, arrays: Arrays, places: CellOperands
) -> tuple[Array, CellWeights]:
    """What a direction reads, and its weights, as it computes with them: those of a second input
    beside the input's."""

    def get(index: int) -> Array | None:
        array = arrays[index] if index < len(arrays) else None
        if array is None:
            return None
        return array.astype(np.int64) if isinstance(cell, StoredCell) else floats(op, array)

    x, weights = present(get(0)), CellWeights.of(places, get)
    more = [get(i) for i in places.second_weights]
    if places.second is None or not any(w is not None for w in more):
        return x, weights
    joined = [
        None if a is None or b is None else np.concatenate([a, b], axis=1)
        for a, b in zip(weights.weights, more, strict=True)
    ]
    x = np.concatenate([x, present(get(places.second))], axis=2)
    return x, attrs.evolve(weights, weights=joined)
