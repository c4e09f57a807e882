"""GPU time of dispatches, by timestamp queries around a pass for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
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

    def run(self, launches: Sequence[Launch]) -> list[float]:
        """Run dispatches in order; seconds of each, 0 for one that has no workgroups."""
        seconds: list[float] = []
        for start in range(0, len(launches), _MOST):
            seconds += self._run(launches[start : start + _MOST])
        return seconds

    def _run(self, launches: Sequence[Launch]) -> list[float]:
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
        return [
            float(t) * self._period * 1e-9 if all(launch.groups) else 0.0
            for t, launch in zip(ticks, launches, strict=True)
        ]
