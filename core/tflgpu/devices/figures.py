"""Measures the figures of a device or of the CPU side from which times are estimated.

Six small graphs are run, each of ops that show one figure more than the others. They are compiled
as models are, so that what is measured are the kernels that models get.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import numpy as np

from tflgpu.compiler.machines import Machine
from tflgpu.contract.device import Recording
from tflgpu.errors import DeviceError
from tflgpu.errors.blame import attempt
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.ops.base import Fields, OpDef
from tflgpu.values import frozen

_CHAIN = 33  # nodes of the chain that shows what a node costs
_LAYERS = 3
_IMAGE, _PIXELS, _CHANNELS = (1, 56, 56, 64), (1, 28, 28, 64), 64
_BUDGET = 0.25  # seconds of running all graphs, after the first run
#: Seconds, and turns at most, after which the clocks of a GPU have risen. Figures are kept: slow
#: ones would leave models to the CPU for ever.
_WARM, _MOST_WARM = 0.3, 1000
_RUNS = 4, 100  # of each graph: least and most
_TRIES = 3
#: No figure is less: what is below is lost in the noise.
_LEAST = 1e-15
_ROUNDS = 4

#: A graph, made ready to run.
Open = Callable[[Graph], Recording]


@frozen
class Shapes:
    """Shapes for which a kind of machine shows what its figures are.

    Attributes:
        small: Of the chain, whose nodes have little to do.
        large: Of what is copied.
        of_pools: Whether the chain is of pools, since elementwise nodes may run as one there. Where
            they do not, they are the chain; a pool is the dearest of NumPy's small nodes.
    """

    small: tuple[int, ...]
    large: tuple[int, ...]
    of_pools: bool = True


#: More than one workgroup of a device.
ON_DEVICE = Shapes((1, 16, 16, 8), (1, 512, 512))
#: A call without work, and what a core's own cache holds, as it does the tensors and weights of a
#: model for which the CPU may be the faster side.
ON_CPU = Shapes((1, 2, 2, 8), (1, 256, 256))
IN_NUMPY = attrs.evolve(ON_CPU, of_pools=False)


def measure_machine(
    open_graph: Open, ops: Mapping[str, OpDef], shapes: Shapes = ON_DEVICE
) -> Machine:
    """The figures of the device, or the CPU, that ``open_graph`` opens graphs on. Takes some 0.3 s
    once everything is compiled.

    Args:
        open_graph: Opens a graph.
        ops: Op definitions by name.
        shapes: Of its kind.

    Raises:
        DeviceError: the times contradict each other, since the machine has too much else to do.
        TflgpuError: a graph cannot be opened there, or a run failed.
    """
    make = _Maker(ops)
    graphs = (
        make.elementwise((4,)),
        (make.pools if shapes.of_pools else make.elementwise)(shapes.small, _CHAIN),
        make.elementwise(shapes.large),
        make.pools(_IMAGE, _LAYERS),
        make.windows(),
        make.products(),
    )
    with ExitStack() as stack:

        def opened(graph: Graph) -> Recording:
            recording = open_graph(graph)
            stack.callback(attempt, recording.close)
            return recording

        recordings = [opened(graph) for graph in graphs]
        for _ in range(_TRIES):
            one, *others = _seconds(recordings)
            if one < min(others):
                return _fitted(shapes, one, *others)
    raise DeviceError(
        "a graph of one small node took longer than larger ones: the machine has too much else "
        "to do"
    )


def _seconds(recordings: Sequence[Recording]) -> list[float]:
    """Seconds of a run of each: the lower quartile, since figures are kept, and what else a machine
    does while it is measured only ever adds to them. They take turns, so that it adds to all
    alike."""
    for recording in recordings:
        for array in recording.inputs:
            array[...] = 0.5
        recording.run()
    start, turns = time.perf_counter(), 0
    while time.perf_counter() - start < _WARM and turns < _MOST_WARM:
        turns += 1
        for recording in recordings:
            recording.run()
    least, most = _RUNS
    times: list[list[float]] = [[] for _ in recordings]
    spent = 0.0
    while len(times[0]) < least or (spent < _BUDGET and len(times[0]) < most):
        for recording, taken in zip(recordings, times, strict=True):
            recording.run()  # what the one before left cold is no part of this one's time
            start = time.perf_counter()
            recording.run()
            taken.append(time.perf_counter() - start)
            spent += taken[-1]
    return [sorted(taken)[len(taken) // 4] for taken in times]


def _fitted(
    shapes: Shapes,
    one: float,
    chain: float,
    copying: float,
    moving: float,
    windows: float,
    products: float,
) -> Machine:
    """The figures by which the graphs take these seconds."""
    image, small, large = (4 * int(np.prod(s)) for s in (_IMAGE, shapes.small, shapes.large))
    slope = (chain - one) / (_CHAIN - 1)
    step = pool = byte = 0.0  # `pool`: seconds for a byte of a pool
    for _ in range(_ROUNDS):  # each of the two is a little of what shows the other
        step = max(slope - 2 * small * (pool if shapes.of_pools else byte), slope / 10, _LEAST)
        launch = max(one - step, _LEAST)
        # Two graphs that move as many bytes over the edge each way, and others inside:
        #     2 large (byte + edge) = copying,    2 image (layers pool + edge) = moving
        both = max(copying - launch - step, _LEAST) / (2 * large)
        inside = max(moving - launch - _LAYERS * step, _LEAST) / (2 * image)
        # Where pools are bound by bytes their rate is that of all; chance must not make it nothing.
        byte = min(max((inside - both) / (_LAYERS - 1), both / 100), both * 0.99)
        edge = both - byte
        pool = max((inside - edge) / _LAYERS, 0.0)

    def rate(seconds: float, edges: int, flops: int) -> float:
        rest = seconds - launch - _LAYERS * step - 2 * edges * edge
        return max(rest / (_LAYERS * flops), _LEAST)

    pixels, taps = 4 * int(np.prod(_PIXELS)), 9
    few = rate(windows, image, 2 * int(np.prod(_IMAGE)) * taps)
    flop = rate(products, pixels, 2 * int(np.prod(_PIXELS)) * taps * _CHANNELS)
    return Machine(launch, step, flop, few, byte, edge)


@attrs.frozen
class _Maker:
    """Makes the graphs: chains of one op, from an input to an output."""

    ops: Mapping[str, OpDef]

    def elementwise(self, shape: tuple[int, ...], length: int = 1) -> Graph:
        return self._chain("RELU", length, shape, {})

    def pools(self, shape: tuple[int, ...], length: int) -> Graph:
        """A graph of nodes that compute next to nothing and that no kernel joins."""
        window = {"filter_height": 2, "filter_width": 2, "padding": 0}
        return self._chain("MAX_POOL_2D", length, shape, {**_STRIDES, **window})

    def windows(self) -> Graph:
        fields = {**_STRIDES, **_DILATIONS, "padding": 0, "depth_multiplier": 1}
        return self._chain("DEPTHWISE_CONV_2D", _LAYERS, _IMAGE, fields, (1, 3, 3, _CHANNELS))

    def products(self) -> Graph:
        fields = {**_STRIDES, **_DILATIONS, "padding": 0}
        return self._chain("CONV_2D", _LAYERS, _PIXELS, fields, (_CHANNELS, 3, 3, _CHANNELS))

    def _chain(
        self,
        op: str,
        length: int,
        shape: tuple[int, ...],
        fields: Mapping[str, Any],
        filter_shape: tuple[int, ...] | None = None,
    ) -> Graph:
        graph = Graph("figures")
        attributes = self.ops[op].parse(Fields(op, dict(fields)))
        last = graph.add_value(shape, DType.F32)
        graph.inputs.append(last)
        operands: list[Value] = []
        if filter_shape is not None:
            # Numbers near zero and not denormal, with any number of layers.
            weights = np.full(filter_shape, 1e-3, np.float32)
            operands = [graph.add_const(weights), graph.add_const(np.zeros(_CHANNELS, np.float32))]
        for at in range(length):
            made = graph.add_value(shape, DType.F32)
            graph.add_node(op, attributes, [last, *operands], [made], origins=(at,))
            last = made
        graph.outputs.append(last)
        return graph


_STRIDES = {"stride_h": 1, "stride_w": 1}
_DILATIONS = {"dilation_h_factor": 1, "dilation_w_factor": 1}
