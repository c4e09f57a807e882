"""A tensor that is computed where it is read, and so has no buffer.

    SLICE(x) -> a, SLICE(x) -> b, ADD(MUL(a, c), MUL(b, s)) -> y      one kernel, that reads x

A rule that makes each vector by itself (`KernelRule.pointwise`) can write its code into the kernel
of a reader, in the place of a load: `Inlined` has it do so, by a `Lowering` whose kernel is the
reader's, whose place is where the reader reads, and whose result is a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Value
from tflgpu.language import make
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Const, Expr, KernelBuffer, Name, Operand
from tflgpu.language.types import I32, Scalar, Size3
from tflgpu.lowering.layout import Layout, LayoutKind, Shape
from tflgpu.lowering.lowering import LINE, FusedNode, Lowering
from tflgpu.lowering.view import ReadView, WriteView, fill_padding
from tflgpu.lowering.weights import Weights
from tflgpu.values import field, frozen

_LANES = 4


@frozen(eq=False)
class Inlined:
    """A result of a node, after what joined its store, that readers compute.

    Attributes:
        head: The node.
        build: What makes its kernel.
        fused: What joined its store.
        output: Which result of the node's it is.
    """

    head: Node
    build: Callable[[Lowering], None]
    fused: Sequence[FusedNode]
    output: int = 0

    def view(self, reader: Lowering, k: Builder, value: Value) -> ReadView:
        """It as ``value``, the same elements in order in any shape, in a kernel of the reader's."""
        made = self.fused[-1].node.outputs[0] if self.fused else self.head.outputs[self.output]
        compute = reader.compute_of(made)

        def compute_at(outer: Expr, slice_: Expr, channel: Expr | None) -> tuple[Expr, bool]:
            low = _InLoad(reader, k, self, (outer, slice_), channel)
            self.build(low)
            assert low.made is not None
            return low.made, low.took_channel

        layout = Layout(value.shape, LayoutKind.C4, compute)
        nowhere: Any = None
        return ComputedView(k, nowhere, layout, compute, made.shape, compute_at)


#: Row-major position, slice, and the one channel that is needed, if it is one -> the vector, and
#: whether all of its lanes are that channel.
_Compute = Callable[[Expr, Expr, Expr | None], tuple[Expr, bool]]


