"""What Python would do with an expression that has no value yet, refused with what to write
instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tflgpu.language.author import refused

_NO_VALUE = "an expression has no value while the kernel is built"
_LANES = "write x.lane(0) for one lane, x.lanes for all of them, k.load(buffer, i) for memory"
_NUMBER = f"{_NO_VALUE}: write k.cast(x, Scalar.I32), or k.loop(0, x) instead of range(x)"
_ROUND = "write k.call('round', x), and likewise 'floor', 'ceil' and 'trunc'"

#: By the name of Python's method: the hint.
_REFUSED = {
    "__bool__": f"{_NO_VALUE}: use k.if_(cond) or k.select(cond, a, b) instead of if, and &, | "
    "and ~ instead of and, or and not; 0 <= i < n is (0 <= i) & (i < n)",
    **dict.fromkeys(("__int__", "__index__"), _NUMBER),
    **dict.fromkeys(
        ("__float__", "__complex__"),
        f"{_NO_VALUE}: write k.cast(x, Scalar.F32), and k.call('sqrt', x) instead of math.sqrt(x)",
    ),
    **dict.fromkeys(("__iter__", "__getitem__", "__len__", "__contains__"), _LANES),
    **dict.fromkeys(("__pow__", "__rpow__"), "write k.call('pow', x, y) instead of x ** y"),
    **dict.fromkeys(
        ("__divmod__", "__rdivmod__"), "write x // y and x % y instead of divmod(x, y)"
    ),
    **dict.fromkeys(("__matmul__", "__rmatmul__"), "write k.dot(a, b) instead of a @ b"),
    **dict.fromkeys(("__round__", "__floor__", "__ceil__", "__trunc__"), _ROUND),
}
_SWIZZLE = r"[xyzw]{1,4}|[rgba]{1,4}|s[0-9a-f]|lo|hi|even|odd"


class Hints:
    """Refuses these methods, and names of lanes as shading languages have them."""

    if not TYPE_CHECKING:  # a type checker finds both kinds of mistakes without being told

        def __getattr__(self, name: str) -> Any:
            if re.fullmatch(_SWIZZLE, name):
                raise refused(f"an expression has no .{name}: {_LANES}; k.vec makes a vector")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _refuse(name: str, hint: str) -> None:
    def method(self: object, *others: object) -> Any:
        raise refused(hint)

    method.__name__ = name
    setattr(Hints, name, method)


for _name, _hint in _REFUSED.items():
    _refuse(_name, _hint)
