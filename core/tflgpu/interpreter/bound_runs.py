"""Runs of a subgraph on tensors that outlive them, which stay on the device from run to run.

    run 1: cache A -> lane 1 -> cache B;  run 2: cache B -> lane 2 -> cache A;  run 3: as run 1

A lane is the subgraph once more, bound to buffers of the device; lanes share their weights. Binding
anew records all commands again, so that a run takes the lane that is bound as it asks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tflgpu.contract.buffers import Buffer, ForeignMemory
from tflgpu.contract.pending import FINISHED, Pending
from tflgpu.errors import DeviceError, UnsupportedError
from tflgpu.interpreter.bindings import Bound, Port
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.interpreter.tensor_memory import TensorMemory
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.runtime.session import Session

#: Tensors by index.
Memories = Mapping[int, TensorMemory]
_LANES = 2


class _Lane:
    """A subgraph, and what its inputs and outputs are bound to."""

    def __init__(self, subgraph: Subgraph) -> None:
        self.subgraph = subgraph
        self.buffers: dict[int, Buffer] = {}
        self.hosts: dict[int, TensorMemory | None] = {}  # None: it changes from run to run
        self.last: tuple[Memories, Memories] | None = None  # of a run that another may be as


class BoundRuns:
    """The runs of one subgraph on `TensorMemory`. One thread at a time.

    Attributes:
        subgraph: Of the first lane: what is asked about shapes, types and the report.
    """

    def __init__(self, make: Callable[[], Subgraph], *, keeps_state: bool) -> None:
        """No lane yet.

        Args:
            make: Gives the subgraph once more, not allocated.
            keeps_state: Whether a run depends on earlier ones, so that one lane makes all.
        """
        self._make, self._most = make, 1 if keeps_state else _LANES
        self._lanes: list[_Lane] = []
        self._resized: dict[int, Shape] = {}
        self._on_host: dict[int, bool] = {}
        self._rebinds = 0
        self.subgraph = make()

    def resize(self, index: int, size: Any, *, strict: bool) -> None:
        """Give an input another shape.

        Raises:
            ResizeError, InputError: as `Subgraph.resize`.
        """
        self.subgraph.resize(index, size, strict=strict)
        shape = self.subgraph.shape(index)
        if self._resized.get(index) != shape:
            self.close()
            self._resized[index] = shape
            self.subgraph = self._made()

    def ready(self) -> Subgraph:
        """The first lane's subgraph, allocated.

        Raises:
            As `Subgraph.allocate`.
        """
        self.subgraph.allocate()
        if not self._lanes:
            self._lanes.append(_Lane(self.subgraph))
        return self.subgraph

    def shape(self, index: int) -> Shape:
        """The shape of a tensor now."""
        return self.subgraph.shape(index)

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes that runs have copied to the device, and to the host."""
        traffics = [lane.subgraph.traffic for lane in self._lanes]
        return sum(t.to_device for t in traffics), sum(t.to_host for t in traffics)

    def memory(self, index: int, *, on_device: bool, name: str = "") -> TensorMemory:
        """Zeros for an input or output; on the device where that is asked for and it can be bound
        there.

        Raises:
            UnsupportedError: its shape is only known at run time.
            DeviceError: as `ready`, or the device has no memory left.
        """
        session = self.ready().ready_to_bind()
        if index not in session.arrays:
            raise UnsupportedError(
                f"tensor {index} ({name}) has no memory before a run: its shape depends on what "
                "the model computes; use tflgpu.Interpreter"
            )
        own = session.arrays[index]
        stays = on_device and not self._stays_on_host(index)
        return TensorMemory(own.shape, own.dtype, session.device if stays else None, name=name)

    def run(self, inputs: Memories, outputs: Memories, values: Mapping[int, Array]) -> Subgraph:
        """Run; gives the subgraph that did, which has the outputs that ``outputs`` does not name.

        Args:
            inputs: Tensors that are read where they are.
            outputs: Tensors that are written where they are; one that is in ``inputs`` too is
                replaced.
            values: Inputs that are copied.

        Raises:
            StateError, DeviceError: as `Subgraph.run`.
        """
        subgraph, finish = self._begun(inputs, outputs, values)
        subgraph.run()
        finish()
        return subgraph

    def submit(
        self, inputs: Memories, outputs: Memories
    ) -> tuple[Pending, Callable[[float | None], bool]]:
        """Begin a run; gives it, and what waits for its end, which has to be called before the next
        run.

        Raises:
            StateError, DeviceError: as `Subgraph.begin`.
        """
        subgraph, finish = self._begun(inputs, outputs, {})
        pending = subgraph.begin()
        if pending is None:
            subgraph.run()
            pending = FINISHED

        def wait(timeout: float | None) -> bool:
            if pending is not FINISHED and not subgraph.finish(pending, timeout):
                return False
            finish()
            return True

        return pending, wait

    @property
    def is_broken(self) -> bool:
        """Whether a run has left a session of no use."""
        return any(map(_is_broken, self._lanes))

    def forget(self) -> None:
        """Let go of all tensors, and of all sessions but one that is broken: that is opened anew
        next, on a device opened anew where it is lost."""
        kept = [lane for lane in self._lanes if _is_broken(lane)][:1]
        for lane in self._lanes:
            lane.subgraph.bound.clear()
            if lane not in kept:
                lane.subgraph.release()
        for lane in kept:
            self.subgraph = lane.subgraph
            lane.buffers, lane.hosts, lane.last = {}, {}, None
        self._lanes, self._on_host = kept, {}

    def close(self) -> None:
        """Close all lanes; the next run opens others."""
        for lane in self._lanes:
            lane.subgraph.release()
            if lane.subgraph.bound:
                lane.subgraph.bindings.close()
        self._lanes, self._on_host = [], {}

    # Inside

    def _made(self) -> Subgraph:
        made = self._make()
        for index, shape in self._resized.items():
            made.resize(index, shape)
        return made

    def _begun(
        self, inputs: Memories, outputs: Memories, values: Mapping[int, Array]
    ) -> tuple[Subgraph, Callable[[], None]]:
        """A lane with its inputs, and what is to be done after its run."""
        for lane in self._lanes:
            last = lane.last
            if last and last[0] is inputs and last[1] is outputs and not values:
                return lane.subgraph, lambda: None
            lane.last = None
        self.ready()
        for index, memory in (*inputs.items(), *outputs.items()):
            if memory.array is None and self._stays_on_host(index):
                memory.to_host()
        read = list(inputs.values())
        replaced = [memory for memory in outputs.values() if memory in read]
        wanted = {i: memory.source for i, memory in inputs.items()}
        wanted.update((i, m.target(is_read=m in replaced)) for i, m in outputs.items())
        lane = self._lane({i: buffer for i, buffer in wanted.items() if buffer is not None})
        subgraph = lane.subgraph
        copied = []
        for index, memory in inputs.items():
            if memory.array is not None and not _is_bound(lane, index, memory, is_input=True):
                subgraph.set(index, memory.array)
        for index, memory in outputs.items():
            if memory.array is not None and (
                memory in replaced or not _is_bound(lane, index, memory, is_input=False)
            ):
                copied.append((index, memory.array))
        for index, array in values.items():
            subgraph.set(index, array)
        is_bound = {*read, *outputs.values()} <= {*lane.hosts.values()}
        lane.last = (inputs, outputs) if is_bound and not copied and not values else None

        def finish() -> None:
            for index, array in copied:
                np.copyto(array, subgraph.array(index))
            for memory in replaced:
                memory.swap()

        return subgraph, finish

    def _stays_on_host(self, index: int) -> bool:
        """Whether a tensor cannot be bound to a buffer of the device."""
        known = self._on_host.get(index)
        if known is None:
            refused = self.subgraph.ready_to_bind().refusal(index)
            known = self._on_host[index] = refused is not None
        return known

    def _lane(self, wanted: dict[int, Buffer]) -> _Lane:
        """A lane that is bound to buffers: the one that is, another one, or one that is bound
        anew."""
        self.ready()
        for lane in self._lanes:
            if lane.buffers == wanted:
                return lane
        lane = self._lanes[0]
        if lane.buffers:
            lane = self._another()
        session = lane.subgraph.ready_to_bind()
        info = lane.subgraph.info
        changes = {
            Port(i, info.tensors[i].name, i in info.inputs): wanted.get(i)
            for i in {*lane.buffers, *wanted}
            if lane.buffers.get(i) is not wanted.get(i)
        }
        _bind(lane.subgraph, session, changes)
        lane.buffers = wanted
        for i in wanted:
            lane.hosts.pop(i, None)
        return lane

    def _another(self) -> _Lane:
        """The lane to be bound: of a subgraph that was bound anew once, a further one."""
        self._rebinds += 1
        if len(self._lanes) < self._most and self._rebinds > 1:
            made = self._made()
            try:
                made.allocate()
            except DeviceError:  # memory: one lane is bound anew for each run
                self._most = 1
            else:
                self._lanes.append(_Lane(made))
                return self._lanes[-1]
        self._lanes.append(self._lanes.pop(0))
        return self._lanes[-1]


