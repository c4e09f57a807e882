"""How an interpreter's subgraphs become sessions: as one graph, or by way of `tflgpu.flow`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from tflgpu.contract.forks import Holder
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.flow.operators import keeps_state, reached
from tflgpu.flow.store import Store
from tflgpu.interpreter.batching import Batching
from tflgpu.interpreter.delegation import Delegation
from tflgpu.ir.budget import budget_of
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Shape
from tflgpu.ops.unknown import for_the_host
from tflgpu.runtime.repeating import Repeating
from tflgpu.runtime.session import Session
from tflgpu.saved.origin import Origin
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.model_file import ModelFile, SubgraphInfo
from tflgpu.values import define, frozen

if TYPE_CHECKING:
    from tflgpu.ops.base import OpDef


@define(eq=False)
class Opening(Holder):
    """What the subgraphs of one interpreter share. Sessions are opened by one thread at a time.

    Attributes:
        model: The file.
        ops: Op definitions by name.
        delegation: Who opens sessions.
        cpu: Runs what no device takes.
        preserve_all: Whether every tensor is kept.
        fuse: Whether operators may be merged.
        digest: Of the file's bytes; "" as long as nobody needed it.
        batching: How many items the main subgraph computes at once; None for what the file has.
        store: The model's state.
        lock: Held while a session is opened: runs in flight may open theirs anew in other threads.
    """

    model: ModelFile
    ops: Mapping[str, OpDef]
    delegation: Delegation
    cpu: CpuSide
    preserve_all: bool
    fuse: bool
    digest: str = ""
    batching: Batching | None = None
    store: Store = attrs.Factory(Store)
    lock: threading.RLock = attrs.Factory(threading.RLock)

    def __attrs_post_init__(self) -> None:
        """A child is to be told of its lock."""
        self.belongs_to_process()

    def after_fork(self) -> None:
        """What another thread of the parent was opening, nobody goes on with."""
        self.lock = threading.RLock()

    def open(
        self, number: int, shapes: Mapping[int, Shape], warn: Callable[[str], object]
    ) -> tuple[Session, Seen | None]:
        """A session of a subgraph at the shapes of its inputs, and what of its graph outlives that;
        None where it takes more than one graph to run it.

        Where everything runs on the CPU, LiteRT runs loops and branches without state by itself.

        Raises:
            ModelError, UnsupportedError: it does not work out at these shapes, or nobody runs it; or
                somebody wrote to the file since it was opened.
            DeviceError, PluginError, GraphError: as `Delegation.open_session`.
        """
        with budget_of(len(self.model.content)):
            return self._open(number, shapes, warn)

    def _open(
        self, number: int, shapes: Mapping[int, Shape], warn: Callable[[str], object]
    ) -> tuple[Session, Seen | None]:
        build = partial(self._graph, number, dict(shapes))
        origin = Origin(self.model.content, number, shapes, build, self.digest)
        origin.check()
        if self.batching is not None and number == 0:
            # Not by its origin: at these shapes the file alone has a graph of its own.
            graph = self.batching.graph(shapes, warn)
            return self._session(graph), seen_in(graph, all_of_it=self.preserve_all)
        info = self.model.subgraphs[number]
        of_texts = any(info.tensors[i].dtype is DType.STRING for i in (*info.inputs, *info.outputs))
        if self.fuse and not self.preserve_all and len(origin.content) and not of_texts:
            with self.lock:
                found = self.delegation.open_origin(origin, self.cpu)
            if origin.is_digested:
                self.digest = origin.digest
            if found is not None:
                session, start = found
                _say(warn, start.warnings)
                return session, Seen(start.shapes, {*start.edge, *info.inputs, *info.outputs})
        graph = origin.graph
        _say(warn, origin.warnings)
        several = of_texts or bool(for_the_host(graph, has_device=self.delegation.has_device))
        if not self.delegation.options.allow_fallback or not several:
            return self._session(graph), seen_in(graph, all_of_it=self.preserve_all)
        from tflgpu.flow.session import FlowSession, Openers  # most models never come here
        from tflgpu.tflite.settled import settled_model

        made = FlowSession(
            settled_model(self.model, self.ops), number, shapes, self.ops, Openers(self._session, self._plain, self._repeating, self._keeping),
            self.store,
            self.cpu.infer, preserve_all=self.preserve_all,
            strict=self.delegation.options.strict,
        )  # fmt: skip
        return made, None

    def _graph(
        self, number: int, shapes: Mapping[int, Shape], warn: Callable[[str], object]
    ) -> Graph:
        # Not at the top: who finds what is kept of a file builds no graph.
        from tflgpu.flow.check import check_bodies
        from tflgpu.flow.cut import check_order
        from tflgpu.tflite.build import build_graph

        info = self.model.subgraphs[number]
        if any(run_by_host(o) for o in info.operators):
            check_bodies(self.model.subgraphs, number)
            check_order(info)
        return build_graph(self.model, number, self.ops, shapes, warn, self.cpu.infer)

    def keeps_state(self, number: int) -> bool:
        """Whether running a subgraph by `FlowSession` may read or change state."""
        subgraphs = self.model.subgraphs
        return keeps_state(subgraphs, [number]) or any(
            tensor.is_variable
            for i in reached(subgraphs, [number])
            for tensor in subgraphs[i].tensors
        )

    def _session(self, graph: Graph) -> Session:
        with self.lock:
            return self.delegation.open_session(
                graph, self.ops, self.cpu, preserve_all=self.preserve_all, fuse=self.fuse
            )

    def _keeping(self, graph: Graph, pairs: Sequence[tuple[int, int]]) -> Session:
        with self.lock:
            return self.delegation.open_session(
                graph, self.ops, self.cpu, preserve_all=self.preserve_all, fuse=self.fuse,
                keeping=() if self.preserve_all or not self.fuse else pairs,
            )  # fmt: skip

    def _repeating(self, graph: Graph, pairs: Sequence[tuple[int, int]]) -> Repeating | None:
        if self.preserve_all or not self.fuse:
            return None
        with self.lock:
            return self.delegation.repeating(graph, pairs, self.cpu)

    def _plain(self, graph: Graph) -> Session:
        from tflgpu.runtime.cpu_session import open_cpu_session

        return open_cpu_session(
            graph, self.ops, preserve_all=self.preserve_all, side=self.cpu,
            reason="its shapes change from run to run",
        )  # fmt: skip


def known_by(delegation: Delegation, digest: list[str], content: memoryview) -> bool:
    """Whether something is kept of a file's bytes. Adds their digest to a list, where it was needed."""
    origin = Origin(content, 0, {}, _unbuilt)
    known = delegation.knows(origin)
    if origin.is_digested:
        digest.append(origin.digest)
    return known


