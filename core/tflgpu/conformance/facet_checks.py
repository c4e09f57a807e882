"""Level 2, too: what an op says of itself (`ops.facets`) is what its reference does.

Passes rewrite graphs by these facets, so a wrong one makes wrong results in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np

from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ops.activation import apply_activation
from tflgpu.ops.affine import is_plain
from tflgpu.ops.base import Activation, OpDef
from tflgpu.ops.facets import Filter, Pads
from tflgpu.ops.foreign import other_contents
from tflgpu.ops.moves import Moves
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.batch import BatchedGraph

_ACTIVATIONS = (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1, Activation.TANH)
_BORDER = Pads(1, 2, 0, 3)
_T = TypeVar("_T")


def facet_checks(ops: Iterable[OpDef]) -> list[Check]:
    """One check for each op that says anything."""
    said = [op for op in ops if _says_anything(op)]
    return [Check(f"2/{op.name}/facets", partial(_check, op), op.name) for op in said]


def _says_anything(op: OpDef) -> bool:
    functions = (
        op.arithmetic.filter,
        op.arithmetic.affine,
        op.movement.moves,
        op.movement.copies,
        op.movement.reorder,
        op.batch,
    )
    computes = op.arithmetic.computes is not Activation.NONE
    flags = op.movement.keeps_values or op.contents.shape_only or computes
    return any(functions) or flags or bool(op.arithmetic.activation_field)


def _check(op: OpDef, target: DeviceUnderTest) -> Outcome:
    asked = 0
    for sample in op.samples():
        case = materialize(op, sample)
        for name, problem in facets_of(case):
            asked += 1
            assert problem is None, f"{op.name}, sample {sample.id}: {name}: {problem}"
    return None if asked else NotApplicable("no sample shows what the op says of itself")


def facets_of(case: SampleCase) -> Iterator[tuple[str, str | None]]:
    """Each facet that the case shows, and what is wrong with it; None where nothing is."""
    op, node = case.op, case.node
    said: dict[str, Callable[[_Shown], str | None]] = {}
    shown = _Shown(case)
    if op.activation_of(node) is Activation.NONE:
        said = {
            "moves": _moves,
            "copies": _copies,
            "keeps_values": _keeps_values,
            "affine": _affine,
            "reorder": _reorder,
            "activation_field": _activations,
            "computes": _computes,
            "filter": _filter,
            "filter.spread": _spread,
            "filter.zeros": _zeros,
            "filter.pads": _pads,
            "batch": _batch,
            "shape_only": _shape_only,
        }
    for name, look in said.items():
        try:
            problem = look(shown)
        except _NothingSaid:
            continue
        yield name, problem


class _NothingSaid(Exception):
    """The op has no such facet, or the sample does not show it."""


class _Shown:
    """A case, and what its reference makes of other operands or attributes."""

    def __init__(self, case: SampleCase) -> None:
        self.op, self.node = case.op, case.node
        self.operands: list[Array | None] = [
            None if v is None else case.arrays[v.id] if v.data is None else v.data
            for v in case.node.inputs
        ]
        self.tolerance = case.tolerance()
        self.result = case.expected[0]
        self._is_one = len(case.expected) == 1

    def need(self, said: _T | None) -> _T:
        """What the op says, where that is something and it has one result."""
        if not said or not self._is_one:
            raise _NothingSaid
        return said

    def need_floats(self) -> None:
        """That passes may do arithmetic with the node."""
        if not is_plain(self.node) or self.node.outputs[0].dtype.is_int:
            raise _NothingSaid

    def operand(self, index: int) -> Array:
        data = self.operands[index]
        assert data is not None, f"operand {index} is absent"
        return data

    def of(self, changed: dict[int, Array], **attributes: Any) -> Array:
        """The result of other operands and attributes."""
        operands = list(self.operands)
        for index, data in changed.items():
            operands += [None] * (index + 1 - len(operands))
            operands[index] = data
        changed_attributes = attrs.evolve(self.node.attrs, **attributes)
        with np.errstate(all="ignore"):
            return self.op.reference(changed_attributes, operands)[0]

    def same(self, got: Array, want: Array) -> str | None:
        """None where two results agree as closely as rounding lets them."""
        if got.shape != want.shape:
            return f"shape {got.shape}, not {want.shape}"
        scale = float(np.abs(want).max(initial=0)) if want.dtype.kind in "fc" else 0.0
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        worst = float(np.abs(got.astype(wide) - want.astype(wide)).max(initial=0))
        return None if worst <= 1e-4 * scale + 1e-6 else f"off by {worst:.3g} of {scale:.3g}"


def _picked(moves: Moves, data: Array) -> Array:
    place = np.full((), moves.offset, np.int64)
    for size, stride in zip(moves.sizes, moves.strides, strict=True):
        place = place[..., None] + np.arange(size, dtype=np.int64) * stride
    return np.asarray(data.reshape(-1)[place.reshape(-1)])


def _equal(got: Array, want: Array) -> str | None:
    return None if got.tobytes() == want.tobytes() else "other elements than the reference gives"


def _moves(shown: _Shown) -> str | None:
    found = shown.need(shown.need(shown.op.movement.moves)(shown.node))
    return _equal(_picked(found, shown.operand(found.operand)), shown.result.reshape(-1))


def _copies(shown: _Shown) -> str | None:
    index = shown.need(shown.op.movement.copies)(shown.node)
    shown.need(index is not None)
    source = shown.operand(index or 0)
    shown.need(source.size == shown.result.size and source.dtype == shown.result.dtype)
    return _equal(source.reshape(-1), shown.result.reshape(-1))


def _keeps_values(shown: _Shown) -> str | None:
    shown.need(shown.op.movement.keeps_values)
    given = [a.reshape(-1) for a in shown.operands if a is not None]
    known = np.concatenate([*given, np.zeros(1)])
    strange = ~np.isin(shown.result, known)
    return f"{shown.result[strange][0]} is no operand's element" if strange.any() else None


def _shape_only(shown: _Shown) -> str | None:
    shown.need(shown.op.contents.shape_only)
    others = {i: other_contents(a) for i, a in enumerate(shown.operands) if a is not None}
    return _equal(shown.of(others), shown.result)


def _affine(shown: _Shown) -> str | None:
    found = shown.need(shown.need(shown.op.arithmetic.affine)(shown.node))
    x = shown.operand(found.operand).astype(np.float64)
    return shown.same(shown.result, x * found.scale + found.shift)


def _reorder(shown: _Shown) -> str | None:
    reorder = shown.need(shown.op.movement.reorder)
    order = tuple(reversed(range(shown.need(len(shown.node.input(0).shape)))))
    new = shown.need(reorder(shown.node, order))
    operands = [*shown.operands]
    operands[0] = np.ascontiguousarray(shown.operand(0).transpose(order))
    for index, data in new.constants.items():
        operands[index] = data
    got = shown.op.reference(new.attributes, operands)[0]
    return shown.same(got, shown.result.transpose(order))


def _activations(shown: _Shown) -> str | None:
    shown.need(shown.op.arithmetic.activation_field)
    shown.need_floats()
    for activation in _ACTIVATIONS:
        got = shown.of({}, **{shown.op.arithmetic.activation_field: activation})
        problem = shown.same(got, apply_activation(activation, shown.result))
        if problem is not None:
            return f"{activation.name}: {problem}"
    return None


def _computes(shown: _Shown) -> str | None:
    shown.need(shown.op.arithmetic.computes is not Activation.NONE)
    shown.need_floats()
    return shown.same(
        shown.result, apply_activation(shown.op.arithmetic.computes, shown.operand(0))
    )


def _batch(shown: _Shown) -> str | None:
    """Two items: the sample, and the same backwards."""
    shown.need(shown.op.batch)
    node, values = shown.node, [*shown.node.inputs, *shown.node.outputs]
    each = [i for i, v in enumerate(node.inputs) if v is not None and v.data is None]
    shown.need(each and not any(v is not None and v.is_variable for v in values))
    known = {v.id: v for v in values if v is not None}
    single = Graph(
        "facet", [node], [node.input(i) for i in each], list(node.outputs), known, max(known) + 1
    )
    wide = single.copy()
    work = BatchedGraph(wide, 2, {**builtin_ops(), shown.op.name: shown.op})
    refused = next(filter(None, map(work.widen, wide.inputs)), None) or work.add(wide.nodes[0])
    shown.need(refused is None)
    items = [
        {i: shown.operand(i) for i in each},
        {
            i: np.atleast_1d(shown.operand(i))[..., ::-1].reshape(shown.operand(i).shape)
            for i in each
        },
    ]
    together = {
        v.id: np.concatenate([np.atleast_1d(item[i]) for item in items])
        for i, v in zip(each, wide.inputs, strict=True)
    }
    for became in work.nodes:
        operands = [None if v is None else together.get(v.id, v.data) for v in became.inputs]
        with np.errstate(all="ignore"):
            results = work.ops[became.op].reference(became.attrs, operands)
        together.update(
            (v.id, np.asarray(r)) for v, r in zip(became.outputs, results, strict=False)
        )
    got = together[wide.outputs[0].id]
    return shown.same(got, np.concatenate([np.atleast_1d(shown.of(item)) for item in items]))


def _kind(shown: _Shown) -> Filter:
    shown.need_floats()
    return shown.need(shown.op.arithmetic.filter)


def _along(numbers: Array, axis: int, rank: int) -> Array:
    return numbers.reshape([-1 if a == axis else 1 for a in range(rank)])


def _bias(shown: _Shown, kind: Filter) -> Array:
    present = kind.bias < len(shown.operands) and shown.operands[kind.bias] is not None
    channels = shown.operand(kind.weights).shape[kind.out]
    return shown.operand(kind.bias) if present else np.zeros(channels, np.float32)


def _filter(shown: _Shown) -> str | None:
    """Number per output channel: a factor in filter and bias, and a term in the bias."""
    kind = _kind(shown)
    weights, bias = shown.operand(kind.weights), _bias(shown, kind)
    scale = np.linspace(0.5, 2, bias.size, dtype=np.float32)
    term = np.linspace(-2, 1, bias.size, dtype=np.float32)
    scaled = weights * _along(scale, kind.out, weights.ndim)
    moved = (bias.reshape(-1) * scale + term).reshape(bias.shape)
    got = shown.of({kind.weights: scaled, kind.bias: moved})
    return shown.same(got, shown.result * scale + term)


def _spread(shown: _Shown) -> str | None:
    """Factor per input channel."""
    kind = _kind(shown)
    x, weights = shown.operand(kind.source), shown.operand(kind.weights)
    lay = shown.need(shown.need(kind.spread)(weights, x.shape[-1]))
    scale = np.linspace(0.5, 2, x.shape[-1], dtype=np.float32)
    got = shown.of({kind.weights: (weights * lay(scale)).astype(np.float32)})
    return shown.same(got, shown.of({kind.source: x * scale}))


def _zeros(shown: _Shown) -> str | None:
    """Term per input channel, where no zeros are read."""
    kind = _kind(shown)
    shown.need(shown.need(kind.zeros)(shown.node) == Pads())
    x, weights, bias = shown.operand(kind.source), shown.operand(kind.weights), _bias(shown, kind)
    lay = shown.need(shown.need(kind.spread)(weights, x.shape[-1]))
    term = np.linspace(-1, 2, x.shape[-1], dtype=np.float32)
    others = tuple(a for a in range(weights.ndim) if a != kind.out)
    moved = bias + (weights * lay(term)).sum(others).reshape(bias.shape)
    got = shown.of({kind.bias: moved.astype(np.float32)})
    return shown.same(got, shown.of({kind.source: x + term}))


def _pads(shown: _Shown) -> str | None:
    """A border of zeros before the op, merged into it."""
    kind = _kind(shown)
    shown.need(kind.pads)
    zeros = shown.need(kind.zeros)
    x = shown.operand(kind.source)
    sides = ((0, 0), (_BORDER.top, _BORDER.bottom), (_BORDER.left, _BORDER.right), (0, 0))
    wide = np.pad(x, sides)
    got = shown.of({}, **{kind.pads: zeros(_on(shown.node, kind.source, wide)) + _BORDER})
    return shown.same(got, shown.of({kind.source: wide}))


def _on(node: Node, index: int, data: Array) -> Node:
    """A node that reads other data; its result is as large as its op makes it."""
    old = node.input(index)
    inputs: list[Value | None] = [*node.inputs]
    inputs[index] = attrs.evolve(old, shape=data.shape, data=None)
    return Node(node.op, node.attrs, inputs, node.outputs, node.version)
