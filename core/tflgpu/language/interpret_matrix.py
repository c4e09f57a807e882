"""Matrix statements of the kernel interpreter.

Invocation ``i`` of a subgroup holds elements ``8*i .. 8*i+7`` of the tile in row-major order, so
a tile is a value like any other: [invocations, 8].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.frame import Frame, Index, spread
from tflgpu.language.matrix import MatrixAdd, MatrixFill, MatrixLoad, MatrixMultiply, MatrixStmt
from tflgpu.language.memory import SharedMemory
from tflgpu.language.types import SUBGROUP, TILE

_SHARE = TILE * TILE // SUBGROUP


def run_matrix(
    stmt: MatrixStmt,
    frame: Frame,
    values: Sequence[Array],
    shared: Mapping[str, SharedMemory],
    who: Index,
    group: Index,
) -> None:
    """Run one statement.

    Args:
        stmt: The statement.
        frame: The invocations that got to it.
        values: Its operands' values.
        shared: The workgroups' shared arrays by name.
        who: Which invocation of all each of the frame's is.
        group: Which workgroup of the batch each is of.

    Raises:
        KernelError: a part of a subgroup is missing or disagrees, or an access is undefined.
    """
    _check_whole(who)
    if isinstance(stmt, MatrixFill):
        filled = np.full((frame.count, _SHARE), stmt.value, np.float32)
        frame.declare(stmt.target.ident, filled)
    elif isinstance(stmt, MatrixLoad):
        at = _first(values[0], frame.count)
        tiles = shared[stmt.array.name].load_tiles(at, stmt.stride, group[::SUBGROUP])
        tiles = tiles.swapaxes(1, 2) if stmt.transposed else tiles
        frame.declare(stmt.target.ident, tiles.reshape(-1, _SHARE))
    elif isinstance(stmt, MatrixMultiply):
        a, b = (_tiles(frame, m.ident).astype(np.float32) for m in (stmt.a, stmt.b))
        total = _tiles(frame, stmt.target.ident) + np.matmul(a, b)
        frame.assign(stmt.target.ident, total.reshape(-1, _SHARE))
    elif isinstance(stmt, MatrixAdd):
        scaled = frame.full(stmt.other.ident) * np.float32(stmt.factor)
        frame.assign(stmt.target.ident, frame.full(stmt.target.ident) + scaled)
    else:
        at = _first(values[0], frame.count)
        tiles = _tiles(frame, stmt.source.ident)
        shared[stmt.array.name].store_tiles(at, stmt.stride, tiles, group[::SUBGROUP])


def _tiles(frame: Frame, ident: str) -> Array:
    return frame.full(ident).reshape(-1, TILE, TILE)


def _check_whole(who: Index) -> None:
    rows = who.reshape(-1, SUBGROUP) if len(who) % SUBGROUP == 0 else None
    if (
        rows is None
        or (rows != rows[:, :1] + np.arange(SUBGROUP)).any()
        or (rows[:, 0] % SUBGROUP).any()
    ):
        raise KernelError("a matrix statement was reached by a part of a subgroup")


def _first(index: Array, count: int) -> Index:
    rows = spread(index, count).reshape(-1, SUBGROUP)
    if (rows != rows[:, :1]).any():
        raise KernelError("the invocations of a subgroup disagree on where a matrix lies")
    return np.asarray(rows[:, 0], np.int64)
