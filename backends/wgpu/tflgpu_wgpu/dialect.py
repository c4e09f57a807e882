"""WGSL from kernel trees.

WGSL converts nothing by itself, so literals carry their type where it matters. It also refuses a
module in which a constant expression overflows; operations on constants are therefore computed
here, by the kernel language's own rules, and printed as literals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np
from tflgpu.language.caps import DeviceCaps, Features
from tflgpu.language.code import AND, ATOM, SHIFT, UNARY, Code, shortest
from tflgpu.language.tree import (
    Barrier,
    Binary,
    Bitcast,
    Builtin,
    Expr,
    Kernel,
    KernelBuffer,
    Load,
    Select,
    SharedLoad,
    SharedStore,
    Store,
    Unary,
)
from tflgpu.language.types import I32, Scalar, Type
from tflgpu.language.walk import expressions

from tflgpu_wgpu.packed import PackedPrinter

_BUILTINS = {
    "global_id": "global_invocation_id",
    "local_id": "local_invocation_id",
    "group_id": "workgroup_id",
}
_SPECIAL_BITS = {"inf_bits": "0x7f800000u", "nan_bits": "0x7fc00000u"}
#: The naga of wgpu 0.32 takes the bits of a vec4<f16> for 16-bit integers.
_HALF_BITS = """fn half_bits(x: vec4<f16>) -> vec2<u32> {
    let y = vec4<f32>(x);
    return vec2<u32>(pack2x16float(y.xy), pack2x16float(y.zw));
}"""
_HALVES_OF = """fn halves_of(x: vec2<u32>) -> vec4<f16> {
    return vec4<f16>(vec4<f32>(unpack2x16float(x.x), unpack2x16float(x.y)));
}"""
_BITS = {"half_bits": _HALF_BITS, "halves_of": _HALVES_OF}
#: A function that gives 0, which no compiler can know: that a buffer has an element is WebGPU's
#: promise, and not said in the module.
_NO_BITS = "no_bits"
ENTRY_POINT = "main"


@attrs.frozen(kw_only=True)
class WgslDialect(Features):
    """How kernels are written for one kind of device. WGSL has no matrices, and f16 altogether or
    not at all (``shader-f16``); integers of less than 32 bits lie in words.

    A module with shuffles has no ``enable subgroups;``, as WGSL asks for: the naga of wgpu 0.32
    refuses it, and knows the functions without it.

    Attributes:
        band: Bytes in front of every buffer's first element that belong to the binding: for
            guard bands, which bindings would otherwise hide from a kernel that strays.
    """

    band: int = 0

    @classmethod
    def of(cls, caps: DeviceCaps) -> WgslDialect:
        """That of a device, without guard bands."""
        return attrs.evolve(super().of(caps), matrix_tiles=False)

    def source(self, kernel: Kernel) -> str:
        """The module of one kernel; its entry point is ``main``.

        Raises:
            KernelError: the kernel needs f16 or shuffles that the device has not.
        """
        return _WgslPrinter(kernel, self).source()


def all_writable(source: str) -> str:
    """A module with every buffer bound read_write: WebGPU allows parts of one buffer in one
    dispatch only so, when any of them is written."""
    return source.replace("var<storage, read>", "var<storage, read_write>")


class _WgslPrinter(PackedPrinter):
    function_names: ClassVar[Mapping[str, str]] = {"rsqrt": "inverseSqrt"}

    def __init__(self, kernel: Kernel, dialect: WgslDialect) -> None:
        super().__init__(kernel, dialect)
        if self.needs.f16 and not dialect.f16_arithmetic:
            raise self.fail("f16, which this device does not have; use precision F32")
        self.band = dialect.band
        ids = dict.fromkeys(e.kind for e in expressions(kernel) if isinstance(e, Builtin))
        self._ids = {kind: self.names.fresh(kind) for kind in ids}

    # Types and literals

    @classmethod
    def is_reserved(cls, ident: str) -> bool:
        return ident in (*_SPECIAL_BITS, *_BITS, _NO_BITS) or super().is_reserved(ident)

    def type_name(self, type: Type) -> str:
        name = str(type.scalar.value)  # the kernel language's names are WGSL's
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

    # Structure

    def prelude(self) -> list[str]:
        lines = ["enable f16;", ""] if self.needs.f16 else []
        functions = self.functions({*_SPECIAL_BITS, *_BITS, _NO_BITS})
        functions += [text for name, text in _BITS.items() if name in self.helpers]
        if _NO_BITS in self.helpers:
            length = f"arrayLength(&{self.names[self.kernel.buffers[0].name]})"
            functions += [f"fn {_NO_BITS}() -> u32 {{", f"    return u32({length} == 0u);", "}"]
        # Read at run time, as an infinity is no constant expression.
        lines += [
            f"var<private> {name}: u32 = {bits};"
            for name, bits in _SPECIAL_BITS.items()
            if name in self.helpers
        ]
        return [*lines, *functions, ""] if lines or functions else []

    def open_function(self, name: str, parameters: str, result: Type) -> str:
        return f"fn {name}({parameters}) -> {self.type_name(result)} {{"

    def parameter(self, ident: str, type: Type) -> str:
        return f"{ident}: {self.type_name(type)}"

    def open_kernel(self) -> list[str]:
        lines = []
        for i, buffer in enumerate(self.kernel.buffers):
            access = "read" if buffer.access == "read" else "read_write"
            packed = buffer.scalar.is_storage_only
            kind = self.packed_type(buffer) if packed else self.type_name(buffer.value_type)
            lines.append(
                f"@group(0) @binding({i}) var<storage, {access}> {self.names[buffer.name]}: "
                f"array<{kind}>;"
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

    def hidden(self, type: Type, x: Code) -> Code:
        if type.scalar is Scalar.F16:
            wide = type.with_scalar(Scalar.F32)
            return self.converted(wide, type, self.hidden(wide, self.converted(type, wide, x)))
        self.helpers.add(_NO_BITS)
        words = self.type_name(type.with_scalar(Scalar.U32))
        none = f"{words}({_NO_BITS}())" if type.width > 1 else f"{_NO_BITS}()"
        return Code(f"bitcast<{self.type_name(type)}>(bitcast<{words}>({x.text}) ^ {none})")

    def declare(self, ident: str, type: Type, value: str, mutable: bool) -> str:
        return f"{'var' if mutable else 'let'} {ident}: {self.type_name(type)} = {value};"

    def barrier(self, stmt: Barrier) -> str:
        return "workgroupBarrier();"

    def shuffle_word(self, value: Code, type: Type, mask: int) -> Code:
        return self.function_of("subgroupShuffleXor", value, Code(f"{mask}u"))

    def shared_store(self, stmt: SharedStore, index: Code, value: Code) -> str:
        kind = _in_memory(stmt.array.type)
        if kind != stmt.array.type:
            value = self.function_of(self.type_name(kind), value)
        return super().shared_store(stmt, index, value)

    # Expressions

    def builtin(self, expr: Builtin) -> Code:
        return Code(f"i32({self._ids[expr.kind]}.{'xyz'[expr.axis]})")

    def unary(self, expr: Unary, x: Code) -> Code:
        if expr.op == "neg" and expr.type.scalar is Scalar.U32:  # which WGSL does not negate
            zero = self.zero(expr.type)
            return self.infix("sub", zero, x)
        return super().unary(expr, x)

    def binary(self, expr: Binary, a: Code, b: Code) -> Code:
        if expr.op in ("shl", "shr"):
            return self.infix(expr.op, self._typed(expr.left, a), self._as_u32(expr.right, b))
        if expr.op == "ne" and expr.left.type.is_float:
            # naga makes of != a comparison that is false where an operand is NaN.
            return Code("!" + self.infix("eq", a, b).atom, UNARY)
        return super().binary(expr, a, b)

    def _typed(self, expr: Expr, code: Code) -> Code:
        """A whole-number literal that does not leave its type to the context."""
        if id(expr) in self.constants and expr.type == I32:
            return Code(f"i32({code.text})")
        return code

    def _as_u32(self, expr: Expr, code: Code) -> Code:
        if expr.type.scalar is Scalar.U32:
            return code
        value = self.constants.get(id(expr))
        kind = expr.type.with_scalar(Scalar.U32)
        if value is not None:
            return self.literal(kind, value.astype(np.uint32))
        return self.function_of(self.type_name(kind), code)

    def argument(self, x: Code) -> str:
        # `f(a < b, c > d)` would be read as a template list, so comparisons get parentheses.
        return x.at(SHIFT) if x.level >= AND else x.text

    def select(self, expr: Select, cond: Code, a: Code, b: Code) -> Code:
        return self.function_of(
            "select", self._typed(expr.if_false, b), self._typed(expr.if_true, a), cond
        )

    def bitcast(self, expr: Bitcast, x: Code) -> Code:
        name = f"bitcast<{self.type_name(expr.type)}>"
        if Scalar.F16 in (expr.operand.type.scalar, expr.type.scalar):
            name = "halves_of" if expr.type.scalar is Scalar.F16 else "half_bits"
            self.helpers.add(name)
        return self.function_of(name, x)

    # Memory

    def load(self, expr: Load, index: Code) -> Code:
        if expr.buffer.scalar.is_storage_only:
            return self.packed_load(expr, index)
        return Code(self._place(expr.buffer, expr.index, index, expr.scalar))

    def shared_load(self, expr: SharedLoad, index: Code) -> Code:
        code = super().shared_load(expr, index)
        kind = _in_memory(expr.type)
        if kind == expr.type:
            return code
        return self.infix("ne", code, self.zero(kind))

    def store(self, stmt: Store, index: Code, value: Code) -> str:
        if stmt.buffer.scalar.is_storage_only:
            return self.packed_store(stmt, index, value)
        place = self._place(stmt.buffer, stmt.index, index, stmt.scalar)
        if stmt.buffer.scalar is Scalar.F16 and stmt.value.type.scalar is Scalar.F32:
            value = self.function_of(self.type_name(stmt.value.type.with_scalar(Scalar.F16)), value)
        return f"{place} = {value.text};"

    def _place(self, buffer: KernelBuffer, expr: Expr, index: Code, lane: bool) -> str:
        """An element of a buffer, or a lane of one."""
        name = self.names[buffer.name]
        width = buffer.width if lane else 1
        skip = self.band // (buffer.scalar.itemsize * (buffer.width // width))
        known = self.constants.get(id(expr))
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


def _in_memory(type: Type) -> Type:
    """Booleans are kept as u32: NVIDIA's driver loses them in workgroup memory (580)."""
    return type.with_scalar(Scalar.U32) if type.scalar is Scalar.BOOL else type
