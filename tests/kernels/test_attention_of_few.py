"""Attention of few queries to many keys: workgroups that have a part of the keys each, and the
merging of what they found. On the kernel interpreter, against the reference in f64."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import DType
from tflgpu.lowering.lowering import Precision

from tests.kernels.test_matrix_attention import (
    GPU,
    Case,
    case,
    compare,
    expected,
    operands,
    plan_of,
    run,
)

#: One query or some, heads that share keys, values with tokens last, keys that end in a block.
CASES = [
    case(1, 1, 2048, 2, 2, 64, 64),
    case(1, 1, 1500, 8, 2, 16, 20, mask=(1, 1, 1, 1500)),
    case(2, 7, 1021, 2, 2, 6, 37, cap=3.0, mask=(2, 2, 7, 1021), mask_type=DType.BOOL),
    case(1, 3, 1027, 3, 1, 12, 8, heads_first=True, tokens_last=True),
    case(1, 15, 1024, 1, 1, 4, 100, heads_first=True, causal=True),
]


def found_by(device: Device, case: Case, change: Any = None) -> None:
    attributes, arrays = operands(case, half=False)
    if change is not None:
        change(arrays)
    caps = attrs.evolve(GPU, matrix_tiles=False)
    plan = plan_of(attributes, arrays, Precision.F32, caps, device.alignment)
    assert [d.kernel.name for d in plan.dispatches] == ["attention", "attention_merge"]
    assert plan.dispatches[0].groups[2] > 1
    found = run(device, plan, arrays)
    compare(found, expected(attributes, arrays), 6e-7)
    np.testing.assert_array_equal(found, run(device, plan, arrays))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_form(device: Device, case: Case) -> None:
    found_by(device, case)


@pytest.mark.parametrize("operand", range(4), ids=["query", "keys", "values", "mask"])
def test_a_nan_goes_where_it_should(device: Device, operand: int) -> None:
    def plant(arrays: list[Any]) -> None:
        arrays[operand].reshape(-1)[[1, -1]] = np.nan

    found_by(device, case(2, 2, 1024, 2, 2, 8, 8, mask=(2, 2, 2, 1024)), plant)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[3]], ids=str)
def test_an_infinite_value_counts_once(device: Device, case: Case) -> None:
    """What is read ahead past the last key is no term: a share of 0 times infinity would be NaN."""

    def plant(arrays: list[Any]) -> None:
        arrays[2].reshape(-1)[-1] = np.inf

    found_by(device, case, plant)


def test_parts_without_keys(device: Device) -> None:
    def exclude(arrays: list[Any]) -> None:
        arrays[3][0, 0, 0, 10:] = -np.inf
        arrays[3][0, 1, 0, :1000] = -np.inf
        arrays[3][1, 0] = -np.inf  # no key at all: NaN

    found_by(device, case(2, 2, 1024, 2, 2, 8, 8, mask=(2, 2, 2, 1024)), exclude)


@pytest.mark.parametrize("case", [
    case(1, 1, 200, 2, 2, 64, 64), case(64, 8, 1024, 8, 8, 4, 4),
], ids=str)  # fmt: skip
def test_short_rows_and_full_devices_have_one_dispatch(device: Device, case: Case) -> None:
    attributes, arrays = operands(case, half=False)
    plan = plan_of(attributes, arrays, Precision.F32, GPU, device.alignment)
    assert [d.kernel.name for d in plan.dispatches] == ["attention"]


def test_deep_heads_fit_in_little_shared_memory(device: Device) -> None:
    attributes, arrays = operands(case(1, 40, 300, 1, 1, 510, 12), half=False)
    caps = attrs.evolve(GPU, matrix_tiles=False, shared_bytes=16384)
    plan = plan_of(attributes, arrays, Precision.F32, caps, device.alignment)
    assert all(dispatch.kernel.shared_bytes <= 16384 for dispatch in plan.dispatches)
    # Scores are sums of eight times as many products as above.
    compare(run(device, plan, arrays), expected(attributes, arrays), 8 * 6e-7)
