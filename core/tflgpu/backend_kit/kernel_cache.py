"""A cache in memory of the programs that an API compiled from kernels."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tflgpu.backend_kit.parallel import in_parallel, threads
from tflgpu.backend_kit.progress import Count

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel

#: Results that are kept. Those in use live on in their recordings.
KEPT = 256

C = TypeVar("C")
T = TypeVar("T")
W = TypeVar("W")


class KernelCache(ABC, Generic[W, C, T]):
    """Compiled kernels of one device. Safe to use from several threads.

    A kernel is asked for together with a way, which is what else its code depends on (how buffers
    are bound, guard bands). `_write` makes the code of the two, and `_make` compiles it. Equal code
    is compiled once, and the code of a kernel is kept as long as the kernel lives. A driver
    compiles the first while the next are being written.
    """

    #: What the threads are called that compile.
    thread_name = "tflgpu-compile"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[C, T] = {}
        self._written: weakref.WeakKeyDictionary[Kernel, dict[W, C]] = weakref.WeakKeyDictionary()
        self._counting = threading.Lock()
        self._progress: Count | None = None
        self._ahead: ThreadPoolExecutor | None = None
        self._begun: dict[C, Future[T]] = {}  # by threads of that, and not asked for yet
        #: How much a driver was asked to compile so far, for tests and reports.
        self.compiled = 0

    # For subclasses to write

    @abstractmethod
    def _write(self, kernel: Kernel, way: W) -> C:
        """The code. Called by one thread at a time.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """

    @abstractmethod
    def _make(self, kernel: Kernel, code: C) -> T:
        """Compile, and `count` it. Called by several threads at a time, and not twice for equal
        code.

        Raises:
            CompileError: the driver refused the kernel; the message has its log and its text.
        """

    def _make_ahead(self, kernel: Kernel, code: C) -> T:
        """`_make` of what was begun, before `_make_all`."""
        return self._make(kernel, code)

    def _make_all(self, items: Iterator[tuple[Kernel, C]]) -> None:
        """Compile what comes, and `keep` each."""
        in_parallel(self.thread_name, lambda item: self.make(*item), items)

    def _forget(self, made: T) -> None:
        """It is not kept any more; recordings may have it still."""

    # What they use

    def make(self, kernel: Kernel, code: C) -> None:
        """Compile, and `keep`."""
        begun = self._begun.pop(code, None)
        self.keep(code, self._make(kernel, code) if begun is None else begun.result())

    def keep(self, code: C, made: T) -> None:
        """Have ``made`` for that code. At once, so that `clear` finds it where a signal ends the
        compiling of others."""
        self._made[code] = made
        if self._progress is not None:
            self._progress.one_more()

    def count(self) -> None:
        """A driver is asked to compile something."""
        with self._counting:
            self.compiled += 1

    # What devices use

    def begin(self, kernel: Kernel, way: W) -> None:
        """Begin to compile a kernel that `get` will ask for, in a thread, and return at once.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """
        if self._lock.locked():  # by a `get`, which would be waited for
            return
        with self._lock:
            code = self._known(kernel, way)
            if code not in self._made and code not in self._begun:
                if self._ahead is None:
                    self._ahead = threads(self.thread_name)
                self._begun[code] = self._ahead.submit(self._make_ahead, kernel, code)

    def get(self, asked: Iterable[tuple[Kernel, W]]) -> dict[tuple[Kernel, W], T]:
        """What was compiled of each kernel, in each way.

        Raises:
            KernelError: a kernel needs what the device lacks.
            CompileError: the driver refused one; the message has its log and its text.
        """
        jobs = list(dict.fromkeys(asked))
        with self._lock:
            for code in list(self._made)[:-KEPT]:  # the oldest
                self._forget(self._made.pop(code))
            codes: dict[tuple[Kernel, W], C] = {}
            for kernel, way in jobs:
                written = self._written.get(kernel, {})
                if way in written and written[way] in self._made:
                    codes[kernel, way] = written[way]
            new = [job for job in jobs if job not in codes]

            def wanted() -> Iterator[tuple[Kernel, C]]:
                begun = set(self._made)
                for kernel, way in new:
                    code = codes[kernel, way] = self._known(kernel, way)
                    if code not in begun:
                        begun.add(code)
                        yield kernel, code

            if new:
                self._progress = Count(len(new))
                try:
                    self._make_all(wanted())
                    self._progress.end()
                finally:
                    self._progress = None
                    self._end_threads()
            return {job: self._made[codes[job]] for job in jobs}

    def code(self, kernel: Kernel, way: W) -> C:
        """The code of a kernel, which is not compiled.

        Raises:
            KernelError: the kernel needs what the device lacks.
        """
        with self._lock:
            return self._known(kernel, way)

    def use(self, kernel: Kernel, way: W, code: C) -> None:
        """Take ``code`` for that of a kernel, which is not printed then."""
        with self._lock:
            self._written.setdefault(kernel, {}).setdefault(way, code)

    def _known(self, kernel: Kernel, way: W) -> C:
        known = self._written.setdefault(kernel, {})
        if way not in known:
            known[way] = self._write(kernel, way)
        return known[way]

    def _end_threads(self) -> None:
        """Those that compile ahead end with what they have begun."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.shutdown(wait=False)

    def clear(self) -> None:
        """Forget everything that was written and compiled, when no thread compiles any more."""
        with self._lock:
            self._end_threads()
            while self._begun:
                begun = self._begun.popitem()[1]
                if not begun.cancel() and begun.exception() is None:
                    self._forget(begun.result())
            self._written.clear()
            while self._made:  # each leaves before it is forgotten: a signal may end this
                self._forget(self._made.popitem()[1])


class OwnedKernels(KernelCache[W, C, T]):
    """For APIs that count no references: what is forgotten is destroyed when no recording has it
    any more. A subclass has `_destroy` besides."""

    def __init__(self) -> None:
        super().__init__()
        self._forgotten: list[tuple[weakref.ref[T], Any]] = []  # with their handles

    @abstractmethod
    def _destroy(self, handle: Any) -> None:
        """Release what `_handle_of` gave."""

    @abstractmethod
    def _handle_of(self, made: T) -> Any:
        """What the API knows it by."""

    def _forget(self, made: T) -> None:
        self._forgotten.append((weakref.ref(made), self._handle_of(made)))

    def _make_all(self, items: Iterator[tuple[Kernel, C]]) -> None:
        self._destroy_forgotten(lambda made: made is None)
        super()._make_all(items)

    def destroy(self) -> None:
        """Forget and destroy everything; nothing may be running."""
        self.clear()
        with self._lock:
            self._destroy_forgotten(lambda made: True)

    def _destroy_forgotten(self, ends: Callable[[T | None], bool]) -> None:
        # Each leaves the list first: a signal may end this, and it is called again.
        for entry in [e for e in self._forgotten if ends(e[0]())]:
            self._forgotten.remove(entry)
            self._destroy(entry[1])
