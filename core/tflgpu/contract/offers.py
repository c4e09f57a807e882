"""`offers`: whether a device, a recording or a buffer implements an optional protocol.

Devices and recordings are wrapped in objects that check results and forward all other attributes
(`tflgpu.checks.device`). Up to Python 3.11 `isinstance` with a protocol asks the object, which
answers for what is behind it; since Python 3.12 it looks only at classes, and so finds nothing that
is handed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # of the standard library since Python 3.13

_T = TypeVar("_T")


def offers(thing: object, protocol: type[_T]) -> TypeIs[_T]:
    """Whether it has every attribute and method of a protocol, of its own or handed on.

    Args:
        thing: What may offer it.
        protocol: A `typing.Protocol`; the protocols that it extends count too.
    """
    return all(hasattr(thing, name) for name in _members(protocol))


def _members(protocol: type) -> set[str]:
    return {
        name
        for each in protocol.__mro__
        if getattr(each, "_is_protocol", False) and each.__module__ != "typing"
        for name in (*vars(each), *vars(each).get("__annotations__", {}))
        if not name.startswith("_")
    }
