"""Sparse constants: how TFLite stores them, and how to make them dense.

The format is that of TACO (Kjolstad et al., 2017): the dimensions, plus one for each blocked
dimension, are traversed in a given order, and each is stored dense or compressed (CSR).
"""

from __future__ import annotations

import math

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.budget import MAX_RANK
from tflgpu.ir.dtypes import Array
from tflgpu.values import frozen


@frozen(eq=False)
class Level:
    """How one dimension is stored.

    Attributes:
        dense_size: size of a dense dimension; None for a compressed one.
        segments: compressed only: where each parent's entries begin in ``indices``, and the end.
        indices: compressed only: the coordinate of each entry.
    """

    dense_size: int | None
    segments: Array | None = None
    indices: Array | None = None


@frozen(eq=False)
class Sparsity:
    """How the values of a sparse constant are laid out.

    Attributes:
        traversal_order: dimensions in the order they are stored; ``rank + j`` is block ``j``.
        block_map: the dimension that each block divides.
        levels: storage of each dimension, in traversal order.
    """

    traversal_order: tuple[int, ...]
    block_map: tuple[int, ...]
    levels: tuple[Level, ...]

    def count_values(self, shape: tuple[int, ...], where: str) -> int:
        """How many values are stored for a tensor of this shape; every part is checked on the way.

        Allocates nothing in proportion to ``shape``.

        Raises:
            ModelError: the parts do not fit together, or do not make this shape.
        """
        sizes = self._sizes(shape, where)
        parents = 1
        for depth, (level, dim) in enumerate(zip(self.levels, self.traversal_order, strict=True)):
            size, here = sizes[dim], f"{where}: sparsity: level {depth}"
            if level.dense_size is not None:
                parents *= level.dense_size
                continue
            assert level.segments is not None
            assert level.indices is not None
            if len(level.segments) != parents + 1:
                raise ModelError(
                    f"{here}: {len(level.segments)} segment bounds for {parents} parents"
                )
            segments, indices = level.segments.astype(np.int64), level.indices
            if segments[0] != 0 or segments[-1] != len(indices) or np.any(np.diff(segments) < 0):
                raise ModelError(
                    f"{here}: segment bounds do not run from 0 to {len(indices)} without falling"
                )
            if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= size):
                raise ModelError(f"{here}: an index is outside the dimension's size {size}")
            parents = len(indices)
        return parents

    def _sizes(self, shape: tuple[int, ...], where: str) -> list[int]:
        """The size of each dimension of the blocked shape, blocks last."""
        rank, total = len(shape), len(shape) + len(self.block_map)
        here = f"{where}: sparsity"
        if total > MAX_RANK:
            raise ModelError(f"{here}: {total} dimensions, at most {MAX_RANK} are supported")
        if sorted(self.traversal_order) != list(range(total)):
            raise ModelError(
                f"{here}: traversal order {self.traversal_order} does not name each of {rank} "
                f"dimensions and {len(self.block_map)} blocks once"
            )
        if len(self.levels) != total:
            raise ModelError(f"{here}: {len(self.levels)} levels for {total} dimensions")
        if any(not 0 <= d < rank for d in self.block_map) or len(set(self.block_map)) != len(
            self.block_map
        ):
            raise ModelError(f"{here}: block map {self.block_map} for rank {rank}")
        sizes = list(shape)
        stored = dict(zip(self.traversal_order, self.levels, strict=True))
        for block, dim in enumerate(self.block_map):
            size = stored[rank + block].dense_size
            if size is None or size <= 0 or shape[dim] % size:
                raise ModelError(
                    f"{here}: blocks of {size} do not divide dimension {dim} of size {shape[dim]}"
                )
            sizes[dim] //= size
            sizes.append(size)
        for dim, level in stored.items():
            if level.dense_size is not None and level.dense_size != sizes[dim]:
                raise ModelError(
                    f"{here}: dense size {level.dense_size} of dimension {dim}, whose size is "
                    f"{sizes[dim]}"
                )
        return sizes

    def densify(self, values: Array, shape: tuple[int, ...]) -> Array:
        """The dense tensor, zero where nothing is stored.

        Args:
            values: the values stored, flat.
            shape: the tensor's shape.

        Raises:
            ModelError: the values do not fit the layout, or the layout the shape.
        """
        count = self.count_values(shape, "densify")
        if values.shape != (count,):
            raise ModelError(f"densify: {values.size} values stored, the layout has {count}")
        sizes = self._sizes(shape, "densify")
        # One row of coordinates for each dimension of the blocked shape, grown level by level.
        coordinates = np.zeros((len(sizes), 1), np.int64)
        for level, dim in zip(self.levels, self.traversal_order, strict=True):
            parents = coordinates.shape[1]
            if level.dense_size is not None:
                coordinates = np.repeat(coordinates, level.dense_size, axis=1)
                coordinates[dim] = np.tile(np.arange(level.dense_size), parents)
            else:
                assert level.segments is not None
                assert level.indices is not None
                bounds = level.segments.astype(np.int64)
                entries = bounds[1:] - bounds[:-1]
                coordinates = np.repeat(coordinates, entries, axis=1)
                coordinates[dim] = level.indices
        rank = len(shape)
        for block, dim in enumerate(self.block_map):
            coordinates[dim] = coordinates[dim] * sizes[rank + block] + coordinates[rank + block]
        dense = np.zeros(math.prod(shape), values.dtype)
        if count:
            # A scalar has no coordinates, and one value.
            where = np.ravel_multi_index(tuple(coordinates[:rank]), shape) if rank else slice(None)
            dense[where] = values
        return dense.reshape(shape)
