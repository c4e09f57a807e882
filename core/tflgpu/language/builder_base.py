"""The base of the builder: its statements of matrix tiles (`tflgpu.language.matrix`) and of the
neighbours' values in a subgroup (`tflgpu.language.subgroup`)."""

from __future__ import annotations

from tflgpu.language import make
from tflgpu.language.author import refused
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
from tflgpu.language.subgroup import SubgroupShuffleXor, shuffle_problem
from tflgpu.language.tree import Builtin, Expr, Name, Operand, SharedArray, Stmt
from tflgpu.language.types import I32, LARGEST_GROUP, SUBGROUP
from tflgpu.language.variables import Reads

_MERGES = ("add", "min", "max")


class BuilderBase:
    """What `Builder` has for matrix tiles and for exchanges among neighbours; over the name, the
    fresh names, what was read, and the block that is being written."""

    name: str
    reads: Reads

    def emit(self, stmt: Stmt) -> None:
        """Append a statement to the current block."""
        raise NotImplementedError

    def let(self, value: Expr, name: str = "t") -> Expr:
        """Compute a value once and name it."""
        raise NotImplementedError

    def _fresh(self, name: str) -> str:
        raise NotImplementedError

    # Matrix tiles

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

    # Exchanges among neighbours

    def subgroup_shuffle_xor(self, x: Expr, mask: int, name: str = "other") -> Expr:
        """``x`` of the invocation whose place along the first axis differs by XOR ``mask``.

        Raises:
            KernelError: a type that cannot be shuffled, or a mask that is not in [1, 32).
        """
        x = make.read(x)
        problem = shuffle_problem(x, mask)
        if problem:
            raise refused(f"{self.name}: {problem}")
        ident = self._fresh(name)
        self.emit(SubgroupShuffleXor(ident, x, mask))
        return Name(x.type, ident)

    def subgroup_reduce(self, op: str, x: Expr, size: int, name: str = "total") -> Expr:
        """``x`` merged over groups of ``size`` neighbours along the first axis; each gets it.

        The halves of a group are merged first, then the quarters, and so on: the order of a sum
        is the same on every device, and in all invocations.

        Args:
            op: "add", "min" or "max", lane by lane.
            x: The invocation's own value.
            size: A power of two from 1 to 32.
            name: Of the result.

        Raises:
            KernelError: another operation, size, or type.
        """
        if op not in _MERGES:
            raise refused(f"{self.name}: a reduction by {op!r}, not {', '.join(_MERGES)}")
        if not 1 <= size <= LARGEST_GROUP or size & (size - 1):
            raise refused(
                f"{self.name}: a reduction over {size} neighbours, not a power of two up to "
                f"{LARGEST_GROUP}"
            )
        total = self.let(x, name)
        while size > 1:
            size //= 2
            other = self.subgroup_shuffle_xor(total, size)
            total = self.let(make.binary(op, total, other), name)
        return total