@frozen
class ComputedView(ReadView):
    """An operand without a buffer.

    Attributes:
        made: The shape in which it is computed: that of the view, or one whose elements lie in the
            same order, with rows as long or of whole vectors.
    """

    made: Shape = field()
    compute_at: _Compute = field()

    def load(self, outer: Operand, slice_: Operand) -> Expr:
        """Four channels: see `ReadView.load`; what made them may have filled the padding."""
        outer, slice_ = self._index(outer), self._index(slice_)
        if self._same_rows:
            value, _ = self._value(outer, slice_)
        else:
            at, row = self.k.let(outer * self.slices + slice_, "vector"), self.made[-1] // _LANES
            value, _ = self._value(self._index(at // row), self._index(at % row))
        if self.channels % _LANES == 0:
            return value
        return fill_padding(self.k, value, slice_, self.channels)

    def load_lane(self, outer: Operand, channel: Operand) -> Expr:
        """One channel."""
        outer, channel = self._index(outer), self._index(channel)
        if not self._same_rows:
            at = self.k.let(outer * self.channels + channel, "flat")
            outer, channel = self._index(at // self.made[-1]), self._index(at % self.made[-1])
        slice_ = self._index(channel // _LANES)
        value, is_channel = self._value(outer, slice_, channel)
        if is_channel:
            return value.lane(0)
        if isinstance(channel, Const):
            return value.lane(int(channel.value) % _LANES)
        lane = self.k.let(channel % _LANES, "lane")
        last = min(_LANES, self.made[-1]) - 1
        found = value.lane(last)
        for i in range(last):
            found = self.k.select(lane.eq(i), value.lane(i), found)
        return found

    def _value(self, outer: Expr, slice_: Expr, channel: Expr | None = None) -> tuple[Expr, bool]:
        value, is_channel = self.compute_at(outer, slice_, channel)
        return self.k.let(self.k.cast(value, self.compute), "made"), is_channel

    @property
    def _same_rows(self) -> bool:
        return self.channels == (self.made[-1] if self.made else 1)

    def load_flat(self, index: Operand) -> Expr:
        """The element at a row-major index over the whole shape."""
        index = self._index(index)
        return self.load_lane(index // self.channels, index % self.channels)

    def _index(self, index: Operand) -> Expr:
        found = make.wrap(index, I32)
        return found if isinstance(found, (Const, Name)) else self.k.let(found, "at")


@frozen(eq=False)
class InlinedProduct:
    """A product's result, after what joined its store, that the chain in the store of another
    product reads, whose kernel makes both."""

    head: Node
    build: Callable[[Lowering], None]
    fused: Sequence[FusedNode]

    def view(self, reader: Lowering, k: Builder, value: Value) -> ReadView:
        """It as an operand of the reader's chain."""
        if self not in reader.beside:
            reader.beside.append(self)
        compute = reader.compute_of(value)
        layout, number = Layout(value.shape, LayoutKind.C4, compute), reader.beside.index(self)
        nowhere: Any = None
        return MadeBeside(k, nowhere, layout, compute, number)


@frozen
class MadeBeside(ReadView):
    """The vector that the kernel has made where its store is now, by the number of its product."""

    number: int

    def load(self, outer: Operand, slice_: Operand) -> Expr:
        """That vector."""
        return self.k.made[self.number]


class Within(Lowering):
    """The workplace of a node whose kernel another one's is."""

    def __init__(self, reader: Lowering, head: Node, fused: Sequence[FusedNode]) -> None:
        super().__init__(
            head,
            reader.caps,
            reader.precision,
            reader.layout,
            fused,
            (),
            reader.integers,
            inlined=reader.inlined,
        )
        # What loads of one kernel read, they read from one buffer.
        self.bindings = reader.bindings


class Beside(Within):
    """The workplace of a product that the kernel of another makes too.

    Attributes:
        problem: It, once its rule has made it.
    """

    problem: Any = None

    def __init__(self, reader: Lowering, inlined: InlinedProduct) -> None:
        super().__init__(reader, inlined.head, inlined.fused)

    def write(self, k: Builder, index: int = 0) -> WriteView:
        """What joined its store, without a buffer behind it."""
        made = self.node.outputs[index]
        compute = self.compute_of(made)
        nowhere: Any = None
        layout = Layout(made.shape, LayoutKind.C4, compute)
        return WriteView(k, nowhere, layout, compute, self._links(k))


@frozen
class _Result(WriteView):
    """Where the kernel of an inlined node stores."""

    into: Callable[[Expr], None] = field(kw_only=True)

    def store(self, outer: Expr, slice_: Operand, value: Expr) -> None:
        _, _, value = self.linked(outer, slice_, value)
        self.into(value)


class _InLoad(Within):
    """The workplace of a node that is computed in a load of another's kernel."""

    def __init__(
        self,
        reader: Lowering,
        k: Builder,
        inlined: Inlined,
        place: tuple[Expr, Expr],
        channel: Expr | None,
    ) -> None:
        super().__init__(reader, inlined.head, inlined.fused)
        self.place, self.channel = place, channel
        self.made: Expr | None = None
        self._k, self._output = k, inlined.output
        self.views = reader.views
        self.constants, self._names = reader.constants, Counter[str]()

    def kernel(self, name: str, workgroup: Size3 = LINE) -> Builder:
        return self._k

    def makes(self, output: int) -> bool:
        return output == self._output

    def read_value(self, k: Builder, value: Value, name: str) -> ReadView:
        key = id(k), value.id
        if key not in self.views:
            self.views[key] = super().read_value(k, value, f"in_{name}")
        return self.views[key]

    def weights(
        self,
        k: Builder,
        data: Array | Weights,
        name: str = "weights",
        *,
        width: int = 4,
        scalar: Scalar | None = None,
    ) -> KernelBuffer:
        key = id(k), id(self.node), name, self._names[name]
        self._names[name] += 1
        if key not in self.constants:
            made = super().weights(k, data, f"in_{name}", width=width, scalar=scalar)
            self.constants[key] = made
        return self.constants[key]

    def write(self, k: Builder, index: int = 0) -> WriteView:
        made = self.node.outputs[index]
        compute = self.compute_of(made)
        layout = Layout(made.shape, LayoutKind.C4, compute)
        links = self._links(k) if index == 0 else ()
        nowhere: Any = None
        return _Result(k, nowhere, layout, compute, links, into=self._take)

    def dispatch_groups(self, k: Builder, groups: Size3) -> None:
        pass  # it is the reader's

    def _take(self, value: Expr) -> None:
        self.made = value
