"""Tensors as kernels see them: vectors of four channels, in every layout and storage.

A kernel asks its `Lowering` for a `ReadView` of each operand and a `WriteView` of its result
and never computes a buffer index itself, so one kernel serves every layout and precision. The
write view also runs the elementwise chain that was fused into the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from tflgpu.language import make
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Const, Expr, KernelBuffer, Operand
from tflgpu.language.types import I32, Scalar, Type, type_of
from tflgpu.lowering.layout import Layout, Shape
from tflgpu.lowering.place import VectorPlace
from tflgpu.values import field, frozen

#: (builder, values so far, outer index, slice index) -> value, one fused elementwise step; or where
#: the value is stored, which is all that follows a step knows of.
Link = Union[Callable[[Builder, Sequence[Expr], Expr, Expr], Expr], VectorPlace]


@frozen
class View:
    """A tensor in a kernel's buffer; its values are ``compute`` lanes."""

    k: Builder
    buffer: KernelBuffer
    layout: Layout
    compute: Scalar

    @property
    def shape(self) -> Shape:
        """The tensor's shape."""
        return self.layout.shape

    @property
    def channels(self) -> int:
        """The last dimension, 1 for a scalar."""
        return self.layout.channels

    @property
    def slices(self) -> int:
        """Vectors of four that hold the channels."""
        return self.layout.slices

    @property
    def vectors(self) -> int:
        """Vectors of four that hold the tensor."""
        return self.layout.outer * self.layout.slices


