"""Compiled kernels that outlive the process, for APIs that return a program's binary and accept it
again (OpenCL, CUDA, Level Zero)."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from tflgpu.backend_kit.kernel_cache import KernelCache, W
from tflgpu.backend_kit.parallel import in_parallel
from tflgpu.cache.disk_cache import DiskCache, cache_key

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel

P = TypeVar("P")


class KeptKernels(KernelCache[W, str, P]):
    """A `KernelCache` with binaries on disk, by the text that they were made of.

    A driver may refuse a bad binary, take it and have other kernels in it, or end the process; all
    three are tried before a binary is kept, and each time it is loaded. A subclass has `_write`,
    and `_from_source`, `_from_binary`, `_binary_of` and `_describe`, which stand for the API.
    """

    #: What the API raises where it does not take a binary, or has none to give.
    refusals: tuple[type[Exception], ...] = (ValueError,)

    def __init__(self, cache: DiskCache, fingerprint: str, *, keep: bool) -> None:
        """Look up and keep binaries of one device.

        Args:
            cache: Where they are kept.
            fingerprint: Everything that a binary depends on, besides its text.
            keep: Whether they are at all. Processes wait for each other's compiling in any case.
        """
        super().__init__()
        self._cache = cache
        self._fingerprint = fingerprint
        self._keeps = keep
        # One that dies of a binary of its own would die of the next as well.
        self._maker = cache_key(fingerprint)

    # For subclasses to write

    @abstractmethod
    def _from_source(self, kernel: Kernel, source: str) -> P:
        """Compile, and `count` it.

        Raises:
            CompileError: the driver refused the kernel; the message has its log and its text.
        """

    @abstractmethod
    def _from_binary(self, binary: bytes) -> P:
        """What was compiled once; raises one of `refusals`."""

    @abstractmethod
    def _binary_of(self, made: P) -> bytes:
        """What gives it back; raises one of `refusals`."""

    @abstractmethod
    def _describe(self, made: P) -> bytes:
        """What everything that was made of one text has in common: kernels, arguments, sizes."""

    # Inside

    def _make_all(self, items: Iterator[tuple[Kernel, str]]) -> None:
        if not self._keeps:
            super()._make_all(items)
            return
        # Binaries are looked up all at once, before anything is compiled.
        wanted = {source: kernel for kernel, source in items}
        for source, made in self._kept(list(wanted)).items():
            self.keep(source, made)
            del wanted[source]
        self._compile([(kernel, source) for source, kernel in wanted.items()])

    def _compile(self, items: list[tuple[Kernel, str]]) -> None:
        """Make, and `keep`, what is not on disk."""
        in_parallel(self.thread_name, lambda item: self.make(*item), items)

    def _make(self, kernel: Kernel, source: str) -> P:
        # Of processes that start together each would compile everything. Another may have made it
        # since it was looked up, and be done before the lock is asked for.
        with self._building(source):
            if kept := self._kept([source]):
                return kept[source]
            made = self._from_source(kernel, source)
            self._prove(source, made)
        return made

    def _building(self, source: str) -> contextlib.AbstractContextManager[bool]:
        return self._cache.building(self._key(source))

    def _key(self, source: str) -> str:
        return cache_key(self._fingerprint, "", source)

    def _kept(self, sources: list[str]) -> dict[str, P]:
        """What is on disk and can be used, by text."""
        if not (self._keeps and sources):
            return {}
        self._cache.sweep()
        keys = {self._key(source): source for source in sources}
        found = self._cache.load_all(keys)
        with self._cache.reading(list(found)) as is_safe:
            if not is_safe:
                return {}
            made = in_parallel(self.thread_name, self._open, list(found.items()))
        return {keys[key]: each for key, each in zip(found, made, strict=True) if each is not None}

    def _open(self, entry: tuple[str, bytes]) -> P | None:
        key, data = entry
        end = 4 + int.from_bytes(data[:4], "little")
        try:
            made = self._from_binary(data[end:])
            if self._describe(made) == data[4:end]:
                return made
            why = "its kernels are others"
        except self.refusals as error:
            # The driver has changed in a way that its version does not show.
            why = f"the driver refuses it ({error})"
        self._cache.drop(key, why)
        return None

    def _prove(self, source: str, made: P) -> None:
        """Keep what was made of a text, if its binary gives the same."""
        if not self._keeps or self._cache.is_unsafe(self._maker):
            return
        # Suppressed: a driver without binaries, or that cannot read its own.
        reading = self._cache.reading([self._maker], "proof")
        with contextlib.suppress(*self.refusals), reading as is_safe:
            if is_safe:
                binary, about = self._binary_of(made), self._describe(made)
                if binary and self._describe(self._from_binary(binary)) == about:
                    self._store(source, about, binary)

    def _store(self, source: str, about: bytes, binary: bytes) -> None:
        self._cache.store(self._key(source), len(about).to_bytes(4, "little") + about + binary)
