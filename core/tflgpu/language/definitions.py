"""Functions that APIs lack, or leave too far off for a model, in the language's own operations.

Vulkan and WGSL promise sin and cos to 2^-11 only (NVIDIA's WGSL is off by more than 1e-3 at 1e4),
atan2 to 4096 units in the last place and tanh as the quotient of two differences, which overflows;
they have no erf, and leave pow of a base that is not positive undefined. Here these are computed
from +, *, /, fma, exp, and pow of what is not negative, so that a printer needs none of its own.

Inside a definition nothing is asked of NaN: operands may be taken for numbers, and comparisons and
extremes be printed as a language has them. ``isnan`` alone is what it says, and what a definition
gives of NaN and infinities follows from it and from bits. Polynomials are weighted least-squares
fits (Lawson's iteration) to float64 values on the intervals given; the figure beside each is its
own largest error in exact arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from tflgpu.language.builder import Builder
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.tree import Expr, Kernel, Let, Name, Operand
from tflgpu.language.types import Scalar, Type, type_of
from tflgpu.values import frozen

# erf(x) / x in x^2, |x| <= 1; 1.2e-9 relative
_ERF_SMALL = (
    1.1283791065216064,
    -0.3761262595653534,
    0.1128358542919159,
    -0.026853810995817184,
    0.005188327748328447,
    -0.0008010192541405559,
    7.853857823647559e-05,
)
# -log(1 - erf(x)) in x, 1 <= x <= 4; 1.1e-9 of erf
_ERF_LARGE = (
    0.00035370892146602273,
    1.1270400285720825,
    0.6382256150245667,
    0.10303743183612823,
    -0.021805351600050926,
    0.0029396156314760447,
    -0.0001855748996604234,
)
_ERF_END = 4.0  # from here on erf is 1 in f32
# (tanh(x) / x - 1) / x^2 in x^2, x^2 <= 0.4; 4.8e-9 of tanh(x) / x
_TANH = (
    -0.33333277702331543,
    0.13331328332424164,
    -0.05372922867536545,
    0.020601999014616013,
    -0.00566078070551157,
)
_TANH_SMALL = 0.63
_TANH_END = 10.0  # from here on tanh is 1 in f32, and up to here exp(2 x) is finite
# (atan(x) / x - 1) / x^2 in x^2, |x| <= 1; 1.9e-8 of atan(x) / x
_ATAN = (
    -0.3333316743373871,
    0.19994136691093445,
    -0.14214205741882324,
    0.10678929090499878,
    -0.07580552995204926,
    0.04355324059724808,
    -0.01658099703490734,
    0.0029745432548224926,
)
# (sin(x) / x - 1) / x^2 and (cos(x) - 1 + x^2 / 2) / x^4 in x^2, |x| <= 0.8; 4e-9 and 1e-10
_SIN = (-0.16666653752326965, 0.008332131430506706, -0.00019510838319547474)
_COS = (0.04166664555668831, -0.0013887305976822972, 2.4431203200947493e-05)
# pi / 2 in parts: the first three have 9 bits at most, so that multiples of them up to 2^15 are
# exact on a device whose fma rounds twice, too.
_HALF_PI = (1.5703125, 0.00048351287841796875, 3.1385570764541626e-07, 6.07710062827671e-11)
_LARGEST_REST = 0.8  # a quarter turn is cut at pi / 4 = 0.785
_SIGN = 0x80000000
_INFINITY_TWICE = 0xFF000000  # the bits of infinity without the sign, one place to the left


@frozen(eq=False)
class Definition:
    """A function as lets.

    Attributes:
        parameters: What the lets find under these names.
        body: The lets; the last one's value is the function's.
    """

    parameters: tuple[Name, ...]
    body: tuple[Let, ...]

    @property
    def result(self) -> Type:
        """The type of what it gives."""
        return self.body[-1].value.type

    def as_kernel(self, name: str) -> Kernel:
        """The lets as a kernel's body, for what goes through those. It does not stand alone."""
        return Kernel(name, (1, 1, 1), (), (), self.body)


