"""Level 0: the device contract of `tflgpu.contract.device`, with plans made by hand."""

from __future__ import annotations

from tflgpu.conformance.contract.bands import band_checks
from tflgpu.conformance.contract.buffers import buffer_checks
from tflgpu.conformance.contract.interrupts import interrupt_checks
from tflgpu.conformance.contract.leaks import leak_checks
from tflgpu.conformance.contract.lending import lending_checks
from tflgpu.conformance.contract.lifetimes import lifetime_checks
from tflgpu.conformance.contract.memory import memory_checks
from tflgpu.conformance.contract.nodes import node_device_checks
from tflgpu.conformance.contract.refusals import refusal_checks
from tflgpu.conformance.contract.runs import run_checks
from tflgpu.conformance.contract.submissions import submission_checks
from tflgpu.conformance.target import Check

__all__ = ["device_checks"]


def device_checks() -> list[Check]:
    """Every check of the contract."""
    return [
        *run_checks(),
        *submission_checks(),
        *buffer_checks(),
        *refusal_checks(),
        *band_checks(),
        *lifetime_checks(),
        *leak_checks(),
        *memory_checks(),
        *interrupt_checks(),
        *lending_checks(),
        *node_device_checks(),
    ]
