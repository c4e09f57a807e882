"""How a product on matrix tiles is cut: the tiles to choose from, and a model that chooses
(its constants: `tflgpu.lowering.tuning`)."""

from __future__ import annotations

from functools import cache

import attrs

from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import SUBGROUP
from tflgpu.language.types import TILE
from tflgpu.lowering.choices import Choose, predicted
from tflgpu.lowering.tuning import MatrixModel, tuning_of

#: f16 vectors between rows: with an odd number of 16-byte units in a row, eight rows of one
#: column are in different banks.
PAD = 2


@attrs.frozen
class MatrixTile:
    """How the work is cut. A team is the subgroups that make a whole block of the output.

    Attributes:
        rows, cols: Subgroups of a team, along pixels and along channels.
        split: Teams, which divide the sum.
        block_rows, block_cols: Tiles of a subgroup.
        depth: Slices of q per stage and team, a multiple of 4.
    """

    rows: int
    cols: int
    split: int
    block_rows: int
    block_cols: int
    depth: int

    @property
    def pixels(self) -> int:
        """Pixels of a workgroup."""
        return self.rows * self.block_rows * TILE

    @property
    def slices(self) -> int:
        """Channel slices of a workgroup."""
        return self.cols * self.block_cols * (TILE // 4)

    @property
    def team_threads(self) -> int:
        """Invocations of a team."""
        return self.rows * self.cols * SUBGROUP

    @property
    def threads(self) -> int:
        """Invocations of a workgroup."""
        return self.team_threads * self.split

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

    def shared_bytes(self, inputs: int, weights: int) -> int:
        """Shared memory of a workgroup, by the number of parts of either operand (1 or 2)."""
        stage = inputs * self.pixels * self.a_pitch + weights * self.depth * 4 * self.b_pitch
        return self.split * (2 * 8 * stage + 16 * self.pixels * self.out_pitch)


#: Each was the best for some shape.
TILES = (
    MatrixTile(2, 2, 1, 2, 2, 8),
    MatrixTile(2, 2, 1, 2, 2, 4),
    MatrixTile(2, 2, 1, 1, 2, 8),
    MatrixTile(2, 2, 1, 1, 1, 8),
    MatrixTile(2, 2, 1, 1, 1, 16),
    MatrixTile(4, 2, 1, 1, 2, 8),
    MatrixTile(4, 1, 1, 2, 1, 8),
    MatrixTile(4, 1, 1, 1, 2, 8),
    MatrixTile(4, 1, 1, 1, 1, 8),
    MatrixTile(4, 1, 1, 1, 1, 4),
    MatrixTile(1, 1, 1, 1, 1, 8),
    MatrixTile(1, 1, 1, 1, 1, 4),
    MatrixTile(2, 2, 2, 1, 1, 8),
    MatrixTile(1, 2, 2, 1, 2, 8),
    MatrixTile(1, 1, 2, 1, 1, 8),
    MatrixTile(1, 2, 4, 1, 1, 8),
    MatrixTile(1, 2, 4, 1, 1, 4),
    MatrixTile(2, 1, 4, 1, 1, 8),
    MatrixTile(1, 1, 4, 2, 2, 4),
    MatrixTile(1, 1, 4, 1, 2, 8),
    MatrixTile(1, 1, 4, 1, 2, 4),
    MatrixTile(1, 1, 4, 1, 1, 16),
    MatrixTile(1, 1, 4, 1, 1, 8),
    MatrixTile(1, 1, 4, 1, 1, 4),
    MatrixTile(1, 1, 8, 1, 1, 8),
    MatrixTile(1, 1, 8, 1, 1, 4),
)


def choose_matrix_tile(
    pixels: int,
    slices: int,
    depth: int,
    inputs: int,
    weights: int,
    caps: DeviceCaps,
    choose: Choose = predicted,
) -> MatrixTile:
    """The tile that was measured to be fastest on a device, or that a machine model expects to be.

    Args:
        pixels: Rows of the output.
        slices: Channel slices of the output.
        depth: Length of the sums, in slices of q.
        inputs: Parts (f16 values) of an input, 1 or 2.
        weights: The same of a weight.
        caps: The device.
        choose: Knows what was measured.
    """
    most_threads = min(caps.max_workgroup, caps.max_workgroup_size[0])
    fitting = _fitting(inputs, weights, caps.shared_bytes, most_threads)
    model, units = tuning_of(caps).matrix, caps.compute_units
    sizes = (pixels, slices, depth, inputs, weights)
    return choose("matrix", sizes, fitting, lambda t: _clocks(model, t, *sizes, units))


@cache
def _fitting(
    inputs: int, weights: int, shared_bytes: int, most_threads: int
) -> tuple[MatrixTile, ...]:
    """The tiles that a device can have."""
    return tuple(
        tile
        for tile in TILES
        if tile.shared_bytes(inputs, weights) <= shared_bytes and tile.threads <= most_threads
    )


def _clocks(
    model: MatrixModel,
    tile: MatrixTile,
    pixels: int,
    slices: int,
    depth: int,
    inputs: int,
    weights: int,
    units: int,
) -> float:
    """Clocks of the whole product, in a unit of its own: waves of workgroups, each some stages
    long. A stage costs what its fetches and multiplications cost, or, where that is less, the
    latency that nothing hides."""
    workgroups = -(-pixels // tile.pixels) * -(-slices // tile.slices)
    per_unit = -(-workgroups // units)
    resident = max(1, min(per_unit, model.resident_bytes // tile.shared_bytes(inputs, weights)))
    stages = -(-depth // (tile.depth * tile.split))
    multiplied = tile.block_rows * tile.block_cols * (tile.depth // 4) * (inputs + weights - 1)
    fetch = tile.pixels * inputs * model.a_clocks + tile.slices * 4 * weights * model.b_clocks
    work = fetch * tile.depth * tile.split
    work += multiplied * tile.rows * tile.cols * tile.split * model.multiply_clocks
    # Both parts of a weight are fetched, but one fetch of an input gives both of its parts.
    fetched = (tile.pixels + tile.slices * 4 * weights) * tile.depth / tile.team_threads
    latency = (
        model.stage_latency + model.fetch_latency * fetched + model.multiply_latency * multiplied
    )
    result = tile.pixels * tile.slices * tile.split * model.result_clocks
    stage = max(work * resident, latency)
    return -(-per_unit // resident) * (stages * stage + result * resident + model.wave_clocks)
