"""Checks the answers of a plugin's facets (`ops.facets`) before they are used."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeVar

import attrs
import numpy as np

from tflgpu.errors.blame import Failed, Refused, shown
from tflgpu.ir.dtypes import Array
from tflgpu.ir.edit_guard import ask
from tflgpu.ir.graph import Node
from tflgpu.ops.affine import Affine
from tflgpu.ops.base import Activation, OpDef
from tflgpu.ops.facets import (
    Batched,
    Filter,
    Hybrid,
    Integers,
    OnTheFly,
    Pads,
    Reordered,
    Replacement,
    Rounding,
    Spread,
    Work,
)
from tflgpu.ops.moves import Moves

_T = TypeVar("_T")

#: Calls an action; what it raises becomes an error that names the plugin, the op and the function.
Guard = Callable[[str, Callable[[], Any]], Any]


def checked_facets(op: OpDef, guarded: Guard) -> Mapping[str, Any]:
    """The facets of an op that are functions, by field, guarded. A `Refused` that their checks
    raise is left to ``guarded`` to report."""

    def checked(
        name: str, facet: Callable[..., Any] | None, check: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        if facet is None:
            return None

        def ask(node: Node, *more: Any) -> Any:
            def action() -> Any:
                found = _asked(facet, node, *more)
                return None if found is None else check(found, node)

            return guarded(name, action)

        return ask

    return {
        "affine": checked("affine", op.affine, _affine),
        "moves": checked("moves", op.moves, _moves),
        "copies": checked("copies", op.copies, _position),
        "reorder": checked("reorder", op.reorder, _reordered),
        "work": checked("work", op.work, _work),
        "batch": checked("batch", op.batch, _batched),
        "as_stored": checked("as_stored", op.as_stored, _as_stored),
        "int16_table": checked("int16_table", op.int16_table, _table),
        "hybrid": None if op.hybrid is None else _hybrid(op.hybrid, guarded),
        "states": None if op.states is None else _states(op.states, guarded),
        "integers": None if op.integers is None else _integers(op.integers, guarded),
        "filter": None if op.filter is None else _filter(op.filter, guarded),
    }


def check_activation(op: OpDef, attributes: Any) -> Any:
    """Attributes as parsed, which must have the field that the op says its activation is in.

    Raises:
        Refused: they have not.
    """
    if op.activation_field:
        found = getattr(attributes, op.activation_field, None)
        if not isinstance(found, Activation):
            raise Refused(
                f"attributes whose {op.activation_field} is {shown(found)}, not the Activation "
                "that activation_field says it is"
            )
    return attributes


def _filter(kind: Filter, guarded: Guard) -> Filter:
    spread, zeros = kind.spread, kind.zeros

    def spread_over(weights: Array, channels: int) -> Spread | None:
        assert spread is not None
        lay = guarded("filter.spread", lambda: spread(weights, channels))
        return None if lay is None else lambda numbers: laid(lay, weights, numbers)

    def laid(lay: Spread, weights: Array, numbers: Array) -> Array:
        def action() -> Array:
            found = np.asarray(lay(numbers))
            if np.broadcast_shapes(found.shape, weights.shape) != weights.shape:
                raise Refused(f"numbers of shape {found.shape} for a filter of {weights.shape}")
            return found

        result: Array = guarded("filter.spread", action)
        return result

    def zeros_of(node: Node) -> Pads:
        assert zeros is not None
        result: Pads = guarded("filter.zeros", lambda: _pads(zeros(node)))
        return result

    return attrs.evolve(
        kind,
        spread=None if spread is None else spread_over,
        zeros=None if zeros is None else zeros_of,
    )


def _integers(kind: Integers, guarded: Guard) -> Integers:
    def attributes(node: Node) -> Any:
        def action() -> Any:
            found = _asked(kind.attributes, node)
            if found is None or (isinstance(found, str) and not found):
                raise Refused(f"{shown(found)}, which is neither attributes nor a reason")
            return found

        return guarded("integers.attributes", action)

    return Integers(kind.op, attributes)


def _hybrid(facet: Callable[[Node], Hybrid], guarded: Guard) -> Callable[[Node], Hybrid]:
    def ask(node: Node) -> Hybrid:
        def action() -> Hybrid:
            found = _asked(facet, node)
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

        result: Hybrid = guarded("hybrid", action)
        return result

    return ask


def _states(
    facet: Callable[[Any], tuple[int, ...]], guarded: Guard
) -> Callable[[Any], tuple[int, ...]]:
    def ask(attributes: Any) -> tuple[int, ...]:
        def action() -> tuple[int, ...]:
            found = facet(attributes)
            if not isinstance(found, (tuple, list)):
                raise Refused(f"{shown(found)}, not a tuple of positions of operands")
            _whole(*found)
            if min(found, default=0) < 0 or len(set(found)) < len(found):
                raise Refused(f"{shown(found)}, of which one is negative or there twice")
            return tuple(map(int, found))

        result: tuple[int, ...] = guarded("states", action)
        return result

    return ask


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


def _pads(found: object) -> Pads:
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


def _as_stored(found: object, node: Node) -> object:
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
