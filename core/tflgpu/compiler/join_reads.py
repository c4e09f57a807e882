"""A group whose every vector is made by itself is computed where its result is read.

    SLICE(x) -> a, SLICE(x) -> b, CONCATENATION(-b, a) -> r, ADD(MUL(x, c), MUL(r, s)) -> y

One kernel computes y from x, c and s: each of its loads of r, a or b does what their kernels would
have done for one vector (`tflgpu.lowering.inlined`). So slices are read in place, whatever reads
them. A result is either computed by all that read it, and has no buffer then, or by none.

What only moves numbers costs nothing again wherever it is read; of other groups the work that is
done more than once is bounded, in time by `_MAX_WORK`, and in the size of kernels by `MAX_CHAIN`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tflgpu.compiler.fuse import Group, Neighbours
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node, Value
from tflgpu.language.budget import MAX_CHAIN, cost
from tflgpu.language.expressions import Load
from tflgpu.language.walk import expressions
from tflgpu.lowering.inlined import Inlined, InlinedProduct
from tflgpu.lowering.lowering import Dispatch, InlinedTensor
from tflgpu.lowering.row_change import InlinedRows
from tflgpu.values import frozen

#: Most additions of vectors that a launch less may cost: the smaller GPUs make as many in the time
#: that it takes.
_MAX_WORK = 1 << 18
#: Most vectors that a kernel may read more than once where they lie scattered: caches hold them.
_MAX_STRIDED = 1 << 16
#: Most that the copies of its code may cost in kernels, beyond the first.
_MAX_COPIES = 256
_TYPES = (DType.F32, DType.F16, DType.I32, DType.BOOL)


@frozen(eq=False)
class _Measured:
    """A group's kernels as they are alone.

    Attributes:
        cost: Of the costliest.
        kernels: How many there are.
        loads: How often a vector of the result needs one of each tensor, by the id of its buffer's
            value.
        bound: These ids, and whatever stands for the constants that it binds.
    """

    cost: int
    kernels: int
    loads: Counter[int]
    bound: frozenset[object]


class JoinReads:
    """The rule (`tflgpu.compiler.fuse`)."""

    def __init__(
        self,
        neighbours: Neighbours,
        moves: Callable[[Node], bool],
        dispatches: Callable[[Group], Sequence[Dispatch] | None],
    ) -> None:
        """Know the groups.

        Args:
            neighbours: All of them.
            moves: Whether each element of a node's results is one of its operands'.
            dispatches: The launches of a group alone; None where it has too large a kernel.
        """
        self._neighbours, self._moves, self._dispatches = neighbours, moves, dispatches
        self._known: dict[int, _Measured | None] = {}
        self._costs: dict[int, int] = {}

    def __call__(self, group: Group, readers: Sequence[Group]) -> bool:
        """Let all readers of a group's results compute them where they load them."""
        if not self._is_pointwise(group) or not self._fits(group, readers):
            return False
        each = self._cost(group)
        for reader in readers:
            loads = self._known_of(reader).loads
            more = each * sum(loads[i] for i in self._neighbours.results(group))
            self._costs[id(reader)] = self._cost(reader) + more
            reader.inlined.append(group)
        return True

    def _is_pointwise(self, group: Group) -> bool:
        nodes = group.own_nodes
        values = [v for n in nodes for v in (*n.inputs, *n.outputs) if v is not None]
        plain = group.rule.pointwise and not group.owners and not group.before
        return (
            plain
            and all(f.place is None for f in group.fused)
            and all(v.dtype in _TYPES for v in group.results)
            and not any(v.is_variable for v in values)
        )

    def _measured(self, group: Group) -> _Measured | None:
        if id(group) not in self._known:
            self._known[id(group)] = self._measure(group)
        return self._known[id(group)]

    def _measure(self, group: Group) -> _Measured | None:
        made = self._dispatches(group)
        if not made:
            return None
        loads: Counter[int] = Counter()
        every: set[object] = set()
        for item in made:
            for at, b in enumerate(item.bindings):
                every.add(
                    self._neighbours.root_of(b).id if isinstance(b, Value) else (id(group), at)
                )
            bound = dict(zip(item.kernel.buffers, item.bindings, strict=True))
            for found in expressions(item.kernel):
                value = bound.get(found.buffer) if isinstance(found, Load) else None
                if isinstance(found, Load) and isinstance(value, Value):
                    loads[self._neighbours.root_of(value).id] += 1 if found.scalar else 2
        vectors = Counter({key: -(-count // 2) for key, count in loads.items()})
        most = max(cost(item.kernel) for item in made)
        return _Measured(most, len(made), vectors, frozenset(every))

    def _fits(self, group: Group, readers: Sequence[Group]) -> bool:
        if not all(self._may_read(reader, group) for reader in readers):
            return False
        return self._only_moves(group) or (len(readers) - 1) * self._cost(group) <= _MAX_COPIES

    def _may_read(self, reader: Group, group: Group) -> bool:
        """Whether a reader may compute a group's results where it loads them."""
        if reader.owners:
            return False
        ids = self._neighbours.results(group)
        by_head = not self._neighbours.reads((*reader.before, reader.head)).keys().isdisjoint(ids)
        often = 0 if reader.rule.reads_once else self._reads(reader, ids)
        if often and self._takes_channels(group):
            return True
        if by_head and not often and not reader.rule.reads_once:
            return False
        mine, its = self._measured(reader), self._measured(group)
        if mine is None or its is None or its.kernels != len(group.head.outputs):
            return False
        loads = sum(mine.loads[i] for i in ids)
        each = self._cost(group)
        if self._cost(reader) - mine.cost + loads * each > 2 * MAX_CHAIN:
            return False
        if self._buffers(reader, group) > self._neighbours.site_of(reader.head).caps.max_bindings:
            return False
        own = sum(_vectors(v) for v in group.results)
        if reader.rule.pointwise:
            read = _vectors(reader.result) * loads
        else:
            read = own * (often or loads) if by_head else _vectors(reader.result)
        again = max(0, read - own)
        cheap = not often and (reader.rule.pointwise or own <= _MAX_STRIDED)
        if cheap and self._only_moves(group):
            return True
        return again * each <= _MAX_WORK

    def _reads(self, reader: Group, results: Sequence[int]) -> int:
        """How often a reader's head reads each vector of buffers, where it reads whole ones; 0 else
        or where it reads none."""
        head, root_of = reader.head, self._neighbours.root_of
        found = [
            reader.rule.reads(head, at)
            for at, v in enumerate(head.inputs)
            if v is not None and not v.is_const and root_of(v).id in results
        ]
        return sum(found) if all(found) else 0

    def _cost(self, group: Group) -> int:
        """What it costs with all that it computes in its loads."""
        return self._costs.setdefault(id(group), self._known_of(group).cost)

    def _known_of(self, group: Group) -> _Measured:
        found = self._measured(group)
        assert found is not None
        return found

    def _buffers(self, reader: Group, group: Group) -> int:
        """How many the reader's kernel binds once it computes the group."""
        inside = (group, *group.all_inlined, *reader.all_inlined)
        bound = {key for each in (reader, *inside) for key in self._known_of(each).bound}
        return len(bound - {i for each in inside for i in self._neighbours.results(each)})

    def _only_moves(self, group: Group) -> bool:
        moves = not group.fused and self._moves(group.head)
        return moves and all(self._only_moves(each) for each in group.inlined)

    def _takes_channels(self, group: Group) -> bool:
        """Whether vectors of a group's results are some of those of the same row."""
        head = group.head
        rows = {v.shape[:-1] for v in (*head.inputs, *head.outputs) if v and not v.is_const}
        if len(rows) != 1 or not self._only_moves(group):
            return False
        its = self._measured(group)
        return its is not None and its.loads.total() == its.kernels == len(head.outputs)


def inlined_in(
    group: Group, members: Callable[[Value], Sequence[Value]]
) -> dict[int, InlinedTensor]:
    """By the ids of the values that are computed where they are read: what computes them."""
    found: dict[int, InlinedTensor] = {}
    for each in group.all_inlined:
        change = None if each.rule.pointwise else each.rule.row_change(each.head)
        if change is not None:
            source = each.head.input(0)
            before = found.get(source.id)
            rows = before if isinstance(before, InlinedRows) else InlinedRows(source)
            found.update((value.id, rows.then(change)) for value in members(each.result))
            continue
        if not each.rule.pointwise:
            product = InlinedProduct(each.head, each.rule.build, each.fused)
            found.update((value.id, product) for value in members(each.result))
            continue
        for output, result in enumerate(each.results):
            made = Inlined(each.head, each.rule.build, each.fused if not output else (), output)
            found.update((value.id, made) for value in members(result))
    return found


def _vectors(value: Value) -> int:
    channels = value.shape[-1] if value.shape else 1
    return value.elements // max(1, channels) * -(-channels // 4)