def _unbuilt(warn: Callable[[str], object]) -> Graph:
    raise AssertionError("nobody builds a graph of this")


@frozen
class Seen:
    """What an interpreter asks of a graph whose session is open.

    Attributes:
        shapes: Of tensors, as far as they are known before a run.
        readable: The tensors that can be read, if the session has arrays of them.
    """

    shapes: Mapping[int, Shape]
    readable: Collection[int]


def seen_in(graph: Graph, *, all_of_it: bool) -> Seen:
    """Of a graph; with ``all_of_it`` the tensors between operators can be read as well."""
    edge = {v.id for v in (*graph.inputs, *graph.outputs)}
    variables = {v.id for v in graph.values.values() if v.is_variable}
    shapes = {v.id: v.shape for v in graph.values.values()}
    return Seen(shapes, graph.values.keys() if all_of_it else edge | variables)


def _say(warn: Callable[[str], object], texts: Iterable[str]) -> None:
    for text in texts:
        warn(text)


#: As `Opening.open`, of one subgraph.
Open = Callable[[Mapping[int, Shape], Callable[[str], object]], tuple[Session, Seen | None]]


def opener(opening: Opening, number: int) -> Open:
    """Opens one subgraph."""
    return partial(opening.open, number)


def seen(
    session: Session, found: Seen | None, info: SubgraphInfo, *, all_of_it: bool
) -> tuple[Mapping[int, Shape], Collection[int]]:
    """Shapes of tensors, as far as they are known before a run, and the tensors that can be read: with
    ``all_of_it`` those between operators as well."""
    if found is None:
        shapes = session.known_shapes()
        every: Collection[int] = range(len(info.tensors))
        return shapes, every if all_of_it else {*info.inputs, *info.outputs}
    return found.shapes, set(found.readable) & session.arrays.keys()
