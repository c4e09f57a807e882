"""Checks the answers of a plugin's facets (`ops.facets`) before they are used."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any, TypeVar

import attrs
import numpy as np

from tflgpu.errors.blame import Failed, Refused, describe, shown
from tflgpu.ir.dtypes import Array
from tflgpu.ir.edit_guard import ask
from tflgpu.ir.graph import Node
from tflgpu.ops.affine import Affine
from tflgpu.ops.base import Activation, OpDef, Operands, Variables
from tflgpu.ops.facets import Batched, Pads, Reordered, Spread, Work
from tflgpu.ops.moves import Moves
from tflgpu.ops.quantized import Hybrid, InDigits, OnTheFly, Replacement, Rounding

_T = TypeVar("_T")

#: Calls an action; what it raises becomes an error that names the plugin, the op and the function.
Guard = Callable[[str, Callable[[], Any]], Any]


def checked_groups(op: OpDef, owner: str, guarded: Guard) -> Mapping[str, Any]:
    """An op's functions of nodes and its groups, by field, guarded. A `Refused` that their checks
    raise is left to ``guarded`` to report."""

    def checked(
        name: str,
        facet: Callable[..., Any] | None,
        check: Callable[..., Any],
        *,
        silent: bool = True,
    ) -> Any:
        """A function of a node, and of more, whose answer is looked at. One that may be ``silent``
        may also give None."""
        if facet is None:
            return None

        def ask(node: Node, *more: Any) -> Any:
            def action() -> Any:
                found = _asked(facet, node, *more)
                return None if found is None and silent else check(found, node)

            return guarded(name, action)

        return ask

    def plain(
        name: str, function: Callable[..., Any] | None, check: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """A function of attributes, and of more, whose answer is looked at."""
        if function is None:
            return None
        return lambda *given: guarded(name, lambda: check(function(*given), *given))

    def choice(name: str, said: bool | Callable[[Any], bool]) -> bool | Callable[[Any], bool]:
        """A yes or no, or a function that says so of one node or its attributes."""
        if not callable(said):
            return said
        return lambda given: guarded(name, lambda: bool(said(given)))

    file, device, movement, state = op.file, op.device, op.movement, op.state
    filter_, integers = op.arithmetic.filter, op.quantized.integers
    return {
        "elementwise": choice("elementwise", op.elementwise),
        "batch": checked("batch", op.batch, _batched),
        "file": attrs.evolve(
            file,
            refit=plain("file.refit", file.refit, _constants),
            at_run_time=plain(
                "file.at_run_time", file.at_run_time, lambda found, old: check_activation(op, found)
            ),
        ),
        "contents": attrs.evolve(
            op.contents,
            zeros_where=checked(
                "contents.zeros_where", op.contents.zeros_where, lambda found, node: bool(found)
            ),
        ),
        "device": attrs.evolve(
            device,
            limits=_limits(device.limits, f"plugin {owner}: op {op.name}: device.limits"),
            work=checked("device.work", device.work, _work),
        ),
        "movement": attrs.evolve(
            movement,
            moves=checked("movement.moves", movement.moves, _moves),
            copies=checked("movement.copies", movement.copies, _position),
            reorder=checked("movement.reorder", movement.reorder, _reordered),
        ),
        "arithmetic": attrs.evolve(
            op.arithmetic,
            affine=checked("arithmetic.affine", op.arithmetic.affine, _affine),
            filter=filter_
            and attrs.evolve(
                filter_,
                spread=plain("arithmetic.filter.spread", filter_.spread, partial(_spread, guarded)),
                zeros=plain("arithmetic.filter.zeros", filter_.zeros, _pads),
            ),
        ),
        "quantized": attrs.evolve(
            op.quantized,
            stored=choice("quantized.stored", op.quantized.stored),
            table=checked("quantized.table", op.quantized.table, _table),
            digits=checked("quantized.digits", op.quantized.digits, partial(_digits, guarded)),
            results=checked("quantized.results", op.quantized.results, _results),
            hybrid=checked("quantized.hybrid", op.quantized.hybrid, _hybrid, silent=False),
            integers=integers
            and attrs.evolve(
                integers,
                attributes=checked(
                    "quantized.integers.attributes", integers.attributes, _attributes, silent=False
                ),
            ),
        ),
        "state": None
        if state is None
        else Variables(plain("state.operands", state.operands, _states)),
    }


def check_activation(op: OpDef, attributes: Any) -> Any:
    """Attributes as parsed, which must have the field that the op says its activation is in.

    Raises:
        Refused: they have not.
    """
    field = op.arithmetic.activation_field
    if field:
        found = getattr(attributes, field, None)
        if not isinstance(found, Activation):
            raise Refused(
                f"attributes whose {field} is {shown(found)}, not the Activation that "
                "activation_field says it is"
            )
    return attributes


def _limits(facet: Callable[[Node], str | None], what: str) -> Callable[[Node], str | None]:
    def limits(node: Node) -> str | None:
        reason = ask(facet, node, node)
        if isinstance(reason, Failed):
            return f"{what} {outcome(reason.error)}"
        if reason is None or (isinstance(reason, str) and reason):
            return reason
        return f"{what} gave {shown(reason)}, neither None nor a reason"

    return limits


def outcome(error: BaseException) -> str:
    """What a plugin's function did, of which an error is what came of it."""
    return f"gave {error}" if isinstance(error, Refused) else f"raised {describe(error)}"


