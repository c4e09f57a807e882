"""A part of a graph, loaded: its recording and the values at its edges."""

from __future__ import annotations

from tflgpu.compiler.plan import PlanOutline
from tflgpu.contract.device import Device, Recording
from tflgpu.ir.graph import Node, Value
from tflgpu.runtime.run_policy import RunPolicy
from tflgpu.runtime.state import StateBuffers
from tflgpu.values import define, frozen


@frozen
class LoadedPart:
    """A recording, and the values at its edges in the order of its arrays.

    Attributes:
        recording: What runs it. Where it keeps state this is `state`.
        inputs, outputs: The values of its arrays.
        label: As reports name it.
        on_cpu: Whether the CPU runs it: again after an error, and in a forked child.
        state: Keeps its state, which changes when all of a run is over, so that an error in the
            middle leaves it as it was; None where it has none.
        policy: How it is run; None is plainly, once.
        device: Makes buffers that the recording can be bound to; None where it takes none.
        nodes: What it runs, where it runs nodes.
        outline: What it launches, where it runs kernels.
    """

    recording: Recording
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    label: str
    on_cpu: bool = False
    state: StateBuffers | None = None
    policy: RunPolicy | None = None
    device: Device | None = None
    nodes: tuple[Node, ...] = ()
    outline: PlanOutline | None = None


@define
class Traffic:
    """Bytes that were copied between host and device, and how many runs there were."""

    to_device: int = 0
    to_host: int = 0
    runs: int = 0
