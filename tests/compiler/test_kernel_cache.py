"""What was compiled of kernels: once for equal code, the last of it kept, whatever ends a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit import kernel_cache
from tflgpu.backend_kit.kernel_cache import KernelCache, OwnedKernels
from tflgpu.backend_kit.kernel_probe import computes_in_half, runs_matrix_tiles
from tflgpu.conformance.plans import affine
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel


class Texts(KernelCache[int, str, list[str]]):
    """Compiles names of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.forgotten: list[list[str]] = []

    def _write(self, kernel: Kernel, way: int) -> str:
        self.written += 1
        return f"{len(kernel.body)} {kernel.workgroup} {way % 2}"

    def _make(self, kernel: Kernel, code: str) -> list[str]:
        self.count()
        if code.endswith("1"):
            raise CompileError(f"refused: {code}")
        return [code]

    def _forget(self, made: list[str]) -> None:
        self.forgotten.append(made)


def test_equal_code_is_compiled_once_and_each_kernel_written_once_a_way() -> None:
    cache, kernels = Texts(), [affine(8, 2), affine(8, 3)]
    made = cache.get([(k, way) for k in kernels for way in (0, 2)] * 2)
    assert cache.compiled == 1
    assert cache.written == 4
    assert len({id(each) for each in made.values()}) == 1
    assert cache.get([(kernels[0], 0)])[kernels[0], 0] is made[kernels[1], 2]
    assert (cache.compiled, cache.written) == (1, 4)


def test_a_refusal_is_told_and_what_else_was_made_is_kept() -> None:
    cache, kernel = Texts(), affine(8, 2)
    with pytest.raises(CompileError, match="refused"):
        cache.get([(kernel, 0), (kernel, 1)])
    before = cache.compiled
    assert cache.get([(kernel, 0)])
    assert cache.compiled == before
    with pytest.raises(CompileError, match="refused"):
        cache.get([(kernel, 1)])


def test_the_oldest_are_forgotten_and_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "KEPT", 2)
    monkeypatch.setattr(Texts, "_write", lambda self, kernel, way: f"{way} 0")
    cache, kernel = Texts(), affine(8, 2)
    for way in range(4):
        cache.get([(kernel, way)])
    assert cache.forgotten == [["0 0"]]
    cache.get([(kernel, 0)])
    assert cache.compiled == 5
    cache.clear()
    assert len(cache.forgotten) == 5


def test_owned_kernels_are_destroyed_when_nobody_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[str] = []

    class Made:
        def __init__(self, code: str) -> None:
            self.code = code

    class Owned(OwnedKernels[int, str, Made]):
        def _write(self, kernel: Kernel, way: int) -> str:
            return str(way)

        def _make(self, kernel: Kernel, code: str) -> Made:
            return Made(code)

        def _handle_of(self, made: Made) -> str:
            return made.code

        def _destroy(self, handle: str) -> None:
            destroyed.append(handle)

    monkeypatch.setattr(kernel_cache, "KEPT", 1)
    cache, kernel = Owned(), affine(8, 2)
    used = cache.get([(kernel, 0)])
    for way in (1, 2, 3):
        cache.get([(kernel, way)])
    assert destroyed == ["1"]  # 0 is in use, and 2 was forgotten in the last call
    used.clear()
    cache.get([(kernel, 4)])
    assert sorted(destroyed) == ["0", "1", "2"]
    cache.destroy()
    assert sorted(destroyed) == ["0", "1", "2", "3", "4"]


@pytest.fixture
def interpreted() -> Iterator[Any]:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        yield delegate.device


def test_a_probe_believes_results_only(interpreted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert computes_in_half(interpreted)
    assert runs_matrix_tiles(interpreted)
    load = type(interpreted).load

    class Wide:
        """Adds in 32 bits."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner
            self.inputs, self.outputs = inner.inputs, inner.outputs

        def run(self) -> None:
            self.inner.run()
            self.outputs[0][0] = np.float16(2050)

        def close(self) -> None:
            self.inner.close()

    monkeypatch.setattr(type(interpreted), "load", lambda *a, **k: Wide(load(*a, **k)))
    assert not computes_in_half(interpreted)


def test_a_device_that_refuses_a_probe_cannot(interpreted: Any) -> None:
    interpreted.close()
    assert not computes_in_half(interpreted)


def test_what_nvidia_does_not_list_is_tried_and_not_believed_elsewhere(
    require_backend: Callable[[str], Any],
) -> None:
    """The way that only NVIDIA's driver takes, on another that refuses `half`."""
    require_backend("opencl")
    from tflgpu_opencl.device import OpenCLDevice

    device = OpenCLDevice(0)
    try:
        caps = device.caps
        if caps.f16_arithmetic:
            pytest.skip(f"{device.info.name} computes in f16")
        device._try_what_nvidia_does_not_list()
        assert device.caps == caps
    finally:
        device.close()