def _spread(guarded: Guard, lay: Spread | None, weights: Array, channels: int) -> Spread | None:
    if lay is None:
        return None

    def laid(numbers: Array) -> Array:
        found = np.asarray(lay(numbers))
        if np.broadcast_shapes(found.shape, weights.shape) != weights.shape:
            raise Refused(f"numbers of shape {found.shape} for a filter of {weights.shape}")
        return found

    return lambda numbers: guarded("arithmetic.filter.spread", lambda: laid(numbers))


def _attributes(found: object, node: Node) -> object:
    if found is None or (isinstance(found, str) and not found):
        raise Refused(f"{shown(found)}, which is neither attributes nor a reason")
    return found


def _hybrid(found: object, node: Node) -> Hybrid:
    if not isinstance(found, Hybrid) or not isinstance(found.data, tuple):
        raise Refused(f"{shown(found)}, not a Hybrid of a tuple")
    for data in found.data:
        if not isinstance(data, OnTheFly) or not isinstance(data.rounding, Rounding):
            raise Refused(f"{shown(data)}, not an OnTheFly with a Rounding")
        shape = node.input(_position(data.operand, node)).shape
        if data.shape is not None:
            _whole(*data.shape)
            if prod(data.shape) != prod(shape):
                raise Refused(f"rows of shape {data.shape} for an operand of {shape}")
            shape = data.shape
        _whole(*data.axes)
        if any(not 0 <= axis < len(shape) for axis in data.axes):
            raise Refused(f"axes {data.axes} of shape {shape}")
    return found


def _digits(guarded: Guard, found: object, node: Node) -> InDigits:
    digits = _is(InDigits, found)
    for index in (*digits.split, *digits.constants):
        _position(index, node)
    _whole(digits.bits, digits.dropped, *digits.split.values())
    if not all(isinstance(each, np.ndarray) for each in (digits.table, *digits.constants.values())):
        raise Refused(f"{shown(found)}, whose constants and table are not all arrays")
    return attrs.evolve(
        digits, finish=lambda e: guarded("quantized.digits", lambda: digits.finish(e))
    )


def _constants(
    found: object, attributes: Any, operands: Operands, resized: bool
) -> dict[int, Array]:
    if not isinstance(found, dict) or not all(isinstance(e, np.ndarray) for e in found.values()):
        raise Refused(f"{shown(found)}, not a dict of arrays by position")
    _whole(*found)
    for index in found:
        if not 0 <= index < len(operands) or operands[index] is None:
            raise Refused(f"contents of operand {index}, which is not there")
    return found


def _states(found: object, attributes: Any) -> tuple[int, ...]:
    if not isinstance(found, (tuple, list)):
        raise Refused(f"{shown(found)}, not a tuple of positions of operands")
    _whole(*found)
    if min(found, default=0) < 0 or len(set(found)) < len(found):
        raise Refused(f"{shown(found)}, of which one is negative or there twice")
    return tuple(map(int, found))


def _asked(facet: Callable[..., Any], node: Node, *more: Any) -> Any:
    found = ask(facet, node, node, *more)
    if isinstance(found, Failed):
        raise found.error
    return found


