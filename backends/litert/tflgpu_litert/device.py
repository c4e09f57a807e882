"""LiteRT's CPU kernels as a `NodeDevice`: what it takes, and what it gives for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from tflgpu.backend_kit.node_recording import BaseNodeDevice
from tflgpu.contract.device import DeviceInfo, NodeRun
from tflgpu.errors import DeviceError
from tflgpu.ir.graph import Node, TensorSpec, Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.reason import NeedsConstant, Unsupported
from tflgpu.ops.base import OpDef
from tflgpu.ops.unknown import ForeignOp
from tflgpu.options import OpResolverType
from tflgpu.tflite.cut import small_model

from tflgpu_litert.native import LiteRTError, Opened, Settings, open_model, try_registerers
from tflgpu_litert.newer import repack
from tflgpu_litert.quirks import as_written, quirk, quirk_of_loops
from tflgpu_litert.recording import LiteRTRecording
from tflgpu_litert.shapes import told_late


class LiteRTDevice(BaseNodeDevice):
    """A `NodeDevice`, `ForeignOps` and `CustomOps`. It holds nothing: each recording has an
    interpreter."""

    kind = "litert"

    def __init__(self, info: DeviceInfo, threads: int | None, resolver: OpResolverType) -> None:
        super().__init__()
        self.info = info
        # Its kernels compute in the tensors' own types; there is nothing to gain from f16.
        self.caps = DeviceCaps(f16_storage=False)
        self.settings = Settings(threads, resolver)

    def register_custom_ops(self, registerers: Sequence[Any]) -> None:
        """Use these registerers for every model that is loaded from now on."""
        settings = attrs.evolve(self.settings, registerers=tuple(registerers))
        try_registerers(settings)
        self.settings = settings

    def supports(self, node: Node, ops: Mapping[str, OpDef]) -> Unsupported | None:
        """Whether LiteRT takes the node, found out by giving it the node alone."""
        reason = quirk(node, ops)
        if reason is not None:
            return Unsupported(reason)
        tried = self._alone(node, ops)
        if isinstance(tried, Unsupported):
            return tried
        for value, given in zip(node.outputs, told_late(node), strict=True):
            shape = tried.shape(value.id)
            shape = given if shape is None else shape
            if shape is None:
                return Unsupported(f"LiteRT knows the shape of {value.name} only when it has run")
            if shape != value.shape:
                return Unsupported(
                    f"LiteRT makes {value.name} of shape {list(shape)}, not {list(value.shape)}"
                )
        return None

    def infer(self, node: Node) -> Sequence[TensorSpec] | Unsupported:
        """Types and shapes of the results of a node that tflgpu does not define, by LiteRT's
        interpreter: a shape in the file may be a placeholder."""
        reason = quirk_of_loops(node)
        if reason is not None:
            return Unsupported(reason)
        foreign = Node(
            node.op,
            ForeignOp(""),
            node.inputs,
            node.outputs,
            node.version,
            node.origins,
            node.source,
        )
        tried = self._alone(foreign, {})
        if isinstance(tried, Unsupported):
            return tried
        specs = []
        for value, given in zip(node.outputs, told_late(node), strict=True):
            shape = tried.shape(value.id)
            shape = given if shape is None else shape
            if shape is None:
                refused = f"LiteRT knows the shape of its result {value.name} only when it has run"
                free = [v for v in node.inputs if v is not None and v.data is None]
                # Sizes and counts, of which it tells the shape where they are constants.
                told = any(v.dtype.is_int and v.quant is None for v in free)
                return NeedsConstant(refused) if told else Unsupported(refused)
            specs.append(TensorSpec(shape, value.dtype))
        return specs

    def _load_nodes(self, run: NodeRun) -> LiteRTRecording:
        """Write some nodes as a model and open it.

        Raises:
            DeviceError: they cannot be written, or LiteRT does not take them; names the node.
        """
        edge = {value.id for value in (*run.inputs, *run.outputs)}
        for node in run.nodes:
            reason = quirk(node, run.ops, edge)
            if reason is not None:
                raise DeviceError(f"{node.label}: {reason}")
        return LiteRTRecording(run, self.settings)

    def _alone(self, node: Node, ops: Mapping[str, OpDef]) -> Opened | Unsupported:
        """The node by itself: without XNNPACK, which takes its time to prepare, but for what only
        that has (some custom ops)."""
        model = small_model([as_written(node)], _given(node), node.outputs, ops, repack)
        if isinstance(model, Unsupported):
            return Unsupported(f"not by LiteRT: {model.reason}")
        try:
            return open_model(model, self.settings.plain)
        except LiteRTError as error:
            refused = Unsupported(f"LiteRT does not take it: {error}")
        try:
            return open_model(model, self.settings)
        except LiteRTError:
            return refused


def _given(node: Node) -> list[Value]:
    """What a node reads that is neither constant nor variable, each once."""
    found = {v.id: v for v in node.inputs if v is not None and not v.is_const and not v.is_variable}
    return list(found.values())
