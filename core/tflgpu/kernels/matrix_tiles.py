"""How a product on matrix tiles is cut: the tiles to choose from, and a model that chooses
(its constants: `tflgpu.lowering.tuning`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, TypeVar

from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import SUBGROUP, TILE
from tflgpu.lowering.choices import Choose, predicted
from tflgpu.lowering.tuning import MatrixModel, tuning_of
from tflgpu.values import evolve, frozen

#: f16 vectors between rows: with an odd number of 16-byte units in a row, eight rows of one
#: column are in different banks.
PAD = 2


class Pitches:
    """How what a workgroup stages lies in shared memory."""

    depth: int  # slices of a stage

    @property
    @abstractmethod
    def slices(self) -> int:
        """Channel slices of a workgroup."""

    @property
    def a_pitch(self) -> int:
        """Pairs of vectors from one pixel to the next in shared memory."""
        return (self.depth + PAD) // 2

    @property
    def b_pitch(self) -> int:
        """Pairs of vectors from one of the products to the next in shared memory."""
        return (self.slices + PAD) // 2

    @property
    def out_pitch(self) -> int:
        """Vectors of f32 from one pixel of the result to the next."""
        return self.slices + 1


@frozen
class TeamTile:
    """How the work is cut. A team is the subgroups that make a whole block of the output.

    Attributes:
        rows, cols: Subgroups of a team, along pixels and along channels.
        split: Teams, which divide the sum.
        block_rows, block_cols: Matrix tiles of a subgroup.
        depth: Slices of the sum that a team stages at a time, a multiple of 4.
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


@frozen
class MatrixTile(TeamTile, Pitches):
    """That of a product.

    Attributes:
        ahead: Stages whose loads are in flight.
        places: Stages that shared memory holds, 1 or 2.
        parts: Workgroups that divide a sum.
    """

    ahead: int = 1
    places: int = 2
    parts: int = 1

    def shared_bytes(self, inputs: int, weights: int) -> int:
        """Shared memory of a workgroup, by the number of parts of either operand (1 or 2)."""
        return 16 * self.shared_words(inputs, weights)

    def stage_words(self, inputs: int, weights: int) -> int:
        """Elements of shared memory that a team's stage takes."""
        return inputs * self.pixels * self.a_pitch + weights * self.depth * 4 * self.b_pitch

    def shared_words(self, inputs: int, weights: int) -> int:
        """Elements of shared memory of a workgroup: its stages, and then its sums."""
        stages = self.places * self.stage_words(inputs, weights)
        return self.split * max(stages, self.pixels * self.out_pitch)


#: Workgroups that divide a sum, where there are several.
PARTS = (2, 3, 4, 6, 8)

#: Each was the best for some shape, but for the last two, which need little shared memory.
TILES = (
    MatrixTile(4, 2, 2, 1, 2, 16, 1, 1),
    MatrixTile(4, 2, 1, 2, 1, 16, 1, 1),
    MatrixTile(4, 2, 1, 1, 2, 16, 1, 2),
    MatrixTile(4, 1, 1, 2, 2, 8, 1, 1),
    MatrixTile(4, 1, 1, 2, 1, 8, 1, 1),
    MatrixTile(4, 1, 2, 1, 1, 4, 1, 1),
    MatrixTile(2, 1, 4, 1, 1, 8, 1, 1),
    MatrixTile(2, 2, 4, 1, 1, 16, 1, 1),
    MatrixTile(2, 2, 2, 2, 2, 16, 1, 1),
    MatrixTile(2, 2, 1, 4, 2, 16, 1, 1),
    MatrixTile(2, 2, 1, 2, 2, 16, 1, 1),
    MatrixTile(2, 2, 1, 1, 2, 8, 1, 2),
    MatrixTile(1, 4, 2, 2, 2, 8, 2, 1),
    MatrixTile(1, 4, 2, 2, 2, 8, 1, 1),
    MatrixTile(1, 4, 2, 2, 1, 16, 1, 1),
    MatrixTile(1, 4, 1, 2, 2, 16, 2, 2),
    MatrixTile(1, 4, 1, 2, 2, 16, 2, 1),
    MatrixTile(1, 4, 1, 2, 1, 8, 1, 1),
    MatrixTile(1, 2, 4, 2, 2, 4, 2, 1),
    MatrixTile(1, 2, 4, 1, 2, 16, 1, 1),
    MatrixTile(1, 2, 4, 1, 2, 8, 2, 1),
    MatrixTile(1, 2, 4, 1, 1, 16, 2, 1),
    MatrixTile(1, 2, 2, 2, 2, 16, 1, 1),
    MatrixTile(1, 1, 8, 1, 1, 16, 2, 1),
    MatrixTile(2, 2, 1, 1, 1, 4, 1, 1),
    MatrixTile(1, 1, 1, 1, 1, 4, 1, 1),
)


