"""Processes that compile programs at the same time, for drivers whose compiler has a lock on most
of its work.

On an H200 (driver 580.159, 16 processors) a first start of ResNet-50 with nothing cached took 5.1 s
behind the imports with eight processes, and 9.8 s with none (benchmarks/results/large_h200.md).

Contexts are made one after another: while eight processes started, the last probe of a device took
1.1 s for 0.2. So they start behind the probes, while Python compiles the model's graph.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyopencl as cl
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.cache.file_lock import exclusive
from tflgpu.errors.blame import LOG

from tflgpu_opencl import compile_worker

#: Processes at most, and programs from which on one more is worth its start, a third of a second.
MOST, PROGRAMS_EACH = 8, 3
#: Seconds after which a process ends to which nothing comes.
PATIENCE = 8.0
#: Seconds that one may take to start, or for a program.
LONGEST = 60.0
#: Bytes of the device's memory for each process: its context takes some hundred megabytes.
_MEMORY_EACH = 4 << 30


class Worker:
    """A process that compiles. It ends when it is closed, and with this process."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Start it.

        Raises:
            OSError: that is not possible.
        """
        command = [sys.executable, "-I", "-S", compile_worker.__file__, *arguments]
        self._process = subprocess.Popen(  # noqa: S603  (this Python, with a program of our own)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._reading = threading.Lock()
        self._is_closed = False
        self._said = ""

    def binary(self, source: str) -> bytes:
        """A program's binary; empty where `fault` tells why."""
        # The process ends by itself where something takes so long, unless it does not run at all.
        limit = threading.Timer(2 * LONGEST, self._give_up)
        limit.daemon = True
        limit.start()
        try:
            with contextlib.suppress(OSError, ValueError):
                assert self._process.stdin is not None
                compile_worker.send(self._process.stdin, source.encode())
            kind, content = self._answer()
            if kind not in (compile_worker.MADE, compile_worker.REFUSED):
                self._process.wait()  # its output has ended
        finally:
            limit.cancel()
        return content if kind == compile_worker.MADE else b""

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def fault(self) -> str:
        """Why it gave no binary, or ended; "" where it was closed, or had nothing to do."""
        code = self._process.poll()
        if code and not (self._is_closed or self._said):
            self._answer()  # it may have ended before it was asked for anything
            self._said = self._said or f"exit code {code}"
        return self._said

    def kill(self) -> None:
        """Have it end; `wait` follows."""
        self._is_closed = True
        self._process.kill()

    def wait(self) -> None:
        """Wait for its end. A driver takes some tenths of a second to let go of its context."""
        self._process.wait()
        self._answer()  # what it said at its end, if that was not read
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _answer(self) -> tuple[bytes, bytes]:
        answer = None
        with self._reading, contextlib.suppress(OSError, ValueError):
            assert self._process.stdout is not None
            answer = compile_worker.receive(self._process.stdout)
            if answer and answer[:1] != compile_worker.MADE:
                self._said = answer[1:].decode(errors="replace")
        return (answer[:1], answer[1:]) if answer else (b"", b"")

    def _give_up(self) -> None:
        self._said = f"no answer within {2 * LONGEST:g} s"
        self._process.kill()


class Workers:
    """Some processes, and a place to compile in this one, each for one program at a time. A process
    ends by itself where nothing comes to it; programs are compiled here then."""

    def __init__(self, handle: Any, programs: int, cache: DiskCache) -> None:
        """Start as many processes as so many programs are worth; none while another process has
        some for this ``cache``, since each takes memory of the device."""
        self._every: list[Worker] = []
        self._fault, self._is_told = "", False
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        self._free.put(None)
        arguments, count = _arguments(handle), _count(handle, programs)
        if not (arguments and count):
            return
        alone = contextlib.ExitStack()
        if not alone.enter_context(exclusive(lock_of(cache), 0.0)):
            try:
                while len(self._every) < count:
                    self._every.append(Worker(arguments))
            except OSError as error:
                self._fault = f"it cannot be started: {error}"
        for worker in self._every:
            self._free.put(worker)
        every = self._every
        threading.Thread(
            target=_wait, args=(every, alone), name="tflgpu-opencl-workers", daemon=True
        ).start()

    @property
    def are_there(self) -> bool:
        """Whether one of the processes has not ended."""
        return any(worker.is_there for worker in self._every)

    def report(self, fault: str = "") -> None:
        """Say, once, where one of them did not give what it was started for."""
        faults = (fault, self._fault, *(worker.fault for worker in self._every))
        if not self._is_told and (fault := next(filter(None, faults), "")):
            self._is_told = True
            LOG.warning("a process that compiles OpenCL programs beside this one fails: %s", fault)

    @contextlib.contextmanager
    def one(self) -> Iterator[Worker | None]:
        """One that is free; None for this process. Waits until there is one. A process that has
        ended does not come again."""
        found = self._free.get()
        try:
            yield found
        finally:
            if found is None or found.is_there:
                self._free.put(found)

    def kill(self) -> None:
        """Have them end. They are waited for in a thread."""
        for worker in self._every:
            worker.kill()


def lock_of(cache: DiskCache) -> Path:
    """What a process holds while it has workers. No other lock of the cache is in the same file."""
    return cache.path("workers").with_suffix(".lock")


def _wait(every: Sequence[Worker], alone: contextlib.ExitStack) -> None:
    with alone:
        for worker in every:
            worker.wait()


def _count(handle: Any, programs: int) -> int:
    memory = int(handle.global_mem_size) // _MEMORY_EACH
    return max(0, min(MOST, programs // PROGRAMS_EACH, memory, usable_cpus() // 2))


def usable_cpus() -> int:
    """Processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def _arguments(handle: Any) -> list[str]:
    """Of a worker for a device; none where Python cannot be started again: an application that
    Python is embedded in is no interpreter."""
    if not Path(sys.executable or "").name.startswith("python"):
        return []
    for at, platform in enumerate(cl.get_platforms()):
        if platform == handle.platform:
            place = platform.get_devices().index(handle)
            name, driver = handle.name.strip(), handle.driver_version.strip()
            return [cl._cl.__file__, str(at), str(place), name, driver, str(PATIENCE), str(LONGEST)]
    return []
