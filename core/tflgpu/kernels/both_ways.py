"""Where the outputs of two directions through time go: into a result each, or beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from tflgpu.kernels.recurrent import Steps
from tflgpu.language.builder import Builder
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.view import WriteView
from tflgpu.ops.both_ways import sizes_of

_WORKGROUP = 64


class Directions:
    """The two directions of a node whose options are ``time_major`` and ``merged``."""

    def __init__(self, low: Lowering, units: Sequence[int]) -> None:
        """``units`` are the outputs of the forward and the backward direction."""
        self._low = low
        shape = low.node.input(0).shape
        self._sizes = sizes_of(shape, low.attrs.time_major)
        self._rows = prod(shape[:2])
        # A slice of four may have outputs of both.
        self._apart = (
            [low.temp((self._rows, n), Scalar.F32) for n in units] if low.attrs.merged else []
        )

    def steps(self, way: int) -> Steps:
        """How direction 0 or 1 goes through time."""
        return Steps(*self._sizes, self._low.attrs.time_major, backward=bool(way))

    def write(self, way: int) -> Callable[[Builder], WriteView]:
        """Where the outputs of a direction go."""
        if self._apart:
            return partial(self._low.write_temp, temp=self._apart[way])
        return partial(self._low.write, index=way)

    def merge(self) -> None:
        """After both: one dispatch that puts them beside each other, if they are to be."""
        if not self._apart:
            return
        low = self._low
        k = low.kernel("merge_directions", (_WORKGROUP, 1, 1))
        first, second = (
            low.read_temp(k, temp, name)
            for temp, name in zip(self._apart, ("forward", "backward"), strict=True)
        )
        out = low.write(k)
        slice_, row = k.let(k.global_id(0), "slice"), k.let(k.global_id(1), "row")
        guard(k, slice_ < out.slices)
        lanes = []
        for lane in range(4):
            channel = k.let(slice_ * 4 + lane, "channel")
            one = first.load_lane(row, k.min(channel, first.channels - 1))
            place = k.clamp(channel - first.channels, 0, second.channels - 1)
            lanes.append(k.select(channel < first.channels, one, second.load_lane(row, place)))
        out.store(row, slice_, k.vec(lanes))
        low.dispatch(k, (out.slices, self._rows, 1))
