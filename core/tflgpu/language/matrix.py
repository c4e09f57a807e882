"""Matrix tiles: 16 x 16 values that a subgroup holds together, and their multiply-accumulate.

An operand tile (`MatrixRole.A`, rows x depth, or `MatrixRole.B`, depth x columns) has f16
elements and is loaded from shared memory; an accumulator has f32 elements, starts with one value
everywhere, and is stored to shared memory. How the elements are spread over the subgroup's
invocations is up to the device.

``multiply`` adds ``a @ b`` to an accumulator: products of f16 are exact in f32, sums are f32 in
any order. Subnormal f16 operands count as what they are. An operand may be loaded transposed.

Subgroups are `SUBGROUP` invocations that follow each other along the first axis of the
workgroup, whose size along that axis is a multiple of it. All invocations of a workgroup must
get to a matrix statement together (as to a barrier), and those of a subgroup must agree on the
index. An index and a stride count elements of the shared array; tiles lie row by row, and rows
begin at multiples of 16 bytes; those of an operand may overlap. A matrix statement touches shared
memory for its whole subgroup, so a barrier must stand between it and any other access to the same
elements, unless all read.
"""

from __future__ import annotations

import enum
from typing import Union

from tflgpu.language.tree import Expr, Kernel, SharedArray, Stmt
from tflgpu.language.types import ROW_ALIGNMENT, TILE, Scalar, Type
from tflgpu.language.walk import statements
from tflgpu.values import frozen


class MatrixRole(enum.Enum):
    """What a tile is in a product."""

    A = "a"
    B = "b"
    ACCUMULATOR = "accumulator"

    @property
    def scalar(self) -> Scalar:
        """The type of an element."""
        return Scalar.F32 if self is MatrixRole.ACCUMULATOR else Scalar.F16


@frozen
class Matrix:
    """A tile, by its name."""

    ident: str
    role: MatrixRole


@frozen(eq=False)
class MatrixFill(Stmt):
    """Declare an accumulator with one value in every element."""

    target: Matrix
    value: float

    @property
    def declares(self) -> tuple[str, ...]:
        """The tile."""
        return (self.target.ident,)


@frozen(eq=False)
class MatrixLoad(Stmt):
    """Declare an operand: the tile that begins at element ``index`` of a shared array; where
    ``transposed``, its columns lie there as rows."""

    target: Matrix
    array: SharedArray
    index: Expr
    stride: int
    transposed: bool = False

    @property
    def declares(self) -> tuple[str, ...]:
        """The tile."""
        return (self.target.ident,)


@frozen(eq=False)
class MatrixMultiply(Stmt):
    """``target += a @ b``."""

    target: Matrix
    a: Matrix
    b: Matrix


@frozen(eq=False)
class MatrixAdd(Stmt):
    """``target += other * factor``, all accumulators."""

    target: Matrix
    other: Matrix
    factor: float


@frozen(eq=False)
class MatrixStore(Stmt):
    """Write an accumulator to the tile that begins at element ``index`` of a shared array."""

    array: SharedArray
    index: Expr
    stride: int
    source: Matrix


MatrixStmt = Union[MatrixFill, MatrixLoad, MatrixMultiply, MatrixAdd, MatrixStore]
MATRIX_STATEMENTS = (MatrixFill, MatrixLoad, MatrixMultiply, MatrixAdd, MatrixStore)


def lanes_of(kind: Type, role: MatrixRole) -> int:
    """Elements of a matrix that an element of a shared array has: its lanes, or for u32 those
    whose bits it has."""
    return kind.width * kind.scalar.itemsize // role.scalar.itemsize


def declared(stmt: Stmt) -> Matrix | None:
    """The tile that a statement declares."""
    return stmt.target if isinstance(stmt, (MatrixFill, MatrixLoad)) else None


def has_matrices(kernel: Kernel) -> bool:
    """Whether a kernel needs ``caps.matrix_tiles``."""
    return any(isinstance(stmt, MATRIX_STATEMENTS) for stmt in statements(kernel.body))


def used(stmt: MatrixStmt) -> tuple[Matrix, ...]:
    """The tiles that must exist before a statement."""
    if isinstance(stmt, MatrixMultiply):
        return (stmt.target, stmt.a, stmt.b)
    if isinstance(stmt, MatrixAdd):
        return (stmt.target, stmt.other)
    return (stmt.source,) if isinstance(stmt, MatrixStore) else ()


def problem_of(stmt: MatrixStmt) -> str | None:
    """What is wrong with a statement taken by itself: roles, types, alignment."""
    if isinstance(stmt, MatrixMultiply):
        wanted: tuple[MatrixRole, ...] = (MatrixRole.ACCUMULATOR, MatrixRole.A, MatrixRole.B)
    elif isinstance(stmt, MatrixLoad):
        wanted = (MatrixRole.B,) if stmt.target.role is MatrixRole.B else (MatrixRole.A,)
    elif isinstance(stmt, MatrixAdd):
        wanted = (MatrixRole.ACCUMULATOR, MatrixRole.ACCUMULATOR)
    else:
        wanted = (MatrixRole.ACCUMULATOR,)
    tiles = used(stmt) or ((made,) if (made := declared(stmt)) else ())
    for tile, role in zip(tiles, wanted, strict=True):
        if tile.role is not role:
            return f"matrix {tile.ident} is {tile.role.value} where {role.value} is needed"
    if isinstance(stmt, (MatrixLoad, MatrixStore)):
        kind, stride = stmt.array.type, stmt.stride
        if kind.scalar not in (tiles[0].role.scalar, Scalar.U32) or kind.width not in (1, 2, 4):
            return f"matrix {tiles[0].ident} and shared array {stmt.array.name} of {kind}"
        if isinstance(stmt, MatrixStore) and stride * lanes_of(kind, tiles[0].role) < TILE:
            return f"rows of matrix {tiles[0].ident} overlap at a stride of {stride} {kind}"
        if stride * kind.width * kind.scalar.itemsize % ROW_ALIGNMENT:
            return (
                f"a stride of {stride} {kind} is not a multiple of {ROW_ALIGNMENT} bytes "
                f"(matrix {tiles[0].ident})"
            )
    return None
