"""Devices that run nodes: the same promises about arrays, runs and closing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np

from tflgpu.conformance.contract.interrupts import interrupt_runs
from tflgpu.conformance.contract.tools import fill, refused, same
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import NodeDevice, NodeRun
from tflgpu.errors import StateError

_Question = Callable[[NodeDevice, NodeRun, SampleCase], Outcome]


def node_device_checks() -> list[Check]:
    """What `NodeDevice.load_nodes` gives, with the first sample that the device takes."""
    return [
        Check("0/nodes/arrays_stay", partial(_ask, _arrays_stay)),
        Check("0/nodes/recordings_apart", partial(_ask, _recordings_apart)),
        Check("0/nodes/recording_closes", partial(_ask, _recording_closes)),
        Check("0/nodes/interrupted_runs", partial(_ask, _interrupted_runs)),
        Check("0/nodes/device_closes", partial(_ask_another, _device_closes)),
    ]


def _ask(question: _Question, target: DeviceUnderTest) -> Outcome:
    device = target.device
    if not isinstance(device, NodeDevice):
        return NotApplicable("the device runs plans, not nodes")
    for op in target.ops.values():
        for sample in op.samples():
            case = materialize(op, sample)
            graph = case.graph
            if graph.inputs and device.supports(case.node, target.ops) is None:
                nodes, inputs, outputs = graph.nodes, graph.inputs, graph.outputs
                run = NodeRun(tuple(nodes), tuple(inputs), tuple(outputs), target.ops, {})
                return question(device, run, case)
    return NotApplicable("the device takes no sample of any op")


def _ask_another(question: _Question, target: DeviceUnderTest) -> Outcome:
    if not isinstance(target.device, NodeDevice):
        return NotApplicable("the device runs plans, not nodes")
    with closing(target.reopen()) as other:
        return _ask(question, other)


def _arrays_stay(device: NodeDevice, run: NodeRun, case: SampleCase) -> None:
    recording = device.load_nodes(run)
    arrays = [*recording.inputs, *recording.outputs]
    for value, array in zip((*run.inputs, *run.outputs), arrays, strict=True):
        assert array.shape == value.shape, f"{value.name} has shape {array.shape}"
        assert array.dtype == value.dtype.numpy, f"{value.name} is {array.dtype}"
    before = [a.ctypes.data for a in arrays]
    given = [case.arrays[v.id] for v in run.inputs]
    for array, data in zip(recording.inputs, given, strict=True):
        array[...] = data
    found = []
    for _ in range(2):
        recording.run()
        after = [a.ctypes.data for a in (*recording.inputs, *recording.outputs)]
        assert after == before, "host arrays moved between runs"
        found.append([np.array(a) for a in arrays[len(given) :]])
    for array, data in zip(arrays, given, strict=False):
        same(np.array(array), np.asarray(data, array.dtype), "an input after two runs")
    for first, second in zip(*found, strict=True):
        same(second, first, "an output of a second run on the same inputs")
    recording.close()


def _recordings_apart(device: NodeDevice, run: NodeRun, case: SampleCase) -> None:
    """Nodes loaded twice."""
    first, second = device.load_nodes(run), device.load_nodes(run)
    for value, mine, other in zip(run.inputs, first.inputs, second.inputs, strict=True):
        mine[...] = case.arrays[value.id]
        other[...] = 0
    first.run()
    wanted = [np.array(a) for a in first.outputs]
    second.run()
    for array, want in zip(first.outputs, wanted, strict=True):
        same(np.array(array), want, "an output after another recording ran")
    second.close()
    first.run()
    for array, want in zip(first.outputs, wanted, strict=True):
        same(np.array(array), want, "an output after another recording was closed")
    first.close()


def _recording_closes(device: NodeDevice, run: NodeRun, case: SampleCase) -> None:
    recording = device.load_nodes(run)
    recording.run()
    kept = [np.array(a) for a in recording.outputs]
    held = list(recording.outputs)
    recording.close()
    recording.close()
    refused(recording.run, "running a closed recording", StateError)
    refused(recording.profile, "profiling a closed recording", StateError)
    for array, want in zip(held, kept, strict=True):
        same(np.array(array), want, "an output after close")


def _interrupted_runs(device: NodeDevice, run: NodeRun, case: SampleCase) -> Outcome:
    given = [case.arrays[v.id] for v in run.inputs]
    other = [np.zeros_like(a) for a in given]
    expected = []
    for arrays in (given, other):
        recording = device.load_nodes(run)
        fill(recording, *arrays)
        recording.run()
        expected.append([np.array(a) for a in recording.outputs])
        recording.close()
    return interrupt_runs(lambda: device.load_nodes(run), given, expected[0], other, expected[1])


def _device_closes(device: NodeDevice, run: NodeRun, case: SampleCase) -> None:
    device.load_nodes(run).close()
    device.close()
    device.close()
    refused(lambda: device.load_nodes(run), "loading on a closed device", StateError)
