"""Shuffles of an opened Vulkan device: as many neighbours as its driver allows and the probe
finds."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_spirv import _dispatched
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.language.subgroup import largest_group
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.base import OpDef
from tflgpu.ops.registry import builtin_ops
from tflgpu_vulkan.spirv.module import module_of
from tflgpu_vulkan.spirv.target import Target

NVIDIA, INTEL, AMD = 0x10DE, 0x8086, 0x1002


def exchange(mask: int) -> Kernel:
    k = Builder("exchange", (32, 2, 1))
    src, dst = (k.buffer(n, Scalar.F32, 4, a) for n, a in (("src", "read"), ("dst", "write")))
    i = k.let(k.group_id(0) * 64 + k.local_id(1) * 32 + k.local_id(0), "i")
    k.store(dst, i, k.subgroup_shuffle_xor(k.load(src, i), mask))
    return k.build()


class Query:
    """What a driver says of subgroups."""

    def __init__(
        self, width: int, least: int | None = None, *, operations: int = 0x1F, stages: int = 0x20
    ) -> None:
        self._plain = SimpleNamespace(
            subgroupSize=width, supportedOperations=operations, supportedStages=stages
        )
        self._control = None if least is None else SimpleNamespace(minSubgroupSize=least)

    def properties(self, kind: str, extension: str = "") -> Any:
        return self._control if "Control" in kind else self._plain


@pytest.mark.parametrize(("query", "vendor", "widest"), [
    (Query(32), NVIDIA, 32), (Query(32, 32), NVIDIA, 32), (Query(8), 0, 8),
    (Query(64, 32), AMD, 32), (Query(64), AMD, 32),  # the language has no more than 32
    (Query(32, 8), INTEL, 8), (Query(32), INTEL, 8),  # which chooses a width for each kernel
    (Query(16, 4), 0, 4), (Query(1), 0, 1),
    (Query(32, operations=0x0F), NVIDIA, 0), (Query(32, stages=0x10), NVIDIA, 0),
])  # fmt: skip
def test_what_a_driver_allows(
    require_backend: Callable[[str], Any], query: Any, vendor: int, widest: int
) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan.features import _widest_shuffle

    assert _widest_shuffle(query, vendor) == widest


def test_the_probe_agrees_with_drivers_that_are_known(runner: Any) -> None:
    """A printer that is wrong would only look like a device without shuffles."""
    from tflgpu_vulkan.features import details_of

    context = runner.device._context
    if context.info.vendor not in ("mesa", "nvidia"):
        pytest.skip(f"{runner.name}: it is not known in which order it fills subgroups")
    details = details_of(context.instance, context.details.physical)
    assert not isinstance(details, str)
    assert runner.device.caps.subgroup_shuffle == details.target.subgroup_shuffle >= 4


def test_an_opened_device_exchanges_what_it_says(runner: Any) -> None:
    size = runner.device.caps.subgroup_shuffle
    if not size:
        pytest.skip(f"{runner.name} does not shuffle")
    data = np.arange(512, dtype=np.float32)
    for mask in range(1, size):
        got = runner.run(exchange(mask), (2, 1, 1), [data, np.zeros_like(data)])
        want = data.reshape(128, 4)[np.arange(128) ^ mask]
        np.testing.assert_array_equal(got[1].reshape(128, 4), want)


def test_more_than_it_has_is_refused(runner: Any) -> None:
    size = runner.device.caps.subgroup_shuffle
    if size == 32:
        pytest.skip(f"{runner.name} has as many as the language")
    data = np.zeros(512, np.float32)
    with pytest.raises(KernelError, match=r"kernel exchange: a shuffle.*caps\.subgroup_shuffle"):
        runner.run(exchange(max(1, size)), (2, 1, 1), [data, data])


def test_what_the_probe_does_not_find_the_device_has_not(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr("tflgpu.backend_kit.subgroup_probe.probe_shuffle", lambda device, widest: 0)
    opened = open_device()
    assert opened.caps.subgroup_shuffle == 0
    with pytest.raises(KernelError, match="a shuffle, which this device does not have"):
        opened.source(exchange(1))


def _kernels(op: OpDef, caps: DeviceCaps) -> list[Kernel]:
    return [kernel for precision in Precision for kernel in _dispatched(op, precision, caps)]


@pytest.mark.parametrize(
    "name", ["SOFTMAX", "MEAN", "ARG_MAX", "AVERAGE_POOL_2D", "FULLY_CONNECTED"]
)
def test_modules_of_teams_are_valid(spirv_tool: Callable[[str], str], name: str) -> None:
    tool = spirv_tool("spirv-val")
    caps = DeviceCaps(max_bindings=32, is_gpu=True, f16_arithmetic=True, subgroup_shuffle=32)
    target = Target(f16_arithmetic=True, subgroup_shuffle=32)
    kernels = [k for k in _kernels(builtin_ops()[name], caps) if largest_group(k)]
    assert kernels
    for module in {module_of(kernel, target) for kernel in kernels}:
        command = [tool, "--target-env", "vulkan1.1", "-"]
        done = subprocess.run(command, input=module, capture_output=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_the_probe_s_kernels_are_not_counted(open_device: Callable[..., Any]) -> None:
    assert open_device().compiled == 0
