"""A `NodeDevice` that can do one thing: RELU of f32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import DispatchTime, NodeRun, Recording
from tflgpu.contract.pending import FINISHED, Pending
from tflgpu.errors import DeviceError, StateError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.lowering.caps import DeviceCaps
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import OpDef

from tflgpu_minimal.plugin import INFO


class ReluEngine:
    """Takes RELU; the partitioner keeps the rest on the CPU and reports the reason."""

    def __init__(self, index: int) -> None:
        if index != INFO.index:
            raise DeviceError(f"there is no device {index}, only {INFO.index} = {INFO.name}")
        self.info = INFO
        self.caps = DeviceCaps(f16_storage=False)
        self._closed = False

    def supports(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        """None for yes, else the reason why not."""
        if node.op != "RELU":
            return Unsupported(f"the ReLU engine has no {node.op}")
        if node.input(0).dtype is not DType.F32:
            return Unsupported(f"the ReLU engine takes f32, not {node.input(0).dtype.value}")
        return None

    def load_nodes(self, run: NodeRun) -> Recording:
        """Everything that can be done once is done here; `Recording.run` does the rest."""
        if self._closed:
            raise StateError("the ReLU engine is closed")
        return _Recording(run)

    def close(self) -> None:
        """Refuse further work; twice is harmless."""
        self._closed = True


class _Recording:
    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._arrays = {
            v.id: np.zeros(v.shape, np.float32)
            for node in run.nodes
            for v in (node.input(0), node.outputs[0])
        }
        self._closed = False

    @property
    def inputs(self) -> Sequence[Array]:
        return [self._arrays[v.id] for v in self._run.inputs]

    @property
    def outputs(self) -> Sequence[Array]:
        return [self._arrays[v.id] for v in self._run.outputs]

    def run(self) -> None:
        if self._closed:
            raise StateError("this recording is closed")
        for node in self._run.nodes:
            source, target = node.input(0), node.outputs[0]
            np.maximum(self._arrays[source.id], 0, out=self._arrays[target.id])

    def submit(self) -> Pending:
        """Begin a run; there is nothing to wait for afterwards."""
        self.run()
        return FINISHED

    def bind(
        self,
        inputs: Mapping[int, Buffer | None] | None = None,
        outputs: Mapping[int, Buffer | None] | None = None,
    ) -> Unsupported:
        """There are no buffers but the arrays."""
        return Unsupported("the ReLU engine computes in arrays of its own")

    def profile(self) -> Sequence[DispatchTime]:
        """There are no timers: a run, and no times."""
        self.run()
        return ()

    def close(self) -> None:
        """Refuse further runs; twice is harmless."""
        self._closed = True
