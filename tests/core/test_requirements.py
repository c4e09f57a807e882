"""The fixtures of tests/conftest.py: a skip has a reason, and is a failure where it was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tflgpu.contract.device import Probe
from tflgpu.plugins.registry import Registry


def test_a_missing_backend_is_a_skip_or_a_failure(
    require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "probe", lambda self, name: Probe(False, "no such card"))
    monkeypatch.delenv("TFLGPU_REQUIRE_BACKENDS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"opencl: no such card.*apt install"):
        require_backend("opencl")
    monkeypatch.setenv("TFLGPU_REQUIRE_BACKENDS", "vulkan, opencl")
    with pytest.raises(pytest.fail.Exception, match=r"no such card.*TFLGPU_REQUIRE_BACKENDS"):
        require_backend("opencl")
