"""NaN and infinities on devices that do not promise to keep them: questions are asked of bits."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from tflgpu.conformance.node_checks import run_kernel
from tflgpu.conformance.special_table import (
    build_special,
    special_arrays,
    special_cases,
    wrong_results,
)
from tflgpu.language.types import Scalar
from tflgpu.options import DelegateOptions
from tflgpu_vulkan.spirv.module import module_of, text_of
from tflgpu_vulkan.spirv.target import Target

KEEPS = Target(f16_arithmetic=True, keeps_special=frozenset({16, 32}))
DOES_NOT = attrs.evolve(KEEPS, keeps_special=frozenset())


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("scalar", [Scalar.F32, Scalar.F16], ids=lambda s: s.value)
def test_special_numbers_without_a_promise(
    scalar: Scalar,
    width: int,
    require_backend: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan import features
    from tflgpu_vulkan.plugin import tflgpu_open_device

    found = features._target
    monkeypatch.setattr(
        features, "_target", lambda *given: attrs.evolve(found(*given), keeps_special=frozenset())
    )
    device: Any = tflgpu_open_device("vulkan", 0, DelegateOptions())
    try:
        if scalar is Scalar.F16 and not device.caps.f16_arithmetic:
            pytest.skip(f"{device.info.name} has no 16-bit arithmetic")
        cases = special_cases(scalar, halves=device.caps.f16_arithmetic)
        kernel, groups = build_special(cases, scalar, width)
        arrays = run_kernel(device, kernel, groups, special_arrays(cases, scalar))
        assert not wrong_results(cases, scalar, arrays)
    finally:
        device.close()


@pytest.mark.parametrize("target", [KEEPS, DOES_NOT], ids=["keeps", "does not"])
def test_no_extreme_loses_a_nan_and_spirv_val_accepts_all_of_it(target: Target) -> None:
    for scalar in (Scalar.F32, Scalar.F16):
        cases = special_cases(scalar, halves=True)
        for width in (1, 3, 4):
            kernel, _ = build_special(cases, scalar, width)
            text = text_of(kernel, target)
            assert "FMin" not in text
            assert "FMax" not in text
            tool = shutil.which("spirv-val")
            if tool is None:
                continue
            done = subprocess.run(
                [tool, "--target-env", "vulkan1.1", "-"],
                input=module_of(kernel, target), capture_output=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (done.stdout + done.stderr).decode()
