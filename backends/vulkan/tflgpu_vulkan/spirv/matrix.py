"""Matrix tiles as cooperative matrices (SPV_KHR_cooperative_matrix).

The extension works under the Vulkan memory model only. There, an access to shared memory takes
part in a barrier's ordering if it says NonPrivatePointer, and the barrier makes writes available
and visible if it says so.
"""

from __future__ import annotations

from tflgpu.language.kernel import Kernel
from tflgpu.language.matrix import (
    Matrix,
    MatrixAdd,
    MatrixFill,
    MatrixLoad,
    MatrixMultiply,
    MatrixRole,
    MatrixStore,
)
from tflgpu.language.types import F32, TILE, type_of

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.grammar import (
    SCOPE_SUBGROUP,
    Control,
    MatrixLayout,
    MatrixUse,
    Op,
)
from tflgpu_vulkan.spirv.memory import Memory
from tflgpu_vulkan.spirv.target import Target

_USES = {
    MatrixRole.A: MatrixUse.MatrixA,
    MatrixRole.B: MatrixUse.MatrixB,
    MatrixRole.ACCUMULATOR: MatrixUse.MatrixAccumulator,
}


class Matrices(Memory):
    """Writes matrix statements. An operand is a value; an accumulator, which changes, is a
    variable that has one."""

    def __init__(self, kernel: Kernel, target: Target, guard: int) -> None:
        super().__init__(kernel, target, guard)
        self._tiles: dict[str, Id] = {}
        self._kinds: dict[MatrixRole, Id] = {}

    def _matrix_fill(self, stmt: MatrixFill) -> None:
        kind = self._type(stmt.target.role)
        self._tiles[stmt.target.ident] = self.variable(kind, stmt.target.ident)
        value = self.const(F32, stmt.value)
        self._set(stmt.target, self.declare(Op.ConstantComposite, value, type=kind))

    def _matrix_load(self, stmt: MatrixLoad, index: Id) -> None:
        kind = self._type(stmt.target.role)
        pointer, access = self.shared_element(stmt.array, index), self.shared_access
        layout = MatrixLayout.ColumnMajorKHR if stmt.transposed else MatrixLayout.RowMajorKHR
        rows = self._rows(stmt.stride, layout)
        loaded = self.emit_raw(Op.CooperativeMatrixLoadKHR, kind, pointer, *rows, *access)
        self._tiles[stmt.target.ident] = loaded
        self.name(loaded, stmt.target.ident)

    def _matrix_multiply(self, stmt: MatrixMultiply) -> None:
        parts = [self._get(m) for m in (stmt.a, stmt.b, stmt.target)]
        kind, none = self._type(stmt.target.role), Control.NoHint
        self._set(stmt.target, self.emit_raw(Op.CooperativeMatrixMulAddKHR, kind, *parts, none))

    def _matrix_add(self, stmt: MatrixAdd) -> None:
        kind, factor = self._type(stmt.target.role), self.const(F32, stmt.factor)
        scaled = self.emit_raw(Op.MatrixTimesScalar, kind, self._get(stmt.other), factor)
        self._set(stmt.target, self.emit_raw(Op.FAdd, kind, self._get(stmt.target), scaled))

    def _matrix_store(self, stmt: MatrixStore, index: Id) -> None:
        pointer = self.shared_element(stmt.array, index)
        source, rows = self._get(stmt.source), self._rows(stmt.stride)
        self.do(Op.CooperativeMatrixStoreKHR, pointer, source, *rows, *self.shared_access)

    def _type(self, role: MatrixRole) -> Id:
        found = self._kinds.get(role)
        if found is None:
            found = self._kinds[role] = self._declared_type(role)
        return found

    def _declared_type(self, role: MatrixRole) -> Id:
        element = self.value_type(type_of(role.scalar))
        scope, size = self.u32(SCOPE_SUBGROUP), self.u32(TILE)
        use = self.u32(_USES[role])
        return self.declare(Op.TypeCooperativeMatrixKHR, element, scope, size, size, use)

    def _get(self, matrix: Matrix) -> Id:
        found = self._tiles[matrix.ident]
        if matrix.role is not MatrixRole.ACCUMULATOR:
            return found
        return self.emit_raw(Op.Load, self._type(matrix.role), found)

    def _set(self, matrix: Matrix, value: Id) -> None:
        self.do(Op.Store, self._tiles[matrix.ident], value)

    def _rows(self, stride: int, layout: MatrixLayout = MatrixLayout.RowMajorKHR) -> tuple[Id, Id]:
        """The layout and the stride, which counts what the pointer points to."""
        return self.u32(layout), self.u32(stride)
