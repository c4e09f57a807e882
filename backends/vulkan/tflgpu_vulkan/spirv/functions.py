"""Functions: an instruction, or what the kernel language makes of several.

What the Vulkan specification leaves too far off for a model, or does not have, comes as lets of
`tflgpu.language.definitions`. NaN and infinities are as the language has them.
"""

from __future__ import annotations

from tflgpu.language.definitions import DEFINED, definition
from tflgpu.language.types import Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Glsl, Op
from tflgpu_vulkan.spirv.special import is_nan, keeps_nan

#: Functions that are one instruction, of floats and of whole numbers.
_FLOAT: dict[str, Glsl | Op] = {
    "exp": Glsl.Exp, "log": Glsl.Log, "sqrt": Glsl.Sqrt, "rsqrt": Glsl.InverseSqrt,
    "floor": Glsl.Floor, "ceil": Glsl.Ceil, "round": Glsl.RoundEven, "trunc": Glsl.Trunc,
    "fma": Glsl.Fma, "abs": Glsl.FAbs, "sign": Glsl.FSign,
    "pow": Glsl.Pow,
}  # fmt: skip
_WHOLE: dict[str, Glsl | Op] = {"abs": Glsl.SAbs, "sign": Glsl.SSign}
#: Exact, or as exact in f16 as there is, so no detour through f32.
_ALSO_HALF = frozenset({"floor", "ceil", "round", "trunc", "fma", "abs", "sign", "dot"})


def call(body: Body, fn: str, type: Type, args: tuple[Id, ...]) -> Id:
    """A function of the language, on values of ``type``; within one that the language defines the
    instruction that there is, as it treats NaN."""
    if fn == "isnan":
        return is_nan(body, type, *args)
    if not type.is_float:
        return _one(body, _WHOLE[fn], type, args)
    if type.scalar is Scalar.F16:
        body.declarations.need_f16(fn)
        if fn not in _ALSO_HALF:
            wide = type.with_scalar(Scalar.F32)
            args = tuple(body.emit(Op.FConvert, wide, arg) for arg in args)
            return body.emit(Op.FConvert, type, call(body, fn, wide, args))
    if fn == "dot":
        return body.emit(Op.Dot, type.with_width(1), *args)
    if fn in DEFINED and not body.defines:
        return body.written(definition(fn, type.width), *args)
    found = _one(body, _FLOAT[fn], type, args)
    if body.defines:
        return found
    if fn == "sign" or (len(args) == 1 and not keeps_nan(body, type)):
        # FSign makes 0 of a NaN, and a device that does not promise to keep NaN anything.
        return body.select(type, is_nan(body, type, args[0]), args[0], found)
    return found


def _one(body: Body, instruction: Glsl | Op, type: Type, args: tuple[Id, ...]) -> Id:
    """One instruction, of SPIR-V itself or of its extended set."""
    if isinstance(instruction, Glsl):
        return body.glsl(instruction, type, *args)
    return body.emit(instruction, type, *args)
