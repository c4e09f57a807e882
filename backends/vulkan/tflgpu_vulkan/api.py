"""Vulkan's own functions and structs, without the wrapper that the package puts around them.

The wrapper converts every argument of every call, which costs several times the call itself.
Here a struct is made once, keeps what it points to alive, and is passed as it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import vulkan as vk
from tflgpu.errors import DeviceError, DeviceLostError
from vulkan._vulkan import ffi, lib

NULL = ffi.NULL
#: Pointers in a struct do not keep alive what they point to; this does, while the struct lives.
_alive: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()

_RESULTS = {
    int(getattr(vk, name)): name
    for name in dir(vk)
    if name.startswith("VK_ERROR_") and isinstance(getattr(vk, name), int)
}
#: ``sType`` by a struct's name: VkFooBar2KHR's is called VK_STRUCTURE_TYPE_FOO_BAR_2_KHR.
_STRUCTURE_TYPES = {
    name.removeprefix("VK_STRUCTURE_TYPE_").replace("_", "").lower(): getattr(vk, name)
    for name in dir(vk)
    if name.startswith("VK_STRUCTURE_TYPE_")
}
_HINTS = {
    vk.VK_ERROR_OUT_OF_DEVICE_MEMORY: "free some, or use a smaller model or precision F16",
    vk.VK_ERROR_OUT_OF_HOST_MEMORY: "free some, or use a smaller model",
    vk.VK_ERROR_DEVICE_LOST: "a kernel crashed the device or ran for too long, or it was reset",
    vk.VK_ERROR_INCOMPATIBLE_DRIVER: "no driver for this version of Vulkan is installed",
}


def make(kind: str, **fields: Any) -> Any:
    """A pointer to a struct; ``sType`` is set from ``kind`` where it is one that has it."""
    struct_type = _STRUCTURE_TYPES.get(kind[2:].lower())
    if struct_type is not None:
        fields["sType"] = struct_type
    made = ffi.new(f"{kind}*", fields)
    assert struct_type is not None or not hasattr(made, "sType"), kind
    _alive[made] = tuple(fields.values())
    return made


def array(kind: str, items: Sequence[Any]) -> Any:
    """An array of structs (given by pointers), handles or numbers; keeps structs' targets alive."""
    values = [item[0] if _is_struct_pointer(item) else item for item in items]
    made = ffi.new(f"{kind}[]", values)
    _alive[made] = tuple(items)
    return made


def strings(items: Sequence[str]) -> Any:
    """An array of C strings."""
    parts = [ffi.new("char[]", item.encode()) for item in items]
    made = ffi.new("char*[]", parts)
    _alive[made] = tuple(parts)
    return made


def text(chars: Any) -> str:
    """A struct's array of characters."""
    return str(ffi.string(chars).decode("utf-8", "replace"))


def result_name(result: int) -> str:
    """Vulkan's name for a result."""
    return _RESULTS.get(result, f"VkResult {result}")


def check(result: int, what: str) -> None:
    """Turn a result into an exception; ``what`` says what was tried.

    Raises:
        DeviceError: the result is an error.
    """
    if result < 0:
        hint = _HINTS.get(result)
        kind = DeviceLostError if result == vk.VK_ERROR_DEVICE_LOST else DeviceError
        raise kind(f"{what}: {result_name(result)}" + (f" ({hint})" if hint else ""))


def create(function: Any, kind: str, owner: Any, info: Any, what: str) -> Any:
    """An object of ``owner`` (an instance or device), by one of the vkCreate functions."""
    handle = ffi.new(f"{kind}*")
    check(function(owner, info, NULL, handle), what)
    return handle[0]


def listed(
    function: Any, kind: str, *args: Any, what: str = "asking the driver what there is"
) -> list[Any]:
    """All that one of the enumerating functions gives; those without a result are fine too."""
    count = ffi.new("uint32_t*")
    check(function(*args, count, NULL) or 0, what)
    found = ffi.new(f"{kind}[]", max(1, count[0]))
    struct_type = _STRUCTURE_TYPES.get(kind[2:].lower())
    for item in found if struct_type is not None else ():
        item.sType = struct_type
    check(function(*args, count, found) or 0, what)
    # The array owns its structs, so each goes together with it.
    items = [found[i] for i in range(count[0])]
    for item in items:
        if isinstance(item, ffi.CData):
            _alive[item] = (found,)
    return items


def _is_struct_pointer(item: Any) -> bool:
    if not isinstance(item, ffi.CData):
        return False
    kind = ffi.typeof(item)
    # Handles are pointers too, to structs that nothing defines.
    return bool(kind.kind == "pointer" and kind.item.kind == "struct") and not (
        kind.item.cname.endswith("_T")
    )


__all__ = [
    "NULL",
    "array",
    "check",
    "create",
    "ffi",
    "lib",
    "listed",
    "make",
    "result_name",
    "strings",
    "text",
    "vk",
]
