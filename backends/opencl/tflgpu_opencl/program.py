"""Programs: compiled in parallel, one for each distinct source. The last of them are kept in memory
and, where the driver does not do so itself, on disk.

pyopencl lets other threads run while a driver compiles, so each program is a task of its own;
that also lets models that share a kernel share its binary.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyopencl as cl
from tflgpu.contract.parallel import as_they_come, in_parallel
from tflgpu.errors import CompileError, DeviceError
from tflgpu.language.tree import Kernel

from tflgpu_opencl.binary_cache import (
    THREADS,
    Binaries,
    BinaryCache,
    cache_key,
    keeps_programs,
)
from tflgpu_opencl.devices import fingerprint, vendor_of
from tflgpu_opencl.failure import explain

_OPTIONS = b""
#: Programs that are kept for models to come. Those in use live on in their kernels. PoCL's take
#: about a megabyte each.
KEPT = 256


class Compiler:
    """Compiles for one device. Safe to use from several threads."""

    def __init__(
        self, context: Any, handle: Any, cache: BinaryCache, *, keep: bool | None = None
    ) -> None:
        """``keep`` is whether binaries are kept, None for where the driver keeps none itself."""
        self._context = context
        self._handle = handle
        self._cache = cache
        self._fingerprint = fingerprint(handle)
        self._shares_its_own = keeps_programs(vendor_of(handle))
        if keep is None:
            keep = not self._shares_its_own
        maker = cache_key(self._fingerprint)
        self._binaries = Binaries(cache, handle, maker, self._from_binary) if keep else None
        self._lock = threading.Lock()
        self._programs: dict[str, Any] = {}
        self._printed: weakref.WeakKeyDictionary[Kernel, str] = weakref.WeakKeyDictionary()
        #: Programs that a driver had to compile, for tests and reports.
        self.compiled = 0

    def compile(self, sources: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Programs by source, for (name of the kernel, source) pairs.

        Raises:
            CompileError: the driver refused one; the message has its log and the source.
        """
        with self._lock:
            self._forget()
            wanted = {source: name for name, source in sources if source not in self._programs}
        made = self._kept(wanted)
        rest = [(name, source) for source, name in wanted.items() if source not in made]
        made.update(in_parallel(THREADS, self._program, rest))
        with self._lock:
            self._programs.update(made)
            return dict(self._programs)

    def programs(
        self, kernels: Iterable[Kernel], source: Callable[[Kernel], str]
    ) -> dict[Kernel, Any]:
        """Programs by kernel; ``source`` prints a kernel that this compiler has not seen yet.

        Raises:
            CompileError, DeviceError: as `compile`; and whatever ``source`` raises.
        """
        asked = list(kernels)
        with self._lock:
            texts = {k: text for k in asked if (text := self._printed.get(k)) is not None}
            self._forget()
            found = dict(self._programs)
        begun = set(found)

        def printed() -> Iterator[tuple[str, str]]:
            for kernel in asked:
                text = texts.get(kernel)
                if text is None:
                    text = texts[kernel] = source(kernel)
                if text not in begun:
                    begun.add(text)
                    yield kernel.name, text

        if self._binaries is None:
            # The driver compiles the first while the next are being printed.
            made = dict(as_they_come(THREADS, self._program, printed()))
            with self._lock:
                self._programs.update(made)
        else:
            made = self.compile(printed())
        found.update(made)
        with self._lock:
            self._printed.update(texts)
        return {kernel: found[texts[kernel]] for kernel in asked}

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._printed.clear()
            self._programs.clear()

    def _forget(self) -> None:
        for source in list(self._programs)[:-KEPT]:  # the oldest
            del self._programs[source]

    def _key(self, source: str) -> str:
        return cache_key(self._fingerprint, _OPTIONS.decode(), source)

    def _kept(self, sources: Iterable[str]) -> dict[str, Any]:
        """Programs by source, of those that are on disk."""
        keys = {self._key(source): source for source in sources} if self._binaries else {}
        if self._binaries is None or not keys:
            return {}
        return {keys[key]: program for key, program in self._binaries.load(list(keys)).items()}

    def _program(self, kernel: tuple[str, str]) -> tuple[str, Any]:
        name, source = kernel
        key = self._key(source)
        # Of processes that start together each would compile every program.
        with self._cache.building(key) as waited:
            if waited and (made := self._kept([source])):
                return source, made[source]
            try:
                program = self._from_source(name, source)
            except (CompileError, DeviceError):
                # A process that uses the driver's cache without us may be writing this program.
                if not self._shares_its_own:
                    raise
                program = self._from_source(name, source)
            if self._binaries is not None:
                self._binaries.keep(key, program)
        return source, program

    def _from_binary(self, binary: bytes) -> Any:
        program = cl._cl._Program(self._context, [self._handle], [binary])
        program._build(_OPTIONS, [self._handle])
        return program

    def _from_source(self, name: str, source: str) -> Any:
        # The class beneath cl.Program: that one has a disk cache of its own, which leaves
        # sources that do not compile behind in the folder for temporary files.
        program = cl._cl._Program(self._context, source)
        with self._lock:
            self.compiled += 1
        try:
            program._build(_OPTIONS, [self._handle])
        except cl.Error as error:
            if error.code != cl.status_code.BUILD_PROGRAM_FAILURE:
                raise DeviceError(f"compiling kernel {name}: {explain(error.code)}") from error
            raise CompileError(
                f"the OpenCL driver refused kernel {name}\n--- log\n{self._log(program)}\n"
                f"--- source\n{source}"
            ) from error
        return program

    def _log(self, program: Any) -> str:
        try:
            log = program.get_build_info(self._handle, cl.program_build_info.LOG)
        except cl.Error as error:
            return f"(none: {error})"
        return str(log).strip()


def make_kernel(program: Any) -> Any:
    """A fresh kernel object of a program that has one kernel."""
    (name,) = str(program.get_info(cl.program_info.KERNEL_NAMES)).split(";")
    return cl.Kernel(program, name)
