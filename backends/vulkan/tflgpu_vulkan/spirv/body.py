"""The one function of a module, as it is written: blocks, variables, and lane-wise operations."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.language.tree import Number
from tflgpu.language.types import BOOL, I32, Scalar, Type

from tflgpu_vulkan.spirv.asm import Id, Instruction, Operand
from tflgpu_vulkan.spirv.declare import Declarations
from tflgpu_vulkan.spirv.grammar import TERMINATORS, Glsl, Op, StorageClass


class Body:
    """Collects instructions."""

    def __init__(self, declarations: Declarations) -> None:
        self.declarations = declarations
        self._variables: list[Instruction] = []
        self._opening: list[Instruction] = []
        self._code: list[Instruction] = []
        self._builtins: dict[tuple[str, int], Id] = {}
        self._open = True
        #: Writes a function that the language defines, where it is called. Within one operands are
        #: taken for numbers, and functions are the instructions that there are.
        self.written: Callable[..., Id]
        self.defines = False
        #: Of each f16 value that was made of an f32 one, that one.
        self.narrowed: dict[Id, Id] = {}

    def instructions(self) -> list[Instruction]:
        """Everything between OpFunction and OpFunctionEnd: variables come first of all."""
        label = Instruction(Op.Label, (), self.declarations.assembly.new_id())
        return [label, *self._variables, *self._opening, *self._code]

    # Instructions

    def emit(self, op: Op, type: Type, *operands: Operand) -> Id:
        """An instruction that gives a value."""
        return self.emit_raw(op, self.declarations.value_type(type), *operands)

    def emit_raw(self, op: Op, type: Id, *operands: Operand) -> Id:
        """The same with a declared type."""
        result = self.declarations.assembly.new_id()
        self._code.append(Instruction(op, operands, result, type))
        return result

    def do(self, op: Op, *operands: Operand) -> None:
        """An instruction without a value."""
        self._code.append(Instruction(op, operands))
        self._open = op not in TERMINATORS

    def label(self, label: Id) -> None:
        """Begin a block."""
        self._code.append(Instruction(Op.Label, (), label))
        self._open = True

    def new_id(self) -> Id:
        """A label to branch to."""
        return self.declarations.assembly.new_id()

    @property
    def is_open(self) -> bool:
        """Whether the current block goes on: it has no terminator yet."""
        return self._open

    def variable(self, type: Type, name: str) -> Id:
        """A variable of the function (its first value is stored where it is declared)."""
        return self.variable_of(self.declarations.value_type(type), name)

    def variable_of(self, kind: Id, name: str) -> Id:
        """The same with a declared type."""
        pointer = self.declarations.pointer(StorageClass.Function, kind)
        found = self.declarations.assembly.new_id()
        self._variables.append(Instruction(Op.Variable, (StorageClass.Function,), found, pointer))
        self.declarations.name(found, name)
        return found

    def builtin(self, kind: str, axis: int) -> Id:
        """One of the invocation's ids as i32, loaded once at the function's start."""
        key = (kind, axis)
        if key not in self._builtins:
            whole = self._builtins.get((kind, -1))
            three = Type(Scalar.U32, 3)
            if whole is None:
                pointer = self.declarations.builtin(kind)
                whole = self._start(Op.Load, three, pointer)
                self._builtins[kind, -1] = whole
            lane = self._start(Op.CompositeExtract, Type(Scalar.U32), whole, axis)
            self._builtins[key] = self._start(Op.Bitcast, I32, lane)
        return self._builtins[key]

    def _start(self, op: Op, type: Type, *operands: Operand) -> Id:
        result = self.declarations.assembly.new_id()
        kind = self.declarations.value_type(type)
        self._opening.append(Instruction(op, operands, result, kind))
        return result

    # Values

    def const(self, type: Type, value: Number) -> Id:
        """A literal in every lane."""
        return self.declarations.constant(type, value)

    def glsl(self, fn: Glsl, type: Type, *args: Id) -> Id:
        """A function of GLSL.std.450."""
        return self.emit(Op.ExtInst, type, self.declarations.glsl, fn, *args)

    def splat(self, type: Type, x: Id) -> Id:
        """A scalar in every lane of ``type``."""
        if type.width == 1:
            return x
        return self.emit(Op.CompositeConstruct, type, *[x] * type.width)

    def select(self, type: Type, cond: Id, a: Id, b: Id) -> Id:
        """Lane-wise choice; ``cond`` has as many lanes."""
        return self.emit(Op.Select, type, cond, a, b)

    def compare(self, op: Op, type: Type, a: Id, b: Id) -> Id:
        """A comparison of two ``type``s."""
        return self.emit(op, BOOL.with_width(type.width), a, b)
