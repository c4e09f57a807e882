"""OpenCL C from kernel trees.

`half` is a storage type in every OpenCL, read and written through `vloada_half` and
`vstorea_half`. With ``f16_arithmetic`` it is a value type too, but only the language's own
operators are used on it, and its functions go through float (see `tflgpu_opencl.prelude`).

A vector of booleans is a vector of ints, 0 or -1 a lane, as OpenCL's own comparisons give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tflgpu.language import tree
from tflgpu.language.c_family import NAMES, CPrinter
from tflgpu.language.code import TERNARY, UNARY, Code
from tflgpu.language.numbers import extreme_of
from tflgpu.language.types import Scalar, Type

from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_opencl.matrix import MATRIX_PRELUDE
from tflgpu_opencl.prelude import BY_LANES, prelude
from tflgpu_opencl.subgroup import SHUFFLE, shuffle_prelude

_ALL_TRUE = "-1"


def source_of(kernel: tree.Kernel, dialect: OpenCLDialect) -> str:
    """The program text of one kernel.

    Raises:
        KernelError: the kernel needs what the device lacks.
    """
    return _OpenCLPrinter(kernel, dialect).source()


class _OpenCLPrinter(CPrinter):
    function_names: ClassVar[Mapping[str, str]] = {"round": "rint", "abs": "fabs"}
    unroll_hint, loop_hint = "#pragma unroll", "#pragma unroll 1"

    def __init__(self, kernel: tree.Kernel, dialect: OpenCLDialect) -> None:
        super().__init__(kernel, dialect)
        self.dialect = dialect
        # First of all names, so that it does not depend on the body.
        self._entry_point = self.names[kernel.name]
        self._shuffled: set[str] = set()

    # Types and literals

    def vector_name(self, scalar: Scalar, width: int) -> str:
        return NAMES[Scalar.I32 if scalar is Scalar.BOOL else scalar] + str(width)

    # Structure

    def prelude(self) -> list[str]:
        lines = prelude(self.helpers, self.uses_half and self.has.f16_arithmetic)
        if self.needs.matrices:
            lines += [MATRIX_PRELUDE, ""]
        if self._shuffled:
            lines += [*shuffle_prelude(self._shuffled, ptx=self.dialect.shuffle_ptx), ""]
        return lines

    def open_kernel(self) -> list[str]:
        x, y, z = self.kernel.workgroup
        size = f"__attribute__((reqd_work_group_size({x}, {y}, {z})))"
        lines = [f"__kernel {size}", f"void {self._entry_point}("]
        for i, buffer in enumerate(self.kernel.buffers):
            end = ") {" if i == len(self.kernel.buffers) - 1 else ","
            pointer = self._pointer(buffer, self._element(buffer))
            lines.append(f"    {pointer}* restrict {self.names[buffer.name]}{end}")
        return lines

    def shared_pointer(self, array: tree.SharedArray, element: Scalar, index: str) -> str:
        kind = f"__local {'const ' * (element is Scalar.F16)}{NAMES[element]}*"
        return f"({kind}){self.names[array.name]} + {index}"

    def _pointer(self, buffer: tree.KernelBuffer, element: str) -> str:
        return f"__global {'const ' if buffer.access == 'read' else ''}{element}"

    def _element(self, buffer: tree.KernelBuffer) -> str:
        if buffer.scalar is Scalar.F16 and not self.has.f16_arithmetic:
            return "half"
        self.uses_half = self.uses_half or buffer.scalar is Scalar.F16
        return NAMES[buffer.scalar] + (str(buffer.width) if buffer.width > 1 else "")

    def declare_shared(self, array: tree.SharedArray) -> str:
        aligned = " __attribute__((aligned(16)))" if self.needs.matrices else ""
        kind, name = self.type_name(array.type), self.names[array.name]
        return f"__local {kind} {name}[{array.count}]{aligned};"

    def barrier(self, stmt: tree.Barrier) -> str:
        return "barrier(CLK_LOCAL_MEM_FENCE);"

    def shuffle_word(self, value: Code, type: Type, mask: int) -> Code:
        name = self.type_name(type)
        self._shuffled.add(name)
        return self.function_of(SHUFFLE + name, value, Code(f"{mask}u"))

    # Expressions

    def builtin(self, expr: tree.Builtin) -> Code:
        return Code(f"(int)get_{expr.kind}({expr.axis})", UNARY)

    def unary(self, expr: tree.Unary, x: Code) -> Code:
        if expr.op == "not" and expr.type.width > 1:
            return Code("~" + x.atom, UNARY)
        return super().unary(expr, x)

    def binary(self, expr: tree.Binary, a: Code, b: Code) -> Code:
        operand = expr.left.type
        if operand.width == 1 or self.wraps(expr):
            return super().binary(expr, a, b)
        if operand.scalar is not Scalar.BOOL and expr.op not in ("min", "max"):
            # A scalar is spread over the lanes of the other operand, but not shifted by a vector.
            whole = a
            a, b = self.unsplat(expr, a, b)
            a = whole if expr.op in ("shl", "shr") else a
        code = super().binary(expr, a, b)
        if expr.type.scalar is Scalar.BOOL and operand.width > 1 and self.is_half(operand):
            return Code(f"convert_int{operand.width}({code.text})")  # from shorts
        return code

    def min_max(self, expr: tree.Binary, a: Code, b: Code) -> Code:
        kind = expr.type
        if not kind.is_float:
            return self.function_of(expr.op, a, b)
        # fmin and fmax lose a NaN (see `tflgpu_opencl.prelude`).
        op, _, is_turned = extreme_of(expr)
        args = (b, a) if is_turned else (a, b)
        return self.helper(f"{'half' if self.is_half(kind) else 'float'}_{op}{kind.width}", *args)

    def whole_call(self, expr: tree.Call, args: Sequence[Code]) -> Code:
        """A function of whole numbers, whose name is OpenCL C's where nothing else is said."""
        if expr.fn == "sign":
            return Code(f"clamp({args[0].text}, -1, 1)")
        if expr.fn == "dot4_i8":
            return self.helper(f"dot4_i8_{expr.type.width}", *args)
        found = self.function_of(expr.fn, *args)
        if expr.fn == "abs":  # gives unsigned numbers
            return self.convert(expr.type.with_scalar(Scalar.U32), expr.type, found)
        return found

    def float_call(self, fn: str, width: int, args: Sequence[Code]) -> Code:
        if fn == "sign" or (fn in BY_LANES and width > 1):  # OpenCL's sign makes 0 of a NaN
            return self.helper(f"float_{fn}{width}", *args)
        if fn == "fma" and not self.dialect.fast_fma:
            fn = "mad"
        return self.function_of(self.function_names.get(fn, fn), *args)

    def select_lanes(self, expr: tree.Select, cond: Code, a: Code, b: Code) -> Code:
        if self.is_half(expr.type):
            # `select` is a function; the operator chooses lanes by the sign of a short.
            self.uses_half = True
            short = f"convert_short{expr.type.width}({cond.text})"
            return Code(f"{short} ? {a.at(TERNARY + 1)} : {b.at(TERNARY + 1)}", TERNARY)
        return self.function_of("select", b, a, cond)

    def cast(self, expr: tree.Cast, x: Code) -> Code:
        if (
            isinstance(expr.operand, tree.Load)
            and not self.has_temporary(expr.operand)
            and expr.operand.buffer.scalar is Scalar.F16
            and expr.type.scalar is Scalar.F32
        ):
            return self._load_half(expr.operand, self.code_of(expr.operand.index))
        return super().cast(expr, x)

    def bitcast(self, expr: tree.Bitcast, x: Code) -> Code:
        if self.is_half(expr.operand.type):
            return self.helper("half4_bits", x)
        if self.is_half(expr.type):
            return self.helper("bits_half4", x)
        return Code(f"as_{self.type_name(expr.type)}({x.text})")

    def convert_words(self, source: Type, target: Type, x: Code) -> Code:
        """The cases are those that one built-in conversion does not cover."""
        a, b, width = source.scalar, target.scalar, target.width
        if b is Scalar.BOOL:
            zero = self.scalar_literal(a, 0)
            if width > 1:
                zero = Code(f"({self.type_name(source)})({zero.text})", UNARY)
            return self.infix("ne", x, zero)
        name = self.type_name(target)
        if a is Scalar.BOOL and width > 1:
            bit = Code(f"({x.at(UNARY)} & 1)")
            return bit if b is Scalar.I32 else Code(f"convert_{name}{bit.text}")
        if a.is_float:
            return Code(f"convert_{name}_sat({x.text})")  # rounds toward zero
        if width == 1:
            return Code(f"({name}){x.atom}", UNARY)
        return Code(f"{'convert' if b.is_float else 'as'}_{name}({x.text})")

    def convert_halves(self, source: Type, target: Type, x: Code) -> Code:
        return self.helper(f"{NAMES[source.scalar]}_to_{NAMES[target.scalar]}{target.width}", x)

    def vec(self, expr: tree.Vec, *parts: Code) -> Code:
        name = self.type_name(expr.type)
        if expr.type.scalar is Scalar.BOOL:
            parts = tuple(Code(f"-(int){part.atom}", UNARY) for part in parts)
        return Code(f"({name})({', '.join(part.text for part in parts)})", UNARY)

    def splat(self, expr: tree.Splat, x: Code) -> Code:
        name = self.type_name(expr.type)
        if expr.type.scalar is Scalar.BOOL:
            literal = {"true": _ALL_TRUE, "false": "0"}.get(x.text)
            x = Code(literal or f"-(int){x.atom}", UNARY)
        return Code(f"({name})({x.text})", UNARY)

    def lane(self, expr: tree.Lane, x: Code) -> Code:
        code = super().lane(expr, x)
        return self.infix("ne", code, Code("0")) if expr.type.scalar is Scalar.BOOL else code

    # Memory

    def load(self, expr: tree.Load, index: Code) -> Code:
        buffer = expr.buffer
        if buffer.scalar is Scalar.F16:
            if not self.has.f16_arithmetic:
                return self._load_half(expr, index)
            if expr.type.width == 4:
                return self.helper("load_half4", Code(self.names[buffer.name]), index)
            wide = expr.type.with_scalar(Scalar.F32)
            return self.convert(wide, expr.type, self._load_half(expr, index))
        code = Code(f"{self._base(buffer, expr.scalar)}[{index.text}]")
        if not buffer.scalar.is_storage_only:
            return code
        if expr.type.width == 1:
            return Code(f"(int){code.text}", UNARY)
        return Code(f"convert_int{expr.type.width}({code.text})")

    def shared_load(self, expr: tree.SharedLoad, index: Code) -> Code:
        if expr.type.scalar is not Scalar.F16:
            return super().shared_load(expr, index)
        array, width = Code(self.names[expr.array.name]), expr.type.width
        if width == 4:
            return self.helper("load_local_half4", array, index)
        fn = "vload_half" if width == 1 else f"vloada_half{width}"
        loaded = Code(f"{fn}({index.text}, (__local const half*){array.text})")
        return self.convert(expr.type.with_scalar(Scalar.F32), expr.type, loaded)

    def store(self, stmt: tree.Store, index: Code, value: Code) -> str:
        buffer = stmt.buffer
        width = 1 if stmt.scalar else buffer.width
        as_float = stmt.value.type.scalar is Scalar.F32 or not self.has.f16_arithmetic
        if buffer.scalar is Scalar.F16 and as_float:
            fn = "vstore_half_rte" if width == 1 else f"vstorea_half{width}_rte"
            return f"{fn}({value.text}, {index.text}, {self._half_pointer(buffer)});"
        if buffer.scalar.is_storage_only:
            name = NAMES[buffer.scalar]
            scalar = width == 1
            text = f"({name}){value.atom}" if scalar else f"convert_{name}{width}({value.text})"
            value = Code(text, UNARY)
        return f"{self._base(buffer, stmt.scalar)}[{index.text}] = {value.text};"

    def _base(self, buffer: tree.KernelBuffer, scalar: bool) -> str:
        """What to index: the buffer, or the buffer as an array of lanes."""
        name = self.names[buffer.name]
        return f"(({self._pointer(buffer, NAMES[buffer.scalar])}*){name})" if scalar else name

    def _load_half(self, expr: tree.Load, index: Code) -> Code:
        width = expr.type.width
        # The "a" of vloada: aligned to the whole vector, so one access and not one a lane.
        fn = "vload_half" if width == 1 else f"vloada_half{width}"
        return Code(f"{fn}({index.text}, {self._half_pointer(expr.buffer)})")

    def _half_pointer(self, buffer: tree.KernelBuffer) -> str:
        name = self.names[buffer.name]
        if self._element(buffer) == "half":
            return name
        return f"({self._pointer(buffer, 'half')}*){name}"