@frozen
class TileWork:
    """What a kernel on matrix tiles does, by which its time is predicted.

    Attributes:
        workgroups, subgroups: Of the dispatch, and of a workgroup.
        shared_bytes: Shared memory of a workgroup.
        registers: Of an invocation, about.
        stages: Of a workgroup.
        ahead: Stages whose loads are in flight.
        words: Of 16 bytes that a workgroup moves to shared memory in a stage.
        a_lines, b_lines: Rows of at most 128 bytes that these lie in, of inputs and of weights.
        fetched: Loads of an invocation in a stage.
        loads, products: Tiles that a subgroup loads and multiplies in a stage.
        barriers: In a stage.
        results: Vectors that a workgroup adds up and stores.
        summed: Vectors that a second dispatch adds up; 0 where there is none.
        halved: Vectors of a stage that an invocation makes two f16 values of each number of.
        summed_rows: Pairs of vectors of a stage that it adds up, for a normalization.
    """

    workgroups: int
    subgroups: int
    shared_bytes: int
    registers: int
    stages: int
    ahead: int
    words: int
    a_lines: float
    b_lines: float
    fetched: int
    loads: int
    products: int
    barriers: int
    results: int
    summed: int = 0
    halved: int = 0
    summed_rows: int = 0


#: Another way to make a product than a `MatrixTile`.
W = TypeVar("W")
NO_OTHERS: Mapping[Any, TileWork] = {}


