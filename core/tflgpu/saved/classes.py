"""The classes whose values a saved model may hold: attrs classes and enums of some rooms.

A file names a class and its fields. Only what stands in this table is made, by the fields that it
has now; so a class may gain fields without a word here, and a file of before is refused.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeGuard

import attrs

from tflgpu import compiler, ir, language, lowering, ops
from tflgpu.ir.graph import Graph
from tflgpu.tflite import model_file, sparsity
from tflgpu.values import frozen

_ROOMS = (ir, ops, language, lowering, compiler)
_PREFIXES = (*(f"{room.__name__}." for room in _ROOMS), "tflgpu.saved.start")


@frozen(eq=False)
class SavedClass:
    """A class as a file has it.

    Attributes:
        kind: The class.
        name: Module and name.
        fields: Names of what its values are made of.
        make: A value of them.
        by_value: Whether equal ones may become one; others are one only where they were.
    """

    kind: type[Any]
    name: str
    fields: tuple[str, ...]
    make: Callable[..., Any]
    by_value: bool

    def parts(self, value: Any) -> list[Any]:
        """The fields of a value."""
        return [getattr(value, name) for name in self.fields]


class Classes:
    """The table. A class is looked for where its name says, and only modules of some rooms, which
    are tflgpu's own, are asked; importing all of them to make one list takes longer than reading a
    file."""

    def __init__(
        self,
        brought: Iterable[type[Any]] = (),
        rooms: Iterable[str] = (),
        later: Callable[[], Classes] | None = None,
    ) -> None:
        """``brought`` are classes from elsewhere; ``rooms`` are those besides the usual ones;
        ``later`` gives a table for what this one lacks."""
        self._rooms = (*_PREFIXES, *rooms)
        self._kinds: dict[str, type[Any] | None] = {name_of(kind): kind for kind in brought}
        self._known: dict[type[Any], SavedClass] = {}
        self._later = later

    def of(self, kind: type[Any]) -> SavedClass | None:
        """How files hold a class; None where it is no attrs class of the table."""
        found = self._known.get(kind)
        if found is None and attrs.has(kind) and self.kind(name_of(kind)) is kind:
            found = self._known[kind] = _known(kind)
        return found

    def named(self, name: str) -> SavedClass | None:
        """How files hold the class of this name."""
        kind = self.kind(name)
        return None if kind is None else self.of(kind)

    def kind(self, name: str) -> type[Any] | None:
        """The class or enum that a file names; None where it is not in the table."""
        if name not in self._kinds:
            found = self._shipped(name)
            if found is None and self._later is not None:
                found = self._later().kind(name)
            self._kinds[name] = found
        return self._kinds[name]

    def _shipped(self, name: str) -> type[Any] | None:
        """The attrs class or enum of a name."""
        module, _, plain = name.rpartition(".")
        if not module.startswith(self._rooms):
            return None
        found = vars(importlib.import_module(module)).get(plain)
        return found if _is_ours(found) and name_of(found) == name else None


def name_of(kind: type) -> str:
    """The name of a class in files."""
    return f"{kind.__module__}.{kind.__qualname__}"


def classes_for(graph: Graph, *, as_read: bool = False) -> Classes:
    """All that may be in what a graph becomes: the shipped classes, and those of the graph's own
    attributes, which a plugin's op may have brought. With ``as_read`` also what may be in a graph
    that was only just read: what the file says of its operators."""
    brought = {type(n.attrs) for n in graph if not type(n.attrs).__module__.startswith("tflgpu.")}
    return _table(frozenset(brought), as_read)


def classes_of_file(graph: Callable[[], Graph]) -> Classes:
    """The classes for a graph that is built only where a file names a class that is not shipped."""
    return Classes(later=lambda: classes_for(graph()))


@cache
def _table(brought: frozenset[type], as_read: bool) -> Classes:
    rooms = (model_file.__name__, sparsity.__name__) if as_read else ()
    return Classes(filter(_is_ours, brought), rooms)


def _is_ours(value: object) -> TypeGuard[type[Any]]:
    """Whether it is of a kind that files may have values of."""
    return isinstance(value, type) and (attrs.has(value) or issubclass(value, enum.Enum))


def _known(kind: type[Any]) -> SavedClass:
    fields = [field for field in attrs.fields(kind) if field.init]
    make: Callable[..., Any] = kind
    if any(field.kw_only for field in fields):
        names = [field.alias for field in fields]

        def make(*values: Any) -> Any:
            return kind(**dict(zip(names, values, strict=True)))

    # attrs gives a frozen class a __setattr__ of its own, and one that compares a __hash__. (The
    # __eq__ of an expression compares nothing.)
    plain = vars(object)
    by_value = not any(getattr(kind, n) is plain[n] for n in ("__setattr__", "__hash__"))
    return SavedClass(kind, name_of(kind), tuple(f.name for f in fields), make, by_value)
