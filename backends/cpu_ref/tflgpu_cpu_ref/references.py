"""The first cpu_ref device: every op by its NumPy reference, no kernels involved.

The usable one of the two: convolutions go through BLAS.
"""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.backend_kit.node_recording import BaseNodeDevice
from tflgpu.compiler.references import reference_support
from tflgpu.contract.device import NodeRun
from tflgpu.ir.graph import Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.runtime.reference import ReferenceRecording

from tflgpu_cpu_ref.plugin import REFERENCES


class ReferenceDevice(BaseNodeDevice):
    """A `NodeDevice` over the op definitions."""

    kind = "cpu_ref"

    def __init__(self) -> None:
        super().__init__()
        self.info = REFERENCES
        # References compute in the tensors' own types; there is nothing to gain from f16.
        self.caps = DeviceCaps(f16_storage=False)

    def supports(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        """None for every op that has a reference."""
        return reference_support(node, ops)

    def _load_nodes(self, run: NodeRun) -> ReferenceRecording:
        return ReferenceRecording(run)
