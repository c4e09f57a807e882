"""Programs: compiled in parallel, one for each distinct source, kept in memory and on disk.

pyopencl lets other threads run while a driver compiles, so each program is a task of its own;
that also lets models that share a kernel share its binary.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pyopencl as cl
from tflgpu.errors import CompileError, DeviceError
from tflgpu.runtime.parallel import in_parallel

from tflgpu_opencl.binary_cache import BinaryCache, cache_key
from tflgpu_opencl.devices import fingerprint
from tflgpu_opencl.failure import explain

_OPTIONS = b""


class Compiler:
    """Compiles for one device. Safe to use from several threads."""

    def __init__(self, context: Any, handle: Any, cache: BinaryCache) -> None:
        self._context = context
        self._handle = handle
        self._cache = cache
        self._fingerprint = fingerprint(handle)
        self._lock = threading.Lock()
        self._programs: dict[str, Any] = {}
        #: Programs that a driver had to compile, for tests and reports.
        self.compiled = 0

    def compile(self, sources: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Programs by source, for (name of the kernel, source) pairs.

        Raises:
            CompileError: the driver refused one; the message has its log and the source.
        """
        with self._lock:
            wanted = {source: name for name, source in sources if source not in self._programs}
        name = "tflgpu-opencl-compile"
        made = in_parallel(name, self._program, list(wanted.values()), list(wanted))
        with self._lock:
            self._programs.update(zip(wanted, made, strict=True))
            return dict(self._programs)

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._programs.clear()

    def _program(self, name: str, source: str) -> Any:
        key = cache_key(self._fingerprint, _OPTIONS.decode(), source)
        binary = self._cache.load(key)
        if binary is not None:
            program = self._from_binary(binary)
            if program is not None:
                return program
        program = self._from_source(name, source)
        try:
            (binary,) = program.get_info(cl.program_info.BINARIES)
        except (cl.Error, ValueError):
            return program  # a driver without binaries
        if binary:
            self._cache.store(key, binary)
        return program

    def _from_binary(self, binary: bytes) -> Any:
        try:
            program = cl._cl._Program(self._context, [self._handle], [binary])
            program._build(_OPTIONS, [self._handle])
        except cl.Error:
            return None  # the driver has changed in a way that its version does not show
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
