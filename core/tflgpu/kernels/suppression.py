"""Greedy suppression of overlapping boxes on a device, without the host in between.

One workgroup makes the choice of one list of candidates: in every round its members look for the
best candidate that is left, and in the next one each drops those of its own that the winner
overlaps. A member keeps a bit for each of its candidates in registers, so that any number of boxes
needs neither a sort nor memory that others read.

Scores are compared as whole numbers that have the same order (`ordered`), so that ties, zeros of
either sign and NaN are the same on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tflgpu.kernels.team import Merge, Teams
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32, Scalar
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.view import ReadView
from tflgpu.values import frozen

#: What `ordered` makes of a NaN, and what stands for "no candidate": below every number.
NOTHING = -(2**31)
_INFINITY, _MAGNITUDE = 0x7F800000, 0x7FFFFFFF
_NOWHERE = 2**31 - 1
_BITS = 32  # candidates that a member notes in one register
_MOST_MEMBERS = {True: 1024, False: 256}  # with and without shuffles: each step costs a barrier


def ordered(k: Builder, value: Expr) -> Expr:
    """Whole numbers that compare as the f32 lanes do: zeros are equal, a NaN is `NOTHING`."""
    bits = k.let(k.bitcast(value, Scalar.I32), "bits")
    key = k.select(bits < 0, k.const(NOTHING, bits.type) - bits, bits)
    return k.select((bits & _MAGNITUDE) > _INFINITY, NOTHING, key)


def ordered_limit(number: float) -> int:
    """`ordered` of a number that is known, as a lower limit: nothing reaches a NaN."""
    if math.isnan(number):
        return _MAGNITUDE
    bits = int(np.float32(number).view(np.int32))
    return NOTHING - bits if bits < 0 else bits


def better_of(k: Builder) -> Merge:
    """Key and place of the better of two: that of the lower place where the keys are equal."""

    def better(a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
        take = k.let((b[0] > a[0]) | (b[0].eq(a[0]) & (b[1] < a[1])), "take")
        return [k.select(take, y, x) for x, y in zip(a, b, strict=True)]

    return better


@frozen
class BoxLists:
    """The lists over the same boxes from which boxes are chosen.

    Attributes:
        boxes: Corners (ymin, xmin, ymax, xmax), [boxes, 4], f32.
        keys: `ordered` scores [lists, boxes], i32; `NOTHING` where a box is no candidate.
        classes: What is written beside a choice, [1, boxes], i32; None: the number of the list.
        most: Choices of a list, at most.
        limit: Boxes that overlap a better one by more are dropped: the common area over that of
            both together, in (0, 1].
    """

    boxes: Temp
    keys: Temp
    classes: Temp | None
    most: int
    limit: float


def choose(low: Lowering, choice: BoxLists) -> Temp:
    """One dispatch. The choices in order, [lists * most, 4], i32: box, key, class and 0 in each
    row; a box of -1 where there are no more. Of equal scores the lower box comes first."""
    lists, count = choice.keys.layout.shape
    chosen = low.temp((lists * choice.most, 4), Scalar.I32)
    teams = _team(low.caps, count)
    k = low.kernel("choose_boxes", teams.workgroup)
    boxes, keys = low.read_temp(k, choice.boxes, "boxes"), low.read_temp(k, choice.keys, "keys")
    classes = None if choice.classes is None else low.read_temp(k, choice.classes, "classes")
    out = low.write_temp(k, chosen, "chosen")
    member = teams.member(k)
    rooms = [member.shared(I32, "best_keys"), member.shared(I32, "best_boxes")]
    list_ = k.let(k.group_id(0), "list")
    each = -(-count // teams.lanes)
    left = [k.var(k.i32(0), "left") for _ in range(-(-each // _BITS))]

    def candidate(word: int, bit: Expr) -> Expr:
        return k.let((bit + word * _BITS) * teams.lanes + member.lane, "candidate")

    for word, bits in enumerate(left):
        with k.loop(0, min(_BITS, each - word * _BITS), name="bit") as bit:
            at = candidate(word, bit)
            key = keys.load_lane(list_, k.min(at, count - 1))
            with k.if_((at < count) & key.ne(NOTHING)):
                k.set(bits, bits | (k.i32(1) << bit))
    last = k.var(k.i32(-1), "last")
    with k.loop(0, choice.most, name="round") as turn:
        winner = _Box.load(k, boxes, k.max(last, 0))
        best, where = k.var(k.i32(NOTHING), "best"), k.var(k.i32(count), "where")
        for word, bits in enumerate(left):
            with k.loop(0, min(_BITS, each - word * _BITS), name="bit") as bit:
                mask = k.let(k.i32(1) << bit, "mask")
                with k.if_((bits & mask).ne(0)):
                    at = candidate(word, bit)
                    gone = at.eq(last) | winner.overlaps(_Box.load(k, boxes, at), choice.limit)
                    with k.if_((last >= 0) & gone):
                        k.set(bits, bits ^ mask)
                    with k.else_():
                        key = k.let(keys.load_lane(list_, at), "key")
                        # A member's candidates come in order: of equal ones the first stays.
                        with k.if_(key > best):
                            k.set(best, key)
                            k.set(where, at)
        member.combine(rooms, [best, where], better_of(k), everywhere=True)
        with k.if_(member.lane.eq(0)):
            number = list_ if classes is None else classes.load_lane(0, k.min(where, count - 1))
            row = [k.select(where < count, where, -1), best, number, k.i32(0)]
            out.store(list_ * choice.most + turn, 0, k.vec(row))
        k.set(last, k.select(where < count, where, -1))
    low.dispatch_groups(k, (lists, 1, 1))
    return chosen


def merge(low: Lowering, chosen: Temp, lists: int, most: int) -> Temp:
    """One dispatch. The best ``most`` rows of ``lists`` lists as `choose` makes them, in order; of
    equal scores that of the lower list comes first, and in a list the earlier one."""
    each = chosen.layout.shape[0] // lists
    merged = low.temp((most, 4), Scalar.I32)
    teams = _team(low.caps, lists)
    k = low.kernel("merge_choices", teams.workgroup)
    rows, out = low.read_temp(k, chosen, "chosen"), low.write_temp(k, merged, "merged")
    member = teams.member(k)
    rooms = [member.shared(I32, "best_keys"), member.shared(I32, "best_lists")]
    mine = []  # a list, how much of it was taken, and the key that comes next
    for part in range(-(-lists // teams.lanes)):
        list_ = k.let(member.lane + part * teams.lanes, "list")
        first = k.let(rows.load(k.min(list_, lists - 1) * each, 0), "first")
        key = k.var(k.select(list_ < lists, first.lane(1), NOTHING), "key")
        mine.append((list_, k.var(k.i32(0), "taken"), key))
    with k.loop(0, most, name="round") as turn:
        best, where = k.var(k.i32(NOTHING), "best"), k.var(k.i32(_NOWHERE), "where")
        for list_, _, key in mine:
            with k.if_(key > best):
                k.set(best, key)
                k.set(where, list_)
        member.combine(rooms, [best, where], better_of(k), everywhere=True)
        for list_, taken, key in mine:
            with k.if_(where.eq(list_)):
                out.store(turn, 0, rows.load(list_ * each + taken, 0))
                k.add_to(taken, 1)
                after = rows.load(list_ * each + k.min(taken, each - 1), 0)
                k.set(key, k.select(taken < each, after.lane(1), NOTHING))
        with k.if_(where.eq(_NOWHERE) & member.lane.eq(0)):
            out.store(turn, 0, k.vec([k.i32(-1), NOTHING, 0, 0]))
    low.dispatch_groups(k, (1, 1, 1))
    return merged


@frozen(eq=False)
class _Box:
    """Corners and area."""

    k: Builder
    corners: tuple[Expr, ...]
    area: Expr

    @classmethod
    def load(cls, k: Builder, boxes: ReadView, at: Expr) -> _Box:
        """A row of decoded boxes."""
        whole = k.let(boxes.load(at, 0), "box")
        top, left, bottom, right = (whole.lane(i) for i in range(4))
        return cls(k, (top, left, bottom, right), k.let((bottom - top) * (right - left), "area"))

    def overlaps(self, other: _Box, limit: float) -> Expr:
        """Whether common area / area of both, rounded to f32 as on a CPU, is above the limit.

        A device's division may be off by some units, so that none is made: what is compared is the
        product of divisor and limit, with its rounding error, and with the half unit by which a
        quotient may be above the limit and still round to it. Boxes without area overlap nothing;
        where an infinity or NaN makes a NaN of the difference, neither do these.
        """
        k, (top, left, bottom, right) = self.k, self.corners
        top2, left2, bottom2, right2 = other.corners
        height = k.max(k.min(bottom, bottom2) - k.max(top, top2), 0.0)
        width = k.max(k.min(right, right2) - k.max(left, left2), 0.0)
        common = k.let(height * width, "common")
        both = k.let(self.area + other.area - common, "both")
        bound = np.float32(limit)
        share = k.let(both * float(bound), "share")
        lost = k.fma(both, float(bound), -share)
        above = (common - share) - lost - both * float(np.spacing(bound) / 2)
        return (self.area > 0.0) & (other.area > 0.0) & (above > 0.0)


def _team(caps: DeviceCaps, count: int) -> Teams:
    """The largest team, a power of two, that the device and the number of candidates allow."""
    most = min(_MOST_MEMBERS[caps.subgroup_shuffle >= 32], caps.most_members)
    lanes = 1
    while lanes * 2 <= min(most, count):
        lanes *= 2
    return Teams.of(caps, 1, lanes, lanes_first=True)
