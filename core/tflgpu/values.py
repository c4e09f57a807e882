"""`attrs.frozen` and `attrs.define` for the modules that a start imports, and what goes with them.

attrs writes the methods of a class as text and has Python compile it when the class is made, which
was half of what importing tflgpu takes. Most classes are never compared or shown in a process. So
here `__eq__`, `__ne__`, `__hash__` and `__repr__` are made when the first of them is called: by
attrs, of the class's fields, so that they are those that it would have made at once. What a class
writes itself stays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, evolve, field

__all__ = ["Factory", "define", "evolve", "field", "frozen"]

#: Options of attrs that decide about these methods in other ways than ``eq`` does: its own
#: business.
_ITS_OWN = frozenset({"order", "unsafe_hash", "hash", "cache_hash", "cmp", "str", "repr"})

#: The methods by class, so that all threads put the same ones in place: two hashes would not agree.
_made: dict[type[Any], dict[str, Any]] = {}


def _real(cls: type[Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The methods that attrs makes for a class with these fields."""
    fields = {
        a.name: attrs.field(default=None, eq=a.eq_key or a.eq, hash=a.hash, repr=a.repr)
        for a in attrs.fields(cls)
    }
    # Frozen, so that there is a hash.
    twin = attrs.make_class(cls.__name__, fields, order=False, frozen=True)
    found = {name: vars(twin)[name] for name in names}
    for name, method in found.items():
        method.__module__, method.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"
    return found


def _later(name: str, home: list[type[Any]], names: tuple[str, ...]) -> Any:
    """A method that puts all of ``names`` in place when it is called, and does what its own
    does."""

    def method(self: Any, *given: Any) -> Any:
        (cls,) = home
        found = _made.get(cls) or _made.setdefault(cls, _real(cls, names))
        for each, real in found.items():
            setattr(cls, each, real)
        return found[name](self, *given)

    method.__name__ = name
    return method


def _class(maker: Any, is_frozen: bool, cls: type[Any] | None = None, /, **options: Any) -> Any:
    """The class that attrs' decorator ``maker`` makes, with methods that are made at their first
    use."""
    if cls is None:
        return partial(_class, maker, is_frozen, **options)
    own = vars(cls)
    compares = options.get("eq", True) and not {"__eq__", "__ne__"} & own.keys()
    names: tuple[str, ...] = () if "__repr__" in own else ("__repr__",)
    if compares:
        names += ("__eq__", "__ne__")
        if "__hash__" not in own and is_frozen:
            names += ("__hash__",)
    # Whether what can change has a hash follows from what it inherits.
    inherits = not is_frozen and any(attrs.has(base) for base in cls.__bases__)
    if _ITS_OWN & options.keys() or issubclass(cls, BaseException) or (compares and inherits):
        return maker(**options)(cls)
    home: list[type[Any]] = []
    if compares and "__hash__" not in own:
        cls.__hash__ = None  # type: ignore[assignment]  # as Python has it where there is an __eq__
    for name in names:
        setattr(cls, name, _later(name, home, names))
    made = maker(**options)(cls)
    home.append(made)
    return made


if TYPE_CHECKING:
    from attrs import define, frozen
else:
    define = partial(_class, attrs.define, False)
    frozen = partial(_class, attrs.frozen, True)
