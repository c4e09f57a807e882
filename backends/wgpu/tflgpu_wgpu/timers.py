"""GPU time of dispatches, by timestamp queries around a pass for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tflgpu.backend_kit.plan_recording import Span
from wgpu.backends.wgpu_native import lib

from tflgpu_wgpu.native import Launch

_MOST = 1024  # dispatches at a time; WebGPU allows 4096 queries in a set


class Timers:
    """A query set and the buffer that its results go to."""

    def __init__(self, device: Any) -> None:
        self._device = device
        count = 2 * _MOST
        self._queries = device.create_query_set(type="timestamp", count=count)
        self._results = device.create_buffer(size=8 * count, usage="QUERY_RESOLVE|COPY_SRC")
        #: Nanoseconds a tick.
        self._period = float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))

    def run(self, launches: Sequence[Launch]) -> list[Span]:
        """Run dispatches in order; the time of one that has no workgroups is 0."""
        self._first: int | None = None
        spans: list[Span] = []
        for start in range(0, len(launches), _MOST):
            spans += self._run(launches[start : start + _MOST])
        return spans

    def _run(self, launches: Sequence[Launch]) -> list[Span]:
        encoder = self._device.create_command_encoder()
        for i, launch in enumerate(launches):
            writes = {
                "query_set": self._queries,
                "beginning_of_pass_write_index": 2 * i,
                "end_of_pass_write_index": 2 * i + 1,
            }
            compute = encoder.begin_compute_pass(timestamp_writes=writes)
            if all(launch.groups):
                compute.set_pipeline(launch.pipeline)
                compute.set_bind_group(0, launch.bind_group)
                compute.dispatch_workgroups(*launch.groups)
            compute.end()
        count = 2 * len(launches)
        encoder.resolve_query_set(self._queries, 0, count, self._results, 0)
        self._device.queue.submit([encoder.finish()])
        found = np.frombuffer(
            self._device.queue.read_buffer(self._results, 0, 8 * count), np.uint64
        )
        # WebGPU does not promise that a later one is not smaller.
        ticks = np.maximum((found[1::2] - found[::2]).view(np.int64), 0)
        # A float has too few bits for the clock itself.
        first = self._first = int(found[0]) if self._first is None else self._first
        unit = self._period * 1e-9
        return [
            ((int(start) - first) * unit, float(t) * unit if all(launch.groups) else 0.0)
            for start, t, launch in zip(found[::2], ticks, launches, strict=True)
        ]
