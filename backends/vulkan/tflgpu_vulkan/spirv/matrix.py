"""Matrix tiles as cooperative matrices (SPV_KHR_cooperative_matrix).

The extension works under the Vulkan memory model only. There, an access to shared memory takes
part in a barrier's ordering if it says NonPrivatePointer, and the barrier makes writes available
and visible if it says so.
"""

from __future__ import annotations

from tflgpu.language.matrix import (
    TILE,
    Matrix,
    MatrixAdd,
    MatrixFill,
    MatrixLoad,
    MatrixMultiply,
    MatrixRole,
    MatrixStmt,
    has_matrices,
)
from tflgpu.language.tree import Shared
from tflgpu.language.types import F32, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.declare import Declarations
from tflgpu_vulkan.spirv.grammar import (
    SCOPE_SUBGROUP,
    Capability,
    MatrixLayout,
    MatrixOperands,
    MatrixUse,
    MemoryModel,
    Op,
    StorageClass,
)

_USES = {
    MatrixRole.A: MatrixUse.MatrixA,
    MatrixRole.B: MatrixUse.MatrixB,
    MatrixRole.ACCUMULATOR: MatrixUse.MatrixAccumulator,
}


def memory_model(declarations: Declarations) -> MemoryModel:
    """The memory model that a module needs, with the capabilities that go with it.

    Raises:
        KernelError: the kernel has matrices and the device has not.
    """
    if not has_matrices(declarations.kernel):
        return MemoryModel.GLSL450
    if not declarations.target.matrix_tiles:
        raise declarations.fail("matrix tiles, which this device does not have (caps.matrix_tiles)")
    declarations.capabilities |= {Capability.VulkanMemoryModel, Capability.CooperativeMatrixKHR}
    declarations.extensions |= {"SPV_KHR_vulkan_memory_model", "SPV_KHR_cooperative_matrix"}
    return MemoryModel.Vulkan


class Matrices:
    """Writes matrix statements. An operand is a value; an accumulator, which changes, is a
    variable that has one."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._ids: dict[str, Id] = {}

    def write(self, stmt: MatrixStmt, *operands: Id) -> None:
        """One statement; ``operands`` has the index where there is one."""
        body = self._body
        if isinstance(stmt, MatrixFill):
            kind = self._type(stmt.target.role)
            self._ids[stmt.target.ident] = body.variable_of(kind, stmt.target.ident)
            value = body.declarations.constant(F32, stmt.value)
            filled = body.declarations.declare(Op.ConstantComposite, value, type=kind)
            self._set(stmt.target, filled)
        elif isinstance(stmt, MatrixLoad):
            kind = self._type(stmt.target.role)
            pointer, rows = self._pointer(stmt.array, operands[0]), self._rows(stmt.stride)
            access = body.declarations.shared_access
            loaded = body.emit_raw(Op.CooperativeMatrixLoadKHR, kind, pointer, *rows, *access)
            self._ids[stmt.target.ident] = loaded
            body.declarations.name(loaded, stmt.target.ident)
        elif isinstance(stmt, MatrixMultiply):
            parts = [self._get(m) for m in (stmt.a, stmt.b, stmt.target)]
            kind = self._type(stmt.target.role)
            none = MatrixOperands.NoHint
            self._set(stmt.target, body.emit_raw(Op.CooperativeMatrixMulAddKHR, kind, *parts, none))
        elif isinstance(stmt, MatrixAdd):
            kind, factor = (
                self._type(stmt.target.role),
                body.declarations.constant(F32, stmt.factor),
            )
            scaled = body.emit_raw(Op.MatrixTimesScalar, kind, self._get(stmt.other), factor)
            self._set(stmt.target, body.emit_raw(Op.FAdd, kind, self._get(stmt.target), scaled))
        else:
            pointer = self._pointer(stmt.array, operands[0])
            source, rows = self._get(stmt.source), self._rows(stmt.stride)
            access = body.declarations.shared_access
            body.do(Op.CooperativeMatrixStoreKHR, pointer, source, *rows, *access)

    def _type(self, role: MatrixRole) -> Id:
        declarations = self._body.declarations
        element = declarations.value_type(Type(role.scalar))
        scope, size = declarations.u32(SCOPE_SUBGROUP), declarations.u32(TILE)
        use = declarations.u32(_USES[role])
        return declarations.declare(Op.TypeCooperativeMatrixKHR, element, scope, size, size, use)

    def _get(self, matrix: Matrix) -> Id:
        found = self._ids[matrix.ident]
        if matrix.role is not MatrixRole.ACCUMULATOR:
            return found
        return self._body.emit_raw(Op.Load, self._type(matrix.role), found)

    def _set(self, matrix: Matrix, value: Id) -> None:
        self._body.do(Op.Store, self._ids[matrix.ident], value)

    def _pointer(self, array: Shared, index: Id) -> Id:
        declarations = self._body.declarations
        kind = declarations.value_type(array.type)
        pointer = declarations.pointer(StorageClass.Workgroup, kind)
        return self._body.emit_raw(Op.AccessChain, pointer, declarations.shared(array), index)

    def _rows(self, stride: int) -> tuple[Id, Id]:
        """The layout and the stride, which counts what the pointer points to."""
        declarations = self._body.declarations
        return declarations.u32(MatrixLayout.RowMajorKHR), declarations.u32(stride)
