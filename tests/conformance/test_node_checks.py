"""How far a function of the kernel language may be off on a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.conformance.node_checks import _beyond_class, node_checks
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.language.subgroup import SubgroupShuffleXor
from tflgpu.ops.base import Accuracy
from tflgpu.plugins.registry import registry


def test_near_a_zero_of_log_the_class_decides() -> None:
    want = np.array([1e-4, 2.0], np.float32)
    near = want + np.array([1e-6, 0], np.float32)
    assert _beyond_class("log", near, want, []) == 0
    far = want + np.array([4e-6, 0], np.float32)
    assert _beyond_class("log", far, want, []) > 100


def test_an_fma_may_round_its_product_and_no_more() -> None:
    a, b = np.float32([3.1]), np.float32([7.7])
    c = -(a * b) + np.float32(1e-5)
    exact = np.float32(a.astype(np.float64) * b + c)
    twice = a * b + c
    assert twice != exact
    assert _beyond_class("fma", twice, exact, [a, b, c]) == 0
    assert _beyond_class("fma", exact + np.float32(1e-4), exact, [a, b, c]) > 5


def test_other_wrong_results_count_in_full() -> None:
    want = np.float32([1.0, 2.0])
    assert _beyond_class("exp", want * np.float32([1, 1.001]), want, []) > 1000
    assert _beyond_class("exp", np.float32([1, np.nan]), want, []) == np.inf


# The suite's shuffles: wrong ones are caught, and devices without them are told so.


CHECKS = [c for c in node_checks() if c.id.startswith(("1/shuffles/", "1/reductions/"))]


@pytest.fixture
def target() -> Iterator[DeviceUnderTest]:
    opened = DeviceUnderTest.open(registry(), "cpu_ref", 1)
    yield opened
    opened.close()


def a_check(id: str) -> Check:
    return next(c for c in CHECKS if c.id == id)


def test_every_type_and_width_has_one() -> None:
    ids = {c.id for c in CHECKS}
    assert len(ids) == len(CHECKS)
    assert {f"1/shuffles/{s}x{w}" for s in ("f32", "i32", "u32", "f16") for w in (1, 2, 3, 4)} < ids


@pytest.mark.parametrize("mistake", ["next mask", "no lanes", "last bit"])
def test_a_wrong_shuffle_is_caught(
    mistake: str, target: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = SubgroupShuffleXor.run

    def wrong(stmt: Any, here: Any, value: Any) -> None:
        frame, who = here.frame, here.who
        if mistake == "next mask":
            stmt = attrs.evolve(stmt, mask=stmt.mask ^ 1 or 2)
        right(stmt, here, value)
        if mistake == "no lanes" and value.ndim == 2:
            frame.declare(stmt.ident, np.repeat(frame.get(stmt.ident)[:, :1], value.shape[1], 1))
        elif mistake == "last bit":
            frame.declare(stmt.ident, np.where(who % 64 == 63, value.T, frame.get(stmt.ident).T).T)

    monkeypatch.setattr(SubgroupShuffleXor, "run", wrong)
    for id in ("1/shuffles/f32x4", "1/shuffles/u32x2", "1/reductions/add/f32x4"):
        with pytest.raises(AssertionError, match=r"(shuffles|reductions_add): dst\[\d+\] is"):
            a_check(id).run(target)


def test_without_the_cap_there_is_a_reason(target: DeviceUnderTest) -> None:
    device: Any = target.device
    device.caps = attrs.evolve(device.caps, subgroup_shuffle=0)
    for check in CHECKS:
        outcome = check.run(target)
        assert isinstance(outcome, NotApplicable)
        assert "does not shuffle values among neighbours" in outcome.reason


def test_a_narrow_device_is_asked_for_what_it_has(target: DeviceUnderTest) -> None:
    device: Any = target.device
    device.caps = attrs.evolve(device.caps, subgroup_shuffle=4)
    for check in CHECKS:
        assert check.run(target) is None


# The yardstick itself: what each class of tolerance lets through, and what it says.


ALL = [Tolerance.of(a, 64, half=h) for a in Accuracy for h in (False, True)]


def by_ulps(values: np.ndarray, ulps: int) -> np.ndarray:
    return (values + ulps * np.spacing(values)).astype(values.dtype)


def test_exact_takes_equal_values_only() -> None:
    exact = Tolerance.exact()
    values = np.array([0.0, -1.5, np.nan, np.inf], np.float32)
    assert exact.mismatch(values, values.copy()) is None
    assert exact.mismatch(np.array([-0.0], np.float32), np.array([0.0], np.float32)) is None
    assert exact.mismatch(by_ulps(values[1:2], 1), values[1:2]) is not None
    assert exact.mismatch(np.array([1, 2]), np.array([1, 3])) is not None
    assert exact.mismatch(np.array([True]), np.array([False])) is not None


@pytest.mark.parametrize(("dtype", "half"), [(np.float32, False), (np.float16, True)])
def test_rounded_counts_units_in_the_last_place(dtype: type, half: bool) -> None:
    rounded = Tolerance.rounded(half=half)
    values = np.array([1.0, -3.75, 1000.0, 0.001], dtype)
    assert rounded.mismatch(by_ulps(values, 4), values) is None
    assert rounded.mismatch(by_ulps(values, 6), values) is not None


def test_transcendental_is_relative_with_a_floor() -> None:
    near = Tolerance.transcendental()
    values = np.array([100.0, 1e-9], np.float32)
    assert near.mismatch(values * np.float32(1 + 1e-5), values) is None
    assert near.mismatch(values * np.float32(1 + 1e-4), values) is not None
    assert near.mismatch(values + np.float32([0, 1e-6]), values) is None


def test_accumulate_grows_with_the_number_of_products() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=4099).astype(np.float32)
    noisy = values + rng.normal(size=4099).astype(np.float32) * np.float32(4e-4)
    assert Tolerance.accumulate(64).mismatch(noisy, values) is not None
    assert Tolerance.accumulate(16384).mismatch(noisy, values) is None
    assert Tolerance.accumulate(64, half=True).mismatch(noisy, values) is None


def test_accumulate_sees_one_bad_element_among_a_million() -> None:
    values = np.random.default_rng(2).normal(size=1_000_003).astype(np.float32)
    bad = values.copy()
    bad[777_777] += 0.05
    problem = Tolerance.accumulate(9).mismatch(bad, values)
    assert problem is not None
    assert "[777777]" in problem


def test_accumulate_of_zeros_wants_zeros() -> None:
    zeros = np.zeros(7, np.float32)
    assert Tolerance.accumulate(9).mismatch(zeros, zeros) is None
    assert Tolerance.accumulate(9).mismatch(zeros + np.float32(1e-3), zeros) is not None


def test_quantized_allows_one_step() -> None:
    assert Tolerance.quantized().mismatch(np.int8([3, -128]), np.int8([4, -127])) is None
    assert Tolerance.quantized().mismatch(np.int8([127]), np.int8([-128])) is not None
    assert Tolerance.quantized(0.1).mismatch(np.float32([0.5]), np.float32([0.6])) is None
    assert Tolerance.quantized(0.1).mismatch(np.float32([0.5]), np.float32([0.61])) is not None


@pytest.mark.parametrize("tolerance", ALL, ids=lambda t: t.name)
def test_every_class_refuses_shape_kind_nan_and_a_wrong_value(tolerance: Tolerance) -> None:
    values = np.arange(1, 8, dtype=np.float32)
    assert tolerance.mismatch(values, values) is None
    assert "shape [7], expected [7, 1]" in str(tolerance.mismatch(values, values[:, None]))
    assert "dtype" in str(tolerance.mismatch(values.astype(np.int32), values))
    for bad in (np.nan, np.inf, -np.inf, 12.0):
        broken = values.copy()
        broken[3] = bad
        problem = tolerance.mismatch(broken, values)
        assert problem is not None
        assert "[3]" in problem
        assert "expected np.float32(4.0)" in problem
        assert tolerance.mismatch(values, broken) is not None


def test_only_half_may_overflow() -> None:
    huge, infinite = np.float32([7e4, 1.0]), np.float32([np.inf, 1.0])
    assert Tolerance.rounded(half=True).mismatch(infinite, huge) is None
    assert Tolerance.rounded(half=True).mismatch(-infinite, huge) is not None
    assert Tolerance.rounded().mismatch(infinite, huge) is not None


def test_check_names_what_was_compared() -> None:
    Tolerance.exact().check(np.ones(3), np.ones(3))
    with pytest.raises(AssertionError, match=r"output 0: 1 of 3 elements differ \(exact\)"):
        Tolerance.exact().check(np.array([1.0, 1.0, 2.0]), np.ones(3), "output 0")


def test_scaling_loosens() -> None:
    values = np.float32([1.0, 2.0])
    assert Tolerance.rounded().mismatch(by_ulps(values, 7), values) is not None
    assert Tolerance.rounded().scaled(2).mismatch(by_ulps(values, 7), values) is None
