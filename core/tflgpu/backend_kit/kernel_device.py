"""The base of devices that print kernels, compile them by a driver and record plans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import attrs

from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.base_device import BaseDevice, releasing_on_error
from tflgpu.backend_kit.kernel_cache import KernelCache
from tflgpu.backend_kit.shared_weights import SharedWeights
from tflgpu.cache.disk_cache import DiskCache, cache_key
from tflgpu.compiler.plan import Plan
from tflgpu.contract.memory_use import MemoryUse
from tflgpu.language.kernel import LANGUAGE_VERSION


class PlanMemory(Protocol):
    """The memory of a plan, laid out before there is any: as `tflgpu.backend_kit.buffer_memory` and
    `tflgpu.backend_kit.pooled_memory` have it."""

    @property
    def footprint(self) -> MemoryUse:
        """What `allocate` takes, where others have none of the constants."""

    def allocate(self, weights: SharedWeights[Any] | None) -> None:
        """Have it, except for the constants that are among ``weights``; all or nothing.

        Raises:
            DeviceError: memory ran out.
        """

    def release(self) -> None:
        """Free everything."""


M = TypeVar("M", bound=PlanMemory)

#: What files are called that say what a device was found to do, and the number of how it was asked:
#: raise it where kernels of a probe are printed otherwise.
_FOUND, _ASKED = ".found", 1


class KernelDevice(BaseDevice, Generic[M]):
    """A `BaseDevice`. A subclass sets ``_kernels``, and ``_disk`` where something is kept; and has
    `_memory`, `_record` and `_fingerprint` in the place of `_load`, besides what `BaseDevice` asks
    for."""

    # With less, PoCL 3.1 and Mesa 22.3 have been seen to abort: they compile by LLVM.
    needs = (768 << 20, 384 << 20)
    _kernels: KernelCache[Any, Any, Any]
    _disk: DiskCache | None = None

    # For subclasses to write

    @abstractmethod
    def _memory(self, plan: Plan, *, guarded: bool = False, ledger: Ledger | None = None) -> M:
        """The memory of a plan, with no memory yet.

        Raises:
            DeviceError: something is larger than the device allows.
        """

    @abstractmethod
    def _record(self, plan: Plan, memory: M) -> Any:
        """Compile, bind and record a plan in memory that was allocated; where it fails, that is
        freed, and nothing else is left."""

    def _fingerprint(self) -> str:
        """Everything that compiled kernels depend on, besides their code, where there is a
        ``_disk``."""
        return ""

    # What users of a device have

    @property
    def compiled(self) -> int:
        """How much the driver was asked to compile for plans so far, caches aside."""
        return self._kernels.compiled

    # What they use

    def _load(self, plan: Plan, *, guard_bands: bool) -> Any:
        memory = self._memory(plan, guarded=guard_bands, ledger=self._account.ledger())
        memory.allocate(self._weights)
        with releasing_on_error(memory):
            return self._record(plan, memory)

    def _footprint(self, plan: Plan) -> MemoryUse:
        return self._memory(plan).footprint

    def _assume(self, **caps: Any) -> None:
        """Have other capabilities from now on: print for these."""
        self.caps = attrs.evolve(self.caps, **caps)

    def _find(self, question: str, ask: Callable[[], int]) -> int:
        """A number that only running kernels tells, which ``ask`` does. Where it is above 0 it is
        kept for as long as the driver stays; 0 may be for lack of memory."""
        asked = f"found {_ASKED}, language {LANGUAGE_VERSION}"
        key = cache_key(asked, self._fingerprint(), question)
        disk = None if self._disk is None else self._disk.beside(_FOUND)
        kept = None if disk is None else disk.load(key)
        if kept is not None:
            return int(kept)
        found = ask()
        if disk is not None and found:
            disk.store(key, b"%d" % found)
        return found

    def _probe_shuffle(self, widest: int) -> None:
        """Find among how many neighbours the device really shuffles; at most among ``widest``."""

        def ask() -> int:
            # Not at the top: it makes kernels, and most devices that are opened need none.
            from tflgpu.backend_kit.subgroup_probe import probe_shuffle

            self._assume(subgroup_shuffle=widest)
            return probe_shuffle(self, widest)

        self._assume(subgroup_shuffle=self._find(f"shuffle {widest}", ask) if widest >= 2 else 0)
        self._kernels.compiled = 0  # what was tried is no plan's
