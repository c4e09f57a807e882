"""The suite notices integer kernels that round a little differently from TFLite's."""

from __future__ import annotations

from typing import Any

import pytest
from tflgpu.conformance.op_checks import op_checks
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.kernels import fixed_point, quantized_sums
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.plugins.registry import registry

RIGHT = fixed_point.upper_half


def one_less(k: Builder, x: Expr, value: Operand) -> Expr:
    """A unit of the last of some thirty bits."""
    return RIGHT(k, x, value) - 1


def down(k: Builder, x: Expr, bits: Operand) -> Expr:
    """No rounding: to the smaller number."""
    return x if not isinstance(bits, Expr) and bits == 0 else x >> bits


def halves_up(k: Builder, x: Expr, bits: Operand) -> Expr:
    """Halves to the larger number, as one shift of a 64-bit product rounds."""
    if not isinstance(bits, Expr):
        return x if bits == 0 else (x + (1 << int(bits) >> 1)) >> bits
    one = k.const(1, x.type)
    return (x + ((one << bits) >> 1)) >> bits


WRONG = {"one_less": ("upper_half", one_less), "down": ("shift_right", down),
         "halves_up": ("shift_right", halves_up)}  # fmt: skip


@pytest.mark.parametrize(
    "op", ["QUANTIZED_ADD", "QUANTIZED_CONV_2D", "QUANTIZED_DEPTHWISE_CONV_2D"]
)
@pytest.mark.parametrize("name", [*WRONG, "right"])
def test_samples_notice_wrong_rounding(op: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in WRONG:
        where, wrong = WRONG[name]
        for module in (fixed_point, quantized_sums):
            if hasattr(module, where):
                monkeypatch.setattr(module, where, wrong)
    target = DeviceUnderTest.open(registry(), "cpu_ref", 1)
    found: dict[str, Any] = {}
    for check in op_checks([target.ops[op]]):
        if "/f32/" not in check.id:
            continue
        try:
            assert check.run(target) is None, "it was not asked"
        except AssertionError as error:
            found[check.id] = error
    target.close()
    assert bool(found) is (name in WRONG), found
    assert {id.rsplit("/", 1)[1] for id in found} == ({"edge", "internal"} if found else set())
