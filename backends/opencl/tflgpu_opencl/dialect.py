"""OpenCL C from kernel trees.

`half` is a storage type in every OpenCL, read and written through `vloada_half` and
`vstorea_half`. With ``f16_arithmetic`` it is a value type too, but only the language's own
operators are used on it, and its functions go through float (see `tflgpu_opencl.prelude`).

A vector of booleans is a vector of ints, 0 or -1 a lane, as OpenCL's own comparisons give.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from tflgpu.errors import KernelError
from tflgpu.language.code import ADD, TERNARY, UNARY, Code
from tflgpu.language.matrix import MatrixStmt, has_matrices
from tflgpu.language.numbers import never_nan
from tflgpu.language.printer import Printer
from tflgpu.language.subgroup import SubgroupShuffleXor, group_size, lacking
from tflgpu.language.tree import (
    Binary,
    Bitcast,
    Buffer,
    Builtin,
    Call,
    Cast,
    For,
    Kernel,
    Lane,
    Load,
    Select,
    Shared,
    SharedLoad,
    Splat,
    Store,
    Unary,
    Vec,
)
from tflgpu.language.types import Scalar, Type

from tflgpu_opencl.literal import float_number
from tflgpu_opencl.matrix import MATRIX_PRELUDE, matrix_line
from tflgpu_opencl.prelude import BY_LANES, prelude
from tflgpu_opencl.subgroup import shuffle_function, shuffle_prelude
from tflgpu_opencl.words import is_reserved

_TYPES = {
    Scalar.F16: "half", Scalar.F32: "float", Scalar.I32: "int", Scalar.U32: "uint",
    Scalar.BOOL: "bool", Scalar.I8: "char", Scalar.U8: "uchar", Scalar.I16: "short",
}  # fmt: skip
_FUNCTIONS = {"round": "rint", "abs": "fabs"}
_BUILTINS = {"global_id": "get_global_id", "local_id": "get_local_id", "group_id": "get_group_id"}
_ALL_TRUE = "-1"


@attrs.frozen
class OpenCLDialect:
    """How kernels are written for one kind of device.

    Attributes:
        f16_arithmetic: `half` values can be computed with, not only loaded and stored.
        matrix_tiles: The device and its compiler know NVIDIA's matrix instructions.
        subgroup_shuffle: Largest group of neighbours that shuffle values, 0 where none do.
        shuffle_ptx: They do it by NVIDIA's instruction, not by cl_khr_subgroup_shuffle.
        fast_fma: The device has a fused multiply-add; where not, ``fma`` is written as `mad`,
            which may round twice.
    """

    f16_arithmetic: bool = False
    matrix_tiles: bool = False
    subgroup_shuffle: int = 0
    shuffle_ptx: bool = False
    fast_fma: bool = True

    def source(self, kernel: Kernel) -> str:
        """The program text of one kernel.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """
        return _OpenCLPrinter(kernel, self).source()

    def entry_point(self, kernel: Kernel) -> str:
        """The name of the kernel's function in `source`."""
        return _OpenCLPrinter(kernel, self).entry_point


