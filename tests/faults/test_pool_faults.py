"""A real driver says that a device of a pool is lost: the other one answers all requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu

from tests.faults.seams import SEAMS, Plan
from tests.faults.test_faults import IN_A_RUN
from tests.recovery.recovery_models import large


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("backend", IN_A_RUN)
def test_a_lost_device_loses_no_request(
    backend: str,
    batch: int,
    require_backend: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    require_backend(backend)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
    plan = Plan(lost=True)
    SEAMS[backend](monkeypatch, plan)
    with tflgpu.Pool(large(1), devices=[0, 0], backend=backend, size=1, batch=batch) as pool:
        xs = [np.full((1, 1024), n, np.float32) for n in range(12)]
        for x in xs[:2]:
            np.testing.assert_array_equal(pool(x)[0], 2 * x)
        plan.start((IN_A_RUN[backend], 3))
        futures = [pool.submit(x) for x in xs]
        for x, future in zip(xs, futures, strict=True):
            np.testing.assert_array_equal(future.result(60)[0], 2 * x)
        for x in xs:
            np.testing.assert_array_equal(pool(x)[0], 2 * x)
        assert plan.came
        assert len(pool.reports) == batch  # of one device, for batches of 1 to `batch`
