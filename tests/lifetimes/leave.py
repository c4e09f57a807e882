"""A process that ends with things of a driver still open: `python leave.py BACKEND WAY`."""

from __future__ import annotations

import sys
from typing import Any

from tflgpu.conformance.plans import backwards
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.contract.offers import Lender, offers
from tflgpu.plugins.registry import registry

_COUNT, _STEPS = 1 << 16, 200


def main(backend: str, way: str) -> None:
    """Run something, and leave it in one of the `WAYS`."""
    target = DeviceUnderTest.open(registry(), backend, 0)
    device: Any = target.device
    recording = device.load(backwards(_COUNT, device.alignment, _STEPS))
    recording.run()
    kept: Any = None
    if way == "in flight":
        kept = recording.submit()
    elif way == "dropped in flight":
        recording.submit()
        del recording
    elif way == "an array":
        lent = recording.lend(0) if offers(recording, Lender) else None
        kept = (recording.inputs[0], recording.outputs[0] if lent is None else lent)
        del recording, device, target
    # Module-level names outlive this function, as in a script.
    globals()["kept"] = (kept, *(v for k, v in locals().items() if k != "kept"))
    print("ends", flush=True)


WAYS = ("in flight", "dropped in flight", "an array")

if __name__ == "__main__":
    main(*sys.argv[1:])
