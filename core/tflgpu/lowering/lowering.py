"""`Lowering`: what a kernel generator gets for a node, and the dispatches that it makes.

A backend-neutral generator is a function ``build(low: Lowering) -> None`` registered in a
`KernelRule`. It asks for views, writes a kernel with a `Builder`, and calls `dispatch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Union

import numpy as np

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ir.stored_reals import ConstantData
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, Kernel, KernelBuffer
from tflgpu.language.types import Scalar, Size3
from tflgpu.lowering.absent import AbsentCount, AbsentInPart
from tflgpu.lowering.bodies import KernelBodies
from tflgpu.lowering.choices import PREDICTED, Choices, problem_key
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.place import VectorPlace
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.lowering.stored_types import weight_storage
from tflgpu.lowering.view import Link, PairView, ReadView, StackedView, WriteView, load_broadcast
from tflgpu.lowering.weights import Weights, whole_slices
from tflgpu.values import evolve, field, frozen

C = TypeVar("C")

#: The workgroup of kernels whose invocations share nothing.
LINE: Size3 = (64, 1, 1)


@frozen
class Temp:
    """A tensor between the dispatches of one node."""

    id: int
    layout: Layout


@frozen
class Constant:
    """Flat contents of a weights buffer, in the type the kernel reads; or what makes them."""

    data: Array | Weights = field(eq=False)


@frozen
class NewState:
    """The contents of a variable after the run. What it held before is the variable itself, so that
    a kernel may read the one in any order while it writes the other."""

    variable: Value


#: What a kernel's buffer parameter is bound to.
Binding = Union[Value, Temp, Constant, NewState, AbsentCount]


@frozen
class Dispatch:
    """A launch, as `tflgpu.compiler.plan.PlannedDispatch`, with a binding per buffer parameter."""

    kernel: Kernel
    groups: Size3
    bindings: tuple[Binding, ...]
    label: str
    tuned: str = ""
    fewer: tuple[tuple[int, ...], ...] = ()


#: Elementwise op: (builder, attributes, operand vectors) -> result vector, all 4 lanes of the
#: compute type.
ElementwiseExpr = Callable[[Builder, Any, Sequence[Expr]], Expr]


@frozen
class FusedNode:
    """A node that runs inside the store of the kernel that makes one operand: an elementwise one,
    or one that only moves what it reads, to ``place``."""

    node: Node
    expr: ElementwiseExpr | None
    owner: str = ""  # the plugin whose expression it is, "" for a shipped one
    place: VectorPlace | None = None


class InlinedTensor(Protocol):
    """A tensor that kernels compute in the place of loads."""

    def view(self, reader: Lowering, k: Builder, value: Value) -> ReadView:
        """It as ``value`` in a kernel of the reader's."""


#: By the ids of values.
NONE_INLINED: Mapping[int, InlinedTensor] = {}


