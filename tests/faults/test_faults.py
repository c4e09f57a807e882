"""Any call of a driver fails once: one error of ours, nothing left behind, and all works
afterwards."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import TflgpuError

for folder in ("faults", "lifetimes"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
from tests.faults.seams import SEAMS, Plan  # noqa: E402
from tests.lifetimes import child  # noqa: E402
from tests.lifetimes.test_nothing_left import living  # noqa: E402
from tests.small_models import small_model, tensor_of  # noqa: E402

#: With TFLGPU_TEST_EVERYTHING=1 each of so many calls of each function fails; else the first one of
#: some functions.
EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))
MOST, EACH = (12, 1) if EVERYTHING else (1, 4)
PHASES = ("open", "load", "run", "read", "close")


#: What may fail without an error: caches, questions that have another answer, and the compiler,
#: which is asked again.
TOLERATED = {"_Program._build", "vkGetPipelineCacheData", "vkCreatePipelineCache",
"vkEnumerateInstanceVersion",
             "vkEnumerateInstanceExtensionProperties", "vkEnumerateInstanceLayerProperties",
             "vkEnumerateDeviceExtensionProperties"}  # fmt: skip


def model(number: int) -> bytes:
    """Another for each number, so that none of its kernels was compiled before."""
    return small_model(
        {"x": (1, 3), "f": tensor_of((3,), data=child.FACTORS), "m": (1, 3), "y": (1, 3)},
        "m = MUL(x, f)",
        ("y = SOFTMAX(m)", {"beta": _beta(number)}),
    )


def _beta(number: int) -> float:
    return 1 + number / 64


def expected(number: int, x: Any) -> Any:
    scaled = _beta(number) * x * child.FACTORS
    e = np.exp(scaled - scaled.max())
    return e / e.sum()


class Life:
    """A model's, in phases; each can be made again where it failed."""

    def __init__(self, backend: str, number: int, delegate: Any = None) -> None:
        self.backend, self.number = backend, number
        self.delegate, self.interpreter = delegate, None
        self.own = delegate is None
        self.missed = False

    def open(self) -> None:
        if self.own:
            self.delegate = tflgpu.GpuDelegate(backend=self.backend, allow_fallback=False)

    def load(self) -> None:
        if self.interpreter is None:
            self.interpreter = tflgpu.Interpreter(
                model_content=model(self.number), experimental_delegates=[self.delegate]
            )
        self.interpreter.allocate_tensors()

    def run(self) -> None:
        assert self.interpreter is not None
        self.interpreter.set_tensor(0, self.x)
        self.interpreter.invoke()

    def read(self) -> None:
        assert self.interpreter is not None
        output = self.interpreter.get_output_details()[0]["index"]
        got = self.interpreter.get_tensor(output)
        np.testing.assert_allclose(got, expected(self.number, self.x), atol=1e-5)

    def close(self) -> None:
        if self.interpreter is not None:
            self.interpreter.close()
        if self.own and self.delegate is not None:
            self.delegate.close()

    @property
    def x(self) -> Any:
        return (child.X * (1 + self.number % 5)).astype(np.float32)


@pytest.fixture(params=list(SEAMS))
def seam(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> Iterator[tuple[str, Plan]]:  # fmt: skip
    require_backend(request.param)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path))
    plan = Plan()
    SEAMS[request.param](monkeypatch, plan)
    yield request.param, plan


def _points(backend: str, plan: Plan, shared: Any) -> list[tuple[str, str, int]]:
    """Phases and the calls that are made in them. Opening takes longest and is the same for all, so
    that only what it calls fails with a device of its own."""
    points = []
    for delegate in (None, shared):
        life = Life(backend, 0 if delegate is None else 1, delegate)
        for phase in PHASES:
            plan.start()
            getattr(life, phase)()
            if (delegate is None) == (phase == "open"):
                counts = Counter(plan.calls)
                points += [(phase, n, i) for n, c in counts.items() for i in range(min(c, MOST))]
    return points


def _live(life: Life, plan: Plan, phase: str, call: tuple[str, int]) -> Iterator[str]:
    """A whole life in which a call fails in a phase: what is wrong with it."""
    error: Exception | None = None
    for each in PHASES:
        plan.start(call if each == phase else None)
        try:
            getattr(life, each)()
        except Exception as caught:  # noqa: BLE001
            error = caught
        came = plan.came
        plan.start()
        if each != phase:
            if error is not None:
                yield f"afterwards, in {each}: {error!r}"
            continue
        if not came:  # what it makes is there already, and shared
            life.missed = True
        elif error is None:
            if phase in ("load", "run") and call[0] not in TOLERATED:
                yield "no error"
        elif not isinstance(error, TflgpuError):
            yield f"{type(error).__name__}: {error}"
        if error is not None:
            error = None
            # Once more, on the same objects; where results could not be read, the run as well.
            for again in ("run", "read") if each == "read" else (each,):
                try:
                    getattr(life, again)()
                except Exception as caught:  # noqa: BLE001
                    yield f"once more: {type(caught).__name__}: {caught}"
    life.close()


def test_any_call_fails_once(seam: tuple[str, Plan]) -> None:
    backend, plan = seam
    shared = tflgpu.GpuDelegate(backend=backend, allow_fallback=False)
    points = _points(backend, plan, shared)
    assert {"open", "load", "run"} <= {phase for phase, _, _ in points}
    before, wrong, missed = living(), [], 0
    points = points[::EACH]
    for number, (phase, name, at) in enumerate(points, 2):
        where = f"{phase}: call {at} of {name}"
        life = Life(backend, number, None if phase == "open" else shared)
        wrong += [f"{where}: {problem}" for problem in _live(life, plan, phase, (name, at))]
        missed += life.missed
        del life
        left = living() - before
        if left:
            wrong.append(f"{where}: left behind: {dict(left)}")
            before = living()
    shared.close()
    print(backend, len(points), "points")  # `pytest -rP` shows it
    assert not wrong, "\n".join(wrong)
    assert missed < len(points) / 4


#: A call of every run, by backend.
IN_A_RUN = {"opencl": "_nd_range", "vulkan": "vkQueueSubmit", "wgpu": "wgpuQueueSubmit"}


@pytest.mark.parametrize("on_error", ["raise", "retry", "cpu"])
def test_a_lost_device(seam: tuple[str, Plan], on_error: str) -> None:
    """It is opened anew, or given up; either way the next run works."""
    backend, plan = seam
    plan.lost = True
    with tflgpu.GpuDelegate(backend=backend, on_error=on_error) as delegate:
        life = Life(backend, 1, delegate)
        life.load()
        life.run()
        life.read()
        first = delegate.device
        plan.start((IN_A_RUN[backend], 0))
        if on_error == "raise":
            with pytest.raises(tflgpu.DeviceLostError):
                life.run()
        life.run()
        life.read()
        assert plan.came
        assert (delegate.device is first) == (on_error == "cpu")
        refused = len(life.interpreter.report.refusals)
        assert refused == (2 if on_error == "cpu" else 0)
        life.close()
