"""Compares one node with the operators that it is to replace, on random inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tflgpu.compiler.references import reference_support
from tflgpu.errors.blame import Failed, attempt
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Value
from tflgpu.ops.base import Composed, OpDef, Operand, known_operands
from tflgpu.ops.composed import draw_all
from tflgpu.ops.facets import Work

#: Operations of a composite from which on running its operators in NumPy takes too long: some
#: seconds' worth.
_MOST_WORK = 1 << 35
#: Elements of one of its tensors from which on they take too much memory; of scores 128 MiB,
#: several times over.
_MOST_ELEMENTS = 1 << 25

#: How far apart two ways to compute the same may be, as a part of the largest result, by the bytes
#: of an element: sums in another order, and operators in between that round to the type.
_TOLERANCE = {2: 1e-2, 4: 1e-4}

#: Two draws from one seed each, so that the same model is always compiled alike; of much work one.
_SEEDS = (1, 2)
_MUCH_WORK = 1 << 30


class Trial:
    """Trials of one graph; what was tried once is known."""

    def __init__(self, ops: Mapping[str, OpDef]) -> None:
        self._ops = ops
        self._known: dict[Any, str | None] = {}

    def refused(
        self,
        op: OpDef,
        composed: Composed,
        node: Node,
        inputs: Sequence[Value | None],
        nodes: Sequence[Node],
    ) -> str | None:
        """Why a node does not do what ``nodes`` make of ``inputs``, some of which are the node's;
        None where it does."""
        for old in nodes:
            known = self._ops.get(old.op)
            if (
                known is None
                or known.state is not None
                or reference_support(old, self._ops) is not None
            ):
                return f"{old.label}, of which it is made, has no reference to try it against"
        work = sum(_work(old, self._ops[old.op]) for old in nodes)
        if work > _MOST_WORK:
            return f"its operators are too much work to be tried ({work:.1e} operations)"
        largest = max(v.elements for n in nodes for v in (*n.inputs, *n.outputs) if v is not None)
        if largest > _MOST_ELEMENTS:
            return f"its operators are too large to be tried ({largest:,} numbers in a tensor)"
        key = _key(node, inputs, nodes)
        if key is None or key not in self._known:
            seeds = _SEEDS[:1] if work > _MUCH_WORK else _SEEDS
            found = self._compared(op, composed, node, inputs, nodes, seeds)
            if key is None:
                return found
            self._known[key] = found
        return self._known[key]

    def _compared(
        self,
        op: OpDef,
        composed: Composed,
        node: Node,
        inputs: Sequence[Value | None],
        nodes: Sequence[Node],
        seeds: Sequence[int],
    ) -> str | None:
        operands = known_operands(inputs)
        for seed in seeds:
            drawn = _drawn(composed, np.random.default_rng(seed), operands)
            arrays = {
                id(v): a
                for v, a in zip(inputs, drawn, strict=True)
                if v is not None and a is not None
            }
            with np.errstate(all="ignore"):
                found = op.reference(
                    node.attrs, [None if v is None else arrays[id(v)] for v in node.inputs]
                )
                wanted = self._run(nodes, arrays)
            for value, ours in zip(node.outputs, found, strict=True):
                difference = _difference(ours, wanted[id(value)])
                if difference is not None:
                    return f"what it is made of computes something else: {difference}"
        return None

    def _run(self, nodes: Sequence[Node], arrays: Mapping[int, Array]) -> dict[int, Array]:
        made = dict(arrays)
        for node in nodes:
            given = [None if v is None else made.get(id(v), v.data) for v in node.inputs]
            results = self._ops[node.op].reference(node.attrs, given)
            made.update((id(v), a) for v, a in zip(node.outputs, results, strict=True))
        return made


def _drawn(
    composed: Composed, rng: np.random.Generator, operands: Sequence[Operand | None]
) -> list[Array | None]:
    drawn = (composed.draw or draw_all)(rng, operands)
    return [
        a if o is None or o.contents is None else o.data
        for a, o in zip(drawn, operands, strict=True)
    ]


def _work(node: Node, op: OpDef) -> int:
    found = None if op.device.work is None else op.device.work(node)
    return (Work.of(node) if found is None else found).flops


def _difference(ours: Array, wanted: Array) -> str | None:
    if ours.dtype.kind != "f":
        return None if np.array_equal(ours, wanted) else "other numbers"
    a, b = ours.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.where(finite, 0, b), np.where(np.isfinite(a), 0, a), equal_nan=True):
        return "not finite numbers in other places"
    size = float(np.max(np.abs(b[finite]), initial=0.0))
    off = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
    if off <= _TOLERANCE.get(ours.dtype.itemsize, 1e-4) * size:
        return None
    return f"off by {off:.3g} on numbers up to {size:.3g}"


def _key(node: Node, inputs: Sequence[Value | None], nodes: Sequence[Node]) -> Any:
    """Equal for trials that come out alike; None where attributes cannot be compared."""
    places: dict[int, int] = {}

    def of(value: Value | None) -> Any:
        if value is None:
            return None
        if id(value) not in places:
            places[id(value)] = len(places)
            data = value.data
            digest = (
                None
                if data is None
                else hashlib.sha256(np.ascontiguousarray(data).tobytes()).digest()
            )
            return (places[id(value)], value.spec, digest)
        return places[id(value)]

    # In this order: what the operands are is part of what the first mention says.
    key = (
        tuple(map(of, inputs)),
        node.op,
        node.attrs,
        tuple(map(of, (*node.inputs, *node.outputs))),
        tuple((n.op, n.attrs, *map(of, (*n.inputs, *n.outputs))) for n in nodes),
    )
    return None if isinstance(attempt(hash, key), Failed) else key
