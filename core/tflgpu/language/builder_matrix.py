"""The builder's matrix statements (see `tflgpu.language.matrix`)."""

from __future__ import annotations

from tflgpu.language import make
from tflgpu.language.author import refused
from tflgpu.language.builder_base import BuilderBase
from tflgpu.language.matrix import (
    Matrix,
    MatrixAdd,
    MatrixFill,
    MatrixLoad,
    MatrixMultiply,
    MatrixRole,
    MatrixStmt,
    MatrixStore,
    problem_of,
)
from tflgpu.language.tree import Builtin, Expr, Operand, SharedArray
from tflgpu.language.types import I32, SUBGROUP


class MatrixBuilder(BuilderBase):
    """What `Builder` has for matrix tiles."""

    def subgroup_id(self) -> Expr:
        """Which subgroup of its workgroup this invocation is in, in a kernel with matrices."""
        return Builtin("local_id", 0) // SUBGROUP

    def matrix_fill(self, value: float = 0.0, name: str = "sum") -> Matrix:
        """An accumulator with ``value`` in every element."""
        target = Matrix(self._fresh(name), MatrixRole.ACCUMULATOR)
        self._matrix(MatrixFill(target, float(value)))
        return target

    def matrix_load(
        self,
        array: SharedArray,
        index: Operand,
        stride: int,
        role: MatrixRole,
        name: str = "m",
        *,
        transposed: bool = False,
    ) -> Matrix:
        """The operand whose rows (or columns, where it is ``transposed``) begin at element
        ``index`` of a shared f16 array, ``stride`` elements apart."""
        target = Matrix(self._fresh(name), role)
        self._matrix(MatrixLoad(target, array, make.wrap(index, I32), stride, transposed))
        return target

    def matrix_multiply(self, target: Matrix, a: Matrix, b: Matrix) -> None:
        """``target += a @ b``."""
        self._matrix(MatrixMultiply(target, a, b))

    def matrix_add(self, target: Matrix, other: Matrix, factor: float = 1.0) -> None:
        """``target += other * factor``, both accumulators."""
        self._matrix(MatrixAdd(target, other, float(factor)))

    def matrix_store(self, array: SharedArray, index: Operand, stride: int, source: Matrix) -> None:
        """Write an accumulator to a shared f32 array, its rows ``stride`` elements apart."""
        self._matrix(MatrixStore(array, make.wrap(index, I32), stride, source))
        self.reads.set(array.name)

    def _matrix(self, stmt: MatrixStmt) -> None:
        problem = problem_of(stmt)
        if problem:
            raise refused(f"{self.name}: {problem}")
        self.emit(stmt)
