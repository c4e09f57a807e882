"""Programs: compiled in parallel, one for each distinct source. The last of them are kept in memory
and, where the driver does not do so itself, on disk.

pyopencl lets other threads run while a driver compiles, so each program is a task of its own;
that also lets models that share a kernel share its binary. PoCL's are joined, and NVIDIA's are
compiled by processes of their own (`tflgpu_opencl.workers`).
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Protocol

import attrs
import pyopencl as cl
from tflgpu.backend_kit.joined_kernels import Joined, JoinedKernels, Opening
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.errors import CompileError, DeviceError
from tflgpu.language.kernel import Kernel

from tflgpu_opencl.devices import fingerprint, vendor_of
from tflgpu_opencl.failure import failure
from tflgpu_opencl.native import RawKernel
from tflgpu_opencl.workers import Workers

#: Vendors whose drivers keep programs themselves, by their source. PoCL's binaries are archives of
#: its own cache's folders. While two processes build one program, its file there goes away and
#: comes back, and a binary that is made in between lacks it: every process that loads that one is
#: ended by PoCL. With its own cache alone a warm start takes a little longer, and a cold one less,
#: since no binaries are made.
_HAVE_THEIR_OWN = frozenset({"pocl"})

#: Vendors whose compilers have a lock on most of their work: threads compile ResNet-50's 29
#: programs no faster than one does.
_SERIAL = frozenset({"nvidia"})


class Dialect(Protocol):
    """What prints kernels."""

    def source(self, kernel: Kernel) -> str:
        """The program text of one kernel."""


@attrs.frozen(eq=False)
class Entry:
    """A kernel in a program that was built.

    Attributes:
        program: The program.
        name: The kernel's name in it, None where it has no other.
    """

    program: Any
    name: str | None = None

    def make_kernel(self) -> RawKernel:
        """A new kernel object, which is not shared."""
        return RawKernel(self.program, self.name or _names(self.program))


class Compiler(JoinedKernels[Dialect, Entry]):
    """Programs by source, for one device. PoCL's take about a megabyte each."""

    thread_name = "tflgpu-opencl-compile"
    opening = Opening(
        "__kernel",
        re.compile(r"^(__kernel __attribute__\(\(.*\)\)\nvoid )(\w+)\($", re.MULTILINE),
    )
    refusals = (cl.Error, ValueError)

    def __init__(
        self,
        context: Any,
        handle: Any,
        cache: DiskCache,
        *,
        keep: bool | None = None,
    ) -> None:
        """``keep`` is whether binaries are kept, None for where the driver keeps none itself."""
        self._shares_its_own = vendor_of(handle) in _HAVE_THEIR_OWN
        keep = not self._shares_its_own if keep is None else keep
        super().__init__(cache, fingerprint(handle), keep=keep)
        self.context = context
        self._handle = handle
        self._is_serial = vendor_of(handle) in _SERIAL
        self._workers = Workers(handle, cache)
        self._loaded: dict[str, bytes] = {}  # binaries that processes made, by their text

    def start_workers(self) -> None:
        """Start the processes that compile, where a driver gains by that. They end by themselves
        when nothing more comes."""
        if self._is_serial:
            self._workers.start()

    def end_workers(self) -> None:
        """End the processes that compile, for good."""
        self._workers.kill()

    def begin(self, kernel: Kernel, dialect: Dialect) -> None:
        """Have a process compile a kernel that `get` will ask for, where a driver gains by that."""
        if self._is_serial and not self._lock.locked():  # of a `get`, which would be waited for
            source = self.code(kernel, dialect)
            if source not in self._made and not self._cache.path(self._key(source)).exists():
                self._workers.begin(source)

    def _write(self, kernel: Kernel, dialect: Dialect) -> str:
        return dialect.source(kernel)

    def _joins(self) -> bool:
        return self._shares_its_own and not self._keeps

    def _from_joined(self, joined: Joined) -> dict[str, Entry]:
        names = ", ".join(joined.entries.values())
        program = self._built(names, joined.text, kernels=len(joined.entries))
        return {source: Entry(program, name) for source, name in joined.entries.items()}

    def _compile(self, items: list[tuple[Kernel, str]]) -> None:
        for _, source in items if self._is_serial else ():
            self._workers.begin(source)
        super()._compile(items)
        self._workers.report()

    def _from_source(self, kernel: Kernel, source: str) -> Entry:
        with self._workers.binary(source) as (binary, why):
            if binary:
                try:
                    with self._proof() as is_safe:
                        if is_safe:
                            made = self._from_binary(binary)
                            self._loaded[source] = binary
                            self.count()
                            return made
                except self.refusals as error:
                    self._workers.report(f"its binary of {kernel.name} is refused: {error}")
            made = self._here(kernel, source)
            self._workers.report(why)
            return made

    def _prove(self, source: str, made: Entry) -> None:
        binary = self._loaded.pop(source, None)
        if binary is None:
            super()._prove(source, made)
        elif self._keeps:  # it was loaded just now, which would take as long again
            self._store(source, self._describe(made), binary)

    def _proof(self) -> contextlib.AbstractContextManager[bool]:
        if self._cache.is_unsafe(self._maker):
            return contextlib.nullcontext(False)
        return self._cache.reading([self._maker], "proof")

    def _here(self, kernel: Kernel, source: str) -> Entry:
        try:
            return Entry(self._built(kernel.name, source))
        except (CompileError, DeviceError):
            # A process that uses the driver's cache without us may be writing this program.
            if not self._shares_its_own:
                raise
            return Entry(self._built(kernel.name, source))

    def _from_binary(self, binary: bytes) -> Entry:
        program = cl._cl._Program(self.context, [self._handle], [binary])
        program._build(b"", [self._handle])
        return Entry(program)

    def _binary_of(self, made: Entry) -> bytes:
        (binary,) = made.program.get_info(cl.program_info.BINARIES)
        return bytes(binary)

    def _describe(self, made: Entry) -> bytes:
        info = cl.kernel_work_group_info
        parts = []
        for name in sorted(_names(made.program).split(";")):
            kernel = Entry(made.program, name).make_kernel()
            sizes = [
                kernel.get_work_group_info(what, self._handle)
                for what in (info.WORK_GROUP_SIZE, info.COMPILE_WORK_GROUP_SIZE)
            ]
            parts.append(f"{name} {kernel.num_args} {sizes}")
        return "\n".join(parts).encode()

    def _built(self, name: str, source: str, kernels: int = 1) -> Any:
        # The class beneath cl.Program: that one has a disk cache of its own, which leaves
        # sources that do not compile behind in the folder for temporary files.
        program = cl._cl._Program(self.context, source)
        for _ in range(kernels):
            self.count()
        try:
            program._build(b"", [self._handle])
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


def _names(program: Any) -> str:
    return str(program.get_info(cl.program_info.KERNEL_NAMES))
