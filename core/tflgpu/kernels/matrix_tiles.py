"""How a product on matrix tiles is cut."""

from __future__ import annotations

import attrs

from tflgpu.kernel.matrix import SUBGROUP, TILE

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
        """The same of the result, in f32 vectors."""
        return self.slices + 1

    def shared_bytes(self, inputs: int, weights: int) -> int:
        """Shared memory of a workgroup, by the number of parts of either operand (1 or 2)."""
        stage = inputs * self.pixels * self.a_pitch + weights * self.depth * 4 * self.b_pitch
        return self.split * (2 * 8 * stage + 16 * self.pixels * self.out_pitch)
