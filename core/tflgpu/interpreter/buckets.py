"""Plans for several sizes: the option ``shape_buckets``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial

import attrs

from tflgpu.errors import ModelError
from tflgpu.errors.blame import attempt
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Shape
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.passes.bucket import Bucket, bucket_of
from tflgpu.runtime.bucket_session import BucketSession
from tflgpu.runtime.session import Session
from tflgpu.tflite.model_file import SubgraphInfo
from tflgpu.values import define, frozen

#: Sessions that are kept for other sizes; each has its plan's memory on the device.
_MOST_KEPT = 8
#: Sizes of a bucket that are remembered.
_MOST_SIZES = 64


@frozen(eq=False)
class _Size:
    """A size of a bucket.

    Attributes:
        shapes: Of the file's tensors.
        edge: Its inputs and outputs.
        contents: Of the bucket's further inputs.
    """

    shapes: Mapping[int, Shape]
    edge: frozenset[int]
    contents: Mapping[int, Array]


@define(eq=False)
class _Plan:
    """A bucket of one subgraph.

    Attributes:
        graph: The file's graph at the size of the bucket.
        bucket: What is compiled.
        sizes: Those that it was asked for, the last ones; or why one is not computed.
    """

    graph: Graph
    bucket: Bucket
    sizes: dict[int, _Size | Unsupported] = attrs.Factory(dict)


class Buckets:
    """The buckets of one interpreter. One thread at a time, as `SessionOpener`.

    Args:
        sizes: Of buckets, in rising order.
        ops: Op definitions by name.
        load: Opens a session of a graph.
        is_limited: Whether memory is, so that plans that do not run are released for another.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        ops: Mapping[str, OpDef],
        load: Callable[[Graph], Session],
        *,
        is_limited: bool = False,
    ) -> None:
        self._sizes, self._ops, self._load, self._is_limited = sizes, ops, load, is_limited
        self._plans: dict[object, _Plan | Unsupported] = {}
        self._shelf = _Shelf()
        self._end = weakref.finalize(self, self._shelf.close)

    def open(
        self,
        number: int,
        info: SubgraphInfo,
        shapes: Mapping[int, Shape],
        build: Callable[[Mapping[int, Shape]], Graph],
    ) -> tuple[BucketSession, Mapping[int, Shape], frozenset[int]] | Unsupported | None:
        """A session of a subgraph at these shapes of inputs, by the plan of a bucket, the shapes of
        the file's tensors then, and its inputs and outputs; why there is none; None where no input
        has another size than in the file.

        Raises:
            DeviceError, PluginError, GraphError: as `tflgpu.runtime.opening.open_graph`.
            ModelError: the operators do not work out at these shapes.
        """
        old = {i: info.tensors[i].shape for i in info.inputs}
        now = {i: shapes.get(i, shape) for i, shape in old.items()}
        if any(len(now[i]) != len(shape) for i, shape in old.items()):
            return Unsupported("an input has another number of dimensions than in the file")
        places = [(i, at) for i, shape in old.items() for at in range(len(shape))]
        changed = [(i, at) for i, at in places if now[i][at] != old[i][at]]
        if not changed:
            return None
        real = max(now[i][at] for i, at in changed)
        size = next((size for size in self._sizes if size >= real), None)
        if size is None or real < 1:
            return Unsupported(f"no bucket has the size {real}")
        moving = {place for place in changed if now[place[0]][place[1]] == real}

        def of(size: int) -> Graph:
            return build(
                {
                    i: tuple(size if (i, at) in moving else n for at, n in enumerate(shape))
                    for i, shape in now.items()
                }
            )

        rest = [(i, at, now[i][at]) for i, at in places if (i, at) not in moving]
        key = number, size, tuple(rest)
        if key not in self._plans:
            self._plans[key] = self._plan(size, of)
        plan = self._plans[key]
        if isinstance(plan, Unsupported):
            return plan
        known = plan.sizes.get(real)
        if known is None:
            if len(plan.sizes) >= _MOST_SIZES:
                plan.sizes.pop(next(iter(plan.sizes)))
            known = plan.sizes[real] = self._size(plan, build(now), is_full=real == size)
        if isinstance(known, Unsupported):
            return known
        session = self._shelf.take(key)
        if session is None:
            if self._is_limited:
                self._shelf.clear()
            loaded = self._load(plan.bucket.graph)
            if all(part.on_cpu for part in loaded.parts):
                loaded.close()  # which compiles nothing, and computes a size as it is
                self._plans[key] = refused = Unsupported("nothing of it goes to the device")
                return refused
            session = BucketSession(loaded, partial(self._shelf.put, key))
        edge = {i: known.shapes[i] for i in known.edge}
        said = f"size {real} runs by the plan for {size} (shape_buckets)"
        counts = plan.bucket.graph.absent
        absent = 0 if counts is None else int(known.contents[counts.count][0])
        session.fit(edge, known.contents, absent, said)
        return session, known.shapes, known.edge

    def close(self) -> None:
        """Release all sessions that are kept; twice is harmless. What is closed later is not
        kept."""
        self._end()

    # Inside

    def _plan(self, size: int, of: Callable[[int], Graph]) -> _Plan | Unsupported:
        try:
            graph = of(size)
            bucket = bucket_of(graph, of(size - 1), self._ops)
        except ModelError as error:
            return Unsupported(f"the operators do not work out at {size}: {error}")
        if isinstance(bucket, Unsupported):
            return bucket
        return _Plan(graph, bucket)

    def _size(self, plan: _Plan, graph: Graph, *, is_full: bool) -> _Size | Unsupported:
        contents = plan.bucket.full
        if not is_full:
            found = bucket_of(plan.graph, graph, self._ops, plan.bucket.varying)
            if isinstance(found, Unsupported):
                return found
            if found.recipe != plan.bucket.recipe:
                return Unsupported("other constants change from size to size")
            contents = found.contents
        shapes = {v.id: v.shape for v in graph.values.values()}
        edge = frozenset(v.id for v in (*graph.inputs, *graph.outputs))
        return _Size(shapes, edge, contents)


class _Shelf:
    """Sessions that nothing runs, until they are fitted to another size."""

    def __init__(self) -> None:
        self._sessions: list[tuple[object, BucketSession]] = []
        self._is_open = True

    def put(self, key: object, session: BucketSession) -> bool:
        """Keep a session; False after `close`, and of one that broke: with its device, perhaps,
        so that the others go, too."""
        if session.is_broken:
            self.clear()
        if session.is_broken or not self._is_open:
            return False
        self._sessions.append((key, session))
        return True

    def take(self, key: object) -> BucketSession | None:
        """A session of a bucket that was kept last; others are released where there are many."""
        found = next((s for s in reversed(self._sessions) if s[0] == key), None)
        if found is not None:
            self._sessions.remove(found)
        while len(self._sessions) > _MOST_KEPT:
            attempt(Session.close, self._sessions.pop(0)[1])
        return None if found is None or found[1].inherited else found[1]

    def clear(self) -> None:
        """Release what is kept."""
        while self._sessions:
            attempt(Session.close, self._sessions.pop()[1])

    def close(self) -> None:
        """Release what is kept, and keep nothing from now on."""
        self._is_open = False
        self.clear()