@frozen
class ReadView(View):
    """An operand; lanes beyond the channels read as zero."""

    @property
    def vector_type(self) -> Type:
        """The type of `load`'s result."""
        return type_of(self.compute, 4)

    def load(self, outer: Operand, slice_: Operand) -> Expr:
        """Channels ``4*slice_ ..`` at row-major position ``outer`` of the other dimensions."""
        k, layout = self.k, self.layout
        if layout.is_vector:
            return k.load(self.buffer, _at(outer, layout.slices, slice_), self.compute)
        if isinstance(slice_, Expr) and layout.slices == 1:
            slice_ = 0
        lanes = []
        for lane in range(4):
            channel = _at(slice_, 4, lane)
            index = _at(outer, layout.channels, channel)
            if isinstance(channel, Const):
                inside = int(channel.value) < layout.channels
                lanes.append(
                    k.load_lane(self.buffer, index, self.compute)
                    if inside
                    else k.const(0, type_of(self.compute))
                )
            else:
                # Read a lane that exists, then discard it: cheaper than a branch.
                safe = k.min(channel, layout.channels - 1)
                value = k.load_lane(self.buffer, _at(outer, layout.channels, safe), self.compute)
                zero = k.const(0, type_of(self.compute))
                lanes.append(k.select(channel < layout.channels, value, zero))
        return k.vec(lanes)

    def load_lane(self, outer: Operand, channel: Operand) -> Expr:
        """One channel."""
        row = self.layout.slices * 4 if self.layout.is_vector else self.layout.channels
        return self.k.load_lane(self.buffer, _at(outer, row, channel), self.compute)

    def load_flat(self, index: Operand) -> Expr:
        """The element at a row-major index over the whole shape, padding not counted."""
        layout = self.layout
        if not layout.is_vector or layout.channels % 4 == 0:
            return self.k.load_lane(self.buffer, index, self.compute)
        index = make.wrap(index, I32)
        return self.load_lane(index // layout.channels, index % layout.channels)


@frozen
class PairView(ReadView):
    """An operand that lies as f16 vectors, of which two neighbours are read at once, as the bits of
    u32x4; its rows have an even number of them."""

    def load(self, outer: Operand, slice_: Operand) -> Expr:
        """Vectors ``slice_``, which is even, and ``slice_ + 1`` at a position."""
        half = make.wrap(slice_, I32) >> 1
        return self.k.load(self.buffer, _at(outer, self.layout.slices // 2, half))


@frozen
class WriteView(View):
    """A result. Takes ``compute`` (or f32) lanes, applies the fused chain, keeps padding zero.

    ``layout`` is what a generator counts by; ``stored`` is how the buffer lies, where something in
    the chain moves what the generator made to other places.
    """

    links: Sequence[Link] = ()
    stored: Layout | None = None

    def store(self, outer: Expr, slice_: Operand, value: Expr) -> None:
        """Write channels ``4*slice_ ..`` at row-major position ``outer``."""
        self.put(*self.linked(outer, slice_, value))

    def put(self, outer: Expr, at: Expr, value: Expr) -> None:
        """Write what `linked` gives."""
        k, layout = self.k, self.stored or self.layout
        if layout.slices == 1:
            at = make.wrap(0, I32)
        if layout.is_vector:
            if layout.channels % 4:
                value = fill_padding(k, k.let(value, "padded"), at, layout.channels)
            k.store(self.buffer, _at(outer, layout.slices, at), self._as_stored(value))
            return
        value = k.let(value, "result")
        for lane in range(4):
            channel = _at(at, 4, lane)
            index = _at(outer, layout.channels, channel)
            if isinstance(channel, Const):
                if int(channel.value) < layout.channels:
                    k.store_lane(self.buffer, index, self._as_stored(value.lane(lane)))
            else:
                with k.if_(channel < layout.channels):
                    k.store_lane(self.buffer, index, self._as_stored(value.lane(lane)))

    def made(self, outer: Expr, slice_: Operand, value: Expr) -> Callable[[], None]:
        """All of `store` but the writing, which is done where what this gives is called: under a
        condition, say, where what is made is there in any case."""
        to, at, found = self.linked(outer, slice_, value)
        found = self.k.let(found, "result")
        return lambda: self.put(to, at, found)

    def linked(self, outer: Expr, slice_: Operand, value: Expr) -> tuple[Expr, Expr, Expr]:
        """What the fused chain makes of a vector, and where that goes: position and slice."""
        k, at = self.k, make.wrap(0 if self.layout.slices == 1 else slice_, I32)
        value = k.cast(value, self.compute)
        chain: list[Expr] = []
        if self.links:
            k.marks.add("chain")
        for link in self.links:
            chain.append(k.let(value, "linked"))
            if isinstance(link, VectorPlace):
                value = chain[-1]
                outer, at = link.of(k, outer, at)
            else:
                value = link(k, chain, outer, at)
        return outer, at, value

    def _as_stored(self, value: Expr) -> Expr:
        # An f16 buffer takes f32 as it is (the store rounds); nothing else converts in a store.
        if self.buffer.scalar is Scalar.F16 and value.type.scalar is Scalar.F32:
            return value
        return self.k.cast(value, self.buffer.value_type.scalar)


@frozen
class StackedView(WriteView):
    """Results of which each has the slices behind those of the one before; with chains of their
    own.

    Attributes:
        views: They.
    """

    views: tuple[WriteView, ...] = field(kw_only=True)

    def store(self, outer: Expr, slice_: Operand, value: Expr) -> None:
        """Write to the result that has the slice."""
        self._store(self.views, outer, make.wrap(slice_, I32), self.k.let(value, "stacked"))

    def made(self, outer: Expr, slice_: Operand, value: Expr) -> Callable[[], None]:
        """As of one result, of which none is made beforehand."""
        found = self.k.let(value, "result")
        return lambda: self.store(outer, slice_, found)

    def _store(self, views: Sequence[WriteView], outer: Expr, at: Expr, value: Expr) -> None:
        (view, *rest), k = views, self.k
        if not rest:
            view.store(outer, at, value)
            return
        with k.if_(at < view.slices):
            view.store(outer, at, value)
        with k.else_():
            self._store(rest, outer, k.let(at - view.slices, "slice"), value)


def _at(row: Operand, size: int, column: Operand) -> Expr:
    """``row * size + column``."""
    return make.wrap(row, I32) * size + make.wrap(column, I32)


def fill_padding(
    k: Builder, value: Expr, slice_: Expr, channels: int, fill: float | None = 0
) -> Expr:
    """A vector with the lanes beyond the channels set to ``fill``, or (None) to its first lane."""
    slices, valid = -(-channels // 4), (channels - 1) % 4 + 1
    other = value.lane(0) if fill is None else k.const(fill, value.type.with_width(1))
    kept = k.vec([value.lane(i) if i < valid else other for i in range(4)])
    return kept if slices == 1 else k.select(slice_.eq(slices - 1), kept, value)


def decompose(k: Builder, outer: Expr, dims: Sequence[int]) -> list[Expr]:
    """Row-major position -> one index per dimension of ``dims`` (each let-bound)."""
    indices: list[Expr] = []
    rest = outer
    for i, dim in reversed(list(enumerate(dims))):
        if i == 0:
            indices.append(rest)
        elif dim == 1:
            indices.append(k.i32(0))
        else:
            indices.append(k.let(rest % dim, "d"))
            rest = k.let(rest // dim, "q")
    return indices[::-1]


def broadcast_outer(k: Builder, outer: Expr, out: Shape, operand: Shape) -> Expr:
    """Position in an operand (NumPy broadcasting) for position ``outer`` of the output."""
    out_dims = out[:-1]
    dims = (1,) * (len(out_dims) - len(operand[:-1])) + tuple(operand[:-1])
    if dims == out_dims:
        return outer
    if all(d == 1 for d in dims):
        return k.i32(0)
    position: Expr = k.i32(0)
    for index, dim in zip(decompose(k, outer, out_dims), dims, strict=True):
        position = position * dim + (index if dim > 1 else 0)
    return k.let(position, "bcast")


def load_broadcast(
    view: ReadView, outer: Expr, slice_: Expr, out: Shape, channel: Expr | None = None
) -> Expr:
    """An operand's four channels for a position of the output, broadcast as NumPy does; the one
    ``channel`` four times, where only that is needed."""
    k = view.k
    position = broadcast_outer(k, outer, out, view.shape)
    if channel is not None:
        return k.splat(view.load_lane(position, 0 if view.channels == 1 else channel), 4)
    if view.channels == 1 and (out[-1] if out else 1) > 1:
        return k.splat(view.load_lane(position, 0), 4)
    return view.load(position, slice_)
