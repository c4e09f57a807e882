"""One case of an op on a device, as the delegate would run it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from tflgpu.compiler.stored_numbers import numerics_for
from tflgpu.compiler.target import Target
from tflgpu.conformance.run import Tensors, prepare, run_one
from tflgpu.conformance.samples import SampleCase
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.lowering.rule import Rule


def run_case(
    case: SampleCase,
    device: Device,
    precision: Precision,
    rules: Sequence[Rule] = (),
) -> list[Array] | Unsupported:
    """The case's outputs, or why the device does not take its node.

    Outputs come in the tensors' own dtypes. ``rules`` are a plugin's, beside the shipped ones.
    """
    # No cache to stay in: all that the precision may store as f16 is stored so.
    target = Target.plain(
        attrs.evolve(device.caps, cache_bytes=0),
        precision,
        ops={case.op.name: case.op},
        rules=rules,
        alignment=device.alignment,
        numerics=numerics_for(case.op),
    )
    refused = target.refusal(case.node)
    if refused is not None:
        return refused
    return run_one(device, prepare(case, target, Tensors.EDGE))
