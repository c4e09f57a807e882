"""Run one op's case on a device, the way the delegate would."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.conformance.samples import Case
from tflgpu.ir.dtypes import Array
from tflgpu.kernel.lowering import Precision
from tflgpu.kernel.rule import Rule, Site, Unsupported
from tflgpu.kernels.registry import KernelRegistry
from tflgpu.runtime.limits import tensor_limits
from tflgpu.runtime.lower import LoweringInput, lower
from tflgpu.runtime.protocols import Device


def run_case(
    case: Case,
    device: Device,
    precision: Precision,
    *,
    rules: Sequence[Rule] = (),
    guard_bands: bool = False,
) -> list[Array] | Unsupported:
    """The case's outputs, or why the device does not take its node.

    Outputs come in the tensors' own dtypes. ``rules`` are a plugin's, beside the shipped ones.
    """
    node = case.node
    # No cache to stay in: whatever the precision may store as f16 is stored so.
    site = Site(attrs.evolve(device.caps, cache_bytes=0), precision)
    refused = tensor_limits(node, site)
    if refused is not None:
        return refused
    kernels = KernelRegistry(tuple(rules))
    rule = kernels.select(node, site)
    if isinstance(rule, Unsupported):
        return rule
    views = frozenset({id(node)} if case.op.is_view else ())
    request = LoweringInput(
        [node], case.graph.inputs, case.graph.outputs, {id(node): rule},
        lambda n: kernels.elementwise(n, site), views, site,
    )  # fmt: skip
    recording = device.load(lower(request, device.alignment), guard_bands=guard_bands)
    try:
        for value, array in zip(case.graph.inputs, recording.inputs, strict=True):
            np.copyto(array, case.arrays[value.id], casting="unsafe")
        recording.run()
        return [
            np.array(array).astype(value.dtype.numpy)
            for value, array in zip(case.graph.outputs, recording.outputs, strict=True)
        ]
    finally:
        recording.close()
