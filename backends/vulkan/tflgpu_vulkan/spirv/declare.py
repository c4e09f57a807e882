"""Types, constants, and global variables of a module: each declared once, when first needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from tflgpu.language.needs import Needs, check_needs
from tflgpu.language.node_writer import NodeWriter
from tflgpu.language.tree import Kernel, KernelBuffer, Number, SharedArray
from tflgpu.language.types import U32, Scalar, Type, type_of

from tflgpu_vulkan.spirv.asm import Assembly, Id, Literal, text_words
from tflgpu_vulkan.spirv.grammar import (
    BuiltIn,
    Capability,
    Decoration,
    MemoryAccess,
    MemoryModel,
    Op,
    StorageClass,
)
from tflgpu_vulkan.spirv.target import Target

_BUILTINS = {
    "global_id": BuiltIn.GlobalInvocationId,
    "local_id": BuiltIn.LocalInvocationId,
    "group_id": BuiltIn.WorkgroupId,
}


class Declarations(Assembly, NodeWriter):
    """The module-wide part of one kernel's module.

    Attributes:
        kernel: The kernel.
        target: What the device has.
        guard: Bytes that are bound before the first element of every buffer.
        capabilities, extensions, interface, float_widths: What the module uses so far.
        memory_model, shared_access: With matrices another model, under which accesses to shared
            memory and barriers say more (see `tflgpu_vulkan.spirv.matrix`).
    """

    prefix = "_"

    def __init__(self, kernel: Kernel, target: Target, guard: int) -> None:
        """Raises:
        KernelError: the kernel needs what the device lacks.
        """
        super().__init__()
        self.kernel = kernel
        self.target = target
        self.guard = guard
        needs = check_needs(kernel, target)
        self.capabilities, self.extensions = _words_of(needs)
        self.interface: list[Id] = []
        self.float_widths: set[int] = set()
        self.memory_model = MemoryModel.Vulkan if needs.matrices else MemoryModel.GLSL450
        self.shared_access: tuple[int, ...] = (
            (MemoryAccess.NonPrivatePointer,) if needs.matrices else ()
        )
        self._glsl = self.define("imports", Op.ExtInstImport, *text_words("GLSL.std.450"))
        self._made: dict[Any, Id] = {}
        # The same by what kernels are full of, as texts and numbers: quicker to look up.
        self._values: dict[str, Id] = {}
        self._elements: dict[str, Id] = {}
        self._constants: dict[tuple[str, object], Id] = {}
        self._buffers = {b.name: self._buffer(i, b) for i, b in enumerate(kernel.buffers)}
        self._shared: dict[str, Id] = {}

    # Types

    def value_type(self, type: Type) -> Id:
        """The type of a value. An f16 that can only be moved about is held as an f32."""
        found = self._values.get(type.text)
        if found is None:
            found = self._values[type.text] = self._declared_value_type(type)
        return found

    def element_type(self, type: Type) -> Id:
        """The type as it is in a buffer."""
        found = self._elements.get(type.text)
        if found is None:
            found = self._elements[type.text] = self._declared_element_type(type)
        return found

    def pointer(self, storage: StorageClass, type: Id) -> Id:
        """A pointer type."""
        return self.declare(Op.TypePointer, storage, type)

    def declare(self, op: Op, *operands: int, type: Id | None = None) -> Id:
        """A type or constant, made when it is asked for first."""
        key = (op, type, operands)
        found = self._made.get(key)
        if found is None:
            found = self.define("declarations", op, *operands, type=type)
            self._made[key] = found
        return found

    # Constants

    def const(self, type: Type, value: Number) -> Id:
        """A literal in every lane."""
        # 0.0 and -0.0 are equal, and are two literals.
        key = (type.text, value or str(value))
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self._declared_const(type, value)
        return found

    def u32(self, value: int) -> Id:
        """A u32 literal."""
        return self.const(U32, value)

    # Variables

    def buffer(self, buffer: KernelBuffer) -> Id:
        """The variable of a buffer parameter."""
        return self._buffers[buffer.name]

    def shared(self, array: SharedArray) -> Id:
        """The variable of a shared array."""
        found = self._shared.get(array.name)
        if found is None:
            element = self.value_type(array.type)
            kind = self.declare(Op.TypeArray, element, self.u32(array.count))
            found = self._variable(StorageClass.Workgroup, kind, array.name)
            self._shared[array.name] = found
        return found

    def input(self, kind: str) -> Id:
        """The variable of an invocation's ids, to be asked for once."""
        found = self._variable(StorageClass.Input, self.element_type(U32.with_width(3)), kind)
        self.decorate(found, Decoration.BuiltIn, _BUILTINS[kind])
        self.interface.append(found)
        return found

    def decorate(self, target: Id, decoration: Decoration, *operands: int) -> None:
        """Annotate an id."""
        self.add("decorations", Op.Decorate, target, decoration, *operands)

    def name(self, target: Id, text: str) -> None:
        """Name an id for people, unless it has a name."""
        self.titles.setdefault(target, text)

    # Inside

    def _declared_value_type(self, type: Type) -> Id:
        if type.scalar is Scalar.F16 and not self.target.f16_arithmetic:
            type = type.with_scalar(Scalar.F32)
        if type.scalar is Scalar.F16:
            self.capabilities.add(Capability.Float16)
        return self.element_type(type)

    def _declared_element_type(self, type: Type) -> Id:
        if type.width > 1:
            lane = self.element_type(type.with_width(1))
            return self.declare(Op.TypeVector, lane, type.width)
        scalar = type.scalar
        if scalar is Scalar.BOOL:
            return self.declare(Op.TypeBool)
        bits = scalar.itemsize * 8
        if scalar.is_float:
            self.float_widths.add(bits)
            return self.declare(Op.TypeFloat, bits)
        return self.declare(Op.TypeInt, bits, int(scalar not in (Scalar.U32, Scalar.U8)))

    def _declared_const(self, type: Type, value: Number) -> Id:
        kind = self.value_type(type)
        if type.width > 1:
            lane = self.const(type.with_width(1), value)
            return self.declare(Op.ConstantComposite, *[lane] * type.width, type=kind)
        scalar = type.scalar
        if scalar is Scalar.BOOL:
            return self.declare(Op.ConstantTrue if value else Op.ConstantFalse, type=kind)
        if not scalar.is_float:
            return self.declare(Op.Constant, _whole_literal(int(value), scalar), type=kind)
        with np.errstate(over="ignore"):
            # An f16 held as f32 still has the value that an f16 has.
            lane_value = np.array([value]).astype(scalar.numpy)
        if scalar is Scalar.F16 and not self.target.f16_arithmetic:
            lane_value = lane_value.astype(np.float32)
        return self.declare(Op.Constant, _float_literal(lane_value), type=kind)

    def _variable(self, storage: StorageClass, kind: Id, name: str) -> Id:
        pointer = self.pointer(storage, kind)
        found = self.define("declarations", Op.Variable, storage, type=pointer)
        self.name(found, name)
        return found

    def _buffer(self, binding: int, buffer: KernelBuffer) -> Id:
        element = self.element_type(type_of(buffer.scalar, buffer.width))
        key = ("block", buffer.scalar, buffer.width)
        block = self._made.get(key)
        if block is None:
            # Types with a layout of their own are declared once: decorations add up.
            array = self.define("declarations", Op.TypeRuntimeArray, element)
            stride = buffer.scalar.itemsize * buffer.width
            self.decorate(array, Decoration.ArrayStride, stride)
            block = self.define("declarations", Op.TypeStruct, array)
            self.decorate(block, Decoration.Block)
            self.add("decorations", Op.MemberDecorate, block, 0, Decoration.Offset, 0)
            self._made[key] = block
        variable = self._variable(StorageClass.StorageBuffer, block, buffer.name)
        self.decorate(variable, Decoration.DescriptorSet, 0)
        self.decorate(variable, Decoration.Binding, binding)
        # Bytes that one binding writes are in no other binding of the dispatch.
        self.decorate(variable, Decoration.Restrict)
        if buffer.access == "read":
            self.decorate(variable, Decoration.NonWritable)
        elif buffer.access == "write":
            self.decorate(variable, Decoration.NonReadable)
        return variable


