"""Workgroups in which a team of invocations shares each result, and merges its members' findings:
by shuffles within a subgroup, else through shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, SharedArray
from tflgpu.language.types import Size3, Type
from tflgpu.language.variables import Variable
from tflgpu.values import frozen

#: Values of one member and those of another -> the merged values. The order of the two must not
#: matter.
Merge = Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]]


def _added(a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    return [x + y for x, y in zip(a, b, strict=True)]


#: Sums. Vectors of them take fewer shuffles than others, where lane 0 alone is to have them.
ADD: Merge = _added


@frozen
class Teams:
    """A workgroup of teams.

    Attributes:
        columns: Teams.
        lanes: Members of each, a power of two.
        lanes_first: Whether neighbouring invocations are of one team, or of neighbouring teams.
        near: Members that lie in one subgroup and merge by shuffles, a power of two; 1 where
            everything goes through shared memory.
    """

    columns: int
    lanes: int
    lanes_first: bool
    near: int

    @classmethod
    def of(cls, caps: DeviceCaps, columns: int, lanes: int, *, lanes_first: bool = False) -> Teams:
        """The workgroup for a device."""
        stride = 1 if lanes_first else columns
        reach = caps.subgroup_shuffle // stride
        near = min(lanes, 1 << max(0, reach.bit_length() - 1))
        one_axis = lanes_first or columns * lanes <= caps.max_workgroup_size[0]
        # A mask moves between teams where their number is no power of two; and what is left after
        # one exchange must be few enough for another.
        if stride & (stride - 1) or not one_axis or near * near < lanes:
            near = 1
        return cls(columns, lanes, lanes_first, near)

    @property
    def workgroup(self) -> Size3:
        """Invocations of a workgroup. Those that shuffle follow each other along one axis."""
        if self.lanes_first:
            return (self.lanes, self.columns, 1)
        if self.near > 1:
            return (self.columns * self.lanes, 1, 1)
        return (self.columns, self.lanes, 1)

    def place(self, k: Builder) -> tuple[Expr, Expr]:
        """This invocation's column and lane."""
        if self.near > 1 and not self.lanes_first:
            column, lane = k.local_id(0) % self.columns, k.local_id(0) // self.columns
        else:
            across, along = (1, 0) if self.lanes_first else (0, 1)
            column, lane = k.local_id(across), k.local_id(along)
        return k.let(column, "column"), k.let(lane, "lane")

    def member(self, k: Builder) -> Member:
        """This invocation in its team."""
        return Member(k, self, *self.place(k))


@frozen(eq=False)
class Member:
    """This invocation's place in a team."""

    k: Builder
    teams: Teams
    column: Expr
    lane: Expr

    def shared(self, kind: Type, name: str = "partial") -> SharedArray | None:
        """Room for `combine`; None where it needs none."""
        teams = self.teams
        if teams.near == teams.lanes:
            return None
        return self.k.shared(name, kind, teams.lanes // teams.near * teams.columns)

    def combine(
        self,
        rooms: Sequence[SharedArray | None],
        values: Sequence[Variable],
        merge: Merge,
        *,
        everywhere: bool = False,
        again: bool = True,
    ) -> None:
        """Merge ``values`` (variables) over the lanes; lane 0 has the result, or all of them
        with ``everywhere``. ``again`` is whether the arrays are written again then. Every
        invocation of the workgroup must come here."""
        arrays = [room for room in rooms if room is not None]
        if self.teams.near > 1:
            self._by_shuffles(arrays, values, merge, everywhere, again)
        elif self.teams.lanes > 1:
            self._by_memory(arrays, values, merge, everywhere, again)

    def _by_shuffles(
        self,
        arrays: Sequence[SharedArray],
        values: Sequence[Variable],
        merge: Merge,
        everywhere: bool,
        again: bool,
    ) -> None:
        k, columns, near = self.k, self.teams.columns, self.teams.near
        if merge is ADD and not everywhere and near >= 4:
            for value in values:
                self._add_up(value)
        else:
            self._exchange(values, merge, near)
        parts = self.teams.lanes // near
        if parts == 1:
            return
        with k.if_((self.lane % near).eq(0)):
            self._put(arrays, k.let(self.lane // near * columns + self.column, "slot"), values)
        k.barrier()
        # Each run of `parts` lanes takes all that is left, so that another exchange ends it.
        self._get(arrays, k.let(self.lane % parts * columns + self.column, "slot"), values)
        self._exchange(values, merge, parts)
        if everywhere and again:
            k.barrier()  # before anyone writes the arrays again

    def _add_up(self, value: Variable) -> None:
        """Add up over a subgroup; lane 0 has the sum. Of vectors of four two exchanges leave each
        member one number to add up further, so that there are half as many shuffles or fewer."""
        k, near = self.k, self.teams.near
        if value.type.width < 4:
            self._exchange([value], ADD, near)
            return
        parts = list(value.read().lanes)
        for mask in (near // 2, near // 4):
            upper = k.let((self.lane & mask) > 0, "upper")
            pairs = list(zip(parts[: len(parts) // 2], parts[len(parts) // 2 :], strict=True))
            sent = [k.let(k.select(upper, a, b), "sent") for a, b in pairs]
            own = [k.let(k.select(upper, b, a), "own") for a, b in pairs]
            parts = [x + k.subgroup_shuffle_xor(y, mask) for x, y in zip(own, sent, strict=True)]
        total = k.var(parts[0], "total")
        self._exchange([total], ADD, near // 4)
        pair = [k.let(total.read(), "first"), k.subgroup_shuffle_xor(total, near // 4)]
        k.set(value, k.vec([*pair, *(k.subgroup_shuffle_xor(each, near // 2) for each in pair)]))

    def _exchange(self, values: Sequence[Variable], merge: Merge, count: int) -> None:
        k, stride = self.k, 1 if self.teams.lanes_first else self.teams.columns
        while count > 1:
            count //= 2
            others = [k.subgroup_shuffle_xor(value, count * stride) for value in values]
            self._merge(values, merge, others)

    def _by_memory(
        self,
        arrays: Sequence[SharedArray],
        values: Sequence[Variable],
        merge: Merge,
        everywhere: bool,
        again: bool,
    ) -> None:
        k, columns = self.k, self.teams.columns
        slot = k.let(self.lane * columns + self.column, "slot")
        self._put(arrays, slot, values)
        half = self.teams.lanes // 2
        while half:
            k.barrier()
            with k.if_(self.lane < half):
                others = [k.let(k.load_shared(a, slot + half * columns), "other") for a in arrays]
                self._merge(values, merge, others)
                if half > 1 or everywhere:
                    self._put(arrays, slot, values)
            half //= 2
        if everywhere:
            k.barrier()
            self._get(arrays, self.column, values)
        if everywhere and again:
            k.barrier()  # before anyone writes the arrays again

    def _merge(self, values: Sequence[Variable], merge: Merge, others: Sequence[Expr]) -> None:
        for value, merged in zip(values, merge(list(values), others), strict=True):
            self.k.set(value, self.k.let(merged, "merged"))

    def _put(self, arrays: Sequence[SharedArray], slot: Expr, values: Sequence[Variable]) -> None:
        for array, value in zip(arrays, values, strict=True):
            self.k.store_shared(array, slot, value)

    def _get(self, arrays: Sequence[SharedArray], slot: Expr, values: Sequence[Variable]) -> None:
        for array, value in zip(arrays, values, strict=True):
            self.k.set(value, self.k.load_shared(array, slot))
