"""Makes `tests.tflite` importable whichever way pytest was started, and finds the real models."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

MODELS = Path(os.environ.get("TFLGPU_MODELS", ROOT.parent / "shared" / "models"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `model_path` once for each real model; skip it where there is none."""
    if "model_path" not in metafunc.fixturenames:
        return
    paths = sorted(MODELS.glob("*.tflite"))
    if paths:
        metafunc.parametrize("model_path", paths, ids=[p.stem for p in paths])
    else:
        skip = pytest.mark.skip(reason="no models; set TFLGPU_MODELS to a folder of .tflite files")
        metafunc.parametrize("model_path", [pytest.param(None, marks=skip)], ids=["none"])


@pytest.fixture
def find_model() -> Callable[[str], Path]:
    """The path of a real model by name; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = MODELS / f"{name}.tflite"
        if not path.exists():
            pytest.skip(f"no {path.name}; set TFLGPU_MODELS to a folder that has it")
        return path

    return find