def define(write: Callable[..., Expr], names: tuple[str, ...], kind: Type) -> Definition:
    """What ``write`` makes of a `Writer` and parameters of one type."""
    k = Writer("definition", (1, 1, 1))
    parameters = tuple(k.parameter(name, kind) for name in names)
    k.let(write(k, *parameters), "result")
    return Definition(parameters, k.lets())


@cache
def definition(fn: str, width: int) -> Definition:
    """A function of `DEFINED` for ``width`` lanes of f32, or of u32 if it takes no floats."""
    scalar = Scalar.F32 if Scalar.F32 in FUNCTIONS[fn].takes else Scalar.U32
    return define(*DEFINED[fn], type_of(scalar, width))


class Writer(Builder):
    """Collects the lets of a definition."""

    def parameter(self, name: str, kind: Type) -> Name:
        """One that is there from the beginning."""
        return Name(kind, self._fresh(name))

    def lets(self) -> tuple[Let, ...]:
        """All so far."""
        (block,) = self._blocks
        return tuple(stmt for stmt in block if isinstance(stmt, Let))

    def polynomial(self, x: Expr, coefficients: tuple[float, ...]) -> Expr:
        """``c0 + c1 x + c2 x^2 ...`` by Horner's rule."""
        total: Operand = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, coefficient)
        assert isinstance(total, Expr)
        return self.let(total, "sum")

    def with_sign(self, size: Expr, sign: Expr) -> Expr:
        """``size``, which is not negative, with the sign of ``sign``: that of a zero or of a number
        that the device takes for one, too."""
        bits = self.bitcast(size, Scalar.U32) | (self.bitcast(sign, Scalar.U32) & _SIGN)
        return self.let(self.bitcast(bits, Scalar.F32), "signed")

    def of_each(self, x: Expr, fn: str) -> Expr:
        """A function that every API has."""
        return self.let(self.call(fn, x), fn)


def _erf(k: Writer, x: Expr) -> Expr:
    size = k.let(k.min(k.call("abs", x), _ERF_END), "size")
    small = size * k.polynomial(k.let(size * size, "square"), _ERF_SMALL)
    large = 1.0 - k.of_each(-k.polynomial(size, _ERF_LARGE), "exp")
    found = k.with_sign(k.select(size < 1.0, small, large), x)
    return k.select(k.is_nan(x), x, found)


def _tanh(k: Writer, x: Expr) -> Expr:
    size = k.let(k.min(k.call("abs", x), _TANH_END), "size")
    square = k.let(size * size, "square")
    small = k.fma(size, square * k.polynomial(square, _TANH), size)
    large = 1.0 - 2.0 / (k.of_each(size + size, "exp") + 1.0)
    found = k.with_sign(k.select(size < _TANH_SMALL, small, large), x)
    return k.select(k.is_nan(x), x, found)


def _wave(k: Writer, x: Expr, quarters: int) -> Expr:
    """``sin(x + quarters * pi / 2)``: x is a number of quarter turns and a rest."""
    endless = k.let((k.bitcast(x, Scalar.U32) << 1) >= _INFINITY_TWICE, "endless")
    size = k.let(k.select(endless, 0.0, x), "size")
    turns = k.of_each(size * (2 / math.pi), "round")
    rest = size
    for part in _HALF_PI:
        rest = k.let(k.fma(-turns, part, rest), "rest")
    # Of numbers so large that their turns are not whole the rest could be anything.
    rest = k.let(k.clamp(rest, -_LARGEST_REST, _LARGEST_REST), "rest")
    square = k.let(rest * rest, "square")
    sine = k.let(k.fma(rest, square * k.polynomial(square, _SIN), rest), "sine")
    bend = square * k.polynomial(square, _COS) - 0.5
    cosine = k.let(k.fma(square, bend, 1.0), "cosine")
    # Four quarters are none. As floats, which need not be converted.
    quarter = k.let(turns - 4.0 * k.call("floor", turns * 0.25), "quarter")
    picks_cosine = quarter.eq((1 - quarters) % 4 * 1.0) | quarter.eq((3 - quarters) % 4 * 1.0)
    is_below = quarter.eq((2 - quarters) % 4 * 1.0) | quarter.eq((3 - quarters) % 4 * 1.0)
    found = k.let(k.select(picks_cosine, cosine, sine), "found")
    found = k.let(k.select(is_below, -found, found), "found")
    return k.select(endless, math.nan, found)


