"""How a block of three convolutions is cut (`tflgpu.kernels.inverted_residual`): the tiles to
choose from, and what follows from each."""

from __future__ import annotations

import math

from tflgpu.kernels.depthwise import columns_of
from tflgpu.kernels.image_blocks import blocks_of
from tflgpu.kernels.matrix_tiles import PAD
from tflgpu.language.types import SUBGROUP, TILE
from tflgpu.lowering.tuning import BlockModel
from tflgpu.ops.windows import Window
from tflgpu.values import frozen


@frozen
class BlockTile:
    """How the work is cut.

    Attributes:
        height, width: Pixels of a workgroup.
        run: Of these, neighbours along a row whose depthwise sums an invocation makes together.
        chunk: Slices of the expanded channels at a time.
        subgroups: Of a workgroup.
    """

    height: int
    width: int
    run: int
    chunk: int
    subgroups: int


#: Those that were the best for some block; the first of equals is taken.
TILES = (
    BlockTile(4, 8, 1, 12, 12),
    BlockTile(4, 4, 1, 12, 6),
    BlockTile(4, 4, 2, 12, 6),
    BlockTile(4, 8, 2, 8, 8),
    BlockTile(4, 8, 2, 16, 8),
)


@frozen
class BlockCut:
    """A tile with what follows from it for a block of layers.

    Attributes:
        tile: It.
        first: The window of the convolution that expands.
        window: Of the depthwise convolution.
        inner, middle, outer: Slices of the input, of the expanded channels and of the result.
    """

    tile: BlockTile
    first: Window
    window: Window
    inner: int
    middle: int
    outer: int

    @property
    def threads(self) -> int:
        """Invocations of a workgroup."""
        return self.tile.subgroups * SUBGROUP

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of the image that a workgroup's windows see."""
        tile, w = self.tile, self.window
        height = (tile.height - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h + 1
        return height, (tile.width - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1

    @property
    def pixels(self) -> int:
        """Pixels of a workgroup's result."""
        return self.tile.height * self.tile.width

    @property
    def seen(self) -> int:
        """Slices of the input that one pixel in between sees."""
        return self.first.kernel_h * self.first.kernel_w * self.inner

    @property
    def steps(self) -> int:
        """Of the first product, each of four slices of what it sees; one has the bias."""
        return self.seen // 4 + 1

    @property
    def columns(self) -> int:
        """Matrix tiles of a chunk along channels."""
        return self.tile.chunk // 4

    @property
    def expanded(self) -> int:
        """Matrix tiles that a subgroup expands of a chunk."""
        rows = -(-math.prod(self.sides) // TILE)
        return -(-rows * self.columns // self.tile.subgroups)

    @property
    def rows(self) -> int:
        """Staged pixels, with those that fill the last matrix tiles."""
        return -(-self.expanded * self.tile.subgroups // self.columns) * TILE

    @property
    def across(self) -> int:
        """Matrix tiles of the result along channels."""
        return -(-self.outer // 4)

    @property
    def results(self) -> int:
        """Matrix tiles of the result."""
        return self.pixels // TILE * self.across

    @property
    def split(self) -> int:
        """Shares of a chunk that are added up at the end, for as many subgroups as there are."""
        spare = max(1, self.tile.subgroups // self.results)
        return max(n for n in range(1, spare + 1) if self.columns % n == 0)

    @property
    def summed(self) -> int:
        """Matrix tiles of sums that a subgroup has."""
        return -(-self.results * self.split // self.tile.subgroups)

    @property
    def x_pitch(self) -> int:
        """f16 vectors from one staged pixel to the next."""
        return self.steps * 4 + PAD

    @property
    def middle_pitch(self) -> int:
        """The same of expanded channels; f32 vectors are one less."""
        return self.tile.chunk + PAD

    @property
    def out_pitch(self) -> int:
        """f32 vectors from one pixel of the sums to the next."""
        return self.across * 4 + 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Words, of 16 bytes, of a chunk's constants: weights of the first product, biases and taps
        of the depthwise convolution, weights of the last product."""
        taps = self.window.kernel_h * self.window.kernel_w
        first = self.steps * TILE * self.middle_pitch // 2
        last = self.tile.chunk * 4 * (self.across * 4 + PAD) // 2
        return first, self.tile.chunk * (taps + 1), last

    @property
    def words(self) -> int:
        """Words of expanded channels, whose place the sums take at the end."""
        shares = -(-self.tile.subgroups * self.summed // self.results)
        sums = shares * self.pixels * self.out_pitch
        return max(self.rows * (self.middle_pitch - 1), sums)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a workgroup."""
        vectors = self.rows * self.x_pitch + self.pixels * self.middle_pitch
        return 8 * vectors + 16 * (self.words + sum(self.sizes))

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-self.middle // self.tile.chunk)

    def clocks(self, model: BlockModel, pixels: int, units: int) -> float:
        """What a kernel takes, about: waves of workgroups, whose chunks take what they compute, or
        the latency that nothing hides."""
        tile = self.tile
        per_unit = -(-blocks_of(self.window, pixels, tile.height, tile.width) // units)
        at_once = min(
            model.resident_bytes // self.shared_bytes, model.resident_threads // self.threads
        )
        resident = max(1, min(per_unit, at_once))
        runs = self.pixels // tile.run * tile.chunk
        reads = len(columns_of(self.window, tile.run)) * self.window.kernel_h
        latency = model.chunk_latency + -(-runs // self.threads) * reads * model.read_latency
        chunk = max(latency, resident * runs * reads * model.read_clocks)
        return -(-per_unit // resident) * (model.wave_clocks + self.chunks * chunk)
