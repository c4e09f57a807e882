"""How attention on matrix tiles is cut."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.matrix_tiles import PAD
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import SUBGROUP, TILE, Scalar
from tflgpu.lowering.precision import Precision
from tflgpu.ops.attention import AttentionSizes
from tflgpu.values import evolve, frozen

_SUBGROUPS = 8  # of a workgroup
_MOST_KEYS = 8  # tiles of keys of a block


@frozen
class Parts:
    """f16 values, 1 or 2, that operands are made of."""

    query: int
    keys: int
    values: int
    shares: int

    @classmethod
    def of(cls, precision: Precision, stored: Sequence[Scalar]) -> Parts:
        """Those in a precision, of operands that are stored so."""
        if precision is Precision.F16:
            return cls(1, 1, 1, 1)
        query, keys, values = (1 if scalar is Scalar.F16 else 2 for scalar in stored)
        return cls(query, keys, values, 2)


@frozen
class AttentionTile:
    """How the work is cut.

    Attributes:
        rows: Queries of a workgroup, in tiles.
        subgroups: Subgroups, a multiple of ``rows``, a power of two.
        keys: Keys of a block, in tiles.
        depth, width: Numbers of a key and of a value, in tiles.
        turned: Whether values lie with tokens last.
    """

    rows: int
    subgroups: int
    keys: int
    depth: int
    width: int
    turned: bool

    @property
    def threads(self) -> int:
        """Invocations."""
        return self.subgroups * SUBGROUP

    @property
    def lanes(self) -> int:
        """Invocations of a row."""
        return self.threads // (self.rows * TILE)

    @property
    def team(self) -> int:
        """Subgroups that share the scores of some rows."""
        return self.subgroups // self.rows

    @property
    def key_tiles(self) -> int:
        """Tiles of keys of a subgroup."""
        return -(-self.keys // self.team)

    @property
    def splits(self) -> int:
        """Subgroups that divide the sums over a block's tokens."""
        fitting = [n for n in (1, 2, 4, 8, 16) if self.team % n == self.keys % n == 0]
        return min(fitting, key=lambda n: (self._steps(n), n))

    def _steps(self, splits: int) -> int:
        return -(-self.width // (self.team // splits)) * (self.keys // splits)

    @property
    def columns(self) -> int:
        """Subgroups along the numbers of a value."""
        return self.team // self.splits

    @property
    def column_tiles(self) -> int:
        """Tiles of numbers of a subgroup."""
        return -(-self.width // self.columns)

    @property
    def key_pitch(self) -> int:
        """Vectors from one query or key to the next in shared memory."""
        return self.depth * 4 + PAD

    @property
    def share_pitch(self) -> int:
        """The same of shares, and of numbers of values with tokens last."""
        return self.keys * 4 + PAD

    @property
    def value_pitch(self) -> int:
        """The same of values."""
        return self.share_pitch if self.turned else self.width * 4 + PAD

    @property
    def score_pitch(self) -> int:
        """The same of scores, in f32 vectors."""
        return self.key_tiles * self.team * 4 + 1

    @property
    def sum_pitch(self) -> int:
        """The same of sums."""
        return self.column_tiles * self.columns * 4 + 1

    @property
    def staged(self) -> int:
        """Vectors of a block of keys, or of values."""
        values = self.width if self.turned else self.keys
        return TILE * max(self.keys * self.key_pitch, values * self.value_pitch)

    @property
    def results(self) -> int:
        """f32 vectors of scores, or of sums."""
        return self.rows * TILE * max(self.score_pitch, self.splits * self.sum_pitch)

    def shared_bytes(self, parts: Parts) -> int:
        """Shared memory of a workgroup."""
        rows = self.rows * TILE
        halves = parts.query * rows * self.key_pitch + parts.shares * rows * self.share_pitch
        return 8 * (halves + max(parts.keys, parts.values) * self.staged) + 16 * self.results


def choose_attention_tile(
    sizes: AttentionSizes, parts: Parts, caps: DeviceCaps, *, turned: bool
) -> AttentionTile | None:
    """How the work is cut on a device, None where a workgroup there has too little memory, or too
    few invocations.

    Two tiles of queries read the same keys where operands are one f16 value each and the device is
    full all the same: two parts of twice the loads in flight would not fit in registers.
    """
    depth, width = -(-sizes.depth // TILE), -(-sizes.width // TILE)
    tiles = -(-sizes.keys // TILE)
    pairs = sizes.items * sizes.key_heads * -(-sizes.share // (2 * TILE))
    rows = 2 if parts.shares == 1 and pairs >= caps.compute_units else 1
    for most in range(_MOST_KEYS, 0, -1):
        keys = -(-tiles // -(-tiles // most))
        tile = AttentionTile(rows, _SUBGROUPS, keys, depth, width, turned)
        if tile.shared_bytes(parts) <= caps.shared_bytes and tile.threads <= caps.most_members:
            return tile
    return None


def attention_tiles(
    best: AttentionTile, sizes: AttentionSizes, parts: Parts, caps: DeviceCaps
) -> list[AttentionTile]:
    """The ways to cut the work that a device can have, ``best`` as the first."""
    tiles = -(-sizes.keys // TILE)
    blocks = dict.fromkeys(-(-tiles // -(-tiles // most)) for most in range(_MOST_KEYS, 0, -1))
    found = [evolve(best, rows=n, keys=keys) for n in {best.rows: 0, 1: 0} for keys in blocks]
    fitting = (tile for tile in found if tile.shared_bytes(parts) <= caps.shared_bytes)
    return [best, *(tile for tile in fitting if tile != best)]
