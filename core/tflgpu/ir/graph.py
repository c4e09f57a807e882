"""The graph that every stage from the reader to the plan works on: nodes and values.

A graph holds its nodes in topological order. A `Value` is produced by at most one node; its
id is unique in the graph and, for values that come from a model file, equals the tensor index
there, so that a report or an interpreter can name tensors as the file does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from tflgpu.errors import GraphError
from tflgpu.errors.blame import clipped, quoted
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.stored_reals import ConstantData, StoredReals
from tflgpu.values import define, frozen

if TYPE_CHECKING:
    from tflgpu.ir.absent import AbsentPositions


@frozen
class Composite:
    """A composite that an operator came from (`tflgpu.tflite.inline`).

    Attributes:
        name: such as "odml.rms_norm".
        attributes: what the file says of it, as a FlexBuffer; often empty.
        inputs: tensor indices; -1 for an absent one.
        outputs: tensor indices.
        index: its position in its subgraph of the file.
        first: index of the first operator that is in its place.
        version: of the composite, as its name's owner counts; 0 where the file has none.
    """

    name: str
    attributes: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    index: int
    first: int
    version: int = 0


Shape = tuple[int, ...]


@frozen
class TensorSpec:
    """Shape and element type of a tensor, without contents."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@define(eq=False)
class Value:
    """One tensor: an input, a constant (``contents`` is set), a variable, or a node's result.

    Where ``shape_known`` is False, ``shape`` is only what the file has in that place: the real one
    depends on numbers that are computed when the model runs. Nothing may be concluded from it.
    ``packed`` is the type that the file gives its numbers where that has less than a byte for each.
    ``computed`` says of a constant that operators made it, so that LiteRT has none there.
    """

    id: int
    name: str
    shape: Shape
    dtype: DType
    contents: ConstantData | None = attrs.field(default=None, alias="data")
    quant: Quantization | None = None
    is_variable: bool = False
    shape_signature: Shape | None = None
    shape_known: bool = True
    packed: DType | None = None
    computed: bool = False

    @property
    def spec(self) -> TensorSpec:
        """Its shape and dtype."""
        return TensorSpec(self.shape, self.dtype)

    @property
    def is_const(self) -> bool:
        """Whether its contents are known before the model runs."""
        return self.contents is not None

    @property
    def data(self) -> Array | None:
        """A constant's contents; large real numbers that the file stores otherwise are expanded
        anew each time."""
        found = self.contents
        return found.whole() if isinstance(found, StoredReals) else found

    @data.setter
    def data(self, data: Array | None) -> None:
        self.contents = data

    @property
    def at_rest(self) -> int:
        """The value of a state tensor before the first run."""
        return at_rest(self.dtype, self.quant)

    @property
    def named(self) -> str:
        """How messages name it, with the number that the file has for it."""
        return f"tensor {self.id} ({quoted(self.name)})"

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its contents, packed."""
        return self.elements * self.dtype.itemsize

    def __str__(self) -> str:
        kind = "const " if self.is_const else "var " if self.is_variable else ""
        return f"%{self.id}:{kind}{self.spec}"


def at_rest(dtype: DType, quant: Quantization | None) -> int:
    """The value of a state tensor before the first run, and after a reset of variables: 0; of i8,
    as in LiteRT, the stored number that stands for 0."""
    if dtype is not DType.I8 or quant is None or quant.per_axis:
        return 0
    return (quant.zero_point[0] + 128) % 256 - 128


@frozen(eq=False)
class FileOptions:
    """An operator's options in a model file, kept so that it can be written again.

    Attributes:
        name: Its builtin name or custom code.
        is_custom: Whether ``name`` is a custom code.
        fields: Its options by the schema's snake_case names.
        custom_options: A custom operator's options.
        bodies: The model's subgraphs, which options may name by their number; empty for an
            operator that runs none.
        gap: Why the operator cannot be written again from these; empty where it can.
        intermediates: Tensors by which a recurrent operator is told scales of what it computes on
            the way; None for an absent one.
        place: The file, and where the operator's table is in it, for backends that can read fields
        that tflgpu cannot; None where no field is missing.
        composites: The composites that the operator is part of, the outermost first; mostly none.
    """

    name: str
    is_custom: bool
    fields: Mapping[str, Any]
    custom_options: bytes = b""
    bodies: Sequence[Any] = ()
    gap: str = ""
    place: tuple[memoryview, int] | None = None
    intermediates: tuple[Value | None, ...] = ()
    composites: tuple[Composite, ...] = ()


@define(eq=False)
class Node:
    """One operation. ``attrs`` is the frozen attribute value of its op definition.

    ``origins`` are the operator indices in the model file that this node stands for: one after
    reading, several once passes have fused nodes, so that reports can name the file's operators.

    ``source`` is what the file said of the operator; None for a node that no file has. Passes may
    have changed ``op`` and ``attrs`` since.
    """

    op: str
    attrs: Any
    inputs: list[Value | None]
    outputs: list[Value]
    version: int = 1
    origins: tuple[int, ...] = ()
    source: FileOptions | None = None

    @property
    def shapes_known(self) -> bool:
        """Whether the shapes of all its operands and results are."""
        return all(v is None or v.shape_known for v in (*self.inputs, *self.outputs))

    @property
    def label(self) -> str:
        """How messages name the node: operator index in the file, then op name."""
        where = "+".join(map(str, self.origins)) if self.origins else "new"
        return f"#{where} {clipped(self.op)}"

    def input(self, index: int) -> Value:
        """The input at ``index``.

        Raises:
            GraphError: it is absent.
        """
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise GraphError(f"{self.label}: input {index} is absent")
        return value

    def optional_input(self, index: int) -> Value | None:
        """The input at ``index``, or None where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def contents(self, index: int) -> ConstantData:
        """The contents of the constant input at ``index``, in the form that they are kept in.

        Raises:
            GraphError: it is absent or not a constant.
        """
        found = self.input(index).contents
        if found is None:
            raise GraphError(f"{self.label}: input {index} is not a constant")
        return found

    def const(self, index: int) -> Array:
        """The contents of the constant input at ``index``, as an array.

        Raises:
            GraphError: it is absent or not a constant.
        """
        found = self.contents(index)
        return found.whole() if isinstance(found, StoredReals) else found