def _atan2(k: Writer, y: Expr, x: Expr) -> Expr:
    """As C99's (annex F.9.1.4), also of zeros: the signs of both operands are read from their
    bits, as a device may take small numbers for zero and a zero's sign decides about pi."""
    tall, wide = k.of_each(y, "abs"), k.of_each(x, "abs")
    largest, smallest = k.let(k.max(tall, wide), "largest"), k.let(k.min(tall, wide), "smallest")
    # Two infinities have no quotient, but an angle; that of two zeros is 0.
    slope = k.let(k.select(smallest.eq(largest), 1.0, smallest / largest), "slope")
    ratio = k.let(k.select(largest.eq(0.0), 0.0, slope), "ratio")
    square = k.let(ratio * ratio, "square")
    flat = k.let(k.fma(ratio, square * k.polynomial(square, _ATAN), ratio), "flat")
    steep = k.let(k.select(tall > wide, math.pi / 2 - flat, flat), "steep")
    behind = k.bitcast(x, Scalar.I32) < 0
    angle = k.let(k.select(behind, math.pi - steep, steep), "angle")
    return k.select(k.is_nan(x) | k.is_nan(y), math.nan, k.with_sign(angle, y))


def _pow(k: Writer, x: Expr, y: Expr) -> Expr:
    """As C99's (annex F.9.4.4): a negative base has powers with whole exponents, 0 is infinite to
    negative ones, and everything to the 0 is 1, as is every power of 1. The base's sign is read
    from its bits, as -0 to an odd power has it."""
    size = k.of_each(x, "abs")
    result = k.let(k.call("pow", size, y), "result")
    result = k.let(k.select(x.eq(0.0), k.select(y > 0.0, 0.0, k.f32(math.inf)), result), "result")
    # The logarithm of 1 is 0, and 0 times an infinite exponent is not.
    result = k.let(k.select(size.eq(1.0), 1.0, result), "result")
    half = k.let(y * 0.5, "half")
    is_even = k.call("floor", half).eq(half)
    # Of fractions only the powers of -inf and -0 are numbers.
    broken = k.select(size.eq(math.inf) | x.eq(0.0), result, math.nan)
    signed = k.select(k.call("floor", y).eq(y), k.select(is_even, result, -result), broken)
    result = k.let(k.select(k.bitcast(x, Scalar.I32) < 0, signed, result), "result")
    result = k.let(k.select(k.is_nan(x) | k.is_nan(y), math.nan, result), "result")
    return k.select(y.eq(0.0) | x.eq(1.0), 1.0, result)


def _dot4_i8(k: Writer, a: Expr, b: Expr) -> Expr:
    """APIs have it as an instruction, if at all, where a device has one for it."""
    left, right = (k.let(k.bitcast(x, Scalar.I32), "bytes") for x in (a, b))
    products = [((left << n) >> 24) * ((right << n) >> 24) for n in (0, 8, 16, 24)]
    return products[0] + products[1] + products[2] + products[3]


#: By name: what writes the function, and its parameters.
DEFINED: dict[str, tuple[Callable[..., Expr], tuple[str, ...]]] = {
    "erf": (_erf, ("x",)),
    "tanh": (_tanh, ("x",)),
    "sin": (lambda k, x: _wave(k, x, 0), ("x",)),
    "cos": (lambda k, x: _wave(k, x, 1), ("x",)),
    "atan2": (_atan2, ("y", "x")),
    "pow": (_pow, ("x", "y")),
    "dot4_i8": (_dot4_i8, ("a", "b")),
}
