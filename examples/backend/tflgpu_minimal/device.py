"""A `NodeDevice` that can do one thing: RELU of f32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tflgpu.sdk.backend import (
    BaseNodeDevice,
    BaseNodeRecording,
    DeviceCaps,
    DeviceError,
    DType,
    Node,
    NodeRun,
    OpDef,
    Unsupported,
)

from tflgpu_minimal.plugin import INFO


class ReluEngine(BaseNodeDevice):
    """Takes RELU; the partitioner keeps the rest on the CPU and reports the reason."""

    kind = "ReLU engine"

    def __init__(self, index: int) -> None:
        super().__init__()
        if index != INFO.index:
            raise DeviceError(f"there is no device {index}, only {INFO.index} = {INFO.name}")
        self.info = INFO
        self.caps = DeviceCaps(f16_storage=False)

    def supports(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        """None for yes, else the reason why not."""
        if node.op != "RELU":
            return Unsupported(f"the ReLU engine has no {node.op}")
        if node.input(0).dtype is not DType.F32:
            return Unsupported(f"the ReLU engine takes f32, not {node.input(0).dtype.value}")
        return None

    def _load_nodes(self, run: NodeRun) -> BaseNodeRecording:
        """Everything that can be done once is done here; `Recording.run` does the rest."""
        return _Recording(run)


class _Recording(BaseNodeRecording):
    kind = "the ReLU engine"

    def __init__(self, run: NodeRun) -> None:
        super().__init__(run)
        self._run = run

    def _compute(self) -> None:
        arrays = {v.id: a for v, a in zip(self._run.inputs, self._inputs, strict=True)}
        for node in self._run.nodes:
            arrays[node.outputs[0].id] = np.maximum(arrays[node.input(0).id], 0)
        for value, array in zip(self._run.outputs, self._outputs, strict=True):
            array[...] = arrays[value.id]
