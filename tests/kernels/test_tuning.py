"""Measured constants: each kind of device has its own, and every one of them is asked."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.kernels.domain import team_shape
from tflgpu.kernels.operands import pixels_per_invocation
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.tuning import H200, TABLE, Tuning, tuning_of

OTHER = DeviceCaps(vendor="other", is_gpu=True, compute_units=4, cache_bytes=1 << 20)
KNOWN = attrs.evolve(OTHER, vendor="nvidia")


def measured(monkeypatch: pytest.MonkeyPatch, tuning: Tuning) -> None:
    """Let `OTHER` be a device that was measured."""
    monkeypatch.setitem(TABLE, "other", tuning)  # type: ignore[arg-type]


def test_reductions_are_cut_by_the_devices_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = team_shape(OTHER, 10, 1000, lanes_first=False)
    assert before == team_shape(KNOWN, 10, 1000, lanes_first=False)
    alone = attrs.evolve(H200.reduction, few_steps=2000)
    measured(monkeypatch, attrs.evolve(H200, reduction=alone))
    assert team_shape(OTHER, 10, 1000, lanes_first=False).lanes == 1 < before.lanes
    assert team_shape(KNOWN, 10, 1000, lanes_first=False) == before


def test_steps_are_split_by_the_devices_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = team_shape(OTHER, 16, 1 << 16, lanes_first=True, cut=1)
    assert before.parts > 4
    measured(monkeypatch, attrs.evolve(H200, reduction=attrs.evolve(H200.reduction, most_parts=4)))
    assert team_shape(OTHER, 16, 1 << 16, lanes_first=True, cut=1).parts == 4


def test_weights_are_rounded_by_the_devices_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.full(1000, 1 / 3, np.float32)
    assert Precision.F32_F16.weight_storage(weights, OTHER) is Scalar.F32
    measured(monkeypatch, attrs.evolve(H200, rounded_weights=1000))
    assert Precision.F32_F16.weight_storage(weights, OTHER) is Scalar.F16
    assert Precision.F32_F16.weight_storage(weights, KNOWN) is Scalar.F32


def test_pixels_follow_from_how_many_invocations_keep_it_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pixels_per_invocation(OTHER, 4096, 64) == 4
    measured(monkeypatch, attrs.evolve(H200, busy_invocations=512))
    assert pixels_per_invocation(OTHER, 4096, 64) == 2


def test_products_are_split_where_tiles_were_measured() -> None:
    assert tuning_of(KNOWN).splits_products
    assert not tuning_of(OTHER).splits_products
    assert attrs.evolve(tuning_of(OTHER), splits_products=True) == H200
