"""How a blocked product is cut: the tiles to choose from, and a machine model that chooses
(its constants: `tflgpu.lowering.tuning`)."""

from __future__ import annotations

from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.choices import Choose, predicted
from tflgpu.lowering.tuning import BlockedModel, tuning_of
from tflgpu.values import frozen


@frozen
class Tile:
    """How the work is cut.

    Attributes:
        cols, rows, split: The workgroup: invocations along channels, along pixels, along q.
        block_rows: Pixels of an invocation.
        block_cols: Channel slices of an invocation.
        depth: Slices of q per stage and split.
        parts: Workgroups that divide q besides; another kernel adds up what they have.
    """

    cols: int
    rows: int
    split: int = 1
    block_rows: int = 4
    block_cols: int = 1
    depth: int = 8
    parts: int = 1

    @property
    def pixels(self) -> int:
        """Pixels of a workgroup."""
        return self.rows * self.block_rows

    @property
    def slices(self) -> int:
        """Channel slices of a workgroup."""
        return self.cols * self.block_cols

    @property
    def threads(self) -> int:
        """Invocations of a workgroup."""
        return self.cols * self.rows * self.split

    @property
    def pitch(self) -> int:
        """Vectors from one pixel to the next in shared memory: one to spare keeps pixels of one
        slice in different banks."""
        return self.depth + 1

    @property
    def stage_words(self) -> int:
        """Vectors that a stage of a split takes of shared memory."""
        return self.pixels * self.pitch + self.depth * 4 * self.slices

    @property
    def stored_rows(self) -> int:
        """Rows of each block that are stored at a time: as many as a stage has room for."""
        return min(self.block_rows, max(1, self.stage_words // (self.rows * self.slices)))

    @property
    def shared_words(self) -> int:
        """Vectors of shared memory of a workgroup: its stages, and then its sums."""
        stored = self.stored_rows * self.rows * self.slices
        return self.split * max(self.stage_words, stored)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup."""
        return 16 * self.shared_words


#: Each was the best for some shape, or is expected to be, or fits small devices.
TILES = (
    Tile(16, 16, 1, 4, 1, 4),
    Tile(16, 8, 1, 8, 1, 8),
    Tile(16, 4, 4, 4, 1, 4),
    Tile(4, 32, 1, 4, 2, 4),
    Tile(8, 16, 1, 8, 1, 4),
    Tile(8, 16, 1, 4, 2, 4),
    Tile(8, 8, 1, 4, 1, 8),
    Tile(8, 8, 1, 4, 1, 4),
    Tile(8, 8, 2, 4, 1, 8),
    Tile(8, 8, 4, 4, 1, 4),
    Tile(8, 8, 4, 2, 1, 8),
    Tile(8, 4, 2, 4, 1, 8),
    Tile(8, 4, 4, 4, 1, 8),
    Tile(8, 4, 8, 4, 1, 4),
    Tile(8, 4, 8, 2, 1, 8),
    Tile(8, 2, 8, 4, 1, 8),
    Tile(4, 16, 1, 8, 1, 8),
    Tile(4, 16, 4, 4, 1, 4),
    Tile(4, 8, 4, 4, 1, 8),
    Tile(4, 8, 8, 2, 1, 4),
    Tile(2, 32, 1, 8, 1, 4),
    Tile(2, 32, 2, 4, 1, 4),
    Tile(1, 64, 1, 4, 1, 4),
    Tile(16, 16, 2, 4, 1, 4),
    Tile(16, 10, 2, 5, 1, 4),
    Tile(12, 10, 4, 5, 1, 4),
    Tile(12, 8, 4, 5, 1, 4),
    Tile(8, 16, 4, 2, 1, 4),
    Tile(8, 16, 2, 5, 1, 4),
    Tile(8, 10, 4, 5, 1, 4),
    Tile(8, 8, 8, 4, 1, 4),
    Tile(8, 5, 8, 5, 1, 4),
    Tile(6, 5, 16, 5, 1, 2),
    Tile(4, 32, 2, 2, 1, 2),
    Tile(4, 5, 16, 5, 1, 4),
    Tile(4, 4, 16, 4, 1, 4),
    Tile(2, 32, 1, 5, 1, 2),
    Tile(12, 8, 4, 5, 2, 4),
    Tile(12, 8, 4, 5, 2, 4, 3),
    Tile(1, 64, 1, 4, 3, 4),
)


def choose_tile(
    pixels: int, slices: int, depth: int, caps: DeviceCaps, choose: Choose = predicted
) -> Tile:
    """The tile that was measured to be fastest on a device, or that the model expects to be;
    ``depth`` is in q slices, and ``choose`` knows what was measured."""
    fitting = [
        t
        for t in TILES
        if t.threads <= min(caps.max_workgroup, caps.heavy_workgroup)
        and t.shared_bytes <= caps.shared_bytes
        and t.cols <= caps.max_workgroup_size[0]
        and t.rows <= caps.max_workgroup_size[1]
        and t.split <= caps.max_workgroup_size[2]
    ]
    model, units = tuning_of(caps).blocked, caps.compute_units
    sizes = (pixels, slices, depth)
    return choose("blocked", sizes, fitting, lambda t: _clocks(model, t, *sizes, units))


def _clocks(
    model: BlockedModel, tile: Tile, pixels: int, slices: int, depth: int, units: int
) -> float:
    """Clocks of the whole product: what all processors load, and waves of workgroups, each some
    stages long.

    A stage costs its multiply-adds and its reads of shared memory, or, where that is less, the
    latency that nothing hides.
    """
    workgroups = -(-pixels // tile.pixels) * -(-slices // tile.slices) * tile.parts
    stages = -(-depth // (tile.depth * tile.split * tile.parts))
    block = tile.block_rows * tile.block_cols
    reads = tile.block_rows + 4 * tile.block_cols
    multiply = tile.pixels * tile.slices * 16 * tile.depth * tile.split / model.lanes
    read = reads * tile.depth * tile.threads * model.shared_clocks
    per_unit = -(-workgroups // units)
    resident = max(
        1,
        min(
            per_unit,
            model.resident_threads // tile.threads,
            model.resident_bytes // tile.shared_bytes,
        ),
    )
    busy = min(1.0, resident * tile.threads / model.hiding)
    latency = model.stage_latency + model.step_latency * tile.depth * (reads + 4 * block)
    stage = max((multiply + read) * resident / busy, latency)
    moved = (tile.pixels + 4 * tile.slices) * tile.depth * tile.split
    fetch = moved * stages * workgroups / units * model.fetch_clocks
    adding = -(-tile.pixels * tile.slices // tile.threads) * tile.split * model.split_clocks
    waves = per_unit / resident
    total = waves * (stages * stage + adding + model.wave_clocks) + fetch
    if tile.parts == 1:
        return total
    return total + model.sum_clocks + pixels * slices * tile.parts * model.summed_clocks
