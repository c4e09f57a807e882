"""What devices compile for the tests of compiling, in this process and in others."""

from __future__ import annotations

from typing import Any

import numpy as np
from tflgpu.compiler.plan import InputRef, OutputRef
from tflgpu.conformance.plans import affine, dispatch, io, plan


def compiled(device: Any, count: int = 2) -> int:
    """How many programs a device compiles for so many kernels, whose results are right."""
    kernels = [affine(8, i + 2, name=f"affine{i}") for i in range(count)]
    recording = device.load(
        plan(
            [dispatch(k, 8, [InputRef(0), OutputRef(i)]) for i, k in enumerate(kernels)],
            [io("x", (8,))],
            [io(f"y{i}", (8,)) for i in range(count)],
        )
    )
    recording.inputs[0][...] = np.arange(8)
    recording.run()
    for i, output in enumerate(recording.outputs):
        np.testing.assert_array_equal(output, np.arange(8) * (i + 2) + 1)
    return int(device.compiled)
