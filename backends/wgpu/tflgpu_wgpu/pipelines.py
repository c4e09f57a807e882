"""Compute pipelines: one for each distinct source, compiled side by side."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import wgpu
from tflgpu.contract.kernel_cache import KernelCache
from tflgpu.contract.waiting import of_signal
from tflgpu.errors import CompileError
from tflgpu.language.tree import Kernel

from tflgpu_wgpu.dialect import ENTRY_POINT
from tflgpu_wgpu.native import shader_module


@attrs.frozen
class Job:
    """What a pipeline is made of: the module's text, which bindings are read-only (and the layout
    that says so), and whether indices are checked when it runs."""

    source: str
    read_only: tuple[bool, ...]
    checked: bool
    layout: Any = attrs.field(eq=False, repr=False)


@attrs.frozen(eq=False)
class Pipeline:
    """A pipeline and the layout of its bind group."""

    handle: Any
    layout: Any


class Dialect(Protocol):
    """What prints kernels."""

    def source(self, kernel: Kernel, *, writable: bool = False) -> str:
        """The module of one kernel; with ``writable`` every buffer is bound read_write."""
        ...


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


class Compiler(KernelCache[Way, Job, Pipeline]):
    """Pipelines of one device."""

    thread_name = "tflgpu-wgpu-compile"

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._device = device
        self._layouts: dict[tuple[bool, ...], Any] = {}
        #: Texts that another process printed: for which dialect, read-only bindings, read_write.
        self._texts: weakref.WeakKeyDictionary[Kernel, tuple[Dialect, Sequence[str]]]
        self._texts = weakref.WeakKeyDictionary()

    def use_texts(self, kernel: Kernel, dialect: Dialect, texts: Sequence[str]) -> None:
        """Take these for what a dialect prints of a kernel, as it is and ``writable``."""
        with self._lock:
            self._texts[kernel] = dialect, texts

    def clear(self) -> None:
        """Forget all pipelines."""
        super().clear()
        self._layouts.clear()
        self._texts.clear()

    def _write(self, kernel: Kernel, way: Way) -> Job:
        dialect, texts = self._texts.get(kernel, (None, ()))
        if dialect == way.dialect:
            source = texts[way.writable]
        else:
            source = way.dialect.source(kernel, writable=way.writable)
        access = tuple(b.access == "read" and not way.writable for b in kernel.buffers)
        return Job(source, access, way.checked, self._layout(access))

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

    def _make(self, kernel: Kernel, job: Job) -> Pipeline:
        device, name = self._device, kernel.name
        self.count()
        try:
            if job.checked:
                module = device.create_shader_module(label=name, code=job.source)
            else:
                module = shader_module(device, name, job.source)
            handle = device.create_compute_pipeline(
                label=name,
                layout=device.create_pipeline_layout(bind_group_layouts=[job.layout]),
                compute={"module": module, "entry_point": ENTRY_POINT},
            )
        except (wgpu.GPUError, RuntimeError) as error:
            if of_signal(error):
                raise
            raise CompileError(
                f"wgpu refused kernel {name}\n--- log\n{error}\n--- source\n{job.source}"
            ) from error
        return Pipeline(handle, job.layout)
