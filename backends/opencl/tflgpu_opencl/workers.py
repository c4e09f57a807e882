"""Processes that compile programs at the same time, for drivers whose compiler has a lock on most
of its work.

On an H200 (driver 580.159, 16 processors) a first start of ResNet-50 with nothing cached took 9.8 s
with none. With eight, loading its plan waited 1.2 and 1.4 s for programs where they were begun when
all kernels were written, and 0.1 and 0.6 s where each is begun when there is its kernel
(benchmarks/results/large_h200.md).

Contexts are made one after another: while eight processes started, the last probe of a device took
1.1 s for 0.2. So they start behind the probes, while Python compiles the model's graph.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyopencl as cl
from tflgpu.backend_kit.kernel_cache import KEPT
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
THREAD_NAME = "tflgpu-opencl-worker"
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
        #: Why its last answer was none.
        self.why = ""

    def binary(self, source: str) -> bytes:
        """A program's binary; empty where `why` tells why."""
        # The process ends by itself where something takes so long, unless it does not run at all.
        self.why = ""
        limit = threading.Timer(2 * LONGEST, self._give_up)
        limit.daemon = True
        limit.start()
        try:
            with contextlib.suppress(OSError, ValueError):
                assert self._process.stdin is not None
                compile_worker.send(self._process.stdin, source.encode())
            kind, content = self._answer()
            if kind == compile_worker.MADE:
                return content
            if kind != compile_worker.REFUSED:
                self._process.wait()  # its output has ended
            self.why = self.fault or content.decode(errors="replace")
            return b""
        finally:
            limit.cancel()

    @property
    def is_there(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def fault(self) -> str:
        """Why it ended; "" where it has not, was closed, or had nothing to do."""
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
            if answer and answer[:1] == compile_worker.ENDS:
                self._said = answer[1:].decode(errors="replace")
        return (answer[:1], answer[1:]) if answer else (b"", b"")

    def _give_up(self) -> None:
        self._said = f"no answer within {2 * LONGEST:g} s"
        self._process.kill()


class Workers:
    """Processes that compile programs in the order in which these were begun, each with a thread
    that hands it one at a time. A process ends where nothing comes to it; a program that none has
    come to is compiled here."""

    def __init__(self, handle: Any, cache: DiskCache) -> None:
        """Of a device, with no process yet. While another process has some for the same ``cache``
        this one gets none, since each takes memory of the device."""
        self._handle, self._lock_file = handle, lock_of(cache)
        self._changed = threading.Condition()
        self._alone = contextlib.ExitStack()
        self._every: list[Worker] = []
        self._waiting: dict[str, None] = {}  # in order
        self._running: set[str] = set()
        self._found: dict[str, tuple[bytes, str]] = {}
        self._here = 0  # how many are compiled in this process that a process could compile
        self._are_ready = self._is_over = self._is_told = False
        self._fault = ""

    def start(self, programs: int = sys.maxsize) -> None:
        """Have as many processes as so many programs are worth."""
        with self._changed:
            while len(self._every) < _count(self._handle, programs) and self._may_start():
                try:
                    worker = Worker(self._arguments)
                    serve = partial(self._serve, worker)
                    threading.Thread(target=serve, name=THREAD_NAME, daemon=True).start()
                except (OSError, RuntimeError) as error:  # no process, or no thread; it ends unused
                    self._fault = f"it cannot be started: {error}"
                    break
                self._every.append(worker)

    def begin(self, source: str) -> None:
        """Have a program compiled, by one more process where so many are waited for."""
        with self._changed:
            if source in self._waiting or source in self._running or source in self._found:
                return
            self._waiting[source] = None
            self.start(len(self._waiting) + len(self._running))
            self._changed.notify_all()

    def report(self, fault: str = "") -> None:
        """Say, once, where one of them did not give what it was started for."""
        fault = fault or self._fault
        if fault and not self._is_told:
            self._is_told = True
            LOG.warning("a process that compiles OpenCL programs beside this one fails: %s", fault)

    @contextlib.contextmanager
    def binary(self, source: str) -> Iterator[tuple[bytes, str]]:
        """A program's binary; empty where it is to be compiled here, and why, if a process failed.
        While processes start that is one place more, for one program at a time that none has come
        to. Later it is none: the driver's lock would keep binaries from being loaded."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: not self._is_elsewhere(source), 4 * LONGEST)
            late = "" if in_time else f"no program within {4 * LONGEST:g} s"
            is_left = source in self._waiting
            if is_left:
                del self._waiting[source]
                self._here += 1
            found = self._found.pop(source, (b"", late))
        try:
            yield found
        finally:
            if is_left:
                with self._changed:
                    self._here -= 1
                    self._changed.notify_all()

    def kill(self) -> None:
        """Have them end, for good. They are waited for by their threads."""
        with self._changed:
            self._is_over = True
            for worker in self._every:
                worker.kill()
            self._changed.notify_all()

    # Inside

    @cached_property
    def _arguments(self) -> list[str]:
        return _arguments(self._handle)

    def _is_elsewhere(self, source: str) -> bool:
        """Whether a process compiles it, or is to come to it."""
        is_next = source in self._waiting and (self._here or self._are_ready)
        return source in self._running or bool(is_next and self._every)

    def _may_start(self) -> bool:
        if self._is_over or self._fault or not self._arguments:
            return False
        if not self._every:
            self._alone.close()  # where a signal ended the start of the first
            if self._alone.enter_context(exclusive(self._lock_file, 0.0)):
                self._alone.close()
                return False
        return True

    def _serve(self, worker: Worker) -> None:
        source = ""
        try:
            while worker.is_there and (source := self._next()):
                found = worker.binary(source), worker.why
                with self._changed:
                    self._running.remove(source)
                    self._found[source] = found
                    if len(self._found) > KEPT:  # of kernels that no plan has come to have
                        del self._found[next(iter(self._found))]
                    self._are_ready |= bool(found[0])
                    self._changed.notify_all()
        finally:
            self._fault = self._fault or worker.fault
            worker.kill()
            worker.wait()
            with self._changed:
                self._running.discard(source)
                self._every.remove(worker)
                if not self._every:
                    self._are_ready = False
                    self._alone.close()
                self._changed.notify_all()

    def _next(self) -> str:
        """The program that has waited for longest, which runs now; "" at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over, PATIENCE)
            source = "" if self._is_over else next(iter(self._waiting), "")
            if source:
                del self._waiting[source]
                self._running.add(source)
            return source


def lock_of(cache: DiskCache) -> Path:
    """What a process holds while it has workers. No other lock of the cache is in the same file."""
    return cache.path("workers").with_suffix(".lock")


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
