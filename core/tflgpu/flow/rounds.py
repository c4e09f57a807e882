"""Several rounds of a loop as one graph, and how many rounds there will be.

A device is given whole blocks of rounds, so that the state of a loop stays there between them. How
many there are is found out beforehand where whole numbers decide it, which is where the operators
that count can be taken apart from the others: they are few and small, and the references compute
them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from tflgpu.ir.budget import spend
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ops.base import OpDef
from tflgpu.tflite.model_file import SubgraphInfo

#: Elements of a tensor that counts, and operators that do so in a round: more is no counter.
_SMALL = 16
_MOST_COUNTING = 16
#: Rounds that are counted ahead. A loop that never ends is counted as it runs.
AHEAD = 4096


@attrs.frozen(eq=False)
class Body:
    """A subgraph that is one graph and nothing else.

    Attributes:
        graph: It.
        inputs: Tensors that it is given, by position, as the subgraph has them.
        outputs: What it gives, by position: a value of the graph, a position of what it is given,
            or a constant.
    """

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[Value | int | Array, ...]

    @classmethod
    def of(cls, graph: Graph, info: SubgraphInfo, constants: Mapping[int, Array]) -> Body | None:
        """From a graph and the subgraph that it is; None where it keeps a state, or takes a result
        of the last round as other numbers than that round meant."""
        inputs = info.inputs
        if any(v.is_variable for v in graph.values.values()) or len(set(inputs)) < len(inputs):
            return None
        scales = [info.tensors[i].quantization for i in inputs]
        if any(s is not None for s in scales) and scales != [
            info.tensors[i].quantization for i in info.outputs
        ]:
            return None
        made = {v.id: v for n in graph for v in n.outputs}
        told: list[Value | int | Array] = [
            made[i] if i in made else constants[i] if i in constants else inputs.index(i)
            for i in info.outputs
        ]
        return cls(graph, inputs, tuple(told))


@attrs.frozen(eq=False)
class Rounds:
    """Several rounds as one graph.

    Attributes:
        graph: It; its inputs have the ids that the body gives them.
        outputs: As `Body.outputs`; and at the end, where that was asked for, whether there is
            another round.
    """

    graph: Graph
    outputs: tuple[Value | int | Array, ...]


def rounds(body: Body, count: int, cond: Body | None = None) -> Rounds:
    """``count`` rounds of a body, and then, where it is given, the condition."""
    joining = _Joining(f"{body.graph.name} x {count}", body.inputs)
    for _ in range(count):
        joining.state = joining.append(body)
    ends = [*joining.state, *joining.append(cond)] if cond is not None else joining.state
    graph = joining.graph
    made = {id(o): o for o in ends if isinstance(o, Value) and o.contents is None}
    graph.outputs = [v for v in made.values() if not graph.is_input(v)]
    graph.prune()
    return Rounds(graph, tuple(ends))


class _Joining:
    """Graphs, one after the other, as one.

    Attributes:
        graph: It.
        state: What the next is given, by position, as `Body.outputs`.
    """

    def __init__(self, name: str, inputs: Sequence[int]) -> None:
        self.graph = Graph(name, next_id=max(inputs, default=0) + 1)  # inputs keep their numbers
        self.state: list[Value | int | Array] = list(range(len(inputs)))
        self._ids = inputs
        self._edge: dict[int, Value] = {}
        self._constants: dict[int, Value] = {}  # once for all rounds, by the original's address

    def append(self, part: Body) -> list[Value | int | Array]:
        """What a graph gives."""
        twins: dict[int, Value] = {}
        for value in part.graph.inputs:
            twins[id(value)] = self._given(self.state[part.inputs.index(value.id)], value)
        for node in part.graph:
            operands = [None if v is None else self._twin(v, twins) for v in node.inputs]
            outputs = [self._twin(v, twins) for v in node.outputs]
            self.graph.nodes.append(
                Node(
                    node.op, node.attrs, operands, outputs, node.version, node.origins, node.source
                )
            )
        return [
            twins[id(o)] if isinstance(o, Value) else self.state[o] if isinstance(o, int) else o
            for o in part.outputs
        ]

    def _given(self, what: Value | int | Array, like: Value) -> Value:
        if isinstance(what, Value):
            return what
        if not isinstance(what, int):
            return self._new(like, what)
        if what not in self._edge:
            made = self.graph.add_value(
                like.shape, like.dtype, name=like.name, quant=like.quant, id=self._ids[what]
            )
            self.graph.inputs.append(made)
            self._edge[what] = made
        return self._edge[what]

    def _twin(self, value: Value, twins: dict[int, Value]) -> Value:
        if value.contents is not None:
            if id(value) not in self._constants:
                self._constants[id(value)] = self._new(value, value.data)
            return self._constants[id(value)]
        if id(value) not in twins:
            twins[id(value)] = self._new(value, None)
        return twins[id(value)]

    def _new(self, like: Value, data: Array | None) -> Value:
        return self.graph.add_value(
            like.shape, like.dtype, name=like.name, quant=like.quant, data=data
        )


@attrs.frozen(eq=False)
class Counter:
    """The operators of a loop that decide how many rounds there are.

    Attributes:
        positions: What they depend on, of the loop's state.
        body, cond: The loop's.
        steps: Operators of the body among them.
        ops: Op definitions by name.
        known: Numbers of rounds, by the contents at ``positions``.
    """

    positions: tuple[int, ...]
    body: Body
    cond: Body
    steps: tuple[Node, ...]
    ops: Mapping[str, OpDef]
    known: dict[tuple[bytes, ...], int] = attrs.Factory(dict)

    @classmethod
    def of(cls, body: Body, cond: Body, ops: Mapping[str, OpDef]) -> Counter | None:
        """None where others than a few whole numbers have a say."""
        needed = {cond.inputs.index(v.id) for v in cond.graph.inputs}
        makers = {id(v): n for n in body.graph for v in n.outputs}
        steps: dict[int, Node] = {}
        ahead = list(needed)
        while ahead:
            value = body.outputs[ahead.pop()]
            stack = [value] if isinstance(value, Value) else []
            if isinstance(value, int) and value not in needed:
                needed.add(value)
                ahead.append(value)
            while stack:
                one = stack.pop()
                if one.contents is not None:
                    continue
                if id(one) in makers:
                    node = makers[id(one)]
                    if id(node) not in steps:
                        steps[id(node)] = node
                        stack += [v for v in node.inputs if v is not None]
                else:
                    at = body.inputs.index(one.id)
                    if at not in needed:
                        needed.add(at)
                        ahead.append(at)
        counting = [n for n in body.graph if id(n) in steps]
        every = [*counting, *cond.graph]
        if len(every) > _MOST_COUNTING or not all(_counts(n, ops) for n in every):
            return None
        return cls(tuple(sorted(needed)), body, cond, tuple(counting), ops)

    def count(self, state: Sequence[Array]) -> int:
        """Rounds from a state on, up to `AHEAD`."""
        key = tuple(state[at].tobytes() for at in self.positions)
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= 256:
                self.known.clear()
            found = self.known[key] = self._counted({at: state[at] for at in self.positions})
        return found

    def _counted(self, state: dict[int, Array]) -> int:
        for done in range(AHEAD):
            spend("rounds", 1, "a WHILE")
            (flag,) = self._run(self.cond, tuple(self.cond.graph), state, (0,))
            if not flag.reshape(())[()]:
                return done
            made = self._run(self.body, self.steps, state, self.positions)
            state = dict(zip(self.positions, made, strict=True))
        return AHEAD

    def _run(
        self, part: Body, nodes: Sequence[Node], state: Mapping[int, Array], wanted: Sequence[int]
    ) -> list[Array]:
        env = {part.inputs[at]: array for at, array in state.items()}
        with np.errstate(all="ignore"):
            for node in nodes:
                arrays = [
                    None if v is None else v.data if v.contents is not None else env[v.id]
                    for v in node.inputs
                ]
                results = self.ops[node.op].reference(node.attrs, arrays)
                env.update((v.id, r) for v, r in zip(node.outputs, results, strict=True))
        found = (part.outputs[at] for at in wanted)
        return [
            env[o.id] if isinstance(o, Value) else state[o] if isinstance(o, int) else o
            for o in found
        ]


def _counts(node: Node, ops: Mapping[str, OpDef]) -> bool:
    op = ops.get(node.op)
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return (
        op is not None
        and op.state is None
        and all(
            (v.dtype.is_int or v.dtype is DType.BOOL) and v.quant is None and v.elements <= _SMALL
            for v in values
        )
    )
