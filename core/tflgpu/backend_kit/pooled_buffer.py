"""Buffers that are a region of some block, for backends whose memory lies in pools."""

from __future__ import annotations

from typing import Any, Generic

from tflgpu.backend_kit.base_buffer import BaseBuffer
from tflgpu.backend_kit.base_device import Released
from tflgpu.backend_kit.heaps import Heaps
from tflgpu.backend_kit.pools import B, PooledRegion
from tflgpu.contract.buffers import Bytes


class PooledBuffer(BaseBuffer, Generic[B]):
    """A `Buffer`. A subclass has `_export`, and ``span`` where others may have the same memory."""

    region: PooledRegion[B]

    def __init__(
        self,
        lock: Any,
        token: object,
        region: PooledRegion[B],
        heaps: Heaps[B],
        owner: Released | None,
        *,
        is_mapped: bool,
    ) -> None:
        """Of the device that has ``lock`` and ``token``.

        Args:
            lock: As `BaseBuffer`'s.
            token: As `BaseBuffer`'s.
            region: All of it.
            heaps: The device's memory.
            owner: What ends with the buffer; None where the memory was imported.
            is_mapped: Whether the host sees the region.
        """
        super().__init__(lock, token, region.nbytes, region)
        self._heaps = heaps
        self._owner = owner
        self._is_mapped = is_mapped

    def _write(self, data: Bytes) -> None:
        if self._is_mapped:
            self.region.bytes[: len(data)] = data
        else:
            self._heaps.upload([self.region], [data])

    def _read(self, nbytes: int) -> Bytes:
        if self._is_mapped:
            return self.region.bytes[:nbytes]
        return self._heaps.download(self.region, nbytes)

    def _release(self) -> None:
        if self._owner is not None:
            self._owner.release()
