"""Opens the sessions of an interpreter's subgraphs: as one graph, or by `tflgpu.flow`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

import attrs

from tflgpu.backend_kit.forks import Holder
from tflgpu.cache.digest import digest_of
from tflgpu.compiler.carried_state import Pairs
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import DeviceError
from tflgpu.errors.blame import LOG, in_a_line
from tflgpu.flow.operators import keeps_state, reached
from tflgpu.flow.store import VariableStore
from tflgpu.ir.budget import budget_of
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Shape
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.unknown import for_the_host
from tflgpu.options import DelegateOptions
from tflgpu.runtime.opening import open_graph, open_on_cpu, open_source, sees_each_run
from tflgpu.runtime.provider import Provider, cpu_only, shared_provider
from tflgpu.runtime.session import Session
from tflgpu.saved.location import SavedLocation
from tflgpu.saved.source import Source
from tflgpu.tflite.bodies import run_by_host
from tflgpu.tflite.model_file import ModelFile
from tflgpu.values import define

if TYPE_CHECKING:
    from tflgpu.interpreter.batching import Batching
    from tflgpu.interpreter.buckets import Buckets
    from tflgpu.ops.base import OpDef
    from tflgpu.runtime.repeating import Repeating

#: A session, shapes of tensors, and the tensors that can be read.
Opening = tuple[Session, Mapping[int, Shape], Collection[int]]


@define(eq=False)
class SessionOpener(Holder):
    """Opens the sessions of one interpreter's subgraphs. One thread at a time.

    Attributes:
        model: The file.
        ops: Op definitions by name.
        options: Of the delegate, or of the default one.
        cpu: Runs what no device takes.
        preserve_all: Whether every tensor is kept.
        fuse: Whether operators may be merged.
        digest: Of the file's bytes; "" as long as it was not needed.
        batching: How many items the main subgraph computes at once; None for what the file has.
        lock: Held while a session is opened: runs in flight may open theirs anew in other threads.
    """

    model: ModelFile
    ops: Mapping[str, OpDef]
    options: DelegateOptions
    _provider: Provider | None
    cpu: CpuSide
    preserve_all: bool
    fuse: bool
    digest: str = ""
    batching: Batching | None = None
    _buckets: Buckets | None = None
    lock: threading.RLock = attrs.Factory(threading.RLock)

    def __attrs_post_init__(self) -> None:
        """A child is to be told of its lock."""
        self.belongs_to_process()

    def after_fork(self) -> None:
        """What another thread of the parent was opening does not go on here."""
        self.lock = threading.RLock()

    @property
    def provider(self) -> Provider:
        """Where sessions are opened now. The shared device is opened when this is first asked for.

        Raises:
            TflgpuError: as `shared_provider`.
        """
        found = self._provider
        if found is None:
            found = self._provider = shared_provider(self.options)
        return found

    @cached_property
    def store(self) -> VariableStore:
        """The state of a model that runs by `FlowSession`."""
        return VariableStore()

    @property
    def is_default(self) -> bool:
        """Whether sessions are on the shared device, so that others may replace them."""
        return self._provider is not None and self._provider.gives_way

    @property
    def gave_way(self) -> bool:
        """Whether the CPU took over, since a run failed, or since there was no default device."""
        found = self._provider
        return found is not None and found.code is ReasonCode.DEVICE_FAILED

    @property
    def has_delegate(self) -> bool:
        """Whether sessions are on the device of a delegate of the caller's."""
        found = self._provider
        return found is not None and found.opened is not None and found.lease is None

    def change_provider(
        self, options: DelegateOptions, provider: Provider | None
    ) -> tuple[DelegateOptions, Provider | None]:
        """Open sessions elsewhere from now on; gives what there was before."""
        self._close_buckets()
        before = self.options, self._provider
        self.options, self._provider = options, provider
        return before

    def give_way(self, error: DeviceError) -> None:
        """Let sessions that are opened from now on run on the CPU, since a run failed."""
        said = in_a_line(error)
        LOG.warning("tflgpu: the model runs on the CPU from now on, since a run failed: %s", said)
        self._close_buckets()
        self._provider = self.provider.given_up(error, said)

    def release(self, action: Callable[[], None]) -> None:
        """Close something by ``action``. What a shared device, or one that was given up, has
        against it is only logged.

        Raises:
            DeviceError: the device was asked for, and failed.
        """
        try:
            action()
        except DeviceError as error:
            found = self._provider
            if found is not None and found.opened is not None and found.lease is None:
                raise
            LOG.warning("tflgpu: %s", str(error))

    def close(self) -> None:
        """Let go of the shared device; twice is harmless."""
        self._close_buckets()
        if self._provider is not None and self._provider.lease is not None:
            self._provider.lease.end()

    def open(
        self, number: int, shapes: Mapping[int, Shape], warn: Callable[[str], object]
    ) -> Opening:
        """A session of a subgraph at the shapes of its inputs; the shapes of tensors, as far as
        they are known before a run; and the tensors that can be read.

        Where everything runs on the CPU, LiteRT runs loops and branches without state by itself.

        Raises:
            ModelError, UnsupportedError: it does not work out at these shapes, or has an operator
                that runs nowhere; or the file was written to since it was opened.
            DeviceError, PluginError, GraphError: as `tflgpu.runtime.opening.open_graph`.
        """
        with budget_of(len(self.model.content)):
            return self._open(number, shapes, warn)

    def graph(self, number: int, shapes: Mapping[int, Shape]) -> Graph:
        """What a subgraph computes at the shapes of its inputs, as the file has it.

        Raises:
            ModelError, UnsupportedError: as `open`.
        """
        if self.batching is not None and number == 0:
            return self.batching.graph(shapes, _quietly)
        return self._graph(number, dict(shapes), _quietly)

    def keeps_state(self, number: int) -> bool:
        """Whether running a subgraph by `FlowSession` may read or change state."""
        subgraphs = self.model.subgraphs
        return keeps_state(subgraphs, [number]) or any(
            tensor.is_variable
            for i in reached(subgraphs, [number])
            for tensor in subgraphs[i].tensors
        )

    # Inside

    def _open(
        self, number: int, shapes: Mapping[int, Shape], warn: Callable[[str], object]
    ) -> Opening:
        build = partial(self._graph, number, dict(shapes))
        source = Source(self.model.content, number, shapes, build, self.digest)
        source.check()
        if self.batching is not None and number == 0:
            # Not by its source: at these shapes the file alone has a graph of its own.
            graph = self.batching.graph(shapes, warn)
            return self._of_graph(graph)
        info = self.model.subgraphs[number]
        of_texts = any(info.tensors[i].dtype is DType.STRING for i in (*info.inputs, *info.outputs))
        with self.lock:
            by_bucket = None if of_texts else self._by_bucket(number, shapes, warn)
        if by_bucket is not None and not isinstance(by_bucket, Unsupported):
            return by_bucket
        opening = self._exactly(source, number, shapes, warn, of_texts=of_texts)
        if by_bucket is not None:
            opening[0].note(f"shape_buckets: this size has a plan of its own: {by_bucket.reason}")
        return opening

    def _by_bucket(
        self, number: int, shapes: Mapping[int, Shape], warn: Callable[[str], object]
    ) -> Opening | Unsupported | None:
        """By the plan of a bucket, or why not; None where the options ask for none."""
        sizes, refused = self.options.shape_buckets, sees_each_run(self.provider)
        if not sizes or self.provider.device is None:
            return None
        if refused or self.preserve_all or not self.fuse:
            return Unsupported(refused or "operators are not merged")
        if self._buckets is None:
            from tflgpu.interpreter.buckets import Buckets  # few ask for them

            is_limited = self.options.memory_limit is not None
            self._buckets = Buckets(sizes, self.ops, self._session, is_limited=is_limited)
        info = self.model.subgraphs[number]
        return self._buckets.open(
            number, info, shapes, lambda shapes: self._graph(number, dict(shapes), warn)
        )

    def _close_buckets(self) -> None:
        if self._buckets is not None:
            self._buckets.close()
        self._buckets = None

    def _exactly(
        self,
        source: Source,
        number: int,
        shapes: Mapping[int, Shape],
        warn: Callable[[str], object],
        *,
        of_texts: bool,
    ) -> Opening:
        info = self.model.subgraphs[number]
        if self.fuse and not self.preserve_all and len(source.content) and not of_texts:
            with self.lock:
                found = open_source(source, self.provider, self.cpu)
            if source.is_digested:
                self.digest = source.digest
            if found is not None:
                session, start = found
                try:
                    source.check()  # large weights are read from the file as they are uploaded
                except BaseException:
                    session.close()
                    raise
                _say(warn, start.warnings)
                edge = {*start.edge, *info.inputs, *info.outputs}
                return session, start.shapes, edge & session.arrays.keys()
        graph = source.graph
        _say(warn, source.warnings)
        has_device = self.provider.device is not None
        several = of_texts or bool(for_the_host(graph, has_device=has_device))
        if not self.options.allow_fallback or not several:
            return self._of_graph(graph)
        from tflgpu.flow.session import FlowSession  # most models never come here

        made = FlowSession(
            self.model,
            number,
            shapes,
            self.ops,
            (self._session, self._plain, self._repeating),
            self.store,
            self.cpu.infer,
            preserve_all=self.preserve_all,
            strict=self.options.strict,
        )
        every = range(len(info.tensors)) if self.preserve_all else {*info.inputs, *info.outputs}
        return made, made.known_shapes(), every

    def _of_graph(self, graph: Graph) -> Opening:
        session = self._session(graph)
        shapes = {v.id: v.shape for v in graph.values.values()}
        variables = (v for v in graph.values.values() if v.is_variable)
        edge = {v.id for v in (*graph.inputs, *graph.outputs, *variables)}
        known = graph.values.keys() if self.preserve_all else edge
        return session, shapes, known & session.arrays.keys()

    def _graph(
        self, number: int, shapes: Mapping[int, Shape], warn: Callable[[str], object]
    ) -> Graph:
        from tflgpu.tflite.build import build_graph  # a start from a kept model builds no graph

        if any(run_by_host(o) for o in self.model.subgraphs[number].operators):
            from tflgpu.flow.check import check_bodies

            check_bodies(self.model.subgraphs, number)
        return build_graph(self.model, number, self.ops, shapes, warn, self.cpu.infer)

    def _session(self, graph: Graph, pairs: Pairs = ()) -> Session:
        is_merged = self.fuse and not self.preserve_all
        with self.lock:
            return open_graph(
                graph,
                self.provider,
                self.cpu,
                preserve_all=self.preserve_all,
                fuse=self.fuse,
                keeping=pairs if is_merged else (),
            )

    def _repeating(self, graph: Graph, pairs: Pairs) -> Repeating | None:
        from tflgpu.runtime.repeating import repeating

        if self.preserve_all or not self.fuse:
            return None
        with self.lock:
            return repeating(graph, pairs, self.provider, self.cpu)

    def _plain(self, graph: Graph) -> Session:
        provider = cpu_only(self.options, "its shapes change from run to run")
        return open_on_cpu(graph, provider, self.cpu, self.preserve_all)


def is_kept(
    provider: Provider | None, options: DelegateOptions, digests: list[str], content: memoryview
) -> bool:
    """Whether something is kept of a file's bytes, so that it was read before without fault. Opens
    nothing. Adds the digest of the bytes to a list, where it was needed."""
    keeping = SavedLocation().asked(options) if provider is None else provider.keeping

    def digest() -> str:
        if not digests:
            digests.append(digest_of(content).hex())
        return digests[0]

    return (provider is None or provider.device is not None) and keeping.knows(digest)


def _quietly(text: str) -> None:
    """What is wrong with the file was said when it was opened."""


def _say(warn: Callable[[str], object], texts: Iterable[str]) -> None:
    for text in texts:
        warn(text)