def _is_broken(lane: _Lane) -> bool:
    session = lane.subgraph.session
    return session is not None and session.is_broken


def _bind(subgraph: Subgraph, session: Session, changes: Mapping[Port, Buffer | None]) -> None:
    """Bind inputs and outputs to buffers, or to their own memory again, whose contents do not
    matter."""
    refused = session.put_buffers({port.index: buffer for port, buffer in changes.items()})
    if refused is not None:
        raise UnsupportedError(f"tensors cannot stay on the device: {refused.reason}")
    for port, buffer in changes.items():
        old = subgraph.bound.pop(port.index, None)
        if old is not None:
            old.close()
        if buffer is not None:
            own = session.arrays[port.index]
            memory = ForeignMemory(buffer, "a tensor's memory", own.shape, own.dtype, owned=True)
            subgraph.bound[port.index] = Bound(
                port, memory, own.shape, own.dtype, buffer, subgraph.traffic
            )


def _is_bound(lane: _Lane, index: int, memory: TensorMemory, *, is_input: bool) -> bool:
    """Whether host memory is bound, so that nothing is to be copied here: a tensor's first one is,
    as long as no other comes."""
    if index not in lane.hosts:
        subgraph, array = lane.subgraph, memory.array
        session = subgraph.ready_to_bind()
        assert array is not None
        port = Port(index, subgraph.info.tensors[index].name, is_input)
        source = ForeignMemory(array, "a tensor's memory", array.shape, array.dtype, array)
        lane.hosts[index] = None
        with contextlib.suppress(UnsupportedError):
            subgraph.bindings.bind(session, port, source)
            lane.hosts[index] = memory
    elif lane.hosts[index] not in (None, memory):
        lane.hosts[index] = None
        lane.subgraph.unbind([index])
    return lane.hosts[index] is memory
