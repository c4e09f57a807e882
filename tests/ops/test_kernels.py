"""Every op's samples on devices, in every precision, against the op's NumPy reference.

The kernel interpreter checks bounds and races on top of the numbers; OpenCL runs what is
printed from the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tflgpu.conformance.run import run_case
from tflgpu.conformance.samples import materialize
from tflgpu.kernel.lowering import Precision
from tflgpu.kernel.rule import Unsupported
from tflgpu.kernels.registry import KernelRegistry
from tflgpu.ops.base import OpDef, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.plugins import registry
from tflgpu.runtime.protocols import Device

BACKENDS = [("cpu_ref", 1), ("opencl", 0)]
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{sample.id}")
    for op in builtin_ops().values()
    if op.name in KernelRegistry().ops
    for sample in op.samples()
]


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda b: str(b[0]))
def device(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[Device]:
    backend, index = request.param
    require_backend(backend)
    opened = registry().open_device(backend, index, DelegateOptions())
    assert isinstance(opened, Device)
    yield opened
    opened.close()


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: str(p.value))
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_kernels_agree_with_the_reference(
    op: OpDef, sample: Sample, precision: Precision, device: Device
) -> None:
    if precision is Precision.F16 and not device.caps.f16_arithmetic:
        pytest.skip(f"{device.info.name} has no 16-bit arithmetic")
    half = precision is not Precision.F32
    case = materialize(op, sample, half=half)
    results = run_case(case, device, precision)
    if isinstance(results, Unsupported):
        pytest.skip(f"refused: {results.reason}")
    tolerance = case.tolerance(half=half)
    for i, (got, expected) in enumerate(zip(results, case.expected, strict=True)):
        tolerance.check(got, expected, f"output {i}")
