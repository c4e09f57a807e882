"""Loads drivers that compile by LLVM (PoCL, Mesa's) so that each uses the LLVM that it was linked
to, also beside TensorFlow's.

Symbols of a library that is loaded for all others to see, as TensorFlow's are, come before a
driver's own. TensorFlow brings an LLVM: a driver that is loaded after it calls that one, which is
of another version, and the process crashes. So does one that is loaded before it, at the first call
of a function that is not bound yet.

So a backend names its drivers here before it calls the API's loader. Those that use LLVM are loaded
at once, with every function bound and, where there is another LLVM, their own symbols first; the
loader then finds them loaded. Elsewhere than on glibc and FreeBSD, each library has its own symbols
anyway.
"""

from __future__ import annotations

import ctypes
import fnmatch
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

#: `llvm::errs()`, which every LLVM has.
_OF_LLVM = "_ZN4llvm4errsEv"
_USES_LLVM = (b"libLLVM", b"_ZN4llvm")
#: Names of a library's symbols are near its beginning, or, where a packager's tool moved them, its
#: end.
_SEARCHED = 1 << 20
_LINKER_CACHE = Path("/etc/ld.so.cache")

_loaded: dict[str, ctypes.CDLL] = {}


def load_drivers(places: Iterable[str], variable: str) -> str:
    """Load those drivers that use LLVM, so that they use their own.

    Args:
        places: Libraries, files that name one (.icd, .json), or folders of such files.
        variable: The environment variable by which users choose drivers, for the message.

    Returns:
        Why the API's loader must not be called, since a driver would end the process; else "".
    """
    deep = getattr(os, "RTLD_DEEPBIND", None)
    if deep is None:
        return ""
    mode = os.RTLD_NOW
    if hasattr(ctypes.CDLL(None), _OF_LLVM):
        mode |= deep
    for path in map(_path_of, _libraries(places)):
        if path in _loaded or not _uses_llvm(path):
            continue
        if mode & deep and _malloc_is_replaced():
            return (
                f"{path} would crash this process: it compiles by LLVM, and another LLVM is "
                "loaded, as TensorFlow brings one; the two cannot be kept apart where malloc is "
                "replaced. Open a device before TensorFlow is imported, start Python without "
                f"that malloc (LD_PRELOAD), or name other drivers by {variable}"
            )
        with suppress(OSError):  # the API's loader says what is wrong with it
            _loaded[path] = ctypes.CDLL(path, mode=mode)
    return ""


def vulkan_manifests() -> list[str]:
    """The files of Vulkan's drivers, where its loader looks for them ("Vulkan Loader: Driver
    Discovery")."""
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    places = os.environ.get("VK_ADD_DRIVER_FILES", "").split(":")
    if named:
        places += named.split(":")
    else:
        places += [f"{folder}/vulkan/icd.d" for folder in _standard_folders()]
    chosen, left_out = (
        [glob.strip().replace("~all~", "*") for glob in os.environ.get(name, "").lower().split(",")]
        for name in ("VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE")
    )
    return [
        str(file)
        for file in _files(places)
        if (_matches(file, chosen) if any(chosen) else not _matches(file, left_out))
    ]


def _matches(file: Path, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(file.name.lower(), glob) for glob in globs)


def _standard_folders() -> Iterator[str]:
    """Of settings and data, as freedesktop.org has them."""
    for kind, own, shared in (
        ("CONFIG", "~/.config", "/etc/xdg:/usr/local/etc:/etc"),
        ("DATA", "~/.local/share", "/usr/local/share:/usr/share"),
    ):
        yield os.environ.get(f"XDG_{kind}_HOME") or own
        yield from (os.environ.get(f"XDG_{kind}_DIRS") or shared).split(":")


def _files(places: Iterable[str]) -> Iterator[Path]:
    for place in map(Path, filter(None, places)):
        with suppress(OSError, RuntimeError):
            path = place.expanduser()
            if path.is_dir():
                yield from sorted(p for p in path.iterdir() if p.suffix in (".icd", ".json"))
            else:
                yield path


def _libraries(places: Iterable[str]) -> Iterator[str]:
    for file in _files(places):
        with suppress(OSError, ValueError, KeyError, TypeError):
            name = str(file)
            if file.suffix == ".icd":
                name = file.read_text(encoding="utf-8").strip()
            elif file.suffix == ".json":
                name = json.loads(file.read_text(encoding="utf-8"))["ICD"]["library_path"]
            beside = file.parent / name
            yield str(beside) if beside.exists() else name


def _path_of(library: str) -> str:
    """Where the dynamic linker finds a library; "" where that cannot be told."""
    if "/" in library:
        return library
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_linker_folders()]
    found = (Path(folder, library) for folder in folders if folder)
    return next((str(path) for path in found if path.exists()), "")


@functools.cache
def _linker_folders() -> tuple[str, ...]:
    with suppress(OSError):
        paths = re.findall(rb"/[^\0]*(?=/[^/\0]+\0)", _LINKER_CACHE.read_bytes())
        return (*dict.fromkeys(map(os.fsdecode, paths)), f"{sys.prefix}/lib")
    return ("/lib64", "/usr/lib64", "/lib", "/usr/lib", f"{sys.prefix}/lib")


@functools.cache
def _uses_llvm(path: str) -> bool:
    with suppress(OSError), Path(path).open("rb") as file:
        for start in (0, max(_SEARCHED, os.fstat(file.fileno()).st_size - _SEARCHED)):
            file.seek(start)
            part = file.read(_SEARCHED)
            if any(name in part for name in _USES_LLVM):
                return True
    return False


def _malloc_is_replaced() -> bool:
    """Whether a driver with its own symbols first would have another malloc than the process."""
    malloc = (ctypes.CDLL(name).malloc for name in (None, "libc.so.6"))
    return len({ctypes.cast(each, ctypes.c_void_p).value for each in malloc}) > 1
