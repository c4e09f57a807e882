"""Checks that a value which a file gives for a field fits the field's annotation.

A file whose digest is right has what tflgpu wrote. This is for files that were made otherwise: what
is of a wrong type is refused where it is read, and not found by a driver later.
"""

from __future__ import annotations

import builtins
import collections.abc
import contextlib
import enum
import inspect
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

import attrs
import numpy as np

from tflgpu.errors.blame import shown
from tflgpu.values import define

#: Whether a value may be there.
Check = Callable[[Any], bool]

_SEQUENCES = (tuple, list)
_OURS = "tflgpu."
_BUILTINS = vars(builtins)
_MISSING = object()


class _Local(dict[str, Any]):
    """Names that a class's annotations use and that neither its module nor Python has."""

    def __init__(self, kind: type[Any], names: Mapping[str, Any]) -> None:
        super().__init__()
        self._modules = [vars(sys.modules[base.__module__]) for base in kind.__mro__]
        self._names = names

    def __missing__(self, name: str) -> Any:
        if any(name in known for known in self._modules):
            raise KeyError(name)  # Python looks there next
        return self._names[name]


def told(value: Any) -> str:
    """A value in a message. What is made of other values may stand for far more than there are, so
    that only its type is said."""
    if type(value) in (int, float, bool, str, type(None)):
        return shown(value)
    return f"a {type(value).__name__}"


@define
class Checks:
    """Checks by annotation, made once each. ``names`` are what annotations may name besides what
    their module has."""

    names: Mapping[str, Any]
    _made: dict[Any, Check | None] = attrs.Factory(dict)
    #: What annotations mean, by the module and the text.
    _meant: dict[tuple[str, str], Any] = attrs.Factory(dict)
    #: Sequences that have passed a check, so that one that many share is not looked at again.
    _passed: set[tuple[int, int]] = attrs.Factory(set)
    _lock: threading.RLock = attrs.Factory(threading.RLock)

    def of_fields(self, kind: type[Any]) -> list[Check | None]:
        """One for each field that an attrs class is made of; None where anything may be there."""
        try:
            hints = self.hints(kind)
        except (NameError, TypeError, AttributeError):  # a plugin's own way to annotate
            return [None] * len(attrs.fields(kind))
        return [self.of(hints.get(f.name, Any)) for f in attrs.fields(kind) if f.init]

    def hints(self, kind: type[Any]) -> dict[str, Any]:
        """Annotations by field, as `typing.get_type_hints` gives them. That evaluates each text
        anew, and there are few different ones; here each is evaluated once, of modules that are
        ours: others may annotate in ways that typing alone understands."""
        ours = [base for base in kind.__mro__ if base is not object]
        if not all(base.__module__.startswith(_OURS) for base in ours):
            return typing.get_type_hints(kind, None, _Local(kind, self.names))
        found: dict[str, Any] = {}
        local = _Local(kind, self.names)
        for base in reversed(ours):
            for name, text in inspect.get_annotations(base).items():
                place = (base.__module__, text)
                if place not in self._meant:
                    known = vars(sys.modules[base.__module__])
                    # Most are a name, which need not be compiled.
                    hint = known.get(text, _BUILTINS.get(text, _MISSING))
                    if hint is _MISSING:
                        # Text of our own source, which Python itself would evaluate but for the
                        # import of annotations from the future.
                        hint = eval(text, known, local)  # noqa: S307
                    self._meant[place] = type(None) if hint is None else hint
                found[name] = self._meant[place]
        return found

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While inside, values are read that all stay. One thread at a time."""
        with self._lock:
            self._passed.clear()
            try:
                yield
            finally:
                self._passed.clear()

    def of(self, hint: Any) -> Check | None:
        """The check of an annotation."""
        try:
            if hint not in self._made:
                self._made[hint] = self._make(hint)
            return self._made[hint]
        except TypeError:  # not hashable
            return self._make(hint)

    def _make(self, hint: Any) -> Check | None:
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin in (Union, types.UnionType):
            return self._any_of([self.of(each) for each in inner])
        if origin is tuple or hint is tuple:
            return self._tuple(inner)
        if origin in (collections.abc.Sequence, list, collections.abc.Iterable):
            kinds = (list,) if origin is list else _SEQUENCES
            return self._sequence(kinds, self.of(inner[0]) if inner else None)
        if origin in (dict, collections.abc.Mapping):
            return self._mapping(*(self.of(each) for each in inner))
        if origin in (frozenset, set):
            return _instance(frozenset)
        if origin is np.ndarray:
            return _instance(np.ndarray)
        if origin is collections.abc.Callable:
            return lambda value: False
        return _plain(hint if origin is None else origin)

    @staticmethod
    def _mapping(key: Check | None = None, value: Check | None = None) -> Check:
        def fits(found: Any) -> bool:
            return isinstance(found, dict) and all(
                (key is None or key(k)) and (value is None or value(v)) for k, v in found.items()
            )

        return fits

    @staticmethod
    def _any_of(checks: list[Check | None]) -> Check | None:
        asked = [check for check in checks if check is not None]
        if len(asked) < len(checks):
            return None
        if len(asked) == 2:  # most are something or None
            first, second = asked
            return lambda value: first(value) or second(value)
        return lambda value: any(check(value) for check in asked)

    def _tuple(self, inner: tuple[Any, ...]) -> Check:
        if not inner:
            return _instance(tuple)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return self._sequence((tuple,), self.of(inner[0]))
        checks = [self.of(each) for each in inner]

        def fits(value: Any) -> bool:
            return (
                type(value) is tuple
                and len(value) == len(checks)
                and all(c is None or c(v) for c, v in zip(checks, value, strict=True))
            )

        return fits

    def _sequence(self, kinds: tuple[type, ...], check: Check | None) -> Check:
        if check is None:
            return lambda value: type(value) in kinds
        passed = self._passed

        def fits(value: Any) -> bool:
            if type(value) not in kinds:
                return False
            place = (id(value), id(check))
            if place in passed:
                return True
            if not all(map(check, value)):
                return False
            passed.add(place)
            return True

        return fits


def _instance(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _plain(hint: Any) -> Check | None:
    if hint is Any or not isinstance(hint, type) or hint is object:
        return None
    if hint is int:
        return lambda value: type(value) is int or isinstance(value, np.integer)
    if hint is float:  # Python takes a whole number for one
        return lambda value: (
            type(value) in (float, int) or isinstance(value, (np.floating, np.integer))
        )
    if hint is bool:
        return lambda value: type(value) is bool or isinstance(value, np.bool_)
    if hint in (str, bytes, type(None)) or issubclass(hint, enum.Enum):
        return lambda value: type(value) is hint
    return _instance(hint)
