"""Compiled OpenCL programs on disk: which are kept, and what makes one fit to be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyopencl as cl
from tflgpu.cache.disk_cache import DiskCache as BinaryCache
from tflgpu.cache.disk_cache import cache_folder, cache_key
from tflgpu.contract.parallel import in_parallel

#: Vendors whose drivers keep programs themselves, by their source. PoCL's binaries are archives of
#: its own cache's folders. While two processes build one program, its file there goes away and
#: comes back, and a binary that is made in between lacks it: every process that loads that one is
#: ended by PoCL. With its own cache alone a warm start takes a little longer, and a cold one less,
#: since no binaries are made.
_HAVE_THEIR_OWN = frozenset({"pocl"})
#: What the threads are called that make programs.
THREADS = "tflgpu-opencl-compile"


def default_folder(root: str | None = None) -> Path:
    """``opencl`` in ``root``, or else in TFLGPU_CACHE_DIR, or in the user's cache folder."""
    return cache_folder("opencl", root)


def keeps_programs(vendor: str) -> bool:
    """Whether a vendor's driver (`DeviceCaps.vendor`) keeps what it compiled, so that keeping
    its binaries would only add a way to fail."""
    return vendor in _HAVE_THEIR_OWN


@attrs.frozen
class Binaries:
    """A device's binaries on disk. A driver may refuse a bad one, take it and have other kernels in
    it, or end the process; all three are tried before a binary is kept, and each time it is
    loaded."""

    cache: BinaryCache
    handle: Any
    #: A name for the device and its driver. One that dies of a binary of its own would die of the
    #: next as well.
    maker: str
    #: Makes a program of a binary; raises cl.Error.
    load_program: Callable[[bytes], Any]

    def load(self, keys: list[str]) -> dict[str, Any]:
        """The programs of those keys that have a usable binary."""
        self.cache.sweep()
        found = {key: data for key in keys if (data := self.cache.load(key)) is not None}
        if not found:
            return {}
        with self.cache.reading(list(found)) as is_safe:
            if not is_safe:
                return {}
            made = in_parallel(THREADS, self._open, list(found.items()))
        return {key: program for key, program in zip(found, made, strict=True) if program}

    def keep(self, key: str, program: Any) -> None:
        """Store a program that was made from source, if its binary gives the same program."""
        if self.cache.is_unsafe(self.maker):
            return
        try:
            with self.cache.reading([self.maker], "proof") as is_safe:
                if not is_safe:
                    return
                (binary,) = program.get_info(cl.program_info.BINARIES)
                about = _describe(program, self.handle)
                if not binary or _describe(self.load_program(binary), self.handle) != about:
                    return
        except (cl.Error, ValueError):
            return  # a driver without binaries, or that cannot read its own
        self.cache.store(key, len(about).to_bytes(4, "little") + about + binary)

    def _open(self, entry: tuple[str, bytes]) -> Any:
        key, data = entry
        end = 4 + int.from_bytes(data[:4], "little")
        try:
            program = self.load_program(data[end:])
            if _describe(program, self.handle) == data[4:end]:
                return program
            why = "its kernels are others"
        except (cl.Error, ValueError) as error:
            # The driver has changed in a way that its version does not show.
            why = f"the driver refuses it ({error})"
        self.cache.drop(key, why)
        return None


def _describe(program: Any, handle: Any) -> bytes:
    """What programs of one source have in common: kernels, arguments, sizes of workgroups."""
    info = cl.kernel_work_group_info
    parts = []
    for name in sorted(str(program.get_info(cl.program_info.KERNEL_NAMES)).split(";")):
        kernel = cl.Kernel(program, name)
        sizes = [
            kernel.get_work_group_info(what, handle)
            for what in (info.WORK_GROUP_SIZE, info.COMPILE_WORK_GROUP_SIZE)
        ]
        parts.append(f"{name} {kernel.num_args} {sizes}")
    return "\n".join(parts).encode()


__all__ = [
    "THREADS", "Binaries", "BinaryCache", "cache_key", "default_folder", "keeps_programs",
]  # fmt: skip
