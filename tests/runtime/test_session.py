"""`Session`: what crosses from one recording to another."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu

from tests.running import allocated, set_and_run
from tests.small_models import small_model

#: Large enough that results are lent to callers where a device can.
SIDE = 300


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
def test_a_result_that_the_cpu_reads_is_not_lent(backend: str) -> None:
    """A caller keeps every result, so that a recording that lends has another place for the next
    one; the part behind it reads the same place in every run."""
    shape = (SIDE, SIDE)
    content = small_model(
        {"x": shape, "y": shape, "z": shape}, "y = ABS(x)", "z = NEG(y)", outputs="y z"
    )
    device = 1 if backend == "cpu_ref" else 0
    with (
        tflgpu.GpuDelegate(backend=backend, device=device, exclude=["NEG"]) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ) as interpreter,
    ):
        assert interpreter.report.delegated_nodes == 1
        places = [details["index"] for details in interpreter.get_output_details()]
        kept = []
        for n in range(4):
            set_and_run(interpreter, [np.full(shape, -n, np.float32)])
            kept.append([interpreter.get_tensor(place) for place in places])
    for n, (y, z) in enumerate(kept):
        np.testing.assert_array_equal(y, np.full(shape, n))
        np.testing.assert_array_equal(z, np.full(shape, -n))
