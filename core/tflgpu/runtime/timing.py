"""The time model of a device and its CPU side: read from disk, or measured now."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.machines import ROUND_FIGURES, Machine, TimeModel
from tflgpu.compiler.parts import Part
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device, DeviceInfo, NodeDevice, NodeRun, Recording
from tflgpu.devices.cpu_side import REFERENCES, CpuSide
from tflgpu.devices.figures import IN_NUMPY, ON_CPU, ON_DEVICE, Open, Shapes, measure_machine
from tflgpu.devices.measured_times import (
    MeasuredTimes,
    default_folder,
    device_settings,
    figures_key,
)
from tflgpu.errors import UnsupportedError
from tflgpu.errors.blame import LOG, Failed, attempt
from tflgpu.ir.graph import Graph
from tflgpu.plugins.registry import Registry
from tflgpu.runtime.reference import ReferenceRecording


def time_model(
    device: Device | NodeDevice,
    target: Target,
    cpu: CpuSide,
    known: Registry,
    times: MeasuredTimes | None = None,
) -> TimeModel:
    """How long nodes take on a device and on the CPU side.

    Each side is measured once and kept in ``times``, by default in the user's cache folder. Where
    one cannot be measured, the answer is round figures for both, since figures of one side mean
    nothing without the other's; the note says why.

    Raises:
        DeviceError: the CPU side that was asked for cannot run here.
    """
    store = MeasuredTimes(default_folder()) if times is None else times
    host = cpu.device
    owner = known.distribution
    info = device.info
    plain = attrs.evolve(target.for_all(), passes=(), times=ROUND_FIGURES)

    def on_device(graph: Graph) -> Recording:
        parts = compile_graph(graph, plain).parts
        if len(parts) != 1 or not parts[0].delegated:
            raise UnsupportedError(f"it does not take {graph.nodes[0].op}")
        if isinstance(device, NodeDevice):
            return device.load_nodes(_nodes(parts[0], target))
        assert parts[0].plan is not None
        return device.load(parts[0].plan)

    def on_host(graph: Graph) -> Recording:
        part = Part(tuple(graph.nodes), False, tuple(graph.inputs), tuple(graph.outputs))
        run = _nodes(part, target)
        return ReferenceRecording(run) if host is None else host.load_nodes(run)

    references = DeviceInfo(REFERENCES, 0, "NumPy references", driver=f"NumPy {np.__version__}")
    beside, by = (references, IN_NUMPY) if host is None else (host.info, ON_CPU)
    sides: Sequence[tuple[DeviceInfo, str, Open, Shapes]] = (
        (info, device_settings(target.site.precision.value), on_device, ON_DEVICE),
        (beside, cpu.settings, on_host, by),
    )
    found: list[Machine] = []
    for side, settings, open_graph, shapes in sides:
        key = figures_key(side, owner(side.backend), settings)
        figures = store.load(key, len(attrs.fields(Machine)))
        if figures is None:
            machine = attempt(measure_machine, open_graph, target.ops, shapes)
            if isinstance(machine, Failed):
                note = f"round figures: {side.name} could not be measured: {machine}"
                LOG.info("tflgpu: %s", note)
                return attrs.evolve(ROUND_FIGURES, note=note)
            store.store(key, [side], list(attrs.astuple(machine)))
        else:
            machine = Machine(*figures)
        found.append(machine)
    note = f"measured on {info.name} ({info.backend}) and {beside.name}"
    return TimeModel(found[0], found[1], measured=True, note=note)


def _nodes(part: Part, target: Target) -> NodeRun:
    return NodeRun(part.nodes, part.inputs, part.outputs, target.ops, {})
