"""What an object hands on counts as its own, in every Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest
from tflgpu import GpuDelegate
from tflgpu.contract.kept_code import KeepsCode
from tflgpu.contract.memory_use import CountsMemory
from tflgpu.contract.offers import offers


class _Counts(Protocol):
    total: int

    @property
    def rest(self) -> int: ...


class _CountsDown(_Counts, Protocol):
    def down(self) -> None: ...


class _Down:
    total = 3
    rest = 2

    def down(self) -> None:
        """Nothing."""


class _Around:
    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Half:
    total = 3


@pytest.mark.parametrize("protocol", [_Counts, _CountsDown])
def test_what_is_handed_on_is_offered(protocol: type) -> None:
    assert offers(_Down(), protocol)
    assert offers(_Around(_Around(_Down())), protocol)
    assert not offers(_Half(), protocol)
    assert not offers(_Around(_Half()), protocol)
    assert not offers(None, protocol)


def test_isinstance_is_not_for_what_may_be_handed_on() -> None:
    # From Python 3.12 on it would find nothing, in silence.
    with pytest.raises(TypeError):
        isinstance(_Down(), KeepsCode)  # type: ignore[misc]


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_a_delegates_device_counts_memory_and_keeps_code(
    backend: str, require_backend: Callable[[str], object]
) -> None:
    require_backend(backend)
    with GpuDelegate(backend=backend, allow_fallback=False) as delegate:
        assert offers(delegate.device, CountsMemory)
        assert offers(delegate.device, KeepsCode)
