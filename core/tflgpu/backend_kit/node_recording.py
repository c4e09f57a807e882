"""The bases of devices that run operators without kernels, and of their recordings."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from tflgpu.backend_kit.forks import CLOSED_EARLY
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import DispatchTime, NodeRun
from tflgpu.contract.pending import FINISHED, Pending
from tflgpu.errors import StateError
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported


class BaseNodeRecording(ABC):
    """A `tflgpu.contract.device.Recording` for a `NodeDevice` whose runs are over when they return.

    A subclass has `_compute`, which reads ``_inputs`` and writes ``_outputs``, in place.

    Attributes:
        kind: Who computes, as messages call it ("NumPy").
    """

    kind = ""

    def __init__(self, run: NodeRun) -> None:
        """With arrays of zeros for what the nodes read and give."""
        self._inputs = tuple(np.zeros(v.shape, v.dtype.numpy) for v in run.inputs)
        self._outputs = tuple(np.zeros(v.shape, v.dtype.numpy) for v in run.outputs)
        self._closed = False

    @abstractmethod
    def _compute(self) -> None:
        """Every node.

        Raises:
            DeviceError: one failed; names it.
        """

    @property
    def inputs(self) -> Sequence[Array]:
        """Writable host arrays, one per input."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[Array]:
        """Host arrays, one per output."""
        return self._outputs

    def run(self) -> None:
        """Compute every node.

        Raises:
            StateError: it is closed.
            DeviceError: a node failed; names it.
        """
        if self._closed:
            raise StateError(f"this recording is closed: {CLOSED_EARLY}")
        self._compute()

    def submit(self) -> Pending:
        """A run; there is nothing to wait for afterwards.

        Raises:
            StateError, DeviceError: as `run`.
        """
        self.run()
        return FINISHED

    def bind(
        self,
        inputs: Mapping[int, Buffer | None] | None = None,
        outputs: Mapping[int, Buffer | None] | None = None,
    ) -> Unsupported:
        """As `Recording.bind`: there are no buffers but the arrays."""
        return Unsupported(f"{self.kind} computes in memory of its own")

    def profile(self) -> Sequence[DispatchTime] | Unsupported:
        """A run; there are no timers.

        Raises:
            StateError, DeviceError: as `run`.
        """
        self.run()
        return Unsupported(f"{self.kind} runs operators as they are, and times none of them")

    def refuse(self) -> None:
        """Let no further run begin: the device is closed."""
        self._closed = True

    def close(self) -> None:
        """Refuse further runs; twice is harmless."""
        self.refuse()


class BaseNodeDevice(ABC):
    """A `tflgpu.contract.device.NodeDevice`. A subclass sets ``info`` and ``caps``, and has
    `supports` and `_load_nodes`.

    Attributes:
        kind: Which it is, as messages call it ("cpu_ref").
    """

    kind = ""

    def __init__(self) -> None:
        self._closed = False
        self._recordings: weakref.WeakSet[BaseNodeRecording] = weakref.WeakSet()

    @abstractmethod
    def _load_nodes(self, run: NodeRun) -> BaseNodeRecording:
        """Prepare some nodes.

        Raises:
            DeviceError: they cannot run here; names the node.
        """

    def load_nodes(self, run: NodeRun) -> BaseNodeRecording:
        """Prepare some nodes for running.

        Raises:
            StateError: the device is closed.
            DeviceError: they cannot run here; names the node.
        """
        if self._closed:
            raise StateError(f"this {self.kind} device is closed: {CLOSED_EARLY}")
        recording = self._load_nodes(run)
        self._recordings.add(recording)
        return recording

    def close(self) -> None:
        """Refuse further work, also by what was loaded; twice is harmless. A run that another
        thread is in comes to its end."""
        self._closed = True
        for recording in list(self._recordings):
            recording.refuse()
