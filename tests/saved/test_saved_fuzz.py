"""Damaged files by the hundred, and by thousands where everything is asked (`damage.py`)."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import damage
import pytest

EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))


def test_damaged_files_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    count = 2500 if EVERYTHING else 36
    said = damage.run(tmp_path, count, 3)
    assert sum(said.values()) == count
    assert set(said) <= {"made anew", "read, and not damaged"}
    assert said["made anew"] > 0.9 * count


def test_the_check_finds_what_is_believed(tmp_path: Path) -> None:
    """A reader that takes no heed of digests would be found out."""
    kept = damage.Damage(tmp_path, "cpu_ref", 1)
    kept.right = b"another"
    with (
        damage.GpuDelegate(**kept.options) as delegate,
        pytest.raises(AssertionError, match="was believed"),
    ):
        kept.case(lambda good, other, rng: good, damage.random.Random(1), delegate)
