"""Compute pipelines: one for each distinct source, compiled side by side."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import attrs
import wgpu
from tflgpu.backend_kit.kernel_cache import KernelCache
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel

from tflgpu_wgpu.dialect import ENTRY_POINT, all_writable
from tflgpu_wgpu.native import shader_module


@attrs.frozen(eq=False)
class Pipeline:
    """A pipeline and the layout of its bind group."""

    handle: Any
    layout: Any


class Dialect(Protocol):
    """What prints kernels."""

    def source(self, kernel: Kernel) -> str:
        """The module of one kernel."""


@attrs.frozen
class Way:
    """What a kernel's module depends on besides the kernel.

    Attributes:
        dialect: Prints it.
        writable: Every buffer is bound read_write.
        checked: Indices are checked when it runs.
    """

    dialect: Dialect
    writable: bool = False
    checked: bool = False


@attrs.frozen
class Job:
    """What a pipeline is made of: the module's text, which bindings are read-only, and whether
    indices are checked when it runs."""

    source: str
    read_only: tuple[bool, ...]
    checked: bool

    @classmethod
    def of(cls, kernel: Kernel, way: Way, source: str) -> Job:
        """That of a kernel's text."""
        only = tuple(b.access == "read" and not way.writable for b in kernel.buffers)
        return cls(source, only, way.checked)


class Compiler(KernelCache[Way, Job, Pipeline]):
    """Pipelines of one device."""

    thread_name = "tflgpu-wgpu-compile"

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device
        self._making = threading.Lock()
        self._layouts: dict[tuple[bool, ...], Any] = {}

    def clear(self) -> None:
        """Forget all pipelines."""
        super().clear()
        self._layouts.clear()

    def _write(self, kernel: Kernel, way: Way) -> Job:
        if way.writable:
            source = all_writable(self._known(kernel, attrs.evolve(way, writable=False)).source)
        else:
            source = way.dialect.source(kernel)
        return Job.of(kernel, way, source)

    def _layout(self, read_only: tuple[bool, ...]) -> Any:
        with self._making:
            if read_only not in self._layouts:
                entries = [
                    {
                        "binding": i,
                        "visibility": wgpu.ShaderStage.COMPUTE,
                        "buffer": {"type": "read-only-storage" if only else "storage"},
                    }
                    for i, only in enumerate(read_only)
                ]
                self._layouts[read_only] = self._device.create_bind_group_layout(entries=entries)
            return self._layouts[read_only]

    def _make(self, kernel: Kernel, job: Job) -> Pipeline:
        device, name, layout = self._device, kernel.name, self._layout(job.read_only)
        self.count()
        try:
            if job.checked:
                module = device.create_shader_module(label=name, code=job.source)
            else:
                module = shader_module(device, name, job.source)
            handle = device.create_compute_pipeline(
                label=name,
                layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={"module": module, "entry_point": ENTRY_POINT},
            )
        except (wgpu.GPUError, RuntimeError) as error:
            raise CompileError(
                f"wgpu refused kernel {name}\n--- log\n{error}\n--- source\n{job.source}"
            ) from error
        return Pipeline(handle, layout)
