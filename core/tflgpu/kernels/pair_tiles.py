"""How a depthwise convolution with the 1x1 convolution behind it is cut
(`tflgpu.kernels.depthwise_pointwise`): the tiles to choose from, and a model that chooses (its
constants: `tflgpu.lowering.tuning`)."""

from __future__ import annotations

import attrs

from tflgpu.kernels.matrix_tiles import PAD, Pitches, TeamTile
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.choices import Choose, predicted
from tflgpu.lowering.tuning import PairModel, tuning_of


@attrs.frozen
class PairTile(TeamTile, Pitches):
    """That of a pair. Pixels are positions: rows of the image are padded to whole runs.

    Attributes:
        stages: Stages of a chunk: their inputs lie in shared memory together, and all of their
            weights are on their way before the first of them is multiplied.
    """

    stages: int = 1

    @property
    def chunk(self) -> int:
        """Slices of the sum whose inputs lie in shared memory at a time."""
        return self.depth * self.split * self.stages

    @property
    def runs(self) -> int:
        """Runs of pixels of a chunk, one a slice of the sum."""
        return self.pixels // RUN * self.chunk

    @property
    def a_pitch(self) -> int:
        """Vectors from one pixel to the next in shared memory."""
        return self.chunk + PAD

    @property
    def a_size(self) -> int:
        """Vectors of the first operand."""
        return self.pixels * self.a_pitch

    @property
    def b_rows(self) -> int:
        """Rows of the second operand in a stage."""
        return self.depth * self.split * 4

    @property
    def b_size(self) -> int:
        """Pairs of vectors of the second operand in a stage."""
        return self.b_rows * self.b_pitch

    def registers(self, weights: int) -> int:
        """Pairs of vectors that an invocation loads of the weights of a chunk."""
        return weights * self.stages * -(-self.b_rows * (self.slices // 2) // self.threads)

    def shared_words(self, weights: int) -> int:
        """Pairs of vectors that a stage's weights, and then the sums, take of shared memory."""
        return max(weights * self.b_size, self.split * self.pixels * self.out_pitch)

    def shared_bytes(self, inputs: int, weights: int) -> int:
        """Shared memory of a workgroup, by the number of parts of either operand (1 or 2)."""
        return 8 * inputs * self.a_size + 16 * self.shared_words(weights)


#: Pixels that an invocation computes together.
RUN = 4

#: Each was the best for some shape, or fits small devices.
TILES = (
    PairTile(1, 1, 6, 1, 1, 4, 1),
    PairTile(1, 1, 12, 1, 1, 4, 3),
    PairTile(1, 1, 12, 1, 1, 8, 1),
    PairTile(1, 1, 12, 1, 1, 12, 1),
    PairTile(1, 1, 16, 1, 1, 8, 1),
    PairTile(1, 2, 2, 1, 1, 12, 1),
    PairTile(1, 2, 3, 1, 1, 12, 1),
    PairTile(1, 2, 3, 1, 1, 16, 1),
    PairTile(1, 2, 4, 1, 1, 12, 1),
    PairTile(1, 2, 6, 1, 1, 12, 1),
    PairTile(1, 2, 8, 1, 1, 8, 2),
    PairTile(1, 2, 8, 1, 1, 12, 1),
    PairTile(1, 2, 8, 1, 2, 8, 1),
    PairTile(1, 4, 1, 1, 1, 8, 1),
    PairTile(1, 4, 1, 2, 1, 8, 1),
    PairTile(1, 4, 2, 1, 1, 16, 2),
    PairTile(1, 4, 2, 1, 1, 24, 1),
    PairTile(1, 4, 3, 1, 2, 8, 3),
    PairTile(1, 4, 4, 1, 1, 8, 4),
    PairTile(1, 4, 6, 1, 1, 4, 3),
    PairTile(1, 4, 6, 1, 1, 8, 3),
    PairTile(1, 8, 2, 1, 1, 16, 2),
    PairTile(1, 8, 2, 2, 1, 16, 1),
    PairTile(2, 1, 2, 1, 1, 4, 1),
    PairTile(2, 1, 4, 1, 1, 4, 1),
    PairTile(2, 2, 2, 1, 1, 16, 1),
    PairTile(2, 2, 6, 1, 1, 4, 1),
    PairTile(2, 2, 6, 1, 1, 12, 1),
    PairTile(2, 4, 2, 1, 1, 16, 1),
    PairTile(2, 4, 2, 1, 1, 16, 2),
    PairTile(2, 4, 3, 1, 1, 4, 5),
    PairTile(4, 1, 1, 2, 1, 4, 1),
    PairTile(4, 4, 1, 1, 1, 16, 1),
)


@attrs.frozen
class PairSize:
    """The sizes of a pair.

    Attributes:
        positions: Pixels of the result, with those that pad rows to whole runs.
        slices: Channel slices of the result.
        depth: Length of the sums, in slices.
        inputs, weights: Parts (f16 values) of an input and of a weight, 1 or 2.
        reads: Vectors of the input that a run of the depthwise convolution sees.
    """

    positions: int
    slices: int
    depth: int
    inputs: int
    weights: int
    reads: int = 18


def choose_pair_tile(
    size: PairSize, caps: DeviceCaps, choose: Choose = predicted
) -> PairTile | None:
    """The tile that was measured to be fastest on a device, as ``choose`` knows it, or that a
    machine model expects to be; None where there is no model, or no tile fits."""
    model = _model_for(size, caps)
    fitting = [
        tile
        for tile in TILES
        if tile.shared_bytes(size.inputs, size.weights) <= caps.shared_bytes
        and tile.threads <= caps.most_members
    ]
    if model is None or not fitting:
        return None
    units = caps.compute_units
    return choose("pair", attrs.astuple(size), fitting, lambda t: _clocks(model, t, size, units))


def is_faster_as_one(tile: PairTile, size: PairSize, caps: DeviceCaps) -> bool:
    """Whether the model expects one dispatch to be faster than two."""
    model, units = _model_for(size, caps), caps.compute_units
    assert model is not None
    # What the depthwise convolution adds to the product, and what it would take by itself.
    free = attrs.evolve(model, window_clocks=0.0, run_latency=0.0)
    adds = _clocks(model, tile, size, units) - _clocks(free, tile, size, units)
    vectors = size.positions * size.depth / units
    alone = model.boundary_clocks + vectors * model.window_clocks
    # Of many pixels the product is the most of it, and its own kernel makes that faster.
    saved = model.saved_clocks + vectors * model.between_clocks
    return adds <= alone and vectors * size.slices * model.product_clocks <= saved


def _model_for(size: PairSize, caps: DeviceCaps) -> PairModel | None:
    """The device's model, for runs that see so much; None where it was not measured."""
    model, share = tuning_of(caps).pairs, size.reads / 18
    if model is None:
        return None
    clocks, latency = model.window_clocks * share, model.run_latency * share
    return attrs.evolve(model, window_clocks=clocks, run_latency=latency)


def _clocks(model: PairModel, tile: PairTile, size: PairSize, units: int) -> float:
    """Clocks of the kernel: waves of workgroups, each some stages long, which cost what they
    compute, or, where that is less, the latency that nothing hides."""
    workgroups = -(-size.positions // tile.pixels) * -(-size.slices // tile.slices)
    per_unit = -(-workgroups // units)
    at_once = min(
        model.resident_bytes // tile.shared_bytes(size.inputs, size.weights),
        model.resident_threads // tile.threads,
        per_unit,
    )
    resident = max(1, at_once)
    chunks = -(-size.depth // tile.chunk)
    work = tile.pixels * model.window_clocks + tile.slices * 4 * size.weights * model.weight_clocks
    latency = (
        tile.stages * model.stage_latency
        + tile.threads * model.thread_latency
        + -(-tile.runs // tile.threads) * model.run_latency
    )
    workgroup = chunks * max(tile.chunk * work * resident, latency)
    return -(-per_unit // resident) * workgroup + model.kernel_clocks
