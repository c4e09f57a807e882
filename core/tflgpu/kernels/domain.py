"""Which elements are reduced together, and which invocations reduce them.

A reduction of a tensor over some axes has *items*, each a vector of four results, and for every
item a number of *steps*, each one vector of the operand:

* the channels are kept: an item is four channels of the result, its steps are the reduced
  positions;
* the channels are reduced: a row of steps is the reduced positions times the slices, lanes are
  combined at the end, and an item is one row, or four where the result's own channels run over
  rows.

A workgroup has ``columns`` items times ``lanes`` invocations, a `Share`, that share an item's steps
and combine what they found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.kernels.team import Member, Teams
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.layout import Shape
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, fill_padding
from tflgpu.values import frozen

#: (size, stride) per dimension, outermost first.
Dims = tuple[tuple[int, int], ...]


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


@frozen
class Domain:
    """Index arithmetic of one reduction.

    Attributes:
        kept: The kept dimensions but the channels, with strides in rows of channels.
        reduced: The reduced ones.
        over_channels: Whether the channels are reduced.
        channels: Size of the last dimension.
        groups: Where the channels are reduced: groups of them, each of which is reduced apart.
    """

    kept: Dims
    reduced: Dims
    over_channels: bool
    channels: int
    groups: int = 1

    @classmethod
    def of(cls, shape: Shape, axes: Sequence[int]) -> Domain:
        """The reduction of ``shape`` over ``axes`` (counted from the front)."""
        rank = len(shape)
        outer = shape[:-1]
        strides = [1] * len(outer)
        for i in range(len(outer) - 2, -1, -1):
            strides[i] = strides[i + 1] * outer[i + 1]
        kept: list[tuple[int, int]] = []
        reduced: list[tuple[int, int]] = []
        for i, (size, stride) in enumerate(zip(outer, strides, strict=True)):
            if size > 1:
                (reduced if i in axes else kept).append((size, stride))
        channels = shape[-1] if shape else 1
        return cls(_merged(kept), _merged(reduced), rank - 1 in axes, channels)

    @property
    def slices(self) -> int:
        """Vectors of four that hold the channels."""
        return (self.channels + 3) // 4

    @property
    def keys(self) -> int:
        """Kept positions, channels not counted."""
        return _product(self.kept)

    @property
    def span(self) -> int:
        """Reduced positions, channels not counted."""
        return _product(self.reduced)

    @property
    def items(self) -> int:
        """Vectors of four results, or rows where the channels are reduced."""
        return self.keys if self.over_channels else self.keys * self.slices

    @property
    def steps(self) -> int:
        """Vectors of the operand in an item (in a row where the channels are reduced)."""
        return self.span * self.slices if self.over_channels else self.span

    @property
    def count(self) -> int:
        """Elements that are reduced to one."""
        return self.span * self.width if self.over_channels else self.span

    @property
    def width(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    def place(self, k: Builder, item: Expr) -> tuple[Expr, Expr]:
        """Where an item's steps begin: the row, and the slice (0 where they are reduced)."""
        if self.over_channels:
            return k.let(_offset(k, item, self.kept), "base"), k.i32(0)
        base = k.let(_offset(k, item // self.slices, self.kept), "base")
        return base, k.let(item % self.slices, "slice")

    def address(self, k: Builder, base: Expr, slice_: Expr, step: Expr) -> tuple[Expr, Expr]:
        """Row and slice of an item's step, for views."""
        if not self.over_channels:
            return k.let(base + _offset(k, step, self.reduced), "row"), slice_
        row = k.let(base + _offset(k, step // self.slices, self.reduced), "row")
        return row, k.let(step % self.slices, "s") if self.slices > 1 else k.i32(0)

    def fill_padding(self, k: Builder, value: Expr, slice_: Expr, fill: float | None) -> Expr:
        """A vector of the operand with the lanes beyond the channels set to ``fill``, or (None)
        to its first lane."""
        if self.channels % 4 == 0:
            return value
        return fill_padding(k, k.let(value, "x"), slice_, self.channels, fill)


def _merged(dims: Sequence[tuple[int, int]]) -> Dims:
    """Neighbouring dimensions that lie without a gap, as one."""
    found: list[tuple[int, int]] = []
    for size, stride in dims:
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def _product(dims: Dims) -> int:
    total = 1
    for size, _ in dims:
        total *= size
    return total


def _offset(k: Builder, index: Expr, dims: Dims) -> Expr:
    """Row-major index over ``dims`` -> the sum of each dimension's index times its stride."""
    if not dims:
        return k.i32(0)
    rest = index
    total: Expr = k.i32(0)
    for i, (size, stride) in reversed(list(enumerate(dims))):
        if i == 0:
            total = total + rest * stride
        else:
            rest = k.let(rest, "rest")
            total = total + rest % size * stride
            rest = rest // size
    return total


@frozen
class Shape2:
    """The workgroup of a team, and how an item's steps are split among workgroups.

    Attributes:
        teams: The workgroup: a team for each item. Neighbouring invocations share an item where
            its steps are neighbours in memory, and have neighbouring items elsewhere.
        items: All items.
        steps: Steps of an item.
        parts: Workgroups that share an item.
        chunk: Steps of a part; the last part may have fewer.
    """

    teams: Teams
    items: int
    steps: int
    parts: int
    chunk: int

    @property
    def columns(self) -> int:
        """Items of a workgroup."""
        return self.teams.columns

    @property
    def lanes(self) -> int:
        """Invocations that share an item."""
        return self.teams.lanes

    @property
    def workgroup(self) -> tuple[int, int, int]:
        """Invocations of a workgroup."""
        return self.teams.workgroup

    @property
    def groups(self) -> tuple[int, int, int]:
        """Workgroups."""
        return (-(-self.items // self.columns), self.parts, 1)


def team_shape(
    caps: DeviceCaps, items: int, steps: int, *, lanes_first: bool, cut: int = 0
) -> Shape2:
    """Choose a workgroup. With ``cut`` > 0 the steps may be split among workgroups at
    multiples of it, where there are too few items to fill a device."""
    model = tuning_of(caps).reduction
    size = min(model.workgroup, caps.max_workgroup)
    size = 1 << (size.bit_length() - 1)
    if lanes_first:
        most = model.lanes_of_many if items >= model.many_items else size
        lanes = min(power_of_two(steps), most, size)
        columns = max(1, min(model.small_workgroup, size) // lanes)
    elif items >= model.many_items or steps < model.few_steps:
        lanes, columns = 1, min(model.small_workgroup, size)
    else:
        columns = -(-items // -(-items // model.columns))
        lanes = min(power_of_two(steps), 1 << ((size // columns).bit_length() - 1))
    while -(-items // columns) > caps.max_groups[0] and columns * 2 <= size:
        columns *= 2
        lanes = min(lanes, 1 << ((size // columns).bit_length() - 1))
    groups = -(-items // columns)
    parts, chunk = 1, steps
    # Split where each lane would have much to do while most of a large device is idle.
    idle = groups < model.few_groups and steps >= lanes * model.splittable_steps
    if cut and lanes > 1 and idle:
        most_parts = min(steps // (lanes * model.least_steps), model.most_parts)
        wanted = min(model.wanted_groups // groups, most_parts)
        chunk = -(-steps // max(1, wanted))
        chunk = -(-chunk // cut) * cut
        parts = -(-steps // chunk)
    teams = Teams.of(caps, columns, lanes, lanes_first=lanes_first)
    return Shape2(teams, items, steps, parts, chunk)


@frozen(eq=False)
class Share(Member):
    """This invocation's place in a team, and its share of the item; made by `share_of`."""

    shape: Shape2
    item: Expr
    valid: Expr
    part: Expr
    first: Expr
    stop: Expr


def share_of(k: Builder, shape: Shape2) -> Share:
    """This invocation's place. Past the last item it repeats the last one (it must reach the
    barriers), and ``valid`` tells it to store nothing."""
    column, lane = shape.teams.place(k)
    wanted = k.let(k.group_id(0) * shape.columns + column, "wanted")
    item = k.let(k.min(wanted, shape.items - 1), "item")
    if shape.parts == 1:
        part, first, stop = k.i32(0), lane, k.i32(shape.steps)
    else:
        part = k.let(k.group_id(1), "part")
        first = k.let(part * shape.chunk + lane, "first")
        stop = k.let(k.min((part + 1) * shape.chunk, shape.steps), "stop")
    return Share(k, shape.teams, column, lane, shape, item, wanted < shape.items, part, first, stop)


#: A step's operand: (row, slice, vector).
StepBody = Callable[[Expr, Expr, Expr], None]


class ItemSteps:
    """The steps of ``item`` that are this invocation's; few of them are read once and kept in
    registers."""

    _KEPT = 4

    def __init__(
        self,
        place: Share,
        domain: Domain,
        view: ReadView,
        compute: Scalar,
        item: Expr | None = None,
    ) -> None:
        self._team, self._domain, self._view, self._compute = place, domain, view, compute
        k = place.k
        self._base, self._slice = domain.place(k, place.item if item is None else item)
        self._kept: list[tuple[Expr, Expr, Expr, Expr, Expr]] = []
        rounds = -(-place.shape.chunk // place.shape.lanes)
        if rounds <= self._KEPT:
            for i in range(rounds):
                step = k.let(place.first + i * place.shape.lanes, "step")
                inside = k.let(step < place.stop, "inside")
                safe = k.let(k.min(step, place.shape.steps - 1), "safe")
                self._kept.append((inside, *self._load(safe), step))

    def _load(self, step: Expr) -> tuple[Expr, Expr, Expr]:
        k = self._team.k
        row, slice_ = self._domain.address(k, self._base, self._slice, step)
        value = k.cast(self._view.load(row, slice_), self._compute)
        return row, slice_, k.let(value, "x")

    def any(self) -> tuple[Expr, Expr]:
        """Slice and vector of some step of the item, of this invocation where it has one."""
        if self._kept:
            return self._kept[0][2:4]
        k, place = self._team.k, self._team
        return self._load(k.let(k.min(place.first, place.shape.steps - 1), "some"))[1:]

    def each(self, body: StepBody) -> None:
        """Run ``body`` for every step."""
        self.each_numbered(lambda row, slice_, value, step: body(row, slice_, value))

    def each_numbered(self, body: Callable[[Expr, Expr, Expr, Expr], None]) -> None:
        """As `each`; the body is also given the step's number within the item."""
        k, place = self._team.k, self._team
        for inside, row, slice_, value, step in self._kept:
            with k.if_(inside):
                body(row, slice_, value, step)
        if not self._kept:
            with k.loop(place.first, place.stop, place.shape.lanes, name="step") as step:
                body(*self._load(step), step)


def horizontal(k: Builder, value: Expr, merge: Callable[[Expr, Expr], Expr]) -> Expr:
    """The four lanes merged, as a scalar."""
    value = k.let(value, "lanes")
    return merge(merge(value.lane(0), value.lane(1)), merge(value.lane(2), value.lane(3)))