@define(eq=False)
class Graph:
    """Nodes in topological order, between ``inputs`` and ``outputs``.

    ``next_id`` is above every id that was ever in use, so that a new value never takes the
    tensor index of one that was pruned. ``absent`` says which positions may not count in a run.
    """

    name: str = "main"
    nodes: list[Node] = attrs.Factory(list)
    inputs: list[Value] = attrs.Factory(list)
    outputs: list[Value] = attrs.Factory(list)
    values: dict[int, Value] = attrs.Factory(dict)
    next_id: int = 0
    absent: AbsentPositions | None = None

    def add_value(
        self,
        shape: Sequence[int],
        dtype: DType,
        *,
        name: str = "",
        data: ConstantData | None = None,
        quant: Quantization | None = None,
        id: int | None = None,
    ) -> Value:
        """Make a value with a fresh id (or ``id``, which must be unused)."""
        fresh = max(self.next_id, max(self.values, default=-1) + 1)
        key = fresh if id is None else id
        if key in self.values:
            raise GraphError(f"graph {self.name}: value {key} exists already")
        self.next_id = max(self.next_id, key + 1)
        value = Value(key, name or f"v{key}", tuple(map(int, shape)), dtype, data, quant)
        self.values[key] = value
        return value

    def add_const(self, data: ConstantData, *, name: str = "") -> Value:
        """Make a constant value that holds ``data``."""
        return self.add_value(data.shape, DType.from_numpy(data.dtype), name=name, data=data)

    def add_node(
        self,
        op: str,
        attributes: Any,
        inputs: Iterable[Value | None],
        outputs: Iterable[Value],
        *,
        version: int = 1,
        origins: Iterable[int] = (),
        before: Node | None = None,
    ) -> Node:
        """Insert a node at the end, or right before another one."""
        node = Node(op, attributes, list(inputs), list(outputs), version, tuple(origins))
        at = len(self.nodes) if before is None else self.nodes.index(before)
        self.nodes.insert(at, node)
        return node

    def producer(self, value: Value) -> Node | None:
        """The node that makes ``value``, None for inputs, constants and variables."""
        for node in self.nodes:
            if any(out is value for out in node.outputs):
                return node
        return None

    def is_output(self, value: Value) -> bool:
        """Whether ``value`` is one of the graph's outputs."""
        return any(v is value for v in self.outputs)

    def is_input(self, value: Value) -> bool:
        """Whether ``value`` is one of the graph's inputs."""
        return any(v is value for v in self.inputs)

    def replace_uses(self, old: Value, new: Value) -> int:
        """Make every reader of ``old`` (and the graph's outputs) use ``new``; count the edits."""
        count = 0
        for node in self.nodes:
            for i, value in enumerate(node.inputs):
                if value is old:
                    node.inputs[i] = new
                    count += 1
        for i, value in enumerate(self.outputs):
            if value is old:
                self.outputs[i] = new
                count += 1
        return count

    def remove(self, node: Node) -> None:
        """Take a node out; its outputs must have no readers left."""
        self.nodes.remove(node)

    def prune(self) -> int:
        """Drop nodes and values that no output (or variable) depends on; count the nodes.

        A node without outputs is kept: it is there for what else it does.
        """
        needed = {id(v) for v in self.outputs}
        kept: list[Node] = []
        for node in reversed(self.nodes):
            writes_variable = any(v is not None and v.is_variable for v in node.inputs)
            used = not node.outputs or any(id(o) in needed for o in node.outputs)
            if used or writes_variable:
                kept.append(node)
                needed.update(id(v) for v in node.inputs if v is not None)
        dropped = len(self.nodes) - len(kept)
        self.nodes = kept[::-1]
        named = {id(v) for v in (*self.inputs, *self.outputs)}
        for node in self.nodes:
            named.update(id(v) for v in (*node.inputs, *node.outputs) if v is not None)
        self.values = {k: v for k, v in self.values.items() if id(v) in named}
        return dropped

    def copy(self) -> Graph:
        """A graph with its own nodes and values; constant arrays and attributes are shared."""
        twins = {k: attrs.evolve(v) for k, v in self.values.items()}

        def twin(value: Value | None) -> Value | None:
            return None if value is None else twins[value.id]

        def twin_list(values: Sequence[Value]) -> list[Value]:
            return [twins[v.id] for v in values]

        nodes = [
            Node(
                n.op,
                n.attrs,
                [twin(v) for v in n.inputs],
                twin_list(n.outputs),
                n.version,
                n.origins,
                n.source,
            )
            for n in self.nodes
        ]
        inputs, outputs = twin_list(self.inputs), twin_list(self.outputs)
        return Graph(self.name, nodes, inputs, outputs, twins, self.next_id, self.absent)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def dump(self) -> str:
        """One line per node, for people and for tests."""
        lines = [f"graph {self.name}({', '.join(map(str, self.inputs))})"]
        for node in self.nodes:
            args = ", ".join("-" if v is None else str(v) for v in node.inputs)
            outs = ", ".join(map(str, node.outputs))
            lines.append(f"  {outs} = {node.label}({args}) {_brief(node.attrs)}".rstrip())
        lines.append(f"  return {', '.join(map(str, self.outputs))}")
        return "\n".join(lines)


def _brief(attributes: Any) -> str:
    if attributes is None or not attrs.has(type(attributes)):
        return "" if attributes is None else str(attributes)
    pairs = []
    for field in attrs.fields(type(attributes)):
        value = getattr(attributes, field.name)
        shown = value.name if hasattr(value, "name") and hasattr(value, "value") else value
        pairs.append(f"{field.name}={shown}")
    return "{" + ", ".join(pairs) + "}" if pairs else ""
