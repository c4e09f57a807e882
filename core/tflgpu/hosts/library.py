"""A shared library for LiteRT's own `load_delegate`, made without a compiler.

`load_delegate` opens a library and looks up two functions. The library made here is an ELF file
without any code: its two symbols are absolute addresses (SHN_ABS), those of cffi's callbacks in
this process. It exists in memory only, so that no other process can open it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tflgpu.backend_kit.forks import immortal
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.errors.blame import describe
from tflgpu.hosts.cdef import ffi

#: Options as text -> the address of a `TfLiteDelegate`, and what owns it.
Make = Callable[[Mapping[str, str]], tuple[int, object]]

CREATE, DESTROY = "tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate"
_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine
_HEADER, _SEGMENT, _SYMBOL = 64, 56, 24  # bytes of the structures of 64-bit ELF


def library_path(make: Make) -> str:
    """Where `load_delegate` finds the library in this process.

    Raises:
        UnsupportedError: this system has no such libraries.
    """
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None or not hasattr(os, "memfd_create"):
        raise UnsupportedError(
            f"a library for load_delegate is only made on Linux for {' and '.join(_MACHINES)}, "
            f"not on {sys.platform} for {platform.machine()}; give the interpreter a "
            "tflgpu.GpuDelegate instead"
        )
    return _write(make, machine)


@cache
def _write(make: Make, machine: int) -> str:
    functions = _functions(make)
    addresses = {name: int(ffi().cast("uintptr_t", f)) for name, f in functions.items()}
    file = os.memfd_create("libtflgpu.so")  # open as long as the process
    os.write(file, elf(addresses, machine))
    path = f"/proc/self/fd/{file}"
    try:
        library = ctypes.PyDLL(path)
        found = {n: ctypes.cast(getattr(library, n), ctypes.c_void_p).value for n in addresses}
    except (OSError, AttributeError) as error:
        raise UnsupportedError(
            f"this system does not load a library from memory: {error}"
        ) from error
    if found != addresses:
        raise UnsupportedError(
            "this system's loader moves absolute symbols, as old glibc and musl do"
        )
    return path


def _functions(make: Make) -> dict[str, Any]:
    owners: dict[int, object] = {}
    made = ffi()

    def create(keys: Any, values: Any, count: int, report: Any) -> Any:
        try:
            given = {_text(keys[i]): _text(values[i]) for i in range(count)}
            address, owner = make(given)
        except BaseException as error:  # noqa: BLE001  (C calls this: nothing may get out)
            told = str(error) if isinstance(error, TflgpuError) else describe(error)
            if report:
                report(made.new("char[]", f"tflgpu: {told}".encode("utf-8", "replace")))
            return made.NULL
        owners[address] = owner
        return made.cast("void*", address)

    def destroy(delegate: Any) -> None:
        # Also called for a delegate that could not be made. Kernels keep what they need.
        owners.pop(int(made.cast("uintptr_t", delegate)), None)

    found = {
        CREATE: made.callback("void*(char**, char**, size_t, void(*)(char*))", create),
        DESTROY: made.callback("void(void*)", destroy),
    }
    for function in found.values():
        immortal(function)
    return found


def _text(pointer: Any) -> str:
    return str(ffi().string(pointer).decode("utf-8", "replace"))


def elf(symbols: Mapping[str, int], machine: int) -> bytes:
    """A shared object of 64-bit ELF with nothing but symbols at absolute addresses.

    Source of the format: the System V ABI, chapters 4 and 5.
    """
    names = b"\0" + b"".join(n.encode() + b"\0" for n in symbols)
    table, start = bytes(_SYMBOL), 1
    for name, address in symbols.items():
        # STB_GLOBAL, STT_FUNC; section SHN_ABS
        table += struct.pack("<IBBHQQ", start, 0x12, 0, 0xFFF1, address, 0)
        start += len(name) + 1
    count = len(symbols) + 1
    # A hash table of one bucket is a list: each symbol but the last points to the next.
    chain = [0, *range(2, count), 0]
    hashes = struct.pack(f"<III{count}I", 1, count, 1, *chain)
    parts: dict[str, bytes] = {"symbols": table, "names": names, "hashes": hashes}
    places, end = {}, _HEADER + 2 * _SEGMENT
    for part, content in parts.items():
        places[part] = end = (end + 15) & ~15
        end += len(content)
    dynamic_at = (end + 15) & ~15
    dynamic = b"".join(
        struct.pack("<QQ", tag, value)
        for tag, value in (
            (4, places["hashes"]),  # DT_HASH
            (5, places["names"]),  # DT_STRTAB
            (6, places["symbols"]),  # DT_SYMTAB
            (10, len(names)),  # DT_STRSZ
            (11, _SYMBOL),  # DT_SYMENT
            (0, 0),  # DT_NULL
        )
    )
    size = dynamic_at + len(dynamic)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64-bit, little-endian, version 1
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 2, 64, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, size, size, 0x10000)  # PT_LOAD, read and write
    dynamics = struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8
    )
    whole = bytearray(size)
    written = {0: header, _HEADER: load, _HEADER + _SEGMENT: dynamics, dynamic_at: dynamic}
    written.update((places[p], parts[p]) for p in parts)
    for place, piece in written.items():
        whole[place : place + len(piece)] = piece
    return bytes(whole)