def _tiles_for(
    pixels: int,
    slices: int,
    depth: int,
    inputs: int,
    weights: int,
    caps: DeviceCaps,
    *,
    whole: bool = False,
) -> list[MatrixTile]:
    """The ways to cut a product that a device can have; see `choose_matrix_tile`."""
    found = _fitting(inputs, weights, caps.shared_bytes, caps.most_members)
    # Only where workgroups are few is a sum worth dividing among them.
    few = [
        evolve(tile, parts=parts)
        for tile in found
        if not whole and -(-pixels // tile.pixels) * -(-slices // tile.slices) < caps.compute_units
        for parts in PARTS
        if depth >= parts * tile.split * tile.depth * tile.ahead
    ]
    return [*found, *few]


def choose_matrix_tile(
    pixels: int,
    slices: int,
    depth: int,
    inputs: int,
    weights: int,
    caps: DeviceCaps,
    choose: Choose = predicted,
    loads: int = 1,
    others: Mapping[W, TileWork] = NO_OTHERS,
    *,
    whole: bool = False,
) -> MatrixTile | W:
    """The tile that was measured to be fastest on a device, or that a machine model expects to be.

    Args:
        pixels: Rows of the output.
        slices: Channel slices of the output.
        depth: Length of the sums, in slices of q.
        inputs: Parts (f16 values) of an input, 1 or 2.
        weights: The same of a weight.
        caps: The device.
        choose: Knows what was measured.
        loads: That bring two slices of an input.
        others: Other ways to make the product, with what they do.
        whole: Whether no sum is divided among workgroups.
    """
    sizes = (pixels, slices, depth, inputs, weights)
    costs: dict[Any, float] = dict(_predicted(sizes, loads, caps, whole))
    for way, work in others.items():
        costs[way] = clocks(tuning_of(caps).matrix, work, caps.compute_units)
    chosen: MatrixTile | W = choose(
        "whole matrix" if whole else "matrix", sizes, list(costs), costs.__getitem__
    )
    return chosen


@lru_cache(512)  # layers repeat, and there are a hundred tiles
def _predicted(
    sizes: tuple[int, int, int, int, int], loads: int, caps: DeviceCaps, whole: bool
) -> Mapping[MatrixTile, float]:
    """The clocks of each tile."""
    model, units = tuning_of(caps).matrix, caps.compute_units
    tiles = _tiles_for(*sizes, caps, whole=whole)
    works = {tile: work_of(tile, *sizes, loads, whole=whole) for tile in tiles}
    return {tile: clocks(model, work, units) for tile, work in works.items()}


@cache
def _fitting(
    inputs: int, weights: int, shared_bytes: int, most_threads: int
) -> tuple[MatrixTile, ...]:
    """The tiles that a device can have. With two values an operand, wide stages of several tiles a
    subgroup took twice the time that others did: their registers are too many."""
    several = inputs + weights > 2
    return tuple(
        tile
        for tile in TILES
        if tile.shared_bytes(inputs, weights) <= shared_bytes
        and tile.threads <= most_threads
        and not (several and tile.depth > 8 and tile.block_rows * tile.block_cols > 1)
    )


def work_of(
    tile: MatrixTile,
    pixels: int,
    slices: int,
    depth: int,
    inputs: int,
    weights: int,
    loads: int = 1,
    *,
    whole: bool = False,
) -> TileWork:
    """The work of a product; sizes as in `choose_matrix_tile`. Rows are ``whole`` where they are
    normalized."""
    a_words, b_words = tile.pixels * tile.depth // 2, tile.depth * 2 * tile.slices
    a_items, b_items = -(-a_words // tile.team_threads), -(-b_words // tile.team_threads)
    stages = -(-depth // (tile.depth * tile.split * tile.parts))
    steps, sums = tile.depth // 4, 2 if inputs + weights > 2 else 1
    block = tile.block_rows * tile.block_cols
    return TileWork(
        workgroups=-(-pixels // tile.pixels) * -(-slices // tile.slices) * tile.parts,
        subgroups=tile.threads // SUBGROUP,
        shared_bytes=tile.shared_bytes(inputs, weights),
        registers=40 + 8 * block * sums + 4 * tile.ahead * (a_items * inputs + b_items * weights),
        stages=stages,
        ahead=min(tile.ahead, stages),
        words=(a_words * inputs + b_words * weights) * tile.split,
        a_lines=tile.pixels * max(1, tile.depth / 16) * tile.split * inputs,
        b_lines=tile.depth * 4 * max(1, tile.slices / 16) * tile.split * weights,
        fetched=a_items * loads + b_items * weights,
        halved=a_items * loads if inputs > 1 else 0,
        summed_rows=a_items if whole else 0,
        loads=(tile.block_rows * inputs + tile.block_cols * weights) * steps,
        products=block * steps * (inputs + weights - 1),
        barriers=3 - tile.places,
        results=tile.pixels * tile.slices * tile.split,
        summed=pixels * slices * tile.parts if tile.parts > 1 else 0,
    )


def clocks(model: MatrixModel, work: TileWork, units: int) -> float:
    """Clocks of a whole product: waves of workgroups, each some stages long. A stage costs what
    its moves and multiplications cost all workgroups of a processor, or, where that is less, the
    latency that nothing hides."""
    per_unit = -(-work.workgroups // units)
    threads = work.subgroups * SUBGROUP
    resident = min(
        per_unit,
        model.resident_bytes // (work.shared_bytes + 1024),
        model.resident_threads // threads,
        model.resident_registers // (work.registers * threads),
    )
    resident = max(1, int(resident))
    moved = work.words * model.word_clocks
    moved += work.a_lines * model.a_line_clocks + work.b_lines * model.b_line_clocks
    multiplied = work.products * model.multiply_clocks + work.loads * model.load_clocks
    arrival = model.load_latency / work.ahead + model.fetch_latency * work.fetched
    latency = arrival + work.barriers * model.barrier_latency
    latency += work.halved * model.halve_latency + work.summed_rows * model.moment_latency
    latency += work.products * model.multiply_latency + work.loads * model.tile_latency
    stage = max(resident * (moved + multiplied * work.subgroups), latency)
    rest = model.wave_clocks + resident * work.results * model.result_clocks
    lines = (work.a_lines + work.b_lines) * work.stages * work.workgroups
    waves = -(-per_unit // resident)
    found = max(waves * (work.stages * stage + rest), lines * model.line_clocks)
    return found + (model.sum_clocks + work.summed * model.summed_clocks if work.summed else 0)