def _is(kind: type[_T], found: object) -> _T:
    if not isinstance(found, kind):
        raise Refused(f"{shown(found)}, not a {kind.__name__} or None")
    return found


def _whole(*numbers: object) -> None:
    try:
        for number in numbers:
            operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise Refused(f"{shown(numbers)}, which are not all whole numbers") from None


def _position(found: Any, node: Node) -> int:
    _whole(found)
    if not 0 <= found < len(node.inputs) or node.inputs[found] is None:
        raise Refused(f"operand {found}, which {node.label} does not have")
    return int(found)


def _pads(found: object, node: Node) -> Pads:
    pads = _is(Pads, found)
    _whole(*attrs.astuple(pads))
    if min(attrs.astuple(pads)) < 0:
        raise Refused(f"{pads}, of which one is negative")
    return pads


def _batched(found: object, node: Node) -> Batched | str:
    if isinstance(found, str) and found:
        return found
    if not isinstance(found, Batched):
        raise Refused(f"{shown(found)}, which is neither a Batched nor a reason")
    for index, data in found.constants.items():
        if _position(index, node) >= 0 and not isinstance(data, np.ndarray):
            raise Refused(f"constants of {shown(data)}, which is no array")
    for index in found.operands or ():
        _position(index, node)
    return found


def _results(found: object, node: Node) -> object:
    if isinstance(found, Replacement) and not (
        isinstance(found.op, str)
        and isinstance(found.constants, tuple)
        and all(isinstance(each, np.ndarray) for each in found.constants)
    ):
        raise Refused(f"{shown(found)}, not a Replacement of an op's name and arrays")
    return found


def _table(found: object, node: Node) -> Array:
    table = _is(np.ndarray, found)
    if table.shape != (1 << 16,) or table.dtype.kind not in "iu":
        raise Refused(
            f"{table.dtype}{list(table.shape)}, not the stored result of each of 65536 operands"
        )
    return table


def _work(found: object, node: Node) -> Work:
    work = _is(Work, found)
    _whole(work.flops, work.nbytes)
    return work


def _affine(found: object, node: Node) -> Affine:
    affine = _is(Affine, found)
    source = node.input(_position(affine.operand, node))
    if len(node.outputs) != 1 or source.shape != node.outputs[0].shape:
        raise Refused(f"an Affine of operand {affine.operand}, which has not the result's shape")
    if any(v is not None and v is not source and not v.is_const for v in node.inputs):
        raise Refused("an Affine, and more than one operand is no constant")
    if not source.shape or affine.channels != source.shape[-1]:
        raise Refused(f"an Affine of {affine.channels} channels for shape {source.shape}")
    for numbers in (affine.scale, affine.shift):  # raises where they do not fit
        if numbers.dtype.kind != "f":
            raise Refused(f"an Affine of {numbers.dtype} numbers")
    return affine


def _moves(found: object, node: Node) -> Moves:
    moves = _is(Moves, found)
    source = node.input(_position(moves.operand, node))
    sizes, strides = moves.sizes, moves.strides
    if not isinstance(sizes, tuple) or not isinstance(strides, tuple):
        raise Refused(f"{moves}, whose sizes and strides are not both tuples")
    _whole(*sizes, *strides, moves.offset)
    if len(sizes) != len(strides) or any(size < 0 for size in sizes):
        raise Refused(f"{moves}, whose sizes and strides do not belong together")
    if len(node.outputs) != 1 or prod(sizes) != node.outputs[0].elements:
        raise Refused(f"{moves}, whose sizes are not those of the one result")
    ways = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    first = moves.offset + sum(way for way in ways if way < 0)
    last = moves.offset + sum(way for way in ways if way > 0)
    if prod(sizes) and not 0 <= first <= last < source.elements:
        raise Refused(f"{moves}, which leaves the {source.elements} elements of its operand")
    return moves


def _reordered(found: object, node: Node) -> Reordered:
    new = _is(Reordered, found)
    for position, data in new.constants.items():
        if not node.input(_position(position, node)).is_const or not isinstance(data, np.ndarray):
            raise Refused(f"{shown(data)} for operand {position}, where a constant's array belongs")
    return new
