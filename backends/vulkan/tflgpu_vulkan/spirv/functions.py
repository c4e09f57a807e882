"""Functions of floats, from the instructions whose precision Vulkan guarantees.

The Vulkan specification leaves sin, cos (2^-11 absolute), atan2 (4096 ulp) and tanh (the
quotient of two differences) too far off for a model, has no erf, and leaves pow of a base that
is not positive undefined. NaN and infinities are as the language has them. Those are computed here from +, *, / and exp. Polynomials are weighted
least-squares fits (Lawson's iteration) to float64 values on the intervals given; the figure
beside each is its own largest error in exact arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tflgpu.language.types import BOOL, Scalar, Type

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.grammar import Glsl, Op
from tflgpu_vulkan.spirv.special import is_nan, keeps_nan, limited, not_finite

# erf(x) / x in x^2, |x| <= 1; 1.2e-9 relative
_ERF_SMALL = (1.1283791065216064, -0.3761262595653534, 0.1128358542919159, -0.026853810995817184,
              0.005188327748328447, -0.0008010192541405559, 7.853857823647559e-05)  # fmt: skip
# -log(1 - erf(x)) in x, 1 <= x <= 4; 1.1e-9 of erf
_ERF_LARGE = (0.00035370892146602273, 1.1270400285720825, 0.6382256150245667, 0.10303743183612823,
              -0.021805351600050926, 0.0029396156314760447, -0.0001855748996604234)  # fmt: skip
_ERF_END = 4.0  # from here on erf is 1 in f32
# (tanh(x) / x - 1) / x^2 in x^2, x^2 <= 0.4; 4.8e-9 of tanh(x) / x
_TANH_SQUARE = 0.4
_TANH = (-0.33333277702331543, 0.13331328332424164, -0.05372922867536545, 0.020601999014616013,
         -0.00566078070551157)  # fmt: skip
# (atan(x) / x - 1) / x^2 in x^2, |x| <= 1; 1.9e-8 of atan(x) / x
_ATAN = (-0.3333316743373871, 0.19994136691093445, -0.14214205741882324, 0.10678929090499878,
         -0.07580552995204926, 0.04355324059724808, -0.01658099703490734,
         0.0029745432548224926)  # fmt: skip
# (sin(x) / x - 1) / x^2 and (cos(x) - 1 + x^2 / 2) / x^4 in x^2, |x| <= 0.8; 4e-9 and 1e-10
_SIN = (-0.16666653752326965, 0.008332131430506706, -0.00019510838319547474)
_COS = (0.04166664555668831, -0.0013887305976822972, 2.4431203200947493e-05)
# pi / 2 in parts: the first two have 11 bits, so that small multiples of them are exact.
_HALF_PI = (1.5703125, 0.0004837512969970703, 7.549789948768648e-08)
_LARGEST_REST = 0.8  # a quarter turn is cut at pi / 4 = 0.785

_DIRECT = {
    "exp": Glsl.Exp, "log": Glsl.Log, "sqrt": Glsl.Sqrt, "rsqrt": Glsl.InverseSqrt,
    "floor": Glsl.Floor, "ceil": Glsl.Ceil, "round": Glsl.RoundEven, "trunc": Glsl.Trunc,
    "fma": Glsl.Fma, "abs": Glsl.FAbs, "sign": Glsl.FSign,
}  # fmt: skip
#: Exact, or as exact in f16 as there is, so no detour through f32.
_ALSO_HALF = frozenset({"floor", "ceil", "round", "trunc", "fma", "abs", "sign"})


def call(body: Body, fn: str, type: Type, args: tuple[Id, ...]) -> Id:
    """A function of the language other than ``dot``, on values of ``type``."""
    if type.scalar is Scalar.I32:
        return body.glsl(Glsl.SAbs if fn == "abs" else Glsl.SSign, type, *args)
    if type.scalar is Scalar.F16:
        body.declarations.need_f16(fn)
        if fn not in _ALSO_HALF:
            wide = type.with_scalar(Scalar.F32)
            args = tuple(body.emit(Op.FConvert, wide, arg) for arg in args)
            return body.emit(Op.FConvert, type, call(body, fn, wide, args))
    found = _BUILT[fn](body, type, *args) if fn in _BUILT else body.glsl(_DIRECT[fn], type, *args)
    if fn == "sign" or (len(args) == 1 and not keeps_nan(body, type)):
        # FSign makes 0 of a NaN, and a device that does not promise to keep NaN anything.
        lost = _NOT_FINITE.get(fn, is_nan)(body, type, args[0])
        lost_value = body.const(type, math.nan) if fn in _NOT_FINITE else args[0]
        return body.select(type, lost, lost_value, found)
    return found


def _erf(body: Body, type: Type, x: Id) -> Id:
    size = body.glsl(Glsl.FAbs, type, x)
    square = body.f_mul(type, x, x)
    small = body.f_mul(type, x, body.polynomial(type, square, _ERF_SMALL))
    capped = limited(body, "min", type, size, body.const(type, _ERF_END))
    power = body.f_neg(type, body.polynomial(type, capped, _ERF_LARGE))
    rest = body.glsl(Glsl.Exp, type, power)
    large = _with_sign(body, type, body.f_sub(type, body.const(type, 1.0), rest), x)
    is_small = body.compare(Op.FOrdLessThan, type, size, body.const(type, 1.0))
    return body.select(type, is_small, small, large)


def _tanh(body: Body, type: Type, x: Id) -> Id:
    square = body.f_mul(type, x, x)
    bend = body.f_mul(type, square, body.polynomial(type, square, _TANH))
    small = body.glsl(Glsl.Fma, type, x, bend, x)
    size = body.glsl(Glsl.FAbs, type, x)
    growth = body.glsl(Glsl.Exp, type, body.f_add(type, size, size))
    one = body.const(type, 1.0)
    rest = body.f_div(type, body.const(type, 2.0), body.f_add(type, growth, one))
    large = _with_sign(body, type, body.f_sub(type, one, rest), x)
    is_small = body.compare(Op.FOrdLessThan, type, square, body.const(type, _TANH_SQUARE))
    return body.select(type, is_small, small, large)


def _sin(body: Body, type: Type, x: Id) -> Id:
    return _wave(body, type, x, 0)


def _cos(body: Body, type: Type, x: Id) -> Id:
    return _wave(body, type, x, 1)


def _wave(body: Body, type: Type, x: Id, quarters: int) -> Id:
    """``sin(x + quarters * pi / 2)``: x is a number of quarter turns and a rest."""
    turns = body.f_mul(type, x, body.const(type, 2 / math.pi))
    turns = body.glsl(Glsl.RoundEven, type, turns)
    back = body.f_neg(type, turns)
    rest = x
    for part in _HALF_PI:
        rest = body.glsl(Glsl.Fma, type, back, body.const(type, part), rest)
    # Of numbers so large that their turns are not whole the rest could be anything.
    rest = limited(body, "max", type, rest, body.const(type, -_LARGEST_REST))
    rest = limited(body, "min", type, rest, body.const(type, _LARGEST_REST))
    square = body.f_mul(type, rest, rest)
    bend = body.f_mul(type, square, body.polynomial(type, square, _SIN))
    sine = body.glsl(Glsl.Fma, type, rest, bend, rest)
    bend = body.f_mul(type, square, body.polynomial(type, square, _COS))
    bend = body.f_add(type, bend, body.const(type, -0.5))
    cosine = body.glsl(Glsl.Fma, type, square, bend, body.const(type, 1.0))
    whole = type.with_scalar(Scalar.I32)
    quarter = body.emit(Op.ConvertFToS, whole, turns)
    if quarters:
        quarter = body.emit(Op.IAdd, whole, quarter, body.const(whole, quarters))
    picked = body.select(type, _has_bit(body, whole, quarter, 1), cosine, sine)
    return body.select(type, _has_bit(body, whole, quarter, 2), body.f_neg(type, picked), picked)


def _atan2(body: Body, type: Type, y: Id, x: Id) -> Id:
    tall, wide = (body.glsl(Glsl.FAbs, type, v) for v in (y, x))
    largest = body.glsl(Glsl.NMax, type, tall, wide)
    smallest = body.glsl(Glsl.NMin, type, tall, wide)
    zero = body.const(type, 0.0)
    ratio = body.f_div(type, smallest, largest)
    diagonal = body.compare(Op.FOrdEqual, type, smallest, largest)  # two infinities too
    ratio = body.select(type, diagonal, body.const(type, 1.0), ratio)
    nothing = body.compare(Op.FOrdEqual, type, largest, zero)
    ratio = body.select(type, nothing, zero, ratio)
    square = body.f_mul(type, ratio, ratio)
    bend = body.f_mul(type, square, body.polynomial(type, square, _ATAN))
    angle = body.glsl(Glsl.Fma, type, ratio, bend, ratio)
    steep = body.compare(Op.FOrdGreaterThan, type, tall, wide)
    other = body.f_sub(type, body.const(type, math.pi / 2), angle)
    angle = body.select(type, steep, other, angle)
    whole = type.with_scalar(Scalar.I32)
    # Of zeros too (C99, annex F.9.1.4), so the sign is read from the bits.
    bits = body.emit(Op.Bitcast, whole, x)
    behind = body.compare(Op.SLessThan, whole, bits, body.const(whole, 0))
    other = body.f_sub(type, body.const(type, math.pi), angle)
    angle = body.select(type, behind, other, angle)
    angle = _with_sign(body, type, angle, y)
    return body.select(type, _either_nan(body, type, x, y), body.const(type, math.nan), angle)


def _pow(body: Body, type: Type, x: Id, y: Id) -> Id:
    """As C99's (annex F.9.4.4): a negative base has powers with whole exponents, 0 has those that
    are not negative, and everything to the 0 is 1, as is every power of 1."""
    zero, one = body.const(type, 0.0), body.const(type, 1.0)
    infinity, nan = body.const(type, math.inf), body.const(type, math.nan)
    size = body.glsl(Glsl.FAbs, type, x)
    result = body.glsl(Glsl.Pow, type, size, y)
    rises = body.compare(Op.FOrdGreaterThan, type, y, zero)
    of_zero = body.select(type, rises, zero, infinity)
    result = body.select(type, body.compare(Op.FOrdEqual, type, x, zero), of_zero, result)
    # Its logarithm is 0, and 0 times an infinite exponent is not.
    result = body.select(type, body.compare(Op.FOrdEqual, type, size, one), one, result)
    half = body.f_mul(type, y, body.const(type, 0.5))
    is_whole = body.compare(Op.FOrdEqual, type, body.glsl(Glsl.Floor, type, y), y)
    is_odd = body.compare(Op.FUnordNotEqual, type, body.glsl(Glsl.Floor, type, half), half)
    # `is_odd` holds for fractions too, of which only those of -inf are numbers.
    endless = body.compare(Op.FOrdEqual, type, size, infinity)
    broken = body.select(type, endless, result, nan)
    signed = body.select(type, is_odd, body.f_neg(type, result), result)
    signed = body.select(type, is_whole, signed, broken)
    negative = body.compare(Op.FOrdLessThan, type, x, zero)
    result = body.select(type, negative, signed, result)
    result = body.select(type, _either_nan(body, type, x, y), nan, result)
    flat = body.compare(Op.FOrdEqual, type, y, zero)
    is_one = body.compare(Op.FOrdEqual, type, x, one)
    flat = body.emit(Op.LogicalOr, BOOL.with_width(type.width), flat, is_one)
    return body.select(type, flat, one, result)


_BUILT: dict[str, Callable[..., Id]] = {
    "erf": _erf, "tanh": _tanh, "sin": _sin, "cos": _cos, "atan2": _atan2, "pow": _pow,
}  # fmt: skip


#: Functions that are NaN of infinities too.
_NOT_FINITE = {"sin": not_finite, "cos": not_finite}


def _either_nan(body: Body, type: Type, a: Id, b: Id) -> Id:
    found = (is_nan(body, type, v) for v in (a, b))
    return body.emit(Op.LogicalOr, BOOL.with_width(type.width), *found)


def _with_sign(body: Body, type: Type, size: Id, sign: Id) -> Id:
    """``size``, which is not negative, with the sign of ``sign``: that of a zero or of a number
    that the device takes for one, too."""
    words = type.with_scalar(Scalar.U32)
    bits, sign_bits = (body.emit(Op.Bitcast, words, v) for v in (size, sign))
    negative = body.emit(Op.BitwiseAnd, words, sign_bits, body.const(words, 0x80000000))
    return body.emit(Op.Bitcast, type, body.emit(Op.BitwiseOr, words, bits, negative))


def _has_bit(body: Body, whole: Type, value: Id, bit: int) -> Id:
    masked = body.emit(Op.BitwiseAnd, whole, value, body.const(whole, bit))
    return body.emit(Op.INotEqual, BOOL.with_width(whole.width), masked, body.const(whole, 0))
