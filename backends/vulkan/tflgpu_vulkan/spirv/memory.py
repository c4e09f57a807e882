"""Loads and stores: elements and lanes of buffers, elements of shared arrays."""

from __future__ import annotations

from tflgpu.language.tree import Buffer, Load, SharedLoad, SharedStore, Store
from tflgpu.language.types import I32, Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.declare import U32
from tflgpu_vulkan.spirv.grammar import Decoration, Op, RoundingMode, StorageClass


class Memory:
    """Reads and writes memory. With ``guard`` every buffer begins that many bytes before its
    first element, so that a stray negative index stays inside what is bound."""

    def __init__(self, body: Body, guard: int) -> None:
        self._body = body
        self._guard = guard

    def load(self, expr: Load, index: Id) -> Id:
        """An element or lane of a buffer."""
        buffer, body = expr.buffer, self._body
        stored = Type(buffer.scalar, expr.type.width)
        pointer = self._element(buffer, index, expr.scalar)
        element = body.declarations.element_type(stored)
        found = body.emit_raw(Op.Load, element, pointer)
        if buffer.scalar.is_storage_only:
            return self._widen(stored, expr.type, found)
        if buffer.scalar is Scalar.F16 and not body.declarations.target.f16_arithmetic:
            return body.emit(Op.FConvert, stored.with_scalar(Scalar.F32), found)
        return found

    def store(self, stmt: Store, index: Id, value: Id) -> None:
        """Write an element or lane of a buffer."""
        buffer, body = stmt.buffer, self._body
        stored = Type(buffer.scalar, stmt.value.type.width)
        element = body.declarations.element_type(stored)
        if buffer.scalar.is_storage_only:
            op = Op.UConvert if buffer.scalar is Scalar.U8 else Op.SConvert
            value = body.emit_raw(op, element, value)
        elif buffer.scalar is Scalar.F16:
            is_wide = stmt.value.type.scalar is Scalar.F32
            if is_wide or not body.declarations.target.f16_arithmetic:
                value = body.emit_raw(Op.FConvert, element, value)
                # Without it a driver may round toward zero.
                body.declarations.decorate(value, Decoration.FPRoundingMode, RoundingMode.RTE)
        body.do(Op.Store, self._element(buffer, index, stmt.scalar), value)

    def load_shared(self, expr: SharedLoad, index: Id) -> Id:
        """An element of a shared array."""
        variable = self._body.declarations.shared(expr.array)
        pointer = self._chain(StorageClass.Workgroup, expr.type, variable, index)
        access = self._body.declarations.shared_access
        return self._body.emit(Op.Load, expr.type, pointer, *access)

    def store_shared(self, stmt: SharedStore, index: Id, value: Id) -> None:
        """Write an element of a shared array."""
        variable = self._body.declarations.shared(stmt.array)
        pointer = self._chain(StorageClass.Workgroup, stmt.array.type, variable, index)
        self._body.do(Op.Store, pointer, value, *self._body.declarations.shared_access)

    # Inside

    def _element(self, buffer: Buffer, index: Id, lane: bool) -> Id:
        """A pointer to an element, or to lane ``index`` counted over all elements."""
        body, declarations = self._body, self._body.declarations
        if self._guard:
            unit = buffer.scalar.itemsize * (1 if lane else buffer.width)
            index = body.emit(Op.IAdd, I32, index, body.const(I32, self._guard // unit))
        path = [declarations.buffer(buffer), declarations.u32(0), index]
        if lane and buffer.width > 1:
            shift = body.const(I32, buffer.width.bit_length() - 1)
            path[2] = body.emit(Op.ShiftRightArithmetic, I32, index, shift)
            path.append(body.emit(Op.BitwiseAnd, I32, index, body.const(I32, buffer.width - 1)))
        width = 1 if lane else buffer.width
        element = declarations.element_type(Type(buffer.scalar, width))
        pointer = declarations.pointer(StorageClass.StorageBuffer, element)
        return body.emit_raw(Op.AccessChain, pointer, *path)

    def _chain(self, storage: StorageClass, type: Type, variable: Id, index: Id) -> Id:
        declarations = self._body.declarations
        pointer = declarations.pointer(storage, declarations.value_type(type))
        return self._body.emit_raw(Op.AccessChain, pointer, variable, index)

    def _widen(self, stored: Type, target: Type, value: Id) -> Id:
        body = self._body
        if stored.scalar is not Scalar.U8:
            return body.emit(Op.SConvert, target, value)
        unsigned = U32.with_width(target.width)
        return body.emit(Op.Bitcast, target, body.emit(Op.UConvert, unsigned, value))
