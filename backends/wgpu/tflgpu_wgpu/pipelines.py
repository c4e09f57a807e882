"""Compute pipelines: one for each distinct source, compiled side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import wgpu
from tflgpu.contract.parallel import as_they_come
from tflgpu.contract.waiting import of_signal
from tflgpu.errors import CompileError
from tflgpu.language.tree import Kernel

from tflgpu_wgpu.dialect import ENTRY_POINT
from tflgpu_wgpu.native import shader_module


@attrs.frozen
class Job:
    """What a pipeline is made of: the module's text, which bindings are read-only, and whether
    indices are checked when it runs."""

    source: str
    read_only: tuple[bool, ...]
    checked: bool
    name: str = attrs.field(eq=False)

    @classmethod
    def of(cls, kernel: Kernel, source: str, *, writable: bool, checked: bool = False) -> Job:
        """The job of a kernel that was printed so."""
        access = tuple(b.access == "read" and not writable for b in kernel.buffers)
        return cls(source, access, checked, kernel.name)


#: Pipelines that are kept for models to come. Those in use live on in their launches.
KEPT = 256


@attrs.frozen(eq=False)
class Pipeline:
    """A pipeline and the layout of its bind group."""

    handle: Any
    layout: Any


class Compiler:
    """Compiles for one device. Safe to use from several threads."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._pipelines: dict[Job, Pipeline] = {}
        self._layouts: dict[tuple[bool, ...], Any] = {}
        #: Pipelines made so far, for tests and reports.
        self.compiled = 0

    def compile(self, jobs: Iterable[Job]) -> dict[Job, Pipeline]:
        """Pipelines by job. The first are compiled while the next are being printed.

        Raises:
            CompileError: wgpu or the driver refused one; the message has the log and the source.
        """
        with self._lock:
            for job in list(self._pipelines)[:-KEPT]:  # the oldest
                del self._pipelines[job]
            asked: set[Job] = set()

            def wanted() -> Iterator[tuple[Job, Any]]:
                for job in jobs:
                    if job not in asked and job not in self._pipelines:
                        yield job, self._layout(job.read_only)
                    asked.add(job)

            made = as_they_come("tflgpu-wgpu-compile", self._pipeline, wanted())
            self.compiled += len(made)
            self._pipelines.update(made)
            return {job: self._pipelines[job] for job in asked}

    def clear(self) -> None:
        """Forget all pipelines."""
        with self._lock:
            self._pipelines.clear()
            self._layouts.clear()

    def _layout(self, read_only: tuple[bool, ...]) -> Any:
        found = self._layouts.get(read_only)
        if found is None:
            entries = [
                {
                    "binding": i,
                    "visibility": wgpu.ShaderStage.COMPUTE,
                    "buffer": {"type": "read-only-storage" if only else "storage"},
                }
                for i, only in enumerate(read_only)
            ]
            found = self._device.create_bind_group_layout(entries=entries)
            self._layouts[read_only] = found
        return found

    def _pipeline(self, item: tuple[Job, Any]) -> tuple[Job, Pipeline]:
        device, (job, layout) = self._device, item
        try:
            if job.checked:
                module = device.create_shader_module(label=job.name, code=job.source)
            else:
                module = shader_module(device, job.name, job.source)
            handle = device.create_compute_pipeline(
                label=job.name,
                layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": ENTRY_POINT},
            )
        except (wgpu.GPUError, RuntimeError) as error:
            if of_signal(error):
                raise
            raise CompileError(
                f"wgpu refused kernel {job.name}\n--- log\n{error}\n--- source\n{job.source}"
            ) from error
        return job, Pipeline(handle, layout)
