"""A subset of LiteRT's nodes as one kernel: copy in, run the session, copy out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tflgpu.backend_kit.forks import Holder
from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.errors import DeviceError, DeviceLostError, StateError, UnsupportedError
from tflgpu.errors.blame import LOG, few, in_a_line
from tflgpu.hosts.cdef import DYNAMIC, ffi, resize
from tflgpu.hosts.edges import Edges, HostTensor
from tflgpu.hosts.reading import HostGraph, shape_of
from tflgpu.hosts.subsets import Subset, open_subset
from tflgpu.ir.dtypes import Array
from tflgpu.options import OnError
from tflgpu.runtime.cpu_session import open_cpu_session
from tflgpu.runtime.provider import Provider
from tflgpu.runtime.session import Session
from tflgpu.tflite.build import build_subgraph

#: Sessions kept at once where shapes change from run to run.
_MOST_SESSIONS = 4

Shapes = tuple[tuple[int, ...], ...]


class SubsetKernel(Holder):
    """Runs one subset. LiteRT calls it from one thread at a time."""

    def __init__(self, host: HostGraph, provider: Provider, subset: Subset, owner: object) -> None:
        self._provider = provider
        self._owner = owner  # of the TfLiteDelegate that LiteRT calls as long as it has the kernel
        self._info = subset.info
        shapes = tuple(host.tensors[t].shape for t in self._info.inputs)
        self._sessions: dict[Shapes, Session] = {shapes: subset.opened.session}
        self._deferred = False
        self._is_lost = self._gave_way = False  # the device; to the CPU
        self._session = subset.opened.session
        self._is_whole = set(subset.nodes) == set(host.operators)
        self._context: Any = None  # as long as LiteRT has the kernel
        self._arrays: Mapping[int, Array] = {}
        self._edges = Edges()
        self._guard = RunGuard("this part of a model")
        self.belongs_to_process()

    def prepare(self, context: Any) -> None:
        """Open a session for the shapes that the inputs have now, and give the outputs theirs.

        Where an input gets its shape only while the model runs, so do the outputs.

        Raises:
            TflgpuError: the operators do not work out at these shapes, or a device failed.
        """
        with self._guard.call:
            tensors = context.tensors
            self._context = context
            self._edges.give_back(tensors, contents=True)
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
        with self._guard.call:
            if self._deferred or self._session.is_broken:
                self._fit(context, most=_MOST_SESSIONS if self._deferred else 1)
            tensors, session = context.tensors, self._session
            self._edges.copy_in(tensors)
            try:
                session.run()
            except DeviceError as error:
                session = self._made_again(context, error)
            if session.arrays is not self._arrays:  # the accuracy guard put another in its place
                self._connect(context, session)
            self._edges.copy_out(tensors)

    def close(self) -> None:
        """Release the sessions; twice is harmless."""
        if self._context is not None:
            self._edges.give_back(self._context.tensors, contents=False)
        self._context, self._edges = None, Edges()
        while self._sessions:
            self._sessions.popitem()[1].close()

    def after_fork(self) -> None:
        """A child may not touch a driver's memory, so that LiteRT gets its own back."""
        if self._context is not None:
            self._edges.give_back(self._context.tensors, contents=False)

    # Inside

    def _made_again(self, context: Any, error: DeviceError) -> Session:
        """After a run that failed, what the option ``on_error`` says: the session that made the run
        again. (`tflgpu.interpreter.recovery` does it for our own interpreter; there is no state
        here, which LiteRT keeps.)"""
        self._is_lost = isinstance(error, DeviceLostError)
        wanted = self._provider.options.on_error
        if wanted in (None, OnError.RAISE) or not self._session.is_broken:
            raise error
        said = in_a_line(error)
        if wanted is OnError.CPU:
            LOG.warning("tflgpu: nodes run on the CPU from now on, since a run failed: %s", said)
            self._gave_way = True
        else:
            LOG.warning("tflgpu: a run failed, and is made again: %s", said)
        self._fit(context, most=_MOST_SESSIONS if self._deferred else 1)
        self._edges.copy_in(context.tensors)
        self._session.run()
        return self._session

    def _fit(self, context: Any, most: int) -> None:
        tensors = context.tensors
        shapes = tuple(shape_of(tensors[t]) for t in self._info.inputs)
        session = self._sessions.get(shapes)
        if session is not None and session.is_broken:
            # An error or a signal ended a run in the middle: its recordings cannot run again.
            session.close()
            if self._is_lost and not self._gave_way:
                self._provider.renew(session)  # where that fails the next call tries again
            self._is_lost = False
            session = None
        self._sessions.pop(shapes, None)
        session = session or self._open(shapes)
        while len(self._sessions) >= most:
            self._sessions.pop(next(iter(self._sessions))).close()
        self._sessions[shapes] = session  # the last used is the last to go
        if session is not self._session or session.arrays is not self._arrays:
            self._connect(context, session)
        for index in self._info.outputs:
            self._resize(context, index, session.arrays[index].shape)

    def _connect(self, context: Any, session: Session) -> None:
        self._edges.give_back(context.tensors, contents=True)
        session.keep_at_hand()
        arrays, named = session.arrays, self._info.tensors
        shareable = self._is_whole and not self._deferred

        def edges(tensors: Sequence[int]) -> list[HostTensor]:
            return [
                HostTensor(t, named[t].name, arrays[t], shareable=shareable)
                for t in tensors
                if arrays[t].size
            ]

        # Variables stay LiteRT's, whose callers read them and set them to zero: they come in and go
        # out in every run.
        kept = [
            HostTensor(t, named[t].name, a, shareable=False) for t, a in session.variables.items()
        ]
        before, after = edges(self._info.inputs), edges(self._info.outputs)
        self._edges = Edges([*before, *kept], [*after, *kept])
        self._session = session
        self._arrays = arrays

    def _resize(self, context: Any, index: int, shape: tuple[int, ...]) -> None:
        tensor = context.tensors[index]
        # A dynamic tensor has memory only once it was given a shape.
        if shape_of(tensor) == shape and (tensor.data or tensor.allocation_type != DYNAMIC):
            return
        if not resize(context, tensor, shape):
            raise StateError(f"LiteRT cannot give tensor {index} the shape {list(shape)}")

    def _open(self, shapes: Shapes) -> Session:
        """Another session. What the device refuses now runs by NumPy: LiteRT has given the nodes
        away and takes none back."""
        new = dict(zip(self._info.inputs, shapes, strict=True))
        if self._gave_way:
            return self._open_on_cpu(new)
        found = open_subset(self._info, self._provider, new)
        if not isinstance(found, dict):
            return found.session
        node, why = next(iter(found.items()))
        story = (
            f"{len(self._info.operators)} operators that were on the device cannot run there any "
            f"more, at shapes {few(shapes)}; #{node}: {why.reason}"
        )
        if not self._provider.options.allow_fallback:
            raise UnsupportedError(f"{story}; and allow_fallback is off")
        LOG.warning("tflgpu: %s; they run on the CPU, by NumPy", story)
        return self._open_on_cpu(new)

    def _open_on_cpu(self, new: Mapping[int, tuple[int, ...]]) -> Session:
        graph = build_subgraph(self._info, self._provider.ops, new, warn=LOG.debug)
        return open_cpu_session(graph, self._provider.ops)
