"""cpu_ref's kernel interpreter, watched: what crosses to its buffers, and runs that fail when told
to."""

from __future__ import annotations

from typing import Any

import pytest


class WatchedDevice:
    """Counts until ``patch`` is undone.

    Attributes:
        runs, loads: Of recordings, those that failed too, and of plans, without those that failed.
        opened: Devices that were opened.
        reads, writes: Of buffers.
        fails, fails_to_load: What the next runs and loads raise, the last one first.
        half_written: Memory in which a run that fails leaves something.
        unreadable: What reading any buffer raises.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from tflgpu_cpu_ref.device import CpuRefDevice
        from tflgpu_cpu_ref.memory import HostBuffer
        from tflgpu_cpu_ref.recording import CpuRefRecording

        self.fails: list[BaseException] = []
        self.fails_to_load: list[BaseException] = []
        self.unreadable: Exception | None = None
        self.half_written: Any = None
        self.reads = self.writes = self.runs = self.loads = self.opened = 0
        run, load, init = CpuRefRecording._run, CpuRefDevice._load, CpuRefDevice.__init__
        read, write = HostBuffer._read, HostBuffer._write

        def _run(recording: Any) -> None:
            self.runs += 1
            if self.fails:
                if self.half_written is not None:
                    self.half_written.bytes[:] = 7
                raise self.fails.pop()
            run(recording)

        def _init(device: Any, *args: Any) -> None:
            self.opened += 1
            init(device, *args)

        def _load(*args: Any, **kwargs: Any) -> Any:
            if self.fails_to_load:
                raise self.fails_to_load.pop()
            self.loads += 1
            return load(*args, **kwargs)

        def _read(buffer: Any, nbytes: int) -> Any:
            self.reads += 1
            if self.unreadable is not None:
                raise self.unreadable
            return read(buffer, nbytes)

        def _write(buffer: Any, data: Any) -> None:
            self.writes += 1
            write(buffer, data)

        patch.setattr(CpuRefRecording, "_run", _run)
        patch.setattr(CpuRefDevice, "__init__", _init)
        patch.setattr(CpuRefDevice, "_load", _load)
        patch.setattr(HostBuffer, "_read", _read)
        patch.setattr(HostBuffer, "_write", _write)

    @property
    def moved(self) -> tuple[int, int]:
        """Writes and reads of buffers."""
        return self.writes, self.reads
