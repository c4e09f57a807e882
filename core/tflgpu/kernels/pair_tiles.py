"""How a depthwise convolution with the 1x1 convolution behind it is cut
(`tflgpu.kernels.depthwise_pointwise`): the tiles to choose from, and a model that chooses (its
constants: `tflgpu.lowering.tuning`)."""

from __future__ import annotations

import attrs

from tflgpu.kernels.matrix_tiles import PAD, TeamTile
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.choices import Choose, predicted
from tflgpu.lowering.tuning import PairModel, tuning_of


@attrs.frozen
class PairTile(TeamTile):
    """That of a pair. Pixels are positions: rows of the image are padded to whole runs."""

    @property
    def runs(self) -> int:
        """Runs of pixels that a team stages at a time, one a slice of the sum."""
        return self.pixels // RUN * self.depth

    @property
    def a_pitch(self) -> int:
        """Vectors from one pixel to the next in shared memory."""
        return self.depth + PAD

    @property
    def b_pitch(self) -> int:
        """Vectors from one of the products to the next in shared memory."""
        return self.slices + PAD

    @property
    def out_pitch(self) -> int:
        """The pitch of the result, in f32 vectors."""
        return self.slices + 1

    @property
    def a_size(self) -> int:
        """Vectors of a team's first operand."""
        return self.pixels * self.a_pitch

    @property
    def b_size(self) -> int:
        """Vectors of a team's second operand."""
        return self.depth * 4 * self.b_pitch

    def shared_bytes(self, inputs: int, weights: int) -> int:
        """Shared memory of a workgroup, by the number of parts of either operand (1 or 2)."""
        stage = inputs * self.a_size + weights * self.b_size
        return self.split * (8 * stage + 16 * self.pixels * self.out_pitch)


#: Pixels that an invocation computes together.
RUN = 4

#: Each was the best for some shape, or fits small devices.
TILES = (
    PairTile(1, 4, 1, 2, 1, 8),
    PairTile(2, 2, 1, 1, 2, 8),
    PairTile(2, 4, 1, 2, 1, 8),
    PairTile(4, 1, 1, 1, 1, 8),
    PairTile(4, 4, 1, 1, 1, 16),
    PairTile(1, 4, 1, 1, 1, 16),
    PairTile(2, 4, 1, 1, 1, 32),
    PairTile(1, 4, 1, 1, 1, 32),
    PairTile(1, 4, 1, 1, 2, 16),
    PairTile(2, 4, 1, 2, 2, 8),
    PairTile(2, 1, 2, 1, 1, 4),
    PairTile(4, 1, 2, 1, 1, 4),
    PairTile(2, 2, 2, 1, 1, 16),
    PairTile(2, 4, 2, 1, 1, 16),
    PairTile(1, 2, 2, 1, 2, 16),
    PairTile(1, 2, 2, 1, 1, 24),
    PairTile(2, 2, 2, 1, 1, 32),
    PairTile(1, 2, 4, 1, 1, 12),
    PairTile(1, 2, 4, 1, 1, 16),
    PairTile(1, 1, 4, 1, 1, 8),
    PairTile(1, 1, 8, 1, 1, 8),
    PairTile(1, 1, 8, 1, 1, 12),
    PairTile(1, 1, 2, 1, 1, 4),
    PairTile(4, 1, 1, 2, 1, 4),
    PairTile(2, 2, 1, 2, 1, 4),
)


@attrs.frozen
class PairSize:
    """The sizes of a pair.

    Attributes:
        positions: Pixels of the result, with those that pad rows to whole runs.
        slices: Channel slices of the result.
        depth: Length of the sums, in slices.
        inputs, weights: Parts (f16 values) of an input and of a weight, 1 or 2.
        taps: Of the depthwise convolution's window.
    """

    positions: int
    slices: int
    depth: int
    inputs: int
    weights: int
    taps: int = 9


def choose_pair_tile(
    size: PairSize, caps: DeviceCaps, choose: Choose = predicted
) -> PairTile | None:
    """The tile that was measured to be fastest on a device, as ``choose`` knows it, or that a
    machine model expects to be; None where there is no model, or no tile fits."""
    model = _model_for(size, caps)
    most_threads = min(caps.max_workgroup, caps.max_workgroup_size[0])
    fitting = [
        tile
        for tile in TILES
        if tile.shared_bytes(size.inputs, size.weights) <= caps.shared_bytes
        and tile.threads <= most_threads
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
    """The device's model, for windows of so many taps; None where it was not measured."""
    model, share = tuning_of(caps).pairs, size.taps / 9
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
    stages = -(-size.depth // (tile.depth * tile.split))
    length = stages * tile.depth * tile.split
    work = length * (
        tile.pixels * model.window_clocks + tile.slices * 4 * size.weights * model.weight_clocks
    )
    runs = -(-tile.runs // tile.team_threads)
    vectors = -(-tile.slices * 4 * tile.depth // tile.team_threads) * size.weights
    products = tile.block_rows * tile.block_cols * (tile.depth // 4)
    latency = stages * (
        model.stage_latency
        + runs * model.run_latency
        + vectors * model.weight_latency
        + products * (size.inputs + size.weights - 1) * model.multiply_latency
    )
    stores = -(-tile.pixels * tile.slices // tile.threads)
    end = stores * model.store_latency + tile.split * model.team_latency
    return -(-per_unit // resident) * (max(work * resident, latency) + end + model.wave_clocks)