class Lowering:
    """The workplace of one node's kernel generator."""

    #: Position and slice of the one vector that is made, and its one channel that is needed, where
    #: another kernel computes the node in a load (`tflgpu.lowering.inlined`).
    place: tuple[Expr, Expr] | None = None
    channel: Expr | None = None
    #: Whether all lanes of what is made are that channel.
    took_channel = False
    #: The normalization of the rows of the result, which a kernel that has whole rows may make too:
    #: what it makes, and what it adds to the variance.
    behind: tuple[Value, float] | None = None
    #: Whether it does.
    made_behind = False
    #: The positions that may not count.
    absent: AbsentInPart | None = None

    def __init__(
        self,
        node: Node,
        caps: DeviceCaps,
        precision: Precision,
        layout_of: Callable[[Value], Layout],
        fused: Sequence[FusedNode] = (),
        before: Sequence[Node] = (),
        integers: IntegerStorage = IntegerStorage.WORDS,
        bodies: KernelBodies | None = None,
        inlined: Mapping[int, InlinedTensor] = NONE_INLINED,
        choices: Choices = PREDICTED,
    ) -> None:
        self.node = node
        #: All nodes that the generator makes, ``node`` last: one, but for a `GroupRule`.
        self.nodes: tuple[Node, ...] = (*before, node)
        self.attrs: Any = node.attrs
        self.caps = caps
        self.precision = precision
        #: How whole numbers are stored.
        self.integers = integers
        self.dispatches: list[Dispatch] = []
        self._layout_of = layout_of
        self._fused = tuple(fused)
        #: Of the buffers of kernels that are not dispatched yet, by the id of the builder.
        self.bindings: dict[int, list[Binding]] = {}
        self._bodies = bodies or KernelBodies()
        #: The products that its kernel makes besides, in the order of `Builder.made`.
        self.beside: list[Any] = []
        #: Others of the same operand 0 whose results its kernel makes too: outputs behind its own.
        self.stacked: Sequence[Lowering] = ()
        #: Tensors that are computed where they are read, by the ids of values.
        self.inlined = inlined
        #: By the id of the builder and that of the value: what such loads read.
        self.views: dict[tuple[int, int], ReadView] = {}
        #: Likewise by the id of the node, the name and how many before have it: constants.
        self.constants: dict[tuple[int, int, str, int], KernelBuffer] = {}
        #: By the id of its builder: a kernel whose body is written, and the builder's size then.
        self._written: dict[int, tuple[Kernel, int]] = {}
        self._temps = 0
        self._choices, self._tuned = choices, ""
        #: Whether a kernel's store runs the elementwise chain.
        self.stored_chain = False

    # Types

    @property
    def compute(self) -> Scalar:
        """Lanes of float arithmetic: f32, or f16 in F16 precision."""
        return self.precision.compute

    def compute_of(self, value: Value) -> Scalar:
        """Lanes that values of a tensor are computed in: `compute`, or i32 for whole numbers
        and booleans."""
        return self.compute if value.dtype.is_float else Scalar.I32

    def layout(self, value: Value) -> Layout:
        """How a tensor lies on the device."""
        return self._layout_of(value)

    @property
    def result(self) -> Value:
        """Where output 0 finally goes: the last fused node's output."""
        return self._fused[-1].node.outputs[0] if self._fused else self.node.outputs[0]

    def makes(self, output: int) -> bool:
        """Whether an output is made."""
        return True

    # Kernels

    def kernel(self, name: str, workgroup: Size3 = LINE) -> Builder:
        """Start a kernel; finish it with `dispatch`.

        Raises:
            KernelError: ``workgroup`` is not three positive whole numbers.
        """
        sizes = tuple(workgroup)
        if len(sizes) != 3 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in sizes):
            raise KernelError(f"kernel {name}: {workgroup} is not three positive whole numbers")
        k = Builder(name, workgroup)
        self.bindings[id(k)] = []
        return k

    def read(self, k: Builder, index: int) -> ReadView:
        """Operand ``index`` of the node."""
        return self.read_value(k, self.node.input(index), f"src{index}")

    def lies_in_pairs(self, value: Value) -> bool:
        """Whether a tensor has a buffer whose rows are pairs of f16 vectors, for `read_pairs`."""
        if value.contents is not None or value.id in self.inlined:
            return False
        layout = self._layout_of(value)
        return layout.storage is Scalar.F16 and layout.is_vector and layout.slices % 2 == 0

    def read_pairs(self, k: Builder, value: Value) -> PairView:
        """A tensor by two vectors of f16 at once."""
        buffer = k.buffer("src0", Scalar.U32, 4, "read")
        self.bindings[id(k)].append(value)
        return PairView(k, buffer, self._layout_of(value), Scalar.U32)

    def read_value(self, k: Builder, value: Value, name: str) -> ReadView:
        """Any tensor that exists before this node runs; constants are uploaded."""
        if value.contents is not None:
            return self._read_const(k, value.contents, name)
        if value.id in self.inlined:
            return self.inlined[value.id].view(self, k, value)
        layout = self._layout_of(value)
        buffer = self._bind(k, name, layout, "read", value)
        return ReadView(k, buffer, layout, self.compute_of(value))

    def write(self, k: Builder, index: int = 0) -> WriteView:
        """Output ``index`` of the node; output 0 carries the fused elementwise chain."""
        value = self.result if index == 0 else self.node.outputs[index]
        layout = self._layout_of(value)
        buffer = self._bind(k, f"dst{index}" if index else "dst", layout, "write", value)
        made = self.node.outputs[index]
        links = self._links(k) if index == 0 else ()
        stored = None
        if any(isinstance(link, VectorPlace) for link in links):
            stored, layout = layout, Layout(made.shape, LayoutKind.C4, layout.storage)
        view = WriteView(k, buffer, layout, self.compute_of(made), links, stored)
        if index or not self.stacked:
            return view
        views = (view, *(each.write(k) for each in self.stacked))
        return StackedView(k, buffer, layout, view.compute, views=views)

    def write_behind(self, k: Builder) -> WriteView:
        """The normalized rows of the result, where `behind` says that there are some."""
        assert self.behind is not None
        value, self.made_behind = self.behind[0], True
        layout = self._layout_of(value)
        buffer = self._bind(k, "normal", layout, "write", value)
        return WriteView(k, buffer, layout, self.compute_of(value))

    def new_state(self, k: Builder, index: int) -> WriteView:
        """The new contents of the variable that is operand ``index``; all of it is to be written.
        Where the state begins from a plain tensor, they are not read after the run."""
        variable = self.node.input(index)
        if not variable.is_variable:
            storage = Scalar.F32 if variable.dtype.is_float else Scalar.I32
            return self.write_temp(k, self.temp(variable.shape, storage), f"state{index}")
        layout = self._layout_of(variable)
        buffer = self._bind(k, f"state{index}", layout, "write", NewState(variable))
        return WriteView(k, buffer, layout, self.compute_of(variable))

    def temp(self, shape: Sequence[int], storage: Scalar | None = None) -> Temp:
        """A C4 tensor that lives only between this node's dispatches."""
        self._temps += 1
        storage = storage or self.precision.storage(math.prod(shape), self.caps)
        layout = Layout(tuple(shape), LayoutKind.C4, storage)
        return Temp(self._temps - 1, layout)

    def read_temp(self, k: Builder, temp: Temp, name: str = "temp") -> ReadView:
        """Read a temporary; those of f32 and i32 are read as such in every precision."""
        buffer = self._bind(k, name, temp.layout, "read", temp)
        return ReadView(k, buffer, temp.layout, self._temp_compute(temp))

    def write_temp(self, k: Builder, temp: Temp, name: str = "temp") -> WriteView:
        """Write a temporary."""
        buffer = self._bind(k, name, temp.layout, "write", temp)
        return WriteView(k, buffer, temp.layout, self._temp_compute(temp))

    def _temp_compute(self, temp: Temp) -> Scalar:
        storage = temp.layout.storage
        return storage if storage in (Scalar.F32, Scalar.I32) else self.compute

    def weights(
        self,
        k: Builder,
        data: Array | Weights,
        name: str = "weights",
        *,
        width: int = 4,
        scalar: Scalar | None = None,
    ) -> KernelBuffer:
        """A constant buffer of ``width``-lane elements from ``data`` in row-major order, stored
        as ``scalar`` (default: `weight_storage`)."""
        weights = data if isinstance(data, Weights) else Weights(data)
        scalar = scalar or weight_storage(weights, self.precision, self.caps)
        if weights.size % width:
            raise KernelError(f"{self.node.label}: {weights.size} weights in vectors of {width}")
        buffer = k.buffer(name, scalar, width, "read")
        stored = evolve(weights, dtype=scalar.numpy)
        # What is large, and as a file has it, is written when it is uploaded.
        later = isinstance(data, Weights) and data.is_from_file
        self.bindings[id(k)].append(Constant(stored if later else stored.array()))
        return buffer

    def weight_pairs(self, k: Builder, data: Weights, name: str = "weights") -> KernelBuffer:
        """A constant buffer of f16 vectors from ``data``, of which two are read at once, as the
        bits of u32x4."""
        buffer = k.buffer(name, Scalar.U32, 4, "read")
        stored = evolve(data, dtype=Scalar.F16.numpy)
        self.bindings[id(k)].append(Constant(stored if data.is_from_file else stored.array()))
        return buffer

    def body(self, k: Builder, write: Callable[..., None], *args: Any) -> None:
        """Have ``write(k, *args)`` write the whole of a kernel, which is dispatched then. Where a
        kernel of the plan was begun with the same buffers, and written by the same function with
        the same arguments, it is that one (`tflgpu.lowering.bodies`), and ``write`` is not
        called."""
        self._written[id(k)] = self._bodies.kernel(k, write, args), k.size

    def dispatch(self, k: Builder, invocations: tuple[int, int, int]) -> None:
        """Launch a kernel over at least ``invocations``, rounded up to whole workgroups; the
        kernel must leave out the excess itself (`guard`)."""
        x, y, z = (-(-n // w) for n, w in zip(invocations, k.workgroup, strict=True))
        self.dispatch_groups(k, (x, y, z))

    def dispatch_groups(self, k: Builder, groups: Size3) -> None:
        """Launch a kernel over a number of workgroups.

        Raises:
            KernelError: it was launched before, or is another lowering's; or as `Builder.build`.
        """
        if id(k) not in self.bindings:
            raise KernelError(
                f"{self.node.label}: kernel {k.name} is launched twice, or was not begun by "
                "`Lowering.kernel`; each launch has a kernel of its own"
            )
        bindings = tuple(self.bindings.pop(id(k)))
        if any(g < 1 for g in groups):
            raise KernelError(f"{self.node.label}: {groups} workgroups")
        written = self._written.pop(id(k)) if id(k) in self._written else None
        kernel, size = written or (k.build(), k.size)
        if k.size != size or len(kernel.buffers) != len(bindings):
            raise KernelError(f"{self.node.label}: kernel {k.name} goes on behind its body")
        # A body that was written before is the same function's, with the same chain.
        self.stored_chain |= "chain" in k.marks or (written is not None and not k.size)
        launch = Dispatch(kernel, groups, bindings, self.node.label, self._tuned)
        self.dispatches.append(launch)

    def choose(
        self, kind: str, sizes: Sequence[int], candidates: Sequence[C], cost: Callable[[C], float]
    ) -> C:
        """The way in which the next kernels are written: the measured one of several, else that of
        the least predicted cost (`tflgpu.lowering.choices`).

        Args:
            kind: What is chosen.
            sizes: Those of the problem, as far as tensors' shapes do not say them.
            candidates: At least one: texts, or attrs values, whose fields are their name.
            cost: Predicted, in any unit.
        """
        chosen, name = self._choices.choose(
            lambda: self._problem(kind, sizes), candidates, cost, self._all_nodes
        )
        self._tuned = f"{kind} {name}" if name else ""
        return chosen

    # Inside

    def _problem(self, kind: str, sizes: Sequence[int]) -> str:
        def storage(value: Value) -> str:
            return self._layout_of(value).storage.name.lower()

        return problem_key(kind, sizes, self.precision.name, self._all_nodes, storage)

    @property
    def _all_nodes(self) -> tuple[Node, ...]:
        return (*self.nodes, *(each.node for each in self.stacked))

    def _bind(
        self, k: Builder, name: str, layout: Layout, access: str, binding: Binding
    ) -> KernelBuffer:
        width = 4 if layout.is_vector else 1
        buffer = k.buffer(name, layout.storage, width, access)
        self.bindings[id(k)].append(binding)
        return buffer

    def _read_const(self, k: Builder, contents: ConstantData, name: str) -> ReadView:
        is_float = contents.dtype.kind == "f"
        whole = self.integers.inside(DType.from_numpy(contents.dtype), self.caps)
        size, weights = math.prod(contents.shape), Weights(contents)
        storage = self.precision.storage(size, self.caps) if is_float else whole
        if storage is Scalar.F16 and not weights.suits_f16:
            storage = Scalar.F32
        layout = Layout(contents.shape, LayoutKind.C4, storage)
        if layout.channels % 4:
            rows = weights.as_type(storage.numpy).reshape(layout.outer, layout.channels)
            weights = Weights(whole_slices(rows, storage.numpy))
        buffer = self.weights(k, weights, name, scalar=storage)
        return ReadView(k, buffer, layout, self.compute if is_float else Scalar.I32)

    def _links(self, k: Builder) -> tuple[Link, ...]:
        made = [self.node.outputs[0].id]
        links: list[Link] = []
        for fused in self._fused:
            links.append(self._link(k, fused, made) if fused.place is None else fused.place)
            made.append(fused.node.outputs[0].id)
        return tuple(links)

    def _link(self, k: Builder, fused: FusedNode, made: Sequence[int]) -> Link:
        """Apply a node's expression to the results of the chain so far, ``made`` in this order, and
        to other operands."""
        node = fused.node
        given = [v for v in node.inputs if v is not None]
        # A view, or the place in the chain of what is at hand.
        sources = tuple(
            made.index(v.id) if v.id in made else self.read_value(k, v, f"fused{i}")
            for i, v in enumerate(given)
        )
        # Only what it needs is in the closure: bodies that were written with equal ones are the
        # same.
        expr, attributes, out = fused.expr, node.attrs, node.outputs[0].shape
        channel = self.channel
        assert expr is not None

        def link(k: Builder, chain: Sequence[Expr], outer: Expr, slice_: Expr) -> Expr:
            operands = [
                chain[each]
                if isinstance(each, int)
                else load_broadcast(each, outer, slice_, out, channel)
                for each in sources
            ]
            return expr(k, attributes, operands)

        return link


def guard(k: Builder, *checks: Expr) -> None:
    """Leave out the invocations for which any check fails (the excess of the last workgroup)."""
    for condition in checks:
        with k.if_(~condition):
            k.return_()
