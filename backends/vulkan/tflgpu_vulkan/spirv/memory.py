"""Loads and stores: elements and lanes of buffers, elements of shared arrays."""

from __future__ import annotations

from tflgpu.language.tree import KernelBuffer, Load, SharedArray, SharedLoad, SharedStore, Store
from tflgpu.language.types import I32, U32, Scalar, Type, type_of

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Decoration, Op, RoundingMode, StorageClass


class Memory(Body):
    """Reads and writes memory. With ``guard`` every buffer begins that many bytes before its
    first element, so that a stray negative index stays inside what is bound."""

    def _load(self, expr: Load, index: Id) -> Id:
        """An element or lane of a buffer."""
        buffer = expr.buffer
        stored = expr.type.with_scalar(buffer.scalar)
        pointer = self._element(buffer, index, expr.scalar)
        element = self.element_type(stored)
        found = self.emit_raw(Op.Load, element, pointer)
        if buffer.scalar.is_storage_only:
            return self._widen(stored, expr.type, found)
        if buffer.scalar is Scalar.F16 and not self.target.f16_arithmetic:
            return self.emit(Op.FConvert, stored.with_scalar(Scalar.F32), found)
        return found

    def _store(self, stmt: Store, index: Id, value: Id) -> None:
        """Write an element or lane of a buffer."""
        buffer = stmt.buffer
        stored = stmt.value.type.with_scalar(buffer.scalar)
        element = self.element_type(stored)
        if buffer.scalar.is_storage_only:
            op = Op.UConvert if buffer.scalar is Scalar.U8 else Op.SConvert
            value = self.emit_raw(op, element, value)
        elif buffer.scalar is Scalar.F16:
            is_wide = stmt.value.type.scalar is Scalar.F32
            if is_wide or not self.target.f16_arithmetic:
                value = self.emit_raw(Op.FConvert, element, value)
                # Without it a driver may round toward zero.
                self.decorate(value, Decoration.FPRoundingMode, RoundingMode.RTE)
        self.do(Op.Store, self._element(buffer, index, stmt.scalar), value)

    def _shared_load(self, expr: SharedLoad, index: Id) -> Id:
        """An element of a shared array."""
        pointer = self.shared_element(expr.array, index)
        return self.emit(Op.Load, expr.type, pointer, *self.shared_access)

    def _shared_store(self, stmt: SharedStore, index: Id, value: Id) -> None:
        """Write an element of a shared array."""
        pointer = self.shared_element(stmt.array, index)
        self.do(Op.Store, pointer, value, *self.shared_access)

    def shared_element(self, array: SharedArray, index: Id) -> Id:
        """A pointer to an element of a shared array."""
        variable = self.shared(array)
        pointer = self.pointer(StorageClass.Workgroup, self.value_type(array.type))
        return self.emit_raw(Op.AccessChain, pointer, variable, index)

    # Inside

    def _element(self, buffer: KernelBuffer, index: Id, lane: bool) -> Id:
        """A pointer to an element, or to lane ``index`` counted over all elements."""
        if self.guard:
            unit = buffer.scalar.itemsize * (1 if lane else buffer.width)
            index = self.emit(Op.IAdd, I32, index, self.const(I32, self.guard // unit))
        path = [self.buffer(buffer), self.u32(0), index]
        if lane and buffer.width > 1:
            shift = self.const(I32, buffer.width.bit_length() - 1)
            path[2] = self.emit(Op.ShiftRightArithmetic, I32, index, shift)
            path.append(self.emit(Op.BitwiseAnd, I32, index, self.const(I32, buffer.width - 1)))
        width = 1 if lane else buffer.width
        element = self.element_type(type_of(buffer.scalar, width))
        pointer = self.pointer(StorageClass.StorageBuffer, element)
        return self.emit_raw(Op.AccessChain, pointer, *path)

    def _widen(self, stored: Type, target: Type, value: Id) -> Id:
        if stored.scalar is not Scalar.U8:
            return self.emit(Op.SConvert, target, value)
        unsigned = U32.with_width(target.width)
        return self.emit(Op.Bitcast, target, self.emit(Op.UConvert, unsigned, value))
