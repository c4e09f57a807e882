"""A subset of LiteRT's nodes as it runs: copy in, run the session, copy out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import StateError, UnsupportedError
from tflgpu.hosts.cdef import DYNAMIC, ffi, resize
from tflgpu.hosts.reading import HostGraph, shape_of
from tflgpu.hosts.subsets import Engine, Subset, open_subset
from tflgpu.ir.brief import few
from tflgpu.ir.dtypes import Array
from tflgpu.runtime.cpu_session import open_cpu_session
from tflgpu.runtime.session import Session
from tflgpu.tflite.build import build_subgraph

_LOG = logging.getLogger("tflgpu")
#: Sessions kept at once where shapes change from run to run.
_MOST_SESSIONS = 4

Shapes = tuple[tuple[int, ...], ...]


class _Edge:
    """A tensor at the edge: LiteRT's memory, and the session's array of the same shape and type.

    LiteRT may move a tensor whenever it places tensors anew, so each run looks at the pointer.
    """

    __slots__ = ("_name", "array", "index", "pointer", "view")

    def __init__(self, index: int, name: str, array: Array) -> None:
        self.index = index
        self.array = array
        self.pointer: Any = None
        self.view = array
        self._name = name

    def follow(self, tensor: Any) -> None:
        """Look at LiteRT's memory where it is now.

        Raises:
            StateError: there is none, or it has another size.
        """
        if not tensor.data or tensor.bytes != self.array.nbytes:
            has = f"{tensor.bytes:,} bytes" if tensor.data else "no memory"
            raise StateError(
                f"LiteRT has {has} for tensor {self.index} ({self._name}), which takes "
                f"{self.array.nbytes:,}"
            )
        memory = np.frombuffer(ffi().buffer(tensor.data, tensor.bytes), self.array.dtype)
        self.view = memory.reshape(self.array.shape)
        self.pointer = tensor.data


class Kernel:
    """Runs one subset. LiteRT calls it from one thread at a time."""

    def __init__(self, host: HostGraph, engine: Engine, subset: Subset) -> None:
        self._engine = engine
        self._info = subset.info
        shapes = tuple(host.tensors[t].shape for t in self._info.inputs)
        self._sessions: dict[Shapes, Session] = {shapes: subset.opened.session}
        self._deferred = False
        self._session = subset.opened.session
        self._before: list[_Edge] = []
        self._after: list[_Edge] = []

    def prepare(self, context: Any) -> None:
        """Open a session for the shapes that the inputs have now, and give the outputs theirs.

        Where an input gets its shape only while the model runs, so do the outputs.

        Raises:
            TflgpuError: the operators do not work out at these shapes, or a device failed.
        """
        tensors = context.tensors
        self._deferred = any(tensors[t].allocation_type == DYNAMIC for t in self._info.inputs)
        if not self._deferred:
            self._fit(context, most=1)
            return
        for index in self._info.outputs:
            tensor = tensors[index]
            if tensor.allocation_type != DYNAMIC:  # as TFLite's SetTensorToDynamic
                tensor.allocation_type = DYNAMIC
                tensor.data = ffi().NULL

    def invoke(self, context: Any) -> None:
        """Run on what the inputs hold.

        Raises:
            TflgpuError: a device failed, or the delegate was closed.
        """
        if self._deferred or self._session.is_broken:
            self._fit(context, most=_MOST_SESSIONS if self._deferred else 1)
        tensors = context.tensors
        for edge in self._before:
            tensor = tensors[edge.index]
            if tensor.data != edge.pointer:
                edge.follow(tensor)
            np.copyto(edge.array, edge.view)
        self._session.run()
        for edge in self._after:
            tensor = tensors[edge.index]
            if tensor.data != edge.pointer:
                edge.follow(tensor)
            np.copyto(edge.view, edge.array)

    def close(self) -> None:
        """Release the sessions; twice is harmless."""
        self._before, self._after = [], []
        while self._sessions:
            self._sessions.popitem()[1].close()

    # Inside

    def _fit(self, context: Any, most: int) -> None:
        tensors = context.tensors
        shapes = tuple(shape_of(tensors[t]) for t in self._info.inputs)
        session = self._sessions.pop(shapes, None)
        if session is not None and session.is_broken:
            # An error or a signal ended a run in the middle: its recordings cannot run again.
            session.close()
            session = None
        session = session or self._open(shapes)
        while len(self._sessions) >= most:
            self._sessions.pop(next(iter(self._sessions))).close()
        self._sessions[shapes] = session  # the last used is the last to go
        if not self._before or session is not self._session:
            self._before = self._edges(session, self._info.inputs)
            self._after = self._edges(session, self._info.outputs)
            self._session = session
        for index in self._info.outputs:
            self._resize(context, index, session.arrays[index].shape)

    def _edges(self, session: Session, tensors: Sequence[int]) -> list[_Edge]:
        arrays = session.arrays
        named = self._info.tensors
        return [_Edge(t, named[t].name, arrays[t]) for t in tensors if arrays[t].size]

    def _resize(self, context: Any, index: int, shape: tuple[int, ...]) -> None:
        tensor = context.tensors[index]
        # A dynamic tensor has memory only once it was given a shape.
        if shape_of(tensor) == shape and (tensor.data or tensor.allocation_type != DYNAMIC):
            return
        if not resize(context, tensor, shape):
            raise StateError(f"LiteRT cannot give tensor {index} the shape {list(shape)}")

    def _open(self, shapes: Shapes) -> Session:
        """Another session. What the device refuses now runs by NumPy: LiteRT has given the nodes away
        and takes none back."""
        new = dict(zip(self._info.inputs, shapes, strict=True))
        found = open_subset(self._info, self._engine, new)
        if not isinstance(found, dict):
            return found.session
        node, why = next(iter(found.items()))
        story = (
            f"{len(self._info.operators)} operators that were on the device cannot run there any more, "
            f"at shapes {few(shapes)}; #{node}: {why.reason}"
        )
        if not self._engine.options.allow_fallback:
            raise UnsupportedError(f"{story}; and allow_fallback is off")
        _LOG.warning("tflgpu: %s; they run on the CPU, by NumPy", story)
        graph = build_subgraph(self._info, self._engine.ops, new, warn=_LOG.debug)
        return open_cpu_session(graph, self._engine.ops)
