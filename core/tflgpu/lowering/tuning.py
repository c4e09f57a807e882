"""Measured constants, by device, by which kernels are chosen, cut and submitted.

All of them were fitted on one GPU, an NVIDIA H200, and stand for every other device until that one
is measured too, but for what would cost much time where it is wrong (`UNMEASURED`). No
other file of `tflgpu.lowering`, of `tflgpu.kernels` and of backends holds a number that follows
from how fast a device is; what they hold follows from how a kernel is written (the sides of a tile
that its indices are made for), from limits of APIs, or from how much code a compiler takes well.
"""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.language.caps import DeviceCaps
from tflgpu.values import evolve, frozen


@frozen
class BlockedModel:
    """A machine model of blocked products through shared memory (`tflgpu.kernels.tiles`).

    Attributes:
        lanes: Multiply-adds of a processor in a clock.
        shared_clocks: Clocks of a 16-byte read from shared memory.
        fetch_clocks: Clocks of a processor's share of moving 16 bytes from global to shared memory.
        hiding: Invocations that keep a processor busy.
        resident_threads, resident_bytes: Invocations, and bytes of shared memory, that a processor
            has at a time.
        stage_latency, step_latency: Clocks of a stage, and of a step of it, that nothing hides.
        split_clocks: Clocks of adding a vector of a share of a sum.
        wave_clocks: Clocks of starting and ending a wave of workgroups.
        sum_clocks, summed_clocks: As those of `MatrixModel`.
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
    sum_clocks: float
    summed_clocks: float


@frozen
class MatrixModel:
    """A machine model of products on matrix tiles (`tflgpu.kernels.matrix_tiles`).

    Attributes:
        word_clocks: Clocks of moving 16 bytes to shared memory.
        a_line_clocks, b_line_clocks: The same of each row of at most 128 bytes that they lie in, of
            inputs and of weights.
        line_clocks: Clocks of such a row on the whole device.
        multiply_clocks, load_clocks: Of multiplying two tiles, and of loading one.
        load_latency, fetch_latency, barrier_latency, multiply_latency, tile_latency: What a stage
            takes that nothing hides: until the first load arrives, for each load of an invocation,
            for a barrier, for each product of tiles and each tile loaded.
        halve_latency, moment_latency: The same of making two f16 values of each number of a vector,
            and of adding up a pair of vectors for mean and variance of their row.
        result_clocks: Storing a vector of the result.
        resident_bytes, resident_threads, resident_registers: Shared memory, invocations and their
            registers that a processor has at a time.
        wave_clocks: Starting and ending a wave of workgroups.
        sum_clocks, summed_clocks: A second dispatch that adds up what workgroups have, and each
            vector of that.
    """

    word_clocks: float
    a_line_clocks: float
    b_line_clocks: float
    line_clocks: float
    multiply_clocks: float
    load_clocks: float
    load_latency: float
    fetch_latency: float
    barrier_latency: float
    multiply_latency: float
    tile_latency: float
    halve_latency: float
    moment_latency: float
    result_clocks: float
    resident_bytes: int
    resident_threads: int
    resident_registers: int
    wave_clocks: float
    sum_clocks: float
    summed_clocks: float


@frozen
class FewRowsModel:
    """How products of few rows are divided (`tflgpu.kernels.gemv`).

    Attributes:
        lanes: Invocations that share a sum, at most.
        columns: Output slices of a workgroup, at most.
        workgroup: Invocations of a workgroup, at most.
        nbytes: Weights that an invocation has under way.
    """

    lanes: int
    columns: int
    workgroup: int
    nbytes: int


@frozen
class PairModel:
    """A machine model of a depthwise convolution with the 1x1 convolution behind it
    (`tflgpu.kernels.pair_tiles`), in clocks.

    Attributes:
        window_clocks, weight_clocks: A processor's work for a vector of the depthwise convolution,
            by a window of 3x3, and for one of the other's weights.
        stage_latency, thread_latency, run_latency: What a stage takes that nothing hides, what a
            chunk does for each invocation of the workgroup, and for each run of pixels of an
            invocation, by such a window.
        resident_bytes, resident_threads: Shared memory and invocations that a processor has at a
            time.
        kernel_clocks: Starting and ending a dispatch.
        boundary_clocks: What is saved besides where a dispatch less waits for another one.
        saved_clocks, between_clocks: What one dispatch saves where pixels are many: in any case,
            and for each vector that two would write and read in between.
        product_clocks: What each product of two vectors takes more there than in a kernel of its
            own.
    """

    window_clocks: float
    weight_clocks: float
    stage_latency: float
    thread_latency: float
    run_latency: float
    resident_bytes: int
    resident_threads: int
    kernel_clocks: float
    boundary_clocks: float
    saved_clocks: float
    between_clocks: float
    product_clocks: float


@frozen
class BlockModel:
    """Where two convolutions with a depthwise one between them are one kernel
    (`tflgpu.kernels.inverted_residual`), and a rough model that orders its tiles, in clocks.

    Attributes:
        least_pixels, most_pixels: Of the result in all images: of fewer there are too few
            workgroups, and more were not timed.
        most_channels, most_taps: Channels in between, and taps of the depthwise convolution.
        resident_bytes, resident_threads: Shared memory and invocations that a processor has at a
            time.
        wave_clocks, chunk_latency: What a wave of workgroups, and a chunk of channels, takes that
            nothing hides.
        read_latency, read_clocks: The same of a vector that an invocation reads for the depthwise
            convolution, and a processor's work for one.
    """

    least_pixels: int
    most_pixels: int
    most_channels: int
    most_taps: int
    resident_bytes: int
    resident_threads: int
    wave_clocks: float
    chunk_latency: float
    read_latency: float
    read_clocks: float


@frozen
class ReductionModel:
    """How reductions are cut (`tflgpu.kernels.domain`), whose items have a number of steps each.

    Attributes:
        workgroup: Invocations of a workgroup that shares items, at most.
        small_workgroup: The same where each invocation has an item of its own, or few share one.
        columns: Items that such a workgroup shares where neighbouring invocations have
            neighbouring items.
        many_items: So many items keep a device busy with few invocations each.
        lanes_of_many: Invocations of an item, at most, where items are many.
        few_steps: Items of fewer steps are not shared.
        few_groups: Fewer workgroups leave a device idle: items are split among several.
        wanted_groups: Workgroups that a split aims at.
        most_parts: Workgroups that share an item, at most.
        splittable_steps: Steps an invocation has, at least, where items are split.
        least_steps: Steps that a split leaves to an invocation, at least.
    """

    workgroup: int
    small_workgroup: int
    columns: int
    many_items: int
    lanes_of_many: int
    few_steps: int
    few_groups: int
    wanted_groups: int
    most_parts: int
    splittable_steps: int
    least_steps: int


@frozen
class Tuning:
    """Measured constants of one kind of device.

    Attributes:
        few_rows: Products of at most so many rows get a workgroup per few output slices; more are
            better served by the blocked product.
        least_depth: Shorter sums, in slices, are made by the blocked product without matrices.
        most_groups, wide: A grouped convolution is one product per group where there are at most so
            many groups of at least so many channels: each takes a dispatch, and a tile of a product
            is at least so wide.
        least_tiled_rows: Products of two tensors with fewer rows leave most of a workgroup's tile
            empty, so that they are made without shared memory.
        team_pooled_results, pool_team: Large windows are pooled by so many invocations each, where
            there are at most so many vectors of results.
        busy_invocations: Invocations that a processor needs to hide the latency of its memory.
        rounded_weights: Weights of more bytes (in f32) are worth rounding to f16 in F32_F16.
        tested_weights: Weights of more bytes are worth asking whether f16 holds them exactly.
        normalized_products: Products on matrix tiles of at most so many multiplications normalize
            the rows of their input themselves, which would take others longer than a dispatch.
        least_key_blocks: Attention of few queries to so many blocks of keys, or more, has
            workgroups for parts of the keys, and a dispatch more that merges what they found.
        splits_products: Matrix tiles are so fast that an f32 product made of several f16 products
            beats vector code.
        dispatches_at_once: So many dispatches are submitted together, where a run is encoded anew:
            the device begins with the first while the next are encoded.
        few: Divides products of few rows.
        reduction: Cuts reductions.
        blocked: Chooses the tiles of blocked products.
        matrix: The same on matrix tiles.
        pairs: Chooses whether a depthwise convolution and the 1x1 convolution behind it are one
            kernel on matrix tiles, and its tiles; None where that is not known to be faster.
        blocks: The same with a convolution before these.
    """

    few_rows: int
    least_depth: int
    most_groups: int
    wide: int
    least_tiled_rows: int
    team_pooled_results: int
    pool_team: int
    busy_invocations: int
    rounded_weights: int
    tested_weights: int
    normalized_products: int
    least_key_blocks: int
    splits_products: bool
    dispatches_at_once: int
    few: FewRowsModel
    reduction: ReductionModel
    blocked: BlockedModel
    matrix: MatrixModel
    pairs: PairModel | None
    blocks: BlockModel | None


#: `benchmarks.tiles` prints what is predicted of kernels beside what the tuner timed, by which
#: constants are judged. `blocked` was fitted to 512 kernel times of 32 products and convolutions
#: (Vulkan in F32: a ViT, ResNet-50 and a style network, up to 16 tiles of each); there its choice
#: was on average 2 % slower than the best that was timed, at most 17 %, while whole waves were
#: counted and before the tiles came that are two and three slices wide. What concerns sums that
#: workgroups divide was set by four products of ViT-B. `matrix` was fitted to 1136
#: kernel times of 38 products and convolutions (Vulkan in F16 and F32_F16, chains of equal layers
#: of ViTs, ResNet-50, MobileNets, EDSR), so that its choices are fast rather than its times right:
#: on average the choice is 5 % slower than the best of all that were timed, at most 24 %. `pairs`
#: was fitted to 444 kernel times of 88 pairs (MobileNet v1 and v2, an SSD, DeepLab and a pose
#: network; Vulkan in F16 and, of the MobileNets, F32_F16); there its choice is on average 3 %
#: slower than the best that was timed, and where it joins, one kernel was faster than two for all
#: but one (DeepLab's last, by 3.7 us slower). Its last three constants, which leave that one apart,
#: were fitted to the pairs of MobileNet v2 at batches of 1, 32 and 128. Of 8, 16, 32 and all
#: dispatches at once (WebGPU), 16 was the quickest for models of 30 to 74. `few_rows`: two layers
#: of a decoder step in f16 took 149 us for 4 rows and 240 for 8, and on matrix tiles 399 and 245.
#: `few`: three in int8 with 1 row were no faster with teams of 64, 512 invocations, or more weights
#: under way. `blocks`: the ten of MobileNet v1 and v2 and of a pose network that are joined took
#: 9.4 to 11.7 us for 11.0 to 16.8 (Vulkan in F16); of two with 25 taps one took 18.7 us for 15.1.
H200 = Tuning(
    few_rows=8,
    least_depth=2,
    most_groups=8,
    wide=32,
    least_tiled_rows=16,
    team_pooled_results=1 << 14,
    pool_team=16,
    busy_invocations=256,
    rounded_weights=16 << 10,
    tested_weights=4 << 10,
    normalized_products=1 << 28,
    least_key_blocks=2,
    splits_products=True,
    dispatches_at_once=16,
    few=FewRowsModel(lanes=128, columns=2, workgroup=512, nbytes=128),
    reduction=ReductionModel(
        workgroup=256,
        small_workgroup=64,
        columns=16,
        many_items=4096,
        lanes_of_many=32,
        few_steps=16,
        few_groups=64,
        wanted_groups=256,
        most_parts=128,
        splittable_steps=32,
        least_steps=8,
    ),
    blocked=BlockedModel(
        lanes=110,
        shared_clocks=0.09,
        fetch_clocks=0.8,
        hiding=240,
        resident_threads=2048,
        resident_bytes=190 * 1024,
        stage_latency=1320.0,
        step_latency=0.7,
        split_clocks=150.0,
        wave_clocks=5270.0,
        sum_clocks=5000.0,
        summed_clocks=0.0227,
    ),
    matrix=MatrixModel(
        word_clocks=0.308,
        a_line_clocks=1.73,
        b_line_clocks=1.55,
        line_clocks=0.0265,
        multiply_clocks=3.73,
        load_clocks=1.04,
        load_latency=360.0,
        fetch_latency=54.0,
        barrier_latency=170.0,
        multiply_latency=20.9,
        tile_latency=5.41,
        halve_latency=60.0,
        moment_latency=500.0,
        result_clocks=0.0625,
        resident_bytes=113_700,
        resident_threads=2048,
        resident_registers=67_600,
        wave_clocks=1470.0,
        sum_clocks=11200.0,
        summed_clocks=0.00257,
    ),
    pairs=PairModel(
        window_clocks=1.93,
        weight_clocks=0.17,
        stage_latency=639.0,
        thread_latency=1.9,
        run_latency=1863.0,
        resident_bytes=75000,
        resident_threads=709,
        kernel_clocks=8887.0,
        boundary_clocks=6530.0,
        saved_clocks=6500.0,
        between_clocks=0.78,
        product_clocks=0.222,
    ),
    blocks=BlockModel(
        least_pixels=28 * 28,
        most_pixels=1 << 15,
        most_channels=192,
        most_taps=9,
        resident_bytes=220_000,
        resident_threads=1536,
        wave_clocks=2500.0,
        chunk_latency=900.0,
        read_latency=25.0,
        read_clocks=0.2,
    ),
)

#: How fast matrix tiles are elsewhere is not known.
UNMEASURED = evolve(H200, splits_products=False, pairs=None, blocks=None)

#: By `DeviceCaps.vendor`.
TABLE: Mapping[str, Tuning] = {"nvidia": H200}


def tuning_of(caps: DeviceCaps) -> Tuning:
    """The constants of a device's vendor, or those for devices that were not measured."""
    return TABLE.get(caps.vendor, UNMEASURED)
