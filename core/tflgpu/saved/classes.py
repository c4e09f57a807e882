"""The classes that a saved model may have values of: attrs classes and enums of some rooms.

A file names a class and its fields. Only what stands in this table is made, by the fields that it has
now; so a class may gain fields without a word here, and a file of before is refused.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from typing import Any

import attrs

from tflgpu import compiler, ir, language, lowering, ops
from tflgpu.ir.graph import Graph
from tflgpu.saved.checks import Check, Checks
from tflgpu.tflite import model_file, sparsity

_ROOMS = (ir, ops, language, lowering, compiler)


@attrs.frozen(eq=False, slots=False)
class Known:
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
    """A table of them; what is to be known of a class is found out when it is first met.

    Attributes:
        checks: What the fields are held against.
    """

    def __init__(self, kinds: Iterable[type[Any]]) -> None:
        self._kinds = {name_of(kind): kind for kind in kinds}
        self._known: dict[type[Any], Known] = {}
        self.checks = Checks({k.__name__: k for k in self._kinds.values() if attrs.has(k)})

    def of(self, kind: type[Any]) -> Known | None:
        """What is known of a class; None where it is no attrs class of the table."""
        found = self._known.get(kind)
        if found is None and attrs.has(kind) and self._kinds.get(name_of(kind)) is kind:
            found = self._known[kind] = _known(kind, self.checks)
        return found

    def named(self, name: str) -> Known | None:
        """The same by a file's name for it."""
        kind = self._kinds.get(name)
        return None if kind is None else self.of(kind)

    def enum(self, name: str) -> type[enum.Enum] | None:
        """The enum that a file names."""
        kind = self._kinds.get(name)
        return kind if kind is not None and issubclass(kind, enum.Enum) else None


def name_of(kind: type) -> str:
    """What a file calls a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def classes_for(graph: Graph, *, as_read: bool = False) -> Classes:
    """All that may be in what a graph becomes: the shipped classes, and those of the graph's own
    attributes, which a plugin's op may have brought. With ``as_read`` also what may be in a graph
    that was only just read: what the file says of its operators."""
    brought = {type(n.attrs) for n in graph if not type(n.attrs).__module__.startswith("tflgpu.")}
    return _table(frozenset(brought), as_read)


@cache
def _table(brought: frozenset[type], as_read: bool) -> Classes:
    modules = [
        importlib.import_module(f"{room.__name__}.{module.name}")
        for room in _ROOMS
        for module in pkgutil.iter_modules(room.__path__)
    ]
    modules += [model_file, sparsity] if as_read else []
    found: dict[type, None] = {}
    for value in (*brought, *(each for module in modules for each in vars(module).values())):
        if isinstance(value, type) and (attrs.has(value) or issubclass(value, enum.Enum)):
            found[value] = None
    return Classes(found)


def _known(kind: type[Any], checks: Checks) -> Known:
    fields = [field for field in attrs.fields(kind) if field.init]
    make: Callable[..., Any] = kind
    if any(field.kw_only for field in fields):
        names = [field.alias for field in fields]

        def make(*values: Any) -> Any:
            return kind(**dict(zip(names, values, strict=True)))

    # attrs gives a frozen class a __setattr__ of its own, and one that compares an __eq__.
    plain = vars(object)
    by_value = not any(getattr(kind, n) is plain[n] for n in ("__setattr__", "__eq__"))
    return Known(kind, name_of(kind), tuple(f.name for f in fields), make, by_value, checks)
