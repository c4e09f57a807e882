"""Operations with the results that the language defines where SPIR-V leaves them open: NaN,
conversions, functions.

SPIR-V's FMin and FMax may give either operand where one is NaN, NMin and NMax give the other one;
none of them gives the NaN. Where a device promises to keep NaN (SignedZeroInfNanPreserve, see
`tflgpu_vulkan.spirv.target`), comparisons do what is wanted. Elsewhere a compiler may compute as if
there were none, so the question is asked of the bits, and extremes are `tflgpu.language.guards`.

What the Vulkan specification leaves too far off for a model, or does not have, comes as lets of
`tflgpu.language.definitions`.
"""

from __future__ import annotations

from tflgpu.language.definitions import DEFINED, Definition, definition
from tflgpu.language.exact import exact
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.guards import guard
from tflgpu.language.numbers import UNDONE, extreme_of
from tflgpu.language.tree import Binary, Kernel
from tflgpu.language.types import BOOL, Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Capability, Glsl, Op
from tflgpu_vulkan.spirv.target import Target

_INFINITY_TWICE = 0xFF000000  # the bits of infinity without the sign, one place to the left
_PACKED_4X8 = 0  # PackedVectorFormat4x8BitKHR
_BEYOND = {"min": Op.FOrdGreaterThan, "max": Op.FOrdLessThan}
_BEFORE = {"min": Op.FOrdLessThan, "max": Op.FOrdGreaterThan}
#: Functions that are one instruction, of floats and of whole numbers.
_FLOAT = {
    "exp": Glsl.Exp,
    "log": Glsl.Log,
    "sqrt": Glsl.Sqrt,
    "rsqrt": Glsl.InverseSqrt,
    "floor": Glsl.Floor,
    "ceil": Glsl.Ceil,
    "round": Glsl.RoundEven,
    "trunc": Glsl.Trunc,
    "fma": Glsl.Fma,
    "abs": Glsl.FAbs,
    "sign": Glsl.FSign,
    "pow": Glsl.Pow,
}
_WHOLE = {"abs": Glsl.SAbs, "sign": Glsl.SSign}


