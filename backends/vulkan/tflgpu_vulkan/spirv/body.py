"""The one function of a module, as it is written: blocks, variables, and values."""

from __future__ import annotations

from tflgpu.language.kernel import Kernel
from tflgpu.language.types import BOOL, I32, U32, Type

from tflgpu_vulkan.spirv.asm import Id, first_word
from tflgpu_vulkan.spirv.declare import Declarations
from tflgpu_vulkan.spirv.grammar import TERMINATORS, Glsl, Op, StorageClass
from tflgpu_vulkan.spirv.target import Target


class Body(Declarations):
    """Collects instructions.

    Attributes:
        is_open: Whether the current block goes on: it has no terminator yet.
    """

    def __init__(self, kernel: Kernel, target: Target, guard: int) -> None:
        super().__init__(kernel, target, guard)
        self._variables: list[int] = []
        self._opening: list[int] = []
        self._code: list[int] = []
        self._builtins: dict[tuple[str, int], Id] = {}
        self._no_bits: Id | None = None
        self.is_open = True

    def function(self) -> list[int]:
        """Everything between OpFunction and OpFunctionEnd: variables come first of all."""
        label = (first_word(Op.Label, 2), self.new_id())
        return [*label, *self._variables, *self._opening, *self._code]

    # Instructions

    def emit(self, op: Op, type: Type, *operands: int) -> Id:
        """An instruction that gives a value."""
        return self.emit_raw(op, self.value_type(type), *operands)

    def emit_raw(self, op: Op, type: Id, *operands: int) -> Id:
        """The same with a declared type."""
        result = self.new_id()
        self._code += ((3 + len(operands)) << 16 | op, type, result, *operands)
        return result

    def do(self, op: Op, *operands: int) -> None:
        """An instruction without a value."""
        self._code += (first_word(op, 1 + len(operands)), *operands)
        self.is_open = op not in TERMINATORS

    def label(self, label: Id) -> None:
        """Begin a block."""
        self._code += (first_word(Op.Label, 2), label)
        self.is_open = True

    def variable(self, kind: Id, name: str) -> Id:
        """A variable of the function, of a declared type (its first value is stored where it is
        declared)."""
        pointer = self.pointer(StorageClass.Function, kind)
        found = self.new_id()
        self._variables += (first_word(Op.Variable, 4), pointer, found, StorageClass.Function)
        self.name(found, name)
        return found

    # Values

    def builtin(self, kind: str, axis: int) -> Id:
        """One of the invocation's ids as i32, loaded once at the function's start."""
        if (kind, axis) not in self._builtins:
            if (kind, -1) not in self._builtins:
                variable = self.input(kind)
                self._builtins[kind, -1] = self._start(Op.Load, U32.with_width(3), variable)
            lane = self._start(Op.CompositeExtract, U32, self._builtins[kind, -1], axis)
            self._builtins[kind, axis] = self._start(Op.Bitcast, I32, lane)
        return self._builtins[kind, axis]

    def no_bits(self) -> Id:
        """A u32 that is 0, which no compiler can know: that a buffer has an element is not said in
        the module."""
        if self._no_bits is None:
            buffer = self.buffer(self.kernel.buffers[0])
            length = self._start(Op.ArrayLength, U32, buffer, 0)
            is_empty = self._start(Op.IEqual, BOOL, length, self.u32(0))
            self._no_bits = self._start(Op.Select, U32, is_empty, self.u32(1), self.u32(0))
        return self._no_bits

    def _start(self, op: Op, type: Type, *operands: int) -> Id:
        result = self.new_id()
        words = first_word(op, 3 + len(operands))
        self._opening += (words, self.value_type(type), result, *operands)
        return result

    def instruction(self, op: Op | Glsl, type: Type, *args: Id) -> Id:
        """One of SPIR-V itself, or of GLSL.std.450."""
        if isinstance(op, Glsl):
            return self.emit(Op.ExtInst, type, self._glsl, op, *args)
        return self.emit(op, type, *args)

    def splat(self, type: Type, x: Id) -> Id:
        """A scalar in every lane of ``type``."""
        if type.width == 1:
            return x
        return self.emit(Op.CompositeConstruct, type, *[x] * type.width)

    def compare(self, op: Op, type: Type, a: Id, b: Id) -> Id:
        """A comparison of two ``type``s."""
        return self.emit(op, BOOL.with_width(type.width), a, b)
