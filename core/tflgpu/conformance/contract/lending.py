"""What a recording that lends its outputs (`tflgpu.contract.offers.Lender`) promises."""

from __future__ import annotations

import numpy as np

from tflgpu.conformance.contract.tools import gives, loaded, own, refused, same, shared, small
from tflgpu.conformance.target import Check, NotApplicable, Outcome
from tflgpu.contract.device import Device
from tflgpu.contract.offers import Lender, offers
from tflgpu.errors import StateError
from tflgpu.ir.dtypes import Array

#: Elements: a device may lend only what is worth it.
_MANY = 1 << 20
_KEPT = 6


def lending_checks() -> list[Check]:
    """Outputs that change hands, and what is left of them after close."""
    return [
        shared("lent_outputs_stay", _lent_outputs_stay),
        shared("lent_outputs_are_the_caller_s", _lent_outputs_are_the_callers),
        own("lent_outputs_outlive_their_device", _lent_outputs_outlive_their_device),
    ]


def _sum(value: float) -> Array:
    return (np.arange(_MANY) + value).astype(np.float32)


def _lent_outputs_stay(device: Device) -> Outcome:
    """Later runs write elsewhere, however many are kept, and `outputs` has the last results."""
    with loaded(device, small(device, _MANY)) as recording:
        if not offers(recording, Lender):
            return NotApplicable("its recordings do not lend their outputs")
        kept: list[tuple[int, Array]] = []
        for value in range(_KEPT):
            recording.inputs[0][...] = value
            recording.run()
            lent = recording.lend(0)
            if lent is not None:
                kept.append((value, lent))
            else:
                same(np.array(recording.outputs[0]), _sum(value), f"outputs of run {value}")
        recording.settle()
        same(np.array(recording.outputs[0]), _sum(_KEPT - 1), "outputs of the last run")
        for value, lent in kept:
            same(lent, _sum(value), f"what run {value} left and was lent")
    return None if kept else NotApplicable("its recordings have nothing to lend")


def _lent_outputs_are_the_callers(device: Device) -> Outcome:
    """What the caller does to them changes neither `outputs` nor what is lent again."""
    with loaded(device, small(device, _MANY)) as recording:
        if not offers(recording, Lender):
            return NotApplicable("its recordings do not lend their outputs")
        recording.inputs[0][...] = 2
        recording.run()
        first = recording.lend(0)
        if first is None:
            return NotApplicable("its recordings have nothing to lend")
        first[...] = -1
        second = recording.lend(0)
        if second is not None:
            same(second, _sum(2), "what is lent again")
            second[...] = -2
        recording.settle()
        same(np.array(recording.outputs[0]), _sum(2), "outputs after settle")
        recording.inputs[0][...] = 3
        gives(recording, _sum(3), "outputs of the next run")
        assert (first == -1).all(), "a run wrote into memory that was lent"
    return None


def _lent_outputs_outlive_their_device(device: Device) -> Outcome:
    recording = device.load(small(device, _MANY))
    if not offers(recording, Lender):
        return NotApplicable("its recordings do not lend their outputs")
    recording.inputs[0][...] = 1
    recording.run()
    lent = recording.lend(0)
    recording.close()
    refused(lambda: recording.lend(0), "lending by a closed recording", StateError)
    refused(recording.settle, "settling a closed recording", StateError)
    device.close()
    if lent is None:
        return NotApplicable("its recordings have nothing to lend")
    lent += 1
    same(lent, _sum(2), "what was lent, after close")
    return None
