"""WGSL from kernel trees.

WGSL converts nothing by itself, so literals carry their type where it matters. It also refuses a
module in which a constant expression overflows; operations on constants are therefore computed
here, by the kernel language's own rules, and printed as literals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import attrs
import numpy as np
from tflgpu.ir.dtypes import Array
from tflgpu.language.code import ADD, AND, ATOM, SHIFT, UNARY, Code, shortest
from tflgpu.language.constants import constant_values
from tflgpu.language.definitions import DEFINED, Definition
from tflgpu.language.guards import ORDERED
from tflgpu.language.numbers import foregone, never_nan
from tflgpu.language.printer import Printer
from tflgpu.language.rounding import is_rounded, rounded_names
from tflgpu.language.signs import not_negative
from tflgpu.language.subgroup import SubgroupShuffleXor, group_size, lacking
from tflgpu.language.tree import (
    Binary,
    Bitcast,
    Buffer,
    Builtin,
    Call,
    Cast,
    Expr,
    For,
    Kernel,
    Load,
    Select,
    Shared,
    SharedLoad,
    SharedStore,
    Splat,
    Store,
    Unary,
    Vec,
)
from tflgpu.language.types import I32, Scalar, Type
from tflgpu.language.walk import statements, walk
from tflgpu.lowering.caps import DeviceCaps

from tflgpu_wgpu.functions import definition_of, helper
from tflgpu_wgpu.words import is_reserved

_TYPES = {
    Scalar.F16: "f16", Scalar.F32: "f32", Scalar.I32: "i32", Scalar.U32: "u32",
    Scalar.BOOL: "bool",
}  # fmt: skip
_FUNCTIONS = {"rsqrt": "inverseSqrt"}
#: Functions whose f16 form is exact, or as precise as its operators; others go through f32.
_HALF_FUNCTIONS = frozenset({"abs", "sign", "floor", "ceil", "trunc", "round", "fma", "dot"})
_BUILTINS = {
    "global_id": "global_invocation_id",
    "local_id": "local_invocation_id",
    "group_id": "workgroup_id",
}
_SPECIAL_BITS = {"inf_bits": "0x7f800000u", "nan_bits": "0x7fc00000u"}
ENTRY_POINT = "main"


@attrs.frozen
class WgslDialect:
    """How kernels are written for one kind of device.

    Attributes:
        f16: The device has ``shader-f16``.
        subgroup_shuffle: Largest group of neighbours that shuffle values, 0 where none do. A
            module that does has no ``enable subgroups;``, as WGSL asks for: the naga of wgpu 0.32
            refuses it, and knows the functions without it.
        band: Bytes in front of every buffer's first element that belong to the binding: for
            guard bands, which bindings would otherwise hide from a kernel that strays.
    """

    f16: bool = False
    subgroup_shuffle: int = 0
    band: int = 0

    @classmethod
    def of(cls, caps: DeviceCaps) -> WgslDialect:
        """That of a device, without guard bands."""
        return cls(caps.f16_arithmetic, caps.subgroup_shuffle)

    def source(self, kernel: Kernel, *, writable: bool = False) -> str:
        """The module of one kernel; its entry point is ``main``.

        With ``writable`` every buffer is bound read_write: WebGPU allows parts of one buffer
        in one dispatch only so, when any of them is written.

        Raises:
            KernelError: the kernel needs f16, 8-bit buffers or shuffles that the device has not.
        """
        return _WgslPrinter(kernel, self, writable=writable).source()


class _WgslPrinter(Printer):
    def __init__(self, kernel: Kernel, dialect: WgslDialect, *, writable: bool) -> None:
        super().__init__(kernel)
        self.dialect = dialect
        self._writable = writable
        #: Within a definition operands are taken for numbers, and functions for WGSL's own.
        self._defines = False
        self._constants = constant_values(kernel)
        self._not_negative = not_negative(kernel)
        self._rounded = rounded_names(kernel)
        self._ids: dict[str, str] = {}
        for stmt in statements(kernel.body):
            for expr in walk(stmt).order:
                if isinstance(expr, Builtin) and expr.kind not in self._ids:
                    self._ids[expr.kind] = self.names.fresh(expr.kind)
        for kind, handler in list(self._handlers.items()):
            self._handlers[kind] = self._folded(handler)

    def _folded(self, handler: Callable[..., Code]) -> Callable[..., Code]:
        def print_value(expr: Expr, *args: Code) -> Code:
            value = self._constants.get(id(expr))
            return handler(expr, *args) if value is None else self._literal(expr.type, value)

        return print_value

    # Types and literals

    def is_reserved(self, ident: str) -> bool:
        return is_reserved(ident)

    def type_name(self, type: Type) -> str:
        if type.scalar is Scalar.F16 and not self.dialect.f16:
            raise self.fail("f16, which this device does not have; use precision F32")
        name = _TYPES[type.scalar]
        return name if type.width == 1 else f"vec{type.width}<{name}>"

    def float_literal(self, value: float, scalar: Scalar) -> Code:
        if math.isnan(value) or math.isinf(scalar.numpy.type(value)):
            bits = "nan_bits" if math.isnan(value) else "inf_bits"
            self.helpers.add(bits)
            text = f"bitcast<f32>({bits})"
            if scalar is Scalar.F16:
                text = f"f16({text})"
            return Code(f"-{text}", UNARY) if value < 0 else Code(text)
        suffix = "h" if scalar is Scalar.F16 else "f"
        text = shortest(value, scalar) + suffix
        return Code(text, UNARY if text.startswith("-") else ATOM)

    def _literal(self, type: Type, value: Array) -> Code:
        lanes = [self.scalar_literal(type.scalar, lane) for lane in value.reshape(-1).tolist()]
        if type.width == 1:
            return lanes[0]
        if len({lane.text for lane in lanes}) == 1:
            lanes = lanes[:1]
        return Code(f"{self.type_name(type)}({', '.join(lane.text for lane in lanes)})")

    # Structure

    def prelude(self) -> list[str]:
        lines = ["enable f16;", ""] if self._uses_f16() else []
        functions = self._functions()
        # Read at run time, as an infinity is no constant expression.
        lines += [
            f"var<private> {name}: u32 = {bits};"
            for name, bits in _SPECIAL_BITS.items()
            if name in self.helpers
        ]
        return [*lines, *functions, ""] if lines or functions else []

    def _functions(self) -> list[str]:
        """The helpers, and what these use in turn."""
        lines: list[str] = []
        printed = set(_SPECIAL_BITS)
        while rest := sorted(self.helpers - printed):
            for name in rest:
                text, used = _function(name, self.dialect.f16)
                lines += text
                self.helpers |= used
            printed.update(rest)
        return lines

    def function(self, name: str, found: Definition) -> list[str]:
        """The text of a function that the kernel language defines."""
        self._defines = True
        lines = self.lines_of(found.body)
        parameters = [f"{self.names[p.ident]}: {self.type_name(p.type)}" for p in found.parameters]
        return [
            f"fn {name}({', '.join(parameters)}) -> {self.type_name(found.result)} {{",
            *lines,
            f"    return {self.names[found.body[-1].ident]};",
            "}",
        ]

    def open_kernel(self) -> list[str]:
        lines = []
        for i, buffer in enumerate(self.kernel.buffers):
            read_only = buffer.access == "read" and not self._writable
            access = "read" if read_only else "read_write"
            lines.append(
                f"@group(0) @binding({i}) var<storage, {access}> {self.names[buffer.name]}: "
                f"array<{self._element(buffer)}>;"
            )
        lines += [
            f"var<workgroup> {self.names[array.name]}: "
            f"array<{self.type_name(_in_memory(array.type))}, {array.count}>;"
            for array in self.kernel.shared
        ]
        x, y, z = self.kernel.workgroup
        lines += ["", f"// {self.kernel.name}", f"@compute @workgroup_size({x}, {y}, {z})"]
        ids = [f"@builtin({_BUILTINS[k]}) {n}: vec3<u32>" for k, n in sorted(self._ids.items())]
        lines.append(f"fn {ENTRY_POINT}({', '.join(ids)}) {{")
        return lines

    def _element(self, buffer: Buffer) -> str:
        if buffer.scalar.is_storage_only:
            raise self.fail(
                f"buffer {buffer.name} of {buffer.scalar.value}: WGSL has no 8- and 16-bit "
                "integers in memory"
            )
        return self.type_name(buffer.value_type)

    def _uses_f16(self) -> bool:
        kinds = [b.scalar for b in self.kernel.buffers]
        kinds += [a.type.scalar for a in self.kernel.shared]
        ways = (walk(stmt) for stmt in statements(self.kernel.body))
        return Scalar.F16 in kinds or any(
            expr.type.scalar is Scalar.F16 for way in ways for expr in way.order
        )

    def declare_shared(self, array: Shared) -> str:
        return ""  # `open_kernel` does: they belong to the module

    def declare(self, ident: str, type: Type, value: str, mutable: bool) -> str:
        return f"{'var' if mutable else 'let'} {ident}: {self.type_name(type)} = {value};"

    def for_header(self, stmt: For, index: str, start: Code, stop: Code) -> list[str]:
        step = f"{index}++" if stmt.step == 1 else f"{index} += {stmt.step}"
        first = f"var {index}: i32 = {start.text}"
        return [f"for ({first}; {index} < {stop.at(ADD)}; {step}) {{"]

    def barrier(self) -> str:
        return "workgroupBarrier();"

    def shuffle(self, stmt: SubgroupShuffleXor, value: Code) -> Code:
        size, most = group_size(stmt.mask), self.dialect.subgroup_shuffle
        if size > most:
            raise self.fail(lacking(size, most))
        kind = stmt.type
        if kind.scalar is Scalar.F16:  # which only some devices shuffle, by a feature of its own
            value = self._call(self.type_name(kind.with_scalar(Scalar.F32)), value)
        found = self._call("subgroupShuffleXor", value, Code(f"{stmt.mask}u"))
        return self._call(self.type_name(kind), found) if kind.scalar is Scalar.F16 else found

    def shared_store(self, stmt: SharedStore, index: Code, value: Code) -> str:
        kind = _in_memory(stmt.array.type)
        if kind != stmt.array.type:
            value = self._call(self.type_name(kind), value)
        return super().shared_store(stmt, index, value)

    # Expressions

    def builtin(self, expr: Builtin) -> Code:
        return Code(f"i32({self._ids[expr.kind]}.{'xyz'[expr.axis]})")

    def unary(self, expr: Unary, x: Code) -> Code:
        if expr.op == "neg" and expr.type.scalar is Scalar.U32:  # which WGSL does not negate
            zero = self._literal(expr.type, np.zeros(1, np.uint32))
            return self.infix("sub", zero, x)
        return super().unary(expr, x)

    def binary(self, expr: Binary, a: Code, b: Code) -> Code:
        if expr.op in ("shl", "shr"):
            return self.infix(expr.op, self._typed(expr.a, a), self._as_u32(expr.b, b))
        if expr.op == "ne" and expr.a.type.is_float:
            # naga makes of != a comparison that is false where an operand is NaN.
            return Code("!" + self.infix("eq", a, b).atom, UNARY)
        if expr.op == "rem" and expr.type.scalar is Scalar.I32 and not self._positive(expr):
            return self._helper("rem", expr.type.width, a, b)
        if expr.op in ORDERED and expr.a.type.is_float and not self._defines:
            if not (never_nan(expr.a) and never_nan(expr.b)):
                stem = f"{expr.op}_{self._float_name(expr.a.type)}"
                return self._helper(stem, expr.a.type.width, a, b)
            return self.infix(expr.op, a, b)
        if expr.op in ("land", "lor") and self._defines:
            return self.infix("and" if expr.op == "land" else "or", a, b)  # no branches
        known = None if self._defines else foregone(expr)
        if known is not None:
            decisive = a if known[1] is expr.a else b
            stem = f"{known[0].name.lower()}_{self._float_name(expr.type)}"
            return self._helper(stem, expr.type.width, decisive)
        if expr.op in ("add", "sub", "mul", "div", "rem"):
            a, b = self.unsplat(expr, a, b)
        return super().binary(expr, a, b)

    def _positive(self, expr: Binary) -> bool:
        """Whether no operand is negative: wgpu makes of ``%`` an instruction that Vulkan leaves
        undefined where one is."""
        return {id(expr.a), id(expr.b)} <= self._not_negative

    def _typed(self, expr: Expr, code: Code) -> Code:
        """A whole-number literal that does not leave its type to the context."""
        if id(expr) in self._constants and expr.type == I32:
            return Code(f"i32({code.text})")
        return code

    def _as_u32(self, expr: Expr, code: Code) -> Code:
        if expr.type.scalar is Scalar.U32:
            return code
        value = self._constants.get(id(expr))
        kind = expr.type.with_scalar(Scalar.U32)
        if value is not None:
            return self._literal(kind, value.astype(np.uint32))
        return self._call(self.type_name(kind), code)

    def _call(self, name: str, *args: Code) -> Code:
        # `f(a < b, c > d)` would be read as a template list, so comparisons get parentheses.
        return Code(f"{name}({', '.join(a.at(SHIFT) if a.level >= AND else a.text for a in args)})")

    def min_max(self, expr: Binary, a: Code, b: Code) -> Code:
        if not expr.type.is_float or self._defines:
            return self._call(expr.op, a, b)
        kind = self._float_name(expr.type)
        if never_nan(expr.a) and not never_nan(expr.b):
            expr, a, b = attrs.evolve(expr, a=expr.b, b=expr.a), b, a
        if not never_nan(expr.b):
            return self._helper(f"{expr.op}_{kind}", expr.type.width, a, b)
        inner = expr.a
        if (
            isinstance(inner, Binary)
            and inner.op in ("min", "max")
            and inner.op != expr.op
            and never_nan(inner.b)
            and not self.has_temporary(inner)
            and id(inner) not in self._constants
        ):  # one question for both limits
            stem = f"{inner.op}_{expr.op}_{kind}"
            x, limit = self.code_of(inner.a), self.code_of(inner.b)
            return self._helper(stem, expr.type.width, x, limit, b)
        stem = "at_most" if expr.op == "min" else "at_least"
        return self._helper(f"{stem}_{kind}", expr.type.width, a, b)

    def _float_name(self, type: Type) -> str:
        return "f16" if type.scalar is Scalar.F16 else "f32"

    def call(self, expr: Call, *args: Code) -> Code:
        kind = expr.args[0].type
        asks_for_nan = expr.fn == "isnan" or (expr.fn == "sign" and not self._defines)
        if kind.is_float and asks_for_nan:
            return self._helper(f"{expr.fn}_{self._float_name(kind)}", kind.width, *args)
        if kind.scalar is Scalar.F16 and expr.fn not in _HALF_FUNCTIONS:
            wide = kind.with_scalar(Scalar.F32)
            args = tuple(self._call(self.type_name(wide), a) for a in args)
            return self._call(self.type_name(expr.type), self._function(expr.fn, wide, *args))
        return self._function(expr.fn, kind, *args)

    def _function(self, fn: str, kind: Type, *args: Code) -> Code:
        if fn in DEFINED and not self._defines:
            return self._helper(fn, kind.width, *args)
        return self._call(_FUNCTIONS.get(fn, fn), *args)

    def _helper(self, stem: str, width: int, *args: Code) -> Code:
        name = f"{stem}_{width}"
        self.helpers.add(name)
        return self._call(name, *args)

    def select(self, expr: Select, cond: Code, a: Code, b: Code) -> Code:
        return self._call("select", self._typed(expr.b, b), self._typed(expr.a, a), cond)

    def cast(self, expr: Cast, x: Code) -> Code:
        source, target = expr.x.type, expr.type
        if target.scalar is Scalar.BOOL:
            zero = self._literal(source, np.zeros(1, source.scalar.numpy))
            if source.is_float:  # a NaN is not zero
                return Code("!" + self.infix("eq", x, zero).atom, UNARY)
            return self.infix("ne", x, zero)
        wide = source.with_scalar(Scalar.F32)
        if target.scalar is Scalar.F16 and not source.is_float:
            x = self._call(self.type_name(wide), x)  # whose rounding is defined
        if source.is_float and not target.is_float:
            if source != wide:
                x = self._call(self.type_name(wide), x)
            return self._helper(f"to_{target.scalar.value}", target.width, x)
        wide_again = target.scalar is Scalar.F32 and is_rounded(expr.x, self._rounded)
        x = self._call(self.type_name(target), x)
        return self._helper("round_to_f16", target.width, x) if wide_again else x

    def bitcast(self, expr: Bitcast, x: Code) -> Code:
        return self._call(f"bitcast<{self.type_name(expr.type)}>", x)

    def vec(self, expr: Vec, *parts: Code) -> Code:
        return self._call(self.type_name(expr.type), *parts)

    def splat(self, expr: Splat, x: Code) -> Code:
        return self._call(self.type_name(expr.type), x)

    # Memory

    def load(self, expr: Load, index: Code) -> Code:
        return Code(self._place(expr.buffer, expr.index, index, expr.scalar))

    def shared_load(self, expr: SharedLoad, index: Code) -> Code:
        code = super().shared_load(expr, index)
        kind = _in_memory(expr.type)
        if kind == expr.type:
            return code
        return self.infix("ne", code, self._literal(kind, np.zeros(1, np.uint32)))

    def store(self, stmt: Store, index: Code, value: Code) -> str:
        place = self._place(stmt.buffer, stmt.index, index, stmt.scalar)
        if stmt.buffer.scalar is Scalar.F16 and stmt.value.type.scalar is Scalar.F32:
            value = self._call(self.type_name(stmt.value.type.with_scalar(Scalar.F16)), value)
        return f"{place} = {value.text};"

    def _place(self, buffer: Buffer, expr: Expr, index: Code, lane: bool) -> str:
        """An element of a buffer, or a lane of one."""
        name = self.names[buffer.name]
        width = buffer.width if lane else 1
        skip = self.dialect.band // (buffer.scalar.itemsize * (buffer.width // width))
        known = self._constants.get(id(expr))
        if known is not None:
            at = int(known.item()) + skip
            return f"{name}[{at}]" if width == 1 else f"{name}[{at // width}][{at % width}]"
        if skip:
            index = self.infix("add", index, Code(str(skip)))
        if width == 1:
            return f"{name}[{index.text}]"
        if index.level < ATOM:
            ident = self.names.fresh("at")
            self._line(self.declare(ident, I32, index.text, False))
            index = Code(ident)
        shift = {2: 1, 4: 2}[width]
        return f"{name}[{index.atom} >> {shift}u][{index.atom} & {width - 1}]"


@cache
def _function(name: str, f16: bool) -> tuple[list[str], set[str]]:
    """The lines of a helper, and the helpers that it uses."""
    found = definition_of(name)
    if found is None:
        return helper(name), set()
    printer = _WgslPrinter(found.as_kernel(name), WgslDialect(f16), writable=False)
    return printer.function(name, found), printer.helpers


def _in_memory(type: Type) -> Type:
    """Booleans are kept as u32: NVIDIA's driver loses them in workgroup memory (580)."""
    return type.with_scalar(Scalar.U32) if type.scalar is Scalar.BOOL else type
