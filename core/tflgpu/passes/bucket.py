"""Makes a graph at one size compute smaller sizes, too: a bucket.

    at 32:  ids [1,32] -> ... x [1,32,8] -> MEAN(1) -> y [1,8]
    bucket: ids [1,32] -> ... x [1,32,8] -> SELECT_V2(mask [32,1], x, 0) -> MEAN(1) -> MUL(ratio)

The graph is held against the one that the file has at a smaller size. Axes whose sizes differ are
those of the bucket. Along these each op says what it does (`OpDef.positions`). Where it puts
positions together, those that do not count get a number that changes nothing; where it says nothing
or cannot, the reason is the answer. Constants that are others at another size, the masks, and what
an average is off by are inputs of the graph, with contents for each size.

All of that is looked at again for every size that a bucket is to compute. So nothing is concluded
from some sizes about others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import zip_longest

import numpy as np

from tflgpu.errors.blame import Failed, attempt, listed, quoted
from tflgpu.ir.absent import AbsentPositions
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Shape, Value
from tflgpu.ir.stored_reals import StoredReals
from tflgpu.ir.verify import verify
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import NoAttrs, OpDef, known_operands
from tflgpu.ops.binary import BinaryAttrs
from tflgpu.ops.positions import Along, Positions, broadcast
from tflgpu.ops.unknown import unknown_reason
from tflgpu.passes.attention_operands import scaling
from tflgpu.values import frozen


@frozen(eq=False)
class Bucket:
    """A graph for several sizes.

    Attributes:
        graph: Its inputs and outputs have the ids of the file; further inputs come after them.
        contents: Of the further inputs at the smaller size, by id.
        full: The same at the size of the bucket itself.
        varying: Constants of the file's graph that are inputs here, by id.
        recipe: What was done. A graph at another size that leads to an equal one is computed by
            this bucket.
    """

    graph: Graph
    contents: Mapping[int, Array]
    full: Mapping[int, Array]
    varying: AbstractSet[int]
    recipe: tuple[object, ...]


def bucket_of(
    wide: Graph, narrow: Graph, ops: Mapping[str, OpDef], varying: AbstractSet[int] = frozenset()
) -> Bucket | Unsupported:
    """A graph that computes what both graphs do, each at its size, or why there is none.

    Args:
        wide: At the size of the bucket. It is not changed.
        narrow: The same subgraph of the file at a smaller size.
        ops: Op definitions by name.
        varying: Constants that are inputs even if they have the same contents in both graphs.

    Raises:
        GraphError: an op's definition made something that is no graph.
    """
    made = wide.copy()
    work = _BucketGraph(made, narrow, ops, varying)
    try:
        work.compute()
    except _Refused as refused:
        return Unsupported(str(refused))
    made.nodes = work.nodes
    made.inputs += work.extra
    made.absent = work.absent
    made.prune()
    verify(made, "bucket")
    return Bucket(made, work.contents, work.full, frozenset(work.parameters), tuple(work.recipe))


class _Refused(Exception):
    """Why there is no bucket."""


class _BucketGraph:
    """A graph on its way."""

    def __init__(
        self, graph: Graph, narrow: Graph, ops: Mapping[str, OpDef], varying: AbstractSet[int]
    ) -> None:
        self.graph, self.narrow, self.ops, self.varying = graph, narrow, ops, varying
        self.size = self.real = 0
        self.nodes: list[Node] = []
        self.extra: list[Value] = []
        self.contents: dict[int, Array] = {}
        self.full: dict[int, Array] = {}
        self.parameters: dict[int, Value] = {}  # by the constant that each stands for
        self.recipe: list[object] = []
        self._axes: dict[int, frozenset[int]] = {}  # that change in size, by value
        self._zero: dict[int, frozenset[int]] = {}  # beyond whose size a value is 0
        self._twins: dict[int, int] = {}  # ids of the narrow graph
        self._real: dict[int, Shape] = {}  # shapes at the smaller size, by value
        self._masks: dict[tuple[int, int], Value] = {}
        self._ratios: dict[float, Value] = {}
        self._filled: dict[tuple[int, int, float], Value] = {}
        self._made: dict[int, tuple[Node, Positions]] = {}
        self._made_full: set[int] = set()  # values that hold a number beyond their size
        self.absent: AbsentPositions | None = None

    def compute(self) -> None:
        """Make the nodes.

        Raises:
            _Refused: there is no bucket of these graphs.
        """
        graph, narrow = self.graph, self.narrow
        pairs = list(zip(graph.inputs, narrow.inputs, strict=True))
        sizes = {s for v, c in pairs for s in zip(v.shape, c.shape, strict=True) if s[0] != s[1]}
        if len(sizes) != 1 or any(v.is_variable for v in graph.values.values()):
            raise _Refused("the model keeps state, or its inputs change in size in several ways")
        ((self.size, self.real),) = sizes
        for value, less in pairs:
            self._relate(value, less)
            self._zero[value.id] = self._axes[value.id]
        for node, cut in zip_longest(tuple(graph.nodes), narrow.nodes):
            if node is None or cut is None or node.op != cut.op or node.origins != cut.origins:
                raise _Refused("the model has other operators at another size")
            try:
                self._add(node, cut)
            except _Refused as refused:
                raise _Refused(f"operator {node.label}: {refused}") from None
        for value, less in zip(graph.outputs, narrow.outputs, strict=True):
            if self._twins.get(value.id) != less.id:
                raise _Refused(f"output {_named(value)} does not depend on the inputs")
        count = np.array([self.size - self.real], np.int32)
        made = self._input((1,), DType.I32, count, np.zeros(1, np.int32))
        self.absent = AbsentPositions(
            made.id,
            {i: (graph.values[i].shape, min(axes)) for i, axes in self._axes.items() if axes},
            frozenset(i for i, axes in self._zero.items() if axes) | self._made_full,
        )

    def _add(self, node: Node, cut: Node) -> None:
        """A node that follows those before it, and the same one at the smaller size."""
        found = self._positions(node, cut)
        operands = known_operands(node.inputs)
        for i, (value, less) in enumerate(zip(node.inputs, cut.inputs, strict=True)):
            if value is None or less is None or (i in found.shapes and value.is_const):
                continue
            self._operand(value, less)
            if value.id in self.parameters:
                axes = found.operands[i] if i < len(found.operands) else (None,)
                if None in axes or i in self.ops[node.op].must_know(node.attrs, operands):
                    raise _Refused(f"{_named(value)} is another constant at another size")
                node.inputs[i] = self.parameters[value.id]
        for value, less in zip(node.outputs, cut.outputs, strict=True):
            self._relate(value, less)
        self._become(node, found)

    # Inside

    def _positions(self, node: Node, cut: Node) -> Positions:
        unknown = unknown_reason(node.attrs)
        if unknown is not None or not (node.shapes_known and cut.shapes_known):
            raise _Refused(unknown or "shapes of its results are not known before the model runs")
        definition = self.ops.get(node.op)
        if definition is None or definition.state is not None:
            raise _Refused(f"{node.op} keeps state, or is not defined")
        others = node.attrs != cut.attrs and not definition.movement.is_view
        if others or len(node.inputs) != len(cut.inputs):
            raise _Refused("it has other attributes or operands at another size")
        if definition.positions is not None:
            said = attempt(definition.positions, node, cut)
            if not isinstance(said, Positions):
                failed = isinstance(said, Failed)
                raise _Refused(f"asked what it does, it raised {said}" if failed else str(said))
            return said
        if not definition.is_elementwise(node):
            raise _Refused(f"{node.op} does not say what it does along axes that change in size")
        found = broadcast(node, cut)
        checked = [
            [a and Along(a.axis, 1) for a in axes]
            if i in definition.device.checked and node.input(i).dtype.is_int
            else axes
            for i, axes in enumerate(found.operands)
        ]  # whole divisors, of which 0 is refused
        return Positions(checked)

    def _relate(self, value: Value, cut: Value) -> None:
        """Learn along which axes a value changes in size."""
        pairs = list(zip_longest(value.shape, cut.shape, fillvalue=-1))
        axes = frozenset(i for i, (size, real) in enumerate(pairs) if size != real)
        less = self.size - self.real
        if any(pairs[i][0] - pairs[i][1] != less for i in axes) or value.dtype is not cut.dtype:
            raise _Refused(
                f"{_named(value)} has the shape {listed(value.shape)} at {self.size}, and "
                f"{listed(cut.shape)} at {self.real}"
            )
        self._axes[value.id], self._twins[value.id] = axes, cut.id
        self._real[value.id] = cut.shape
        self._zero.setdefault(value.id, frozenset())
        self.recipe.append((value.id, axes))

    def _operand(self, value: Value, cut: Value) -> None:
        """Hold an operand against that of the smaller size."""
        if value.is_const != cut.is_const:
            raise _Refused(f"{_named(value)} is a constant at one size only")
        if not value.is_const or value.id in self._twins:
            if self._twins.get(value.id) != cut.id:
                raise _Refused("it has other operands at another size")
            return
        self._relate(value, cut)
        if value.id in self.varying or not _begins_with(value, cut):
            whole, real = value.data, cut.data
            if value.quant is not None or whole is None or real is None:
                raise _Refused(f"{_named(value)}, which is quantized, is another at another size")
            padded = np.zeros_like(whole)
            padded[corner(cut.shape)] = real
            made = self._input(value.shape, value.dtype, padded, whole)
            self.parameters[value.id] = made
            self._axes[made.id] = self._zero[made.id] = self._axes[value.id]
            self._real[made.id] = cut.shape

    def _changing(self, node: Node, found: Positions) -> Iterator[tuple[int, int, Along]]:
        """What is done along each axis of an operand that changes in size: position, axis."""
        for i, value in enumerate(node.inputs):
            axes = found.operands[i] if i < len(found.operands) else ()
            for axis in sorted(() if value is None else self._axes.get(value.id, ())):
                along = axes[axis] if axis < len(axes) else None
                if along is None:
                    raise _Refused(
                        f"it puts positions along axis {axis} of {_named(value)} together, whose "
                        "number changes"
                    )
                yield i, axis, along

    def _become(self, node: Node, found: Positions) -> None:
        changing, moves = list(self._changing(node, found)), self._moves(node)
        sources = {along.axis for axes in found.operands for along in axes if along is not None}
        targets = {along.axis for _, _, along in changing} - {None}
        zero, ratio = set(), 1.0
        for i, axis, along in changing:
            value = node.input(i)
            is_zero = axis in self._zero[value.id]
            if i == 0 and axis in found.averaged:
                ratio *= value.shape[axis] / self._real[value.id][axis]
            if along.axis is not None and (along.clears or (moves and is_zero)):
                zero.add(along.axis)
            if along.fill is None or (along.fill == 0 and is_zero):
                continue
            if value.quant is not None:
                raise _Refused(f"{_named(value)} is quantized, and positions of it do not count")
            node.inputs[i] = self._fill(value, axis, along.fill)
        self.nodes.append(node)
        for value in node.outputs:
            axes = self._axes[value.id]
            if not targets <= axes or not (found.repeats or axes <= sources):
                raise _Refused(f"{_named(value)} does not change in size as its operands do")
            self._made[value.id], self._zero[value.id] = (node, found), frozenset(zero)
        if ratio != 1:
            self._rescale(node, ratio)

    def _rescale(self, node: Node, ratio: float) -> None:
        """Multiply an average by what it is off by."""
        (result,) = node.outputs
        if result.dtype is not DType.F32 or result.quant is not None:
            raise _Refused(f"{_named(result)} is an average of {result.dtype.value}")
        if ratio not in self._ratios:
            off = np.array(ratio, np.float32)
            self._ratios[ratio] = self._input((), DType.F32, off, np.ones((), np.float32))
        node.outputs = [self._like(result)]
        factors: list[Value | None] = [node.outputs[0], self._ratios[ratio]]
        self.nodes.append(Node("MUL", BinaryAttrs(), factors, [result], origins=node.origins))
        self._made[result.id] = self.nodes[-1], Positions(())

    def _fill(self, value: Value, axis: int, fill: float) -> Value:
        """A value with a number beyond the size of an axis. What only moves elements gets them
        filled, and masked scores by their mask, so that attention is found as in a plan for one
        size."""
        key = value.id, axis, fill
        found = self._filled.get(key)
        if found is None:
            self.recipe.append(key)
            found = self._filled_before(value, axis, fill) or self._selected(value, axis, fill)
            self._filled[key] = found
            self._made_full.add(found.id)
            self._axes[found.id], self._real[found.id] = self._axes[value.id], self._real[value.id]
            self._zero[found.id] = self._zero[value.id] | ({axis} if fill == 0 else set())
        return found

    def _filled_before(self, value: Value, axis: int, fill: float) -> Value | None:
        """A value itself, where what it is made of could be filled."""
        node, found = self._made.get(value.id, (None, None))
        if node is None or found is None:
            return None
        if fill == 0 and self._moves(node):
            source = self._source(node, found, 0, axis)
            if source is not None:
                node.inputs[0] = self._fill(node.input(0), source, fill)
                return value
        if fill == -math.inf and node.op == "ADD" and node.attrs == BinaryAttrs():
            for i in (0, 1):
                source = self._source(node, found, 1 - i, axis)
                if source is not None and self._is_cleared(node, found, i, axis):
                    node.inputs[1 - i] = self._fill(node.input(1 - i), source, fill)
                    return value
        return None

    def _is_cleared(self, node: Node, found: Positions, i: int, axis: int) -> bool:
        """Whether scores could be made 0 beyond the size: of queries that are no numbers, they are
        none in the whole row."""
        value, source = node.input(i), self._source(node, found, i, axis)
        if source is None or value.quant is not None or value.id not in self._made:
            return False
        node, found = self._made[value.id]
        if found.is_product:
            for k in (0, 1):
                keys = self._source(node, found, k, source)
                if keys is not None and keys not in self._zero[node.input(k).id]:
                    node.inputs[k] = self._fill(node.input(k), keys, 0)
                if keys is not None:
                    return True
        if self._moves(node):
            return self._is_cleared(node, found, 0, source)
        scaled = scaling(node)
        if scaled is None:
            return False
        return self._is_cleared(node, found, node.inputs.index(scaled[0]), source)

    def _source(self, node: Node, found: Positions, i: int, axis: int) -> int | None:
        """The axis of an operand that changes in size and becomes that of the result."""
        value = node.optional_input(i)
        changing = () if value is None else self._axes.get(value.id, ())
        axes = found.operands[i] if i < len(found.operands) else ()
        return next((a for a in changing if axes[a] == Along(axis)), None)

    def _moves(self, node: Node) -> bool:
        return self.ops[node.op].movement.moves is not None

    def _selected(self, value: Value, axis: int, fill: float) -> Value:
        number = np.array(fill, value.dtype.numpy)
        number.setflags(write=False)
        scalar = self.graph.add_value((), value.dtype, name="fill", data=number)
        made, mask = self._like(value), self._mask(value, axis)
        maker = self._made.get(value.id, (None,))[0]
        at = 0 if maker is None else self.nodes.index(maker) + 1
        origins = () if maker is None else maker.origins
        node = Node("SELECT_V2", NoAttrs(), [mask, value, scalar], [made], origins=origins)
        self.nodes.insert(at, node)
        self._made[made.id] = node, Positions(())
        return made

    def _mask(self, value: Value, axis: int) -> Value:
        """Whether positions along an axis count."""
        size, behind = value.shape[axis], len(value.shape) - 1 - axis
        if (size, behind) not in self._masks:
            shape = (size, *[1] * behind)
            counts = np.arange(size).reshape(shape) < self._real[value.id][axis]
            made = self._input(shape, DType.BOOL, counts, np.ones(shape, np.bool_))
            self._masks[size, behind] = made
        return self._masks[size, behind]

    def _input(self, shape: Shape, dtype: DType, contents: Array, full: Array) -> Value:
        made = self.graph.add_value(shape, dtype, name=f"size{len(self.extra)}")
        self.extra.append(made)
        self.contents[made.id], self.full[made.id] = contents, full
        self.recipe.append((made.id, made.spec))
        return made

    def _like(self, value: Value) -> Value:
        return self.graph.add_value(value.shape, value.dtype, name=value.name)


def _begins_with(value: Value, cut: Value) -> bool:
    """Whether a constant has the contents of another, as far as that goes."""
    stored, other = value.contents, cut.contents
    if (
        isinstance(stored, StoredReals)
        and isinstance(other, StoredReals)
        and _place(stored.numbers) == _place(other.numbers)
    ):
        return True  # of one tensor of the file; its scale is too
    # Arrays also where there are no axes, and kept while their addresses are compared.
    whole, part = np.asarray(value.data), np.asarray(cut.data)
    first = np.asarray(whole[corner(part.shape)])
    return _place(first) == _place(part) or first.tobytes() == part.tobytes()


def _place(array: Array) -> tuple[int, tuple[int, ...], Shape]:
    return array.ctypes.data, array.strides, array.shape


def corner(shape: Shape) -> tuple[slice, ...]:
    """The index of the beginnings of all axes."""
    return tuple(slice(0, size) for size in shape)


def _named(value: Value | None) -> str:
    assert value is not None
    return f"tensor {value.id} ({quoted(value.name)})"