def _words_of(needs: Needs) -> tuple[set[Capability], set[str]]:
    """The capabilities and extensions of what a kernel needs; those of floats come with their
    types."""
    capabilities, extensions = {Capability.Shader}, set()
    sizes = {buffer.scalar.itemsize for buffer in needs.narrow}
    if 2 in sizes:
        capabilities.add(Capability.StorageBuffer16BitAccess)
    if 1 in sizes:
        capabilities.add(Capability.StorageBuffer8BitAccess)
        extensions.add("SPV_KHR_8bit_storage")
    if needs.shuffle:
        capabilities |= {Capability.GroupNonUniform, Capability.GroupNonUniformShuffle}
    if needs.matrices:
        capabilities |= {Capability.VulkanMemoryModel, Capability.CooperativeMatrixKHR}
        extensions |= {"SPV_KHR_vulkan_memory_model", "SPV_KHR_cooperative_matrix"}
    return capabilities, extensions


def _whole_literal(value: int, scalar: Scalar) -> Literal:
    """A whole number's word."""
    word = value & 0xFFFFFFFF
    is_negative = scalar is not Scalar.U32 and word >> 31
    return Literal(word, str(word - 2**32 if is_negative else word))


def _float_literal(lane: np.ndarray[Any, Any]) -> Literal:
    """One lane's word; 16-bit floats are in the low half."""
    bits = int.from_bytes(lane.tobytes(), "little")
    number = float(lane[0])
    if np.isfinite(number):
        return Literal(bits, repr(number))
    # What spirv-as reads: a significand and an exponent beyond the largest.
    exponent = 128 if lane.dtype == np.float32 else 16
    return Literal(
        bits,
        ("-" if number < 0 else "")
        + ("0x1.8p+" if number != number else "0x1p+")  # noqa: PLR0124
        + str(exponent),
    )
