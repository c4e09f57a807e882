"""Cuts the part out of a subgraph that can be compiled with the shapes known so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.flow.store import Handle
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Shape
from tflgpu.ops.base import OpDef
from tflgpu.ops.unknown import ForeignOp, UnknownOp
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.build import Foreign, build_subgraph
from tflgpu.tflite.model_file import OperatorInfo, SubgraphInfo


@attrs.define
class Known:
    """Facts about a subgraph at one point of a run that hold for any contents of its tensors.

    Attributes:
        shapes: Of tensors that have been made, the inputs among them.
        constants: Contents that were computed beforehand, or that shapes depend on.
        handles: What resource tensors hold.
        variables: Shapes of variables that were assigned since the last point where others could.
        done: Operators that need not run any more.
        plain: Whether what follows is compiled for the CPU only: these shapes will not come again.
        lazy: Results of READ_VARIABLE that may be left where they are.
    """

    shapes: dict[int, Shape]
    constants: dict[int, Array] = attrs.Factory(dict)
    handles: dict[int, Handle] = attrs.Factory(dict)
    variables: dict[Handle, Shape] = attrs.Factory(dict)
    done: set[int] = attrs.Factory(set)
    plain: bool = False
    lazy: frozenset[int] = frozenset()

    def copy(self) -> Known:
        """One that may be changed."""
        return Known(
            dict(self.shapes),
            dict(self.constants),
            dict(self.handles),
            dict(self.variables),
            set(self.done),
            self.plain,
            self.lazy,
        )


@attrs.frozen(eq=False)
class Cut:
    """The result of `cut`.

    Attributes:
        graph: What can be compiled; None where nothing can.
        made: Shapes of the tensors that it makes and others need.
        constants: Contents that came out while the graph was built.
        done: Operators that are in the graph, were computed, or are not needed.
        dynamic: Operators that have their operands, and whose results' shapes depend on what these
            hold, in order.
    """

    graph: Graph | None
    made: Mapping[int, Shape]
    constants: Mapping[int, Array]
    done: frozenset[int]
    dynamic: tuple[Node, ...]


def cut(
    info: SubgraphInfo,
    known: Known,
    ops: Mapping[str, OpDef],
    subgraphs: tuple[SubgraphInfo, ...],
    warn: Callable[[str], object],
    foreign: Foreign | None,
) -> Cut:
    """The operators of a subgraph that can be compiled now, as a graph.

    Raises:
        ModelError: they do not work out at these shapes.
        UnsupportedError: no backend runs some of them at any shapes; the message lists all.
    """
    ahead = [o for o in info.operators if o.index not in known.done]
    compiled = [o for o in ahead if not run_by_host(o)]
    later = [o for o in ahead if run_by_host(o)]
    if not compiled:
        return Cut(None, {}, {}, frozenset(), ())
    built = build_subgraph(
        _part(info, known, compiled, later),
        ops,
        None,
        warn,
        foreign,
        subgraphs,
        [i for i in _pending(later) if any(i in o.inputs for o in compiled)],
    )
    for index in known.constants.keys() & built.values.keys():
        built.values[index].computed = True
    left = [n for n in built if not _is_ready(n)]
    _refuse(left)
    of_file = len(info.tensors)  # what is read in the place of an input is made anew
    awaited = [v for n in left for v in n.inputs if v is not None and v.id < of_file]
    needed = {id(v) for v in (*built.outputs, *awaited)}
    ready = [n for n in built if _is_ready(n)]
    made = {id(v): v for n in ready for v in n.outputs if id(v) in needed}
    constants = {
        v.id: v.data
        for v in (*built.outputs, *awaited)
        if v.data is not None and info.tensors[v.id].data is None
    }
    graph = Graph(
        info.name or "main",
        ready,
        list(built.inputs),
        list(made.values()),
        built.values,
        built.next_id,
    )
    graph.prune()
    read = {id(v) for n in graph for v in n.inputs if v is not None}
    graph.inputs = [v for v in graph.inputs if id(v) in read]
    graph.prune()
    remaining = {origin for n in left for origin in n.origins}
    return Cut(
        graph if graph.nodes else None,
        {v.id: v.shape for v in made.values()},
        constants,
        frozenset(o.index for o in compiled if o.index not in remaining),
        tuple(n for n in left if all(v is None or v.shape_known for v in n.inputs)),
    )


def _is_ready(node: Node) -> bool:
    is_unknown = isinstance(node.attrs, UnknownOp) and not isinstance(node.attrs, ForeignOp)
    return node.shapes_known and not is_unknown


def _refuse(nodes: list[Node]) -> None:
    never = [
        (n, n.attrs.reason)
        for n in nodes
        if isinstance(n.attrs, UnknownOp)
        and not n.attrs.dynamic
        and all(v is None or v.shape_known for v in n.inputs)
    ]
    if never:
        listed = "; ".join(f"{node.label}: {reason}" for node, reason in never)
        raise UnsupportedError(
            f"neither a device nor the CPU can run {len(never)} operators: {listed}"
        )


def _pending(later: list[OperatorInfo]) -> set[int]:
    return {i for o in later for i in o.outputs}


def _part(
    info: SubgraphInfo, known: Known, compiled: list[OperatorInfo], later: list[OperatorInfo]
) -> SubgraphInfo:
    """The operators that the host does not run, as a subgraph of their own."""
    tensors = list(info.tensors)
    pending = _pending(later)
    read = list(dict.fromkeys(i for o in compiled for i in o.inputs if i >= 0))
    for index in read:
        if tensors[index].dtype is DType.RESOURCE:
            reader = next(o for o in compiled if index in o.inputs)
            raise UnsupportedError(
                f"operator {reader.index} ({reader.name}) takes a resource, tensor {index}, with "
                "which only variables and control flow are known here"
            )
    inputs = []
    for index in read:
        tensor = tensors[index]
        if index in known.constants:
            data = known.constants[index]
            tensors[index] = attrs.evolve(
                tensor, shape=data.shape, shape_signature=data.shape, data=data, is_variable=False
            )
        elif index in known.shapes or index in pending:
            shape = known.shapes.get(index, ())
            tensors[index] = attrs.evolve(tensor, shape=shape, shape_signature=shape)
            inputs.append(index)
    made = {i for o in compiled for i in o.outputs}
    wanted = dict.fromkeys([i for o in later for i in o.inputs] + list(info.outputs))
    outputs = tuple(i for i in wanted if i in made)
    return SubgraphInfo(info.name, tuple(tensors), tuple(inputs), outputs, tuple(compiled))


def check_order(info: SubgraphInfo) -> None:
    """Check that operators come after those whose results they read, and that each tensor has one
    maker.

    Raises:
        ModelError: they do not.
    """
    made = {t.index for t in info.tensors if t.data is not None or t.is_variable} | set(info.inputs)
    by_operator: set[int] = set()
    for operator in info.operators:
        missing = next((i for i in operator.inputs if i >= 0 and i not in made), None)
        where = f"operator {operator.index} ({operator.name})"
        if missing is not None:
            raise ModelError(f"{where} reads tensor {missing}, which nothing has made before it")
        twice = next((i for i in operator.outputs if i in by_operator), None)
        fixed = next((i for i in operator.outputs if i in info.inputs), None)
        if twice is not None or fixed is not None:
            index = twice if twice is not None else fixed
            raise ModelError(f"{where} writes tensor {index}, which is there already")
        by_operator.update(operator.outputs)
        made.update(operator.outputs)
    missing = next((i for i in info.outputs if i not in made), None)
    if missing is not None:
        raise ModelError(f"tensor {missing} is an output, but nothing makes it")