class Values(Body):
    """Writes such operations.

    Attributes:
        defines: A function is written that the language defines: operands are taken for numbers,
            and functions are the instructions that there are.
    """

    def __init__(self, kernel: Kernel, target: Target, guard: int) -> None:
        super().__init__(kernel, target, guard)
        self.defines = False
        #: Of each f16 value that was made of an f32 one, that one.
        self._narrowed: dict[Id, Id] = {}

    def written(self, found: Definition, *args: Id) -> Id:
        """A function that the language defines, written where it is called."""
        raise NotImplementedError

    # NaN

    def keeps_nan(self, type: Type) -> bool:
        """Whether comparisons of ``type`` may be relied on where an operand is NaN."""
        is_half = type.scalar is Scalar.F16 and self.target.f16_arithmetic
        return (16 if is_half else 32) in self.target.keeps_special

    def is_nan(self, type: Type, x: Id) -> Id:
        """Which lanes of ``x`` are NaN."""
        if self.keeps_nan(type):
            return self.compare(Op.FUnordNotEqual, type, x, x)
        # As `tflgpu.language.exact` has it; written out, since every function and comparison asks
        # this and printing by the definition took 7 % longer.
        if type.scalar is Scalar.F16 and self.target.f16_arithmetic:
            x = self.emit(Op.FConvert, type.with_scalar(Scalar.F32), x)
        words = type.with_scalar(Scalar.U32)
        bits = self.emit(Op.Bitcast, words, x)
        twice = self.emit(Op.ShiftLeftLogical, words, bits, self.const(words, 1))
        return self.compare(Op.UGreaterThan, words, twice, self.const(words, _INFINITY_TWICE))

    def extreme(self, expr: Binary, a: Id, b: Id) -> Id:
        """``min`` or ``max`` of floats: NaN where either is."""
        kind = expr.type
        op, _, is_turned = extreme_of(expr)
        if is_turned:
            a, b = b, a
        if not self.keeps_nan(kind):
            return self.written(guard(op, kind), a, b)
        if op != expr.op:  # a limit that is no NaN
            beyond = self.compare(_BEYOND[expr.op], kind, a, b)
            return self.emit(Op.Select, kind, beyond, b, a)
        kept = self.compare(_BEFORE[op], kind, a, b)
        kept = self.emit(Op.LogicalOr, BOOL.with_width(kind.width), kept, self.is_nan(kind, a))
        return self.emit(Op.Select, kind, kept, a, b)

    def hidden(self, type: Type, x: Id) -> Id:
        """A float as one of which a compiler knows nothing (`tflgpu.language.numbers`)."""
        if type.scalar is Scalar.F16:
            wide = type.with_scalar(Scalar.F32)
            found = self.hidden(wide, self.emit(Op.FConvert, wide, x))
            return self.emit(Op.FConvert, type, found)
        words = type.with_scalar(Scalar.U32)
        bits = self.emit(Op.Bitcast, words, x)
        bits = self.emit(Op.BitwiseXor, words, bits, self.splat(words, self.no_bits()))
        return self.emit(Op.Bitcast, type, bits)

    # Conversions

    def convert(self, source: Type, target: Type, x: Id) -> Id:
        """``x`` of ``source`` as a ``target``; both have as many lanes."""
        a, b = source.scalar, target.scalar
        if a is b:
            return x
        if a is Scalar.BOOL:
            return self.emit(Op.Select, target, x, self.const(target, 1), self.const(target, 0))
        if b is Scalar.BOOL:
            op = Op.FUnordNotEqual if a.is_float else Op.INotEqual
            return self.emit(op, target, x, self.const(source, 0))
        wide = target.with_scalar(Scalar.F32)
        if a is Scalar.F16 and not self.target.f16_arithmetic:
            return self.convert(wide, target, x)  # held as what it equals
        if a.is_float and b.is_float:
            if x in self._narrowed:
                # NVIDIA's compiler leaves two conversions out.
                return self.written(exact("to_f16_and_back", target), self._narrowed[x])
            found = self.emit(Op.FConvert, target, x)
            if b is Scalar.F16:
                self._narrowed[found] = x
            return found
        if a is Scalar.F16:
            return self.convert(wide, target, self.emit(Op.FConvert, wide, x))
        if b is Scalar.F16:
            return self.emit(Op.FConvert, target, self.convert(source, wide, x))
        if a is Scalar.F32:
            if not self.defines:  # SPIR-V: undefined beyond the range, and of a NaN
                return self.written(exact(f"to_{b.value}", source), x)
            return self.emit(Op.ConvertFToS if b is Scalar.I32 else Op.ConvertFToU, target, x)
        if b is Scalar.F32:
            op = Op.ConvertSToF if a is Scalar.I32 else Op.ConvertUToF
            return self.emit(op, target, x)
        return self.emit(Op.Bitcast, target, x)

    # Functions

    def call(self, fn: str, type: Type, args: tuple[Id, ...]) -> Id:
        """A function of the language, on values of ``type``; within one that the language defines
        the instruction that there is, as it treats NaN."""
        if fn == "isnan":
            return self.is_nan(type, *args)
        if fn == "dot4_i8":
            return self._dot4(type, *args)
        if not type.is_float:
            return self.instruction(_WHOLE[fn], type, *args)
        if type.scalar is Scalar.F16 and not FUNCTIONS[fn].in_half:
            wide = type.with_scalar(Scalar.F32)
            args = tuple(self.emit(Op.FConvert, wide, arg) for arg in args)
            return self.emit(Op.FConvert, type, self.call(fn, wide, args))
        if fn == "dot":
            return self.emit(Op.Dot, type.with_width(1), *args)
        if fn in DEFINED and not self.defines:
            return self.written(definition(fn, type.width), *args)
        found = self.instruction(_FLOAT[fn], type, *args)
        if self.defines:
            return found
        if fn in UNDONE and not self.keeps_nan(type):
            found = self.hidden(type, found)
        if fn == "sign" or (len(args) == 1 and not self.keeps_nan(type)):
            # FSign makes 0 of a NaN, and a device that does not promise to keep NaN anything.
            return self.emit(Op.Select, type, self.is_nan(type, args[0]), args[0], found)
        return found

    def _dot4(self, type: Type, a: Id, b: Id) -> Id:
        """The sum of the products of four bytes."""
        if not self.target.int8_dot or type.width > 1:
            return self.written(definition("dot4_i8", type.width), a, b)
        packed = {Capability.DotProductKHR, Capability.DotProductInput4x8BitPackedKHR}
        self.capabilities |= packed
        self.extensions.add("SPV_KHR_integer_dot_product")
        return self.emit(Op.SDotKHR, type.with_scalar(Scalar.I32), a, b, _PACKED_4X8)
