"""Bodies of kernels that a plan writes once and uses again.

A network repeats its blocks: of style transfer's 42 convolutions 31 have the kernel of another one,
and writing a body takes far longer than finding that it was written before. A body depends on what
its function is given and on nothing else: `key_of` looks at all of that, into closures too, and
what it cannot tell apart with certainty (arrays, objects of classes that it does not know) has no
key, and is written every time.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import attrs
import numpy as np

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Kernel

#: Closures in closures and fields in fields, at most; what refers to itself ends here.
_MAX_DEPTH = 12


class KernelBodies:
    """The kernels of a plan whose bodies have keys."""

    def __init__(self) -> None:
        self._kernels: dict[Hashable, tuple[Kernel, object]] = {}

    def kernel(self, k: Builder, write: Callable[..., None], args: Sequence[Any]) -> Kernel:
        """The kernel that ``write(k, *args)`` makes of a begun one: an earlier kernel, where that
        was begun alike and written by the same function with the same arguments.

        Raises:
            KernelError: as `Builder.build`; errors of ``write`` pass through.
        """
        begun, given = k.begun, key_of(k, (write, args))
        key = None if begun is None or given is None else (begun, given)
        found = self._kernels.get(key) if key is not None else None
        if found is not None:
            return found[0]
        write(k, *args)
        kernel = k.build()
        # Who changes what it was given makes another kernel of the same next time.
        if key is not None and key_of(k, (write, args)) == given:
            # The functions stay with the key, which knows their modules by identity.
            self._kernels[key] = kernel, (write, args)
        return kernel


def key_of(k: Builder, value: object) -> Hashable | None:
    """A key that is equal for values from which a function writes the same code into ``k``; None
    where that is not known."""
    try:
        return _exact(value, k, 0)
    except _UnkeyedError:
        return None


class _UnkeyedError(Exception):
    """A value that cannot be compared with others by a key."""


def _exact(value: Any, k: Builder, depth: int) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value  # 1, 1.0 and True are equal
    if value is k:
        return Builder
    if depth > _MAX_DEPTH:
        raise _UnkeyedError
    below = depth + 1
    if kind is tuple:
        return kind, *[_exact(each, k, below) for each in value]
    if kind is float:
        return kind, value.hex()  # 0.0 and -0.0 are equal, and a NaN is not
    if kind is types.FunctionType:
        # Made anew by each call of the function around it, as a rule.
        try:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # one that is not filled yet
            raise _UnkeyedError from None
        names = value.__kwdefaults__ or {}
        rest = (tuple(cells), value.__defaults__, tuple(names.items()))
        return value.__code__, id(value.__globals__), _exact(rest, k, below)
    if kind is partial:
        parts = (value.func, value.args, tuple(value.keywords.items()))
        return kind, _exact(parts, k, below)
    if kind is types.MethodType:
        return kind, _exact((value.__func__, value.__self__), k, below)
    if isinstance(value, enum.Enum):
        return kind, value._name_
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    # A class that only inherits its fields may have others, and expressions may be deep.
    if "__attrs_attrs__" in vars(kind) and not isinstance(value, Expr):
        return kind, *[_exact(each, k, below) for each in _fields[kind](value)]
    raise _UnkeyedError


_PLAIN = frozenset({int, str, bool, bytes, type(None), type, np.dtype, types.BuiltinFunctionType})


class _Fields(dict[type, Callable[[Any], tuple[Any, ...]]]):
    """By class: what gives all of an instance's fields."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
        names = [field.name for field in attrs.fields(kind)]
        get = attrgetter(*names) if len(names) > 1 else None
        found = self[kind] = get or (lambda value: tuple(getattr(value, name) for name in names))
        return found


_fields = _Fields()
