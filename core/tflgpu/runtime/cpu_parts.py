"""Loads a part that stays on the CPU: the CPU side runs what it supports, NumPy the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from tflgpu.checks.device import close_all
from tflgpu.compiler.parts import Part
from tflgpu.contract.device import NodeDevice, NodeRun
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import DeviceError, UnsupportedError
from tflgpu.errors.blame import LOG, attempt
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.runtime.loaded_part import LoadedPart
from tflgpu.values import define

if TYPE_CHECKING:
    from tflgpu.ops.base import OpDef


@define(eq=False)
class CpuLoader:
    """Loads parts on the CPU.

    Attributes:
        side: What runs them; None for NumPy alone.
        ops: Op definitions by name.
        variables: State tensors by value id.
        placed: By operator of the file: the name of what runs it, where that is not NumPy.
    """

    side: CpuSide | None
    ops: Mapping[str, OpDef]
    variables: dict[int, Array]
    placed: dict[int, str] = attrs.field(factory=dict)

    def load(self, part: Part) -> list[LoadedPart]:
        """What runs a part, in order.

        Raises:
            UnsupportedError: an operator that neither the CPU side nor a reference runs; lists all,
                with reasons.
            DeviceError: the CPU side that was asked for cannot run here.
        """
        device = None if self.side is None else self.side.device
        if device is None:
            if self.side is not None:
                self.side.warn_of_numpy()
            return [self._by_numpy(part, {})]
        # Asking about every node takes longer than trying, and most parts are taken whole.
        whole = self.load_whole(part)
        return [whole] if whole is not None else self._load_divided(device, part)

    def load_whole(self, part: Part) -> LoadedPart | None:
        """A part as the CPU side runs it whole; None where it does not, or where
        only NumPy is there.

        Raises:
            DeviceError: the CPU side that was asked for cannot run here.
        """
        device = None if self.side is None else self.side.device
        found = None if device is None else self._by_device(device, part)
        if isinstance(found, DeviceError):
            LOG.debug("tflgpu: not as a whole: %s", found)
            return None
        return found

    def _load_divided(self, device: NodeDevice, part: Part) -> list[LoadedPart]:
        """The CPU side what it takes node by node, NumPy the rest."""
        from tflgpu.compiler.partition import divide  # most parts are taken whole

        reasons: dict[int, str] = {}
        for node in part.nodes:
            refused = device.supports(node, self.ops)
            if refused is not None:
                reasons[id(node)] = refused.reason
        loaded: list[LoadedPart] = []
        try:
            for piece, taken in divide(part, lambda node: id(node) not in reasons):
                found = self._by_device(device, piece) if taken else None
                if isinstance(found, DeviceError):  # together what it takes one by one
                    LOG.warning("tflgpu: a part of the model runs by NumPy: %s", found)
                    reasons.update((id(node), str(found)) for node in piece.nodes)
                    found = None
                loaded.append(found or self._by_numpy(piece, reasons))
        except BaseException:
            attempt(close_all, [each.recording for each in loaded])
            raise
        return loaded

    def _by_device(self, device: NodeDevice, part: Part) -> LoadedPart | DeviceError:
        assert self.side is not None
        try:
            recording = device.load_nodes(self._run_of(part))
        except DeviceError as error:
            return error
        for node in part.nodes:
            self.placed.update(dict.fromkeys(node.origins, self.side.name))
        return LoadedPart(
            recording, part.inputs, part.outputs, part.label, on_cpu=True, nodes=part.nodes
        )

    def _by_numpy(self, part: Part, reasons: Mapping[int, str]) -> LoadedPart:
        from tflgpu.runtime.reference import ReferenceRecording, refusals

        refused = refusals(part.nodes, self.ops)
        if refused:
            listed = "; ".join(_told(node, reason, reasons) for node, reason in refused)
            raise UnsupportedError(
                f"{len(refused)} operators run neither on the device nor on the CPU: {listed}"
            )
        recording = ReferenceRecording(self._run_of(part))
        return LoadedPart(
            recording, part.inputs, part.outputs, part.label, on_cpu=True, nodes=part.nodes
        )

    def _run_of(self, part: Part) -> NodeRun:
        return NodeRun(part.nodes, part.inputs, part.outputs, self.ops, self.variables)


def _told(node: Node, reason: str, reasons: Mapping[int, str]) -> str:
    other = reasons.get(id(node))
    return f"{node.label}: {reason}" + ("" if other is None else f" ({other})")