class _OpenCLPrinter(Printer):
    def __init__(self, kernel: Kernel, dialect: OpenCLDialect) -> None:
        super().__init__(kernel)
        self.dialect = dialect
        # First of all names, so that it does not depend on the body.
        self.entry_point = self.names[kernel.name]
        self._uses_half = False
        self._uses_matrices = has_matrices(kernel)
        self._shuffled: set[Type] = set()

    # Types and literals

    def is_reserved(self, ident: str) -> bool:
        return is_reserved(ident)

    def type_name(self, type: Type) -> str:
        scalar = type.scalar
        if scalar is Scalar.F16:
            if not self.dialect.f16_arithmetic:
                # Only moved about (see `_need_f16`), and a float holds every f16.
                scalar = Scalar.F32
            else:
                self._uses_half = True
        if type.width == 1:
            return _TYPES[scalar]
        return _TYPES[Scalar.I32 if scalar is Scalar.BOOL else scalar] + str(type.width)

    def float_literal(self, value: float, scalar: Scalar) -> Code:
        code = float_number(value, scalar)
        if scalar is Scalar.F16 and self.dialect.f16_arithmetic:
            self._uses_half = True
            return Code(f"(half){code.atom}", UNARY)
        return code

    # Structure

    def prelude(self) -> list[str]:
        lines = prelude(self.helpers, self._uses_half and self.dialect.f16_arithmetic)
        if self._uses_matrices:
            lines += [MATRIX_PRELUDE, ""]
        if self._shuffled:
            lines += [*shuffle_prelude(self._shuffled, ptx=self.dialect.shuffle_ptx), ""]
        return lines

    def open_kernel(self) -> list[str]:
        x, y, z = self.kernel.workgroup
        lines = [
            f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))",
            f"void {self.entry_point}(",
        ]
        for i, buffer in enumerate(self.kernel.buffers):
            end = ") {" if i == len(self.kernel.buffers) - 1 else ","
            pointer = self._pointer(buffer, self._element(buffer))
            lines.append(f"    {pointer}* restrict {self.names[buffer.name]}{end}")
        return lines

    def _pointer(self, buffer: Buffer, element: str) -> str:
        return f"__global {'const ' if buffer.access == 'read' else ''}{element}"

    def _element(self, buffer: Buffer) -> str:
        if buffer.scalar is Scalar.F16 and not self.dialect.f16_arithmetic:
            return "half"
        self._uses_half = self._uses_half or buffer.scalar is Scalar.F16
        return _TYPES[buffer.scalar] + (str(buffer.width) if buffer.width > 1 else "")

    def declare_shared(self, array: Shared) -> str:
        if array.type.scalar is Scalar.F16 and not self.dialect.f16_arithmetic:
            raise self._no_f16(f"shared array {array.name}")
        aligned = " __attribute__((aligned(16)))" if self._uses_matrices else ""
        kind, name = self.type_name(array.type), self.names[array.name]
        return f"__local {kind} {name}[{array.count}]{aligned};"

    def declare(self, ident: str, type: Type, value: str, mutable: bool) -> str:
        return f"{'' if mutable else 'const '}{self.type_name(type)} {ident} = {value};"

    def for_header(self, stmt: For, index: str, start: Code, stop: Code) -> list[str]:
        step = f"++{index}" if stmt.step == 1 else f"{index} += {stmt.step}"
        unroll = ["#pragma unroll"] if stmt.unroll else []
        return [*unroll, f"for (int {index} = {start.text}; {index} < {stop.at(ADD)}; {step}) {{"]

    def barrier(self) -> str:
        return "barrier(CLK_LOCAL_MEM_FENCE);"

    def matrix(self, stmt: MatrixStmt, *operands: Code) -> list[str]:
        lines = [matrix_line(stmt, self.names, operands)]
        return lines if self.dialect.matrix_tiles else super().matrix(stmt, *operands)

    def shuffle(self, stmt: SubgroupShuffleXor, value: Code) -> Code:
        size, most = group_size(stmt.mask), self.dialect.subgroup_shuffle
        if size > most:
            raise self.fail(lacking(size, most))
        kind, word = stmt.type, stmt.type
        if self._is_half(kind):
            word = kind.with_scalar(Scalar.F32)
            value = self._convert(kind, word, value)
        elif kind.scalar is Scalar.F16:  # held as f32
            word = kind.with_scalar(Scalar.F32)
        self._shuffled.add(word)
        found = Code(f"{shuffle_function(word)}({value.text}, {stmt.mask}u)")
        return self._convert(word, kind, found) if self._is_half(kind) else found

    # Expressions

    def builtin(self, expr: Builtin) -> Code:
        return Code(f"(int){_BUILTINS[expr.kind]}({expr.axis})", UNARY)

    def unary(self, expr: Unary, x: Code) -> Code:
        if expr.op == "not" and expr.type.width > 1:
            return Code("~" + x.atom, UNARY)
        return super().unary(expr, x)

    def binary(self, expr: Binary, a: Code, b: Code) -> Code:
        operand = expr.a.type
        if operand.scalar is Scalar.F16 and expr.op in ("add", "sub", "mul", "div"):
            self._need_f16(expr.op)
        if operand.scalar is not Scalar.BOOL and expr.op not in ("min", "max"):
            # A scalar is spread over the lanes of the other operand, but not shifted by a vector.
            whole = a
            a, b = self.unsplat(expr, a, b)
            a = whole if expr.op in ("shl", "shr") else a
        code = super().binary(expr, a, b)
        if expr.type.scalar is Scalar.BOOL and operand.width > 1 and self._is_half(operand):
            return Code(f"convert_int{operand.width}({code.text})")  # from shorts
        return code

    def min_max(self, expr: Binary, a: Code, b: Code) -> Code:
        kind = expr.type
        if not kind.is_float:
            return Code(f"{expr.op}({a.text}, {b.text})")
        # fmin and fmax lose a NaN (see `tflgpu_opencl.prelude`).
        op = expr.op
        if never_nan(expr.a) and not never_nan(expr.b):
            a, b = b, a
        if never_nan(expr.a) or never_nan(expr.b):
            op = "at_most" if op == "min" else "at_least"
        return self._helper(f"{self._float_name(kind)}_{op}{kind.width}", a, b)

    def _float_name(self, kind: Type) -> str:
        return "half" if self._is_half(kind) else "float"

    def call(self, expr: Call, *args: Code) -> Code:
        kind = expr.args[0].type
        if not kind.is_float:
            return self._whole_call(expr, args)
        if expr.fn == "isnan":
            return Code(f"isnan({self._as_float(kind, args[0]).text})")
        if expr.fn == "sign":  # the built-in makes 0 of a NaN
            found = self._helper(f"float_sign{kind.width}", self._as_float(kind, args[0]))
            back = self._is_half(kind)
            return self._convert(kind.with_scalar(Scalar.F32), kind, found) if back else found
        if kind.scalar is Scalar.F16:
            self._need_f16(expr.fn)
            if expr.fn == "fma":
                return self.infix("add", self.infix("mul", args[0], args[1]), args[2])
            wide = [self._convert(kind, kind.with_scalar(Scalar.F32), a) for a in args]
            result = self._float_call(expr.fn, kind.width, wide)
            return self._convert(expr.type.with_scalar(Scalar.F32), expr.type, result)
        return self._float_call(expr.fn, kind.width, args)

    def _whole_call(self, expr: Call, args: Sequence[Code]) -> Code:
        """A function of whole numbers, whose name is OpenCL C's where nothing else is said."""
        if expr.fn == "sign":
            return Code(f"clamp({args[0].text}, -1, 1)")
        found = Code(f"{expr.fn}({', '.join(a.text for a in args)})")
        if expr.fn == "abs":  # gives unsigned numbers
            return self._convert(expr.type.with_scalar(Scalar.U32), expr.type, found)
        return found

    def _float_call(self, fn: str, width: int, args: Sequence[Code]) -> Code:
        if fn in BY_LANES and width > 1:
            return self._helper(f"float_{fn}{width}", *args)
        return Code(f"{self._function(fn)}({', '.join(a.text for a in args)})")

    def _as_float(self, kind: Type, x: Code) -> Code:
        return self._convert(kind, kind.with_scalar(Scalar.F32), x) if self._is_half(kind) else x

    def _function(self, fn: str) -> str:
        if fn == "fma" and not self.dialect.fast_fma:
            return "mad"
        return _FUNCTIONS.get(fn, fn)

    def select(self, expr: Select, cond: Code, a: Code, b: Code) -> Code:
        width = expr.type.width
        if expr.cond.type.width == 1:
            parts = (cond.at(TERNARY + 1), a.at(TERNARY + 1), b.at(TERNARY + 1))
            return Code(f"{parts[0]} ? {parts[1]} : {parts[2]}", TERNARY)
        if self._is_half(expr.type):
            # `select` is a function; the operator chooses lanes by the sign of a short.
            self._uses_half = True
            short = f"convert_short{width}({cond.text})"
            return Code(f"{short} ? {a.at(TERNARY + 1)} : {b.at(TERNARY + 1)}", TERNARY)
        return Code(f"select({b.text}, {a.text}, {cond.text})")

    def cast(self, expr: Cast, x: Code) -> Code:
        if (
            isinstance(expr.x, Load)
            and not self.has_temporary(expr.x)
            and expr.x.buffer.scalar is Scalar.F16
            and expr.type.scalar is Scalar.F32
        ):
            return self._load_half(expr.x, self.code_of(expr.x.index))
        return self._convert(expr.x.type, expr.type, x)

    def bitcast(self, expr: Bitcast, x: Code) -> Code:
        return Code(f"as_{self.type_name(expr.type)}({x.text})")

    def _convert(self, source: Type, target: Type, x: Code) -> Code:
        """``x`` converted; the cases are those that one built-in conversion does not cover."""
        a, b, width = source.scalar, target.scalar, target.width
        if Scalar.F16 in (a, b):
            if not self.dialect.f16_arithmetic:
                return self._convert_moved_f16(source, target, x)
            return self._convert_half(source, target, x)
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

    def _convert_half(self, source: Type, target: Type, x: Code) -> Code:
        self._uses_half = True
        wide = Type(Scalar.F32, target.width)
        if source.scalar is Scalar.F16:
            if target.width == 1:
                x = Code(f"(float){x.atom}", UNARY)
            else:
                x = self._helper(f"half_to_float{target.width}", x)
            return x if target == wide else self._convert(wide, target, x)
        if source != wide:
            x = self._convert(source, wide, x)
        if target.width == 1:
            return Code(f"(half){x.atom}", UNARY)
        return self._helper(f"float_to_half{target.width}", x)

    def _convert_moved_f16(self, source: Type, target: Type, x: Code) -> Code:
        wide = Type(Scalar.F32, target.width)
        if target.scalar is Scalar.F16:
            if source.scalar is Scalar.BOOL:
                return self._convert(source, wide, x)
            raise self._no_f16(f"a cast from {source}")
        return x if target == wide else self._convert(wide, target, x)

    def vec(self, expr: Vec, *parts: Code) -> Code:
        name = self.type_name(expr.type)
        if expr.type.scalar is Scalar.BOOL:
            parts = tuple(Code(f"-(int){part.atom}", UNARY) for part in parts)
        return Code(f"({name})({', '.join(part.text for part in parts)})", UNARY)

    def splat(self, expr: Splat, x: Code) -> Code:
        name = self.type_name(expr.type)
        if expr.type.scalar is Scalar.BOOL:
            literal = {"true": _ALL_TRUE, "false": "0"}.get(x.text)
            x = Code(literal or f"-(int){x.atom}", UNARY)
        return Code(f"({name})({x.text})", UNARY)

    def lane(self, expr: Lane, x: Code) -> Code:
        code = super().lane(expr, x)
        if expr.type.scalar is Scalar.BOOL:
            return self.infix("ne", code, Code("0"))
        return code

    # Memory

    def load(self, expr: Load, index: Code) -> Code:
        buffer = expr.buffer
        if buffer.scalar is Scalar.F16:
            if not self.dialect.f16_arithmetic:
                return self._load_half(expr, index)
            if expr.type.width == 4:
                return self._helper("load_half4", Code(self.names[buffer.name]), index)
            wide = expr.type.with_scalar(Scalar.F32)
            return self._convert(wide, expr.type, self._load_half(expr, index))
        code = Code(f"{self._base(buffer, expr.scalar)}[{index.text}]")
        if not buffer.scalar.is_storage_only:
            return code
        if expr.type.width == 1:
            return Code(f"(int){code.text}", UNARY)
        return Code(f"convert_int{expr.type.width}({code.text})")

    def shared_load(self, expr: SharedLoad, index: Code) -> Code:
        if expr.type.scalar is not Scalar.F16:
            return super().shared_load(expr, index)
        array, width = Code(self.names[expr.array.name]), expr.type.width
        if width == 4:
            return self._helper("load_local_half4", array, index)
        fn = "vload_half" if width == 1 else f"vloada_half{width}"
        loaded = Code(f"{fn}({index.text}, (__local const half*){array.text})")
        return self._convert(expr.type.with_scalar(Scalar.F32), expr.type, loaded)

    def store(self, stmt: Store, index: Code, value: Code) -> str:
        buffer = stmt.buffer
        width = 1 if stmt.scalar else buffer.width
        as_float = stmt.value.type.scalar is Scalar.F32 or not self.dialect.f16_arithmetic
        if buffer.scalar is Scalar.F16 and as_float:
            fn = "vstore_half_rte" if width == 1 else f"vstorea_half{width}_rte"
            return f"{fn}({value.text}, {index.text}, {self._half_pointer(buffer)});"
        if buffer.scalar.is_storage_only:
            name = _TYPES[buffer.scalar]
            scalar = width == 1
            text = f"({name}){value.atom}" if scalar else f"convert_{name}{width}({value.text})"
            value = Code(text, UNARY)
        return f"{self._base(buffer, stmt.scalar)}[{index.text}] = {value.text};"

    def _base(self, buffer: Buffer, scalar: bool) -> str:
        """What to index: the buffer, or the buffer as an array of lanes."""
        name = self.names[buffer.name]
        return f"(({self._pointer(buffer, _TYPES[buffer.scalar])}*){name})" if scalar else name

    def _load_half(self, expr: Load, index: Code) -> Code:
        width = expr.type.width
        # The "a" of vloada: aligned to the whole vector, so one access and not one a lane.
        fn = "vload_half" if width == 1 else f"vloada_half{width}"
        return Code(f"{fn}({index.text}, {self._half_pointer(expr.buffer)})")

    def _half_pointer(self, buffer: Buffer) -> str:
        name = self.names[buffer.name]
        if self._element(buffer) == "half":
            return name
        return f"({self._pointer(buffer, 'half')}*){name}"

    # f16

    def _is_half(self, type: Type) -> bool:
        return type.scalar is Scalar.F16 and self.dialect.f16_arithmetic

    def _helper(self, name: str, *args: Code) -> Code:
        self._uses_half = self._uses_half or "half" in name
        self.helpers.add(name)
        return Code(f"{name}({', '.join(a.text for a in args)})")

    def _need_f16(self, what: str) -> None:
        if not self.dialect.f16_arithmetic:
            raise self._no_f16(what)

    def _no_f16(self, what: str) -> KernelError:
        return self.fail(
            f"{what} in f16, which this device only loads and stores; compute in f32 "
            "(precision F32 or F32_F16)"
        )
