"""The suite's shuffles: wrong ones are caught, and devices without them are told so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.conformance.node_checks import node_checks
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable
from tflgpu.language.subgroup import SubgroupShuffleXor
from tflgpu.plugins.registry import registry

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
