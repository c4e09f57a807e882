"""Programs: compiled in parallel, one for each distinct source. The last of them are kept in memory
and, where the driver does not do so itself, on disk.

pyopencl lets other threads run while a driver compiles, so each program is a task of its own;
that also lets models that share a kernel share its binary. PoCL's are joined (`joined`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import attrs
import pyopencl as cl
from tflgpu.contract.kernel_cache import KernelCache
from tflgpu.contract.parallel import in_parallel
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
from tflgpu_opencl.failure import failure
from tflgpu_opencl.joined import Joined, join

_OPTIONS = b""


class Dialect(Protocol):
    """What prints kernels."""

    def source(self, kernel: Kernel) -> str:
        """The program text of one kernel."""
        ...


@attrs.frozen(eq=False)
class Entry:
    """A kernel in a program that was built.

    Attributes:
        program: The program.
        name: The kernel's name in it, None where it has no other.
    """

    program: Any
    name: str | None = None

    def make_kernel(self) -> Any:
        """A fresh kernel object."""
        name = self.name or str(self.program.get_info(cl.program_info.KERNEL_NAMES))
        return cl.Kernel(self.program, name)


class Compiler(KernelCache[Dialect, str, Entry]):
    """Programs by source, for one device. PoCL's take about a megabyte each."""

    thread_name = THREADS

    def __init__(
        self,
        context: Any,
        handle: Any,
        cache: BinaryCache,
        *,
        keep: bool | None = None,
    ) -> None:
        """``keep`` is whether binaries are kept, None for where the driver keeps none itself."""
        super().__init__()
        self._context = context
        self._handle = handle
        self._cache = cache
        self._fingerprint = fingerprint(handle)
        self._shares_its_own = keeps_programs(vendor_of(handle))
        if keep is None:
            keep = not self._shares_its_own
        maker = cache_key(self._fingerprint)
        self._binaries = Binaries(cache, handle, maker, self._from_binary) if keep else None

    def _write(self, kernel: Kernel, dialect: Dialect) -> str:
        return dialect.source(kernel)

    def _make_all(self, items: Iterator[tuple[Kernel, str]]) -> None:
        if self._shares_its_own and self._binaries is None:
            self._make_joined({source: kernel for kernel, source in items})
            return
        if self._binaries is None:
            super()._make_all(items)
            return
        # Binaries are looked up all at once, before any program is compiled.
        wanted = {source: kernel for kernel, source in items}
        for source, program in self._kept(wanted).items():
            self.keep(source, Entry(program))
            del wanted[source]
        rest = [(kernel, source) for source, kernel in wanted.items()]
        in_parallel(self.thread_name, lambda item: self.make(*item), rest)

    def _make_joined(self, kernels: dict[str, Kernel]) -> None:
        programs, alone = join(kernels)

        def build(sources: Joined | str) -> None:
            if isinstance(sources, str):
                self.make(kernels[sources], sources)
                return
            try:
                self._keep_joined(sources)
            except (CompileError, DeviceError):  # each on its own says which one is at fault
                for source in sources.entries:
                    self.make(kernels[source], source)

        in_parallel(self.thread_name, build, [*programs, *alone])

    def _keep_joined(self, joined: Joined) -> None:
        with self._cache.building(self._key(joined.text)):
            names = ", ".join(joined.entries.values())
            program = self._from_source(names, joined.text, kernels=len(joined.entries))
        for source, name in joined.entries.items():
            self.keep(source, Entry(program, name))

    def _key(self, source: str) -> str:
        return cache_key(self._fingerprint, _OPTIONS.decode(), source)

    def _kept(self, sources: Iterable[str]) -> dict[str, Any]:
        """Programs by source, of those that are on disk."""
        keys = {self._key(source): source for source in sources} if self._binaries else {}
        if self._binaries is None or not keys:
            return {}
        return {keys[key]: program for key, program in self._binaries.load(list(keys)).items()}

    def _make(self, kernel: Kernel, source: str) -> Entry:
        key = self._key(source)
        # Of processes that start together each would compile every program.
        with self._cache.building(key) as waited:
            if waited and (made := self._kept([source])):
                return Entry(made[source])
            try:
                program = self._from_source(kernel.name, source)
            except (CompileError, DeviceError):
                # A process that uses the driver's cache without us may be writing this program.
                if not self._shares_its_own:
                    raise
                program = self._from_source(kernel.name, source)
            if self._binaries is not None:
                self._binaries.keep(key, program)
        return Entry(program)

    def _from_binary(self, binary: bytes) -> Any:
        program = cl._cl._Program(self._context, [self._handle], [binary])
        program._build(_OPTIONS, [self._handle])
        return program

    def _from_source(self, name: str, source: str, kernels: int = 1) -> Any:
        # The class beneath cl.Program: that one has a disk cache of its own, which leaves
        # sources that do not compile behind in the folder for temporary files.
        program = cl._cl._Program(self._context, source)
        for _ in range(kernels):
            self.count()
        try:
            program._build(_OPTIONS, [self._handle])
        except cl.Error as error:
            if error.code != cl.status_code.BUILD_PROGRAM_FAILURE:
                raise failure(f"compiling kernel {name}", error.code) from error
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
