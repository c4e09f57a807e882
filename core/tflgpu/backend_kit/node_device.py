"""The base of devices that run operators without kernels."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod

from tflgpu.backend_kit.forks import CLOSED_EARLY
from tflgpu.backend_kit.node_recording import BaseNodeRecording
from tflgpu.contract.device import NodeRun
from tflgpu.errors import StateError


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
