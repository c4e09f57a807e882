"""The classes whose values a saved model may hold: attrs classes and enums of some rooms.

A file names a class and its fields. Only what stands in this table is made, by the fields that it
has now; so a class may gain fields without a word here, and a file of before is refused.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Any, TypeGuard

import attrs

from tflgpu import compiler, ir, language, lowering, ops
from tflgpu.ir.graph import Graph
from tflgpu.saved.checks import Check, Checks
from tflgpu.tflite import model_file, sparsity
from tflgpu.values import frozen

_ROOMS = (ir, ops, language, lowering, compiler)
_START = "tflgpu.saved.start"
_PREFIXES = (*(f"{room.__name__}." for room in _ROOMS), _START)


@frozen(eq=False, slots=False)
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
    _checks: Checks

    @cached_property
    def checks(self) -> tuple[Check | None, ...]:
        """Whether each field may be what it is; None where anything may."""
        return tuple(self._checks.of_fields(self.kind))

    def parts(self, value: Any) -> list[Any]:
        """The fields of a value."""
        return [getattr(value, name) for name in self.fields]


class Classes:
    """The table. A class is looked for where its name says, and only modules of some rooms, which
    are tflgpu's own, are asked; importing all of them to make one list takes longer than reading a
    file.

    Attributes:
        checks: What the fields are held against.
    """

    def __init__(
        self,
        brought: Iterable[type[Any]] = (),
        rooms: Iterable[str] = (),
        later: Callable[[], Classes] | None = None,
    ) -> None:
        """``brought`` are classes from elsewhere; ``rooms`` are those besides the usual ones;
        ``later`` gives a table for what this one lacks."""
        self._rooms = (*_PREFIXES, *rooms)
        self._kinds = {name_of(kind): kind for kind in brought}
        self._missing: set[str] = set()
        self._known: dict[type[Any], SavedClass] = {}
        self._later = later
        self.checks = Checks(_Names(self._kinds))

    def of(self, kind: type[Any]) -> SavedClass | None:
        """How files hold a class; None where it is no attrs class of the table."""
        found = self._known.get(kind)
        if found is None and attrs.has(kind) and self.kind(name_of(kind)) is kind:
            found = self._known[kind] = _known(kind, self.checks)
        return found

    def named(self, name: str) -> SavedClass | None:
        """How files hold the class of this name."""
        kind = self.kind(name)
        return None if kind is None else self.of(kind)

    def enum(self, name: str) -> type[enum.Enum] | None:
        """The enum that a file names."""
        kind = self.kind(name)
        return kind if kind is not None and issubclass(kind, enum.Enum) else None

    def kind(self, name: str) -> type[Any] | None:
        """The class or enum that a file names; None where it is not in the table."""
        if name not in self._kinds and name not in self._missing:
            kind = self._shipped(name)
            if kind is None and self._later is not None:
                kind = self._later().kind(name)
            if kind is None:
                self._missing.add(name)
            else:
                self._kinds[name] = kind
        return self._kinds.get(name)

    def _shipped(self, name: str) -> type[Any] | None:
        """The attrs class or enum of a name that a file may have made up."""
        module, _, plain = name.rpartition(".")
        if not module.startswith(self._rooms):
            return None
        # Most are there already; which others there are takes a look into the folders.
        if module not in sys.modules and module not in _modules():
            return None
        found = vars(importlib.import_module(module)).get(plain)
        return found if _is_ours(found) and name_of(found) == name else None


class _Names(dict[str, Any]):
    """Names that a module imports for type checkers only, so that annotations can use any class of
    the rooms."""

    def __init__(self, brought: Mapping[str, type[Any]]) -> None:
        super().__init__({kind.__name__: kind for kind in brought.values() if attrs.has(kind)})

    def __missing__(self, name: str) -> Any:
        # As a rule it is of a module that is there already.
        for module in [each for each in sys.modules if each.startswith(_PREFIXES)]:
            found = vars(sys.modules[module]).get(name)
            if _is_ours(found) and found.__module__ == module:
                break
        else:
            found = _shipped_names()[name]
        self[name] = found
        return found


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


@cache
def _modules() -> frozenset[str]:
    """The modules of the rooms, of which none is imported for it."""
    found = [
        f"{room.__name__}.{module.name}"
        for room in _ROOMS
        for module in pkgutil.iter_modules(room.__path__)
    ]
    return frozenset((*found, _START, model_file.__name__, sparsity.__name__))


@cache
def _shipped_names() -> Mapping[str, type[Any]]:
    """All attrs classes and enums of the rooms, by their names alone."""
    found: dict[str, type[Any]] = {}
    for module in sorted(_modules()):
        for value in vars(importlib.import_module(module)).values():
            if _is_ours(value):
                found[value.__name__] = value
    return found


def _is_ours(value: object) -> TypeGuard[type[Any]]:
    """Whether it is of a kind that files may have values of."""
    return isinstance(value, type) and (attrs.has(value) or issubclass(value, enum.Enum))


def _known(kind: type[Any], checks: Checks) -> SavedClass:
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
    return SavedClass(kind, name_of(kind), tuple(f.name for f in fields), make, by_value, checks)
