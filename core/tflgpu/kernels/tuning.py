"""What was measured: the constants by which kernels are chosen and cut, by device.

All of them were fitted on one GPU, an NVIDIA H200, and stand for every other device until that one
is measured too. Nothing else in `tflgpu.kernels` holds a number that a measurement gave for products.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tflgpu.lowering.caps import DeviceCaps


@attrs.frozen
class BlockedModel:
    """A machine model of blocked products through shared memory (`tflgpu.kernels.tiles`).

    Attributes:
        lanes: Multiply-adds of a processor in a clock.
        shared_clocks: Clocks of a 16-byte read from shared memory.
        fetch_clocks: Clocks of moving 16 bytes from global to shared memory.
        hiding: Invocations that keep a processor busy.
        resident_threads, resident_bytes: Invocations, and bytes of shared memory, that a processor
            has at a time.
        stage_latency, step_latency: Clocks of a stage, and of a step of it, that nothing hides.
        split_clocks: Clocks of adding what two shares of a sum have.
        wave_clocks: Clocks of starting and ending a wave of workgroups.
    """

    lanes: int
    shared_clocks: float
    fetch_clocks: float
    hiding: int
    resident_threads: int
    resident_bytes: int
    stage_latency: float
    step_latency: float
    split_clocks: float
    wave_clocks: float


@attrs.frozen
class MatrixModel:
    """A machine model of products on matrix tiles (`tflgpu.kernels.matrix_tiles`), in a unit of
    time of its own.

    Attributes:
        a_clocks, b_clocks: Moving an f16 vector of an input, and of weights, to shared memory.
        multiply_clocks: Multiplying two tiles.
        stage_latency, fetch_latency, multiply_latency: What a stage takes that nothing hides: in any
            case, for each vector that an invocation fetches, for each product of tiles.
        result_clocks: Storing a vector of the result.
        resident_bytes: Shared memory that a processor has at a time.
        wave_clocks: Starting and ending a wave of workgroups.
    """

    a_clocks: float
    b_clocks: float
    multiply_clocks: float
    stage_latency: float
    fetch_latency: float
    multiply_latency: float
    result_clocks: float
    resident_bytes: int
    wave_clocks: float


@attrs.frozen
class Tuning:
    """What is known of one kind of device.

    Attributes:
        few_rows: Products of at most so many rows get a workgroup per few output slices; more are
            better served by the blocked product.
        least_depth: Shorter sums, in slices, are bound by their stores, which the blocked product
            without matrices does as fast.
        most_groups, wide: A grouped convolution is one product per group where there are at most so
            many groups of at least so many channels: each takes a dispatch, and a tile of a product
            is at least so wide.
        joins_pointwise: A 1x1 convolution and the depthwise one after it are faster as one kernel.
            No device has been found on which they are; none was measured yet.
        blocked: Chooses the tiles of blocked products.
        matrix: The same on matrix tiles.
    """

    few_rows: int
    least_depth: int
    most_groups: int
    wide: int
    joins_pointwise: bool
    blocked: BlockedModel
    matrix: MatrixModel


#: `blocked` was fitted to kernel times of 86 convolution shapes of nine vision models through
#: OpenCL in f32; there its choice is on average 5 % slower than the best of all tiles, and at most
#: 29 %. `matrix` was fitted to 229 kernel times of convolutions of the same models (OpenCL in F16
#: and F32_F16, Vulkan in F16), so that its choices are fast rather than its times right: on average
#: the choice is 4 % slower than the best of all tiles, at most 34 %.
H200 = Tuning(
    few_rows=8,
    least_depth=5,
    most_groups=8,
    wide=32,
    joins_pointwise=False,
    blocked=BlockedModel(
        lanes=128,
        shared_clocks=0.63 * 4 / 128,
        fetch_clocks=2.2 / 128,
        hiding=187,
        resident_threads=1358,
        resident_bytes=61 * 1024,
        stage_latency=640.0,
        step_latency=0.5,
        split_clocks=20.0,
        wave_clocks=4080.0,
    ),
    matrix=MatrixModel(
        a_clocks=0.55,
        b_clocks=0.18,
        multiply_clocks=0.32,
        stage_latency=133.0,
        fetch_latency=51.5,
        multiply_latency=44.8,
        result_clocks=0.32,
        resident_bytes=51000,
        wave_clocks=304.0,
    ),
)

#: By `DeviceCaps.vendor`.
TABLE: Mapping[str, Tuning] = {"nvidia": H200}


def tuning_of(caps: DeviceCaps) -> Tuning:
    """What is known of a device, or of the one that is known best."""
    return TABLE.get(caps.vendor, H200)
