"""The examples do what they say: a custom op, two backends."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.samples import materialize
from tflgpu.conformance.suite import Suite
from tflgpu.conformance.target import DeviceUnderTest
from tflgpu.lowering.lowering import Precision
from tflgpu.options import DelegateOptions
from tflgpu.plugins import registry as plugins
from tflgpu.plugins.registry import Registry
from tflgpu.plugins.sources import Plugin

from tests.op_case import run_case
from tests.small_models import small_model, tensor_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def with_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """``with_plugin(folder, package)``: as if the example were installed beside the rest."""
    before = set(sys.modules)

    def install(folder: str, package: str) -> Any:
        monkeypatch.syspath_prepend(ROOT / "examples" / folder)
        module = import_module(f"{package}.plugin")
        installed = (*plugins.registry().plugins, Plugin(package, package, module))
        made = Registry(installed)
        assert made.failures == ()
        monkeypatch.setattr(plugins, "_registry", made)
        return module

    yield install
    for name in set(sys.modules) - before:
        if name.startswith(("tflgpu_softsign", "tflgpu_minimal")):
            del sys.modules[name]


def scaled_softsign() -> bytes:
    """``y = softsign(x * 3)``."""
    factor = np.array([3], np.float32)
    return small_model(
        {"x": (2, 5), "f": tensor_of((1,), data=factor), "m": (2, 5), "y": (2, 5)},
        "m = MUL(x, f)",
        "y = Softsign(m)",
    )


def negated_relu() -> bytes:
    """``y = relu(-x)``; nothing fuses the two."""
    return small_model(dict.fromkeys("xmy", (2, 5)), "m = NEG(x)", "y = RELU(m)")


def run(model: bytes, x: np.ndarray, **options: Any) -> tuple[np.ndarray, Any]:
    with (
        tflgpu.GpuDelegate(**options) as delegate,
        tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.invoke()
        output = interpreter.get_output_details()[0]["index"]
        return interpreter.get_tensor(output), interpreter.report


def test_the_custom_op_runs_on_a_device_fused(with_plugin: Any) -> None:
    with_plugin("custom_op", "tflgpu_softsign")
    x = np.linspace(-2, 2, 10, dtype=np.float32).reshape(2, 5)
    y, report = run(scaled_softsign(), x, backend="cpu_ref", device=1)
    np.testing.assert_allclose(y, 3 * x / (1 + np.abs(3 * x)), rtol=1e-6)
    assert report.fully_delegated
    assert report.dispatches == 1


def test_without_its_plugin_the_custom_op_is_refused() -> None:
    with pytest.raises(tflgpu.errors.UnsupportedError, match="Softsign"):
        run(scaled_softsign(), np.zeros((2, 5), np.float32), backend="cpu_ref")


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.value)
@pytest.mark.parametrize(("backend", "index"), [("cpu_ref", 1), ("opencl", 0)])
def test_the_custom_op_agrees_with_its_reference(
    with_plugin: Any, backend: str, index: int, precision: Precision
) -> None:
    module = with_plugin("custom_op", "tflgpu_softsign")
    device = plugins.registry().open_device(backend, index, DelegateOptions())
    half = precision is not Precision.F32
    if precision is Precision.F16 and not device.caps.f16_arithmetic:
        pytest.skip(f"{device.info.name} has no 16-bit arithmetic")
    (op,) = module.OPS
    for sample in op.samples():
        case = materialize(op, sample, half=half)
        results = run_case(case, device, precision, module.RULES)
        assert isinstance(results, list)
        case.tolerance(half=half).check(results[0], case.expected[0], sample.id)
    device.close()


def test_the_minimal_backend(with_plugin: Any) -> None:
    with_plugin("backend", "tflgpu_minimal")
    x = np.linspace(-2, 2, 10, dtype=np.float32).reshape(2, 5)
    y, report = run(negated_relu(), x, backend="minimal")
    np.testing.assert_array_equal(y, np.maximum(-x, 0))
    assert report.delegated_nodes == 1
    (refusal,) = report.refusals
    assert "the ReLU engine has no NEG" in refusal.reason
    suite = Suite.of(plugins.registry(), "minimal")
    target = DeviceUnderTest.open(plugins.registry(), "minimal")
    # But for interrupted runs, which conformance asks of every backend: it traces Python line by
    # line, and here CPython 3.11.7 crashed in its tracing, twice, in processes with 12,000 tests
    # behind them.
    checks = [c for c in suite.select([0]) if not c.id.endswith("interrupted_runs")]
    verdicts = {c.id: suite.judge(c, target) for c in checks}
    assert {i: v.detail for i, v in verdicts.items() if v.status == "failed"} == {}
    assert verdicts["0/nodes/recording_closes"].status == "passed"
    target.close()


def test_the_minimal_backend_that_runs_kernels(with_plugin: Any) -> None:
    with_plugin("kernels", "tflgpu_minimal_kernels")
    x = np.linspace(-2, 2, 10, dtype=np.float32).reshape(2, 5)
    y, report = run(negated_relu(), x, backend="minimal_kernels")
    np.testing.assert_array_equal(y, np.maximum(-x, 0))
    assert report.fully_delegated
    suite = Suite.of(plugins.registry(), "minimal_kernels")
    target = DeviceUnderTest.open(plugins.registry(), "minimal_kernels")
    # But for thousands of runs and loads, which show a leak of a driver, for large runs and signals
    # within long ones: its recordings are the core's, which tests/conformance asks on each device.
    slow = re.compile("take_no_memory$|interrupted_|dispatches_in_order$")
    checks = [c for c in suite.select([0]) if not slow.search(c.id)]
    verdicts = {c.id: suite.judge(c, target) for c in checks}
    assert {i: v.detail for i, v in verdicts.items() if v.status == "failed"} == {}
    for name in ("chain/257", "guard_bands/arena/before", "submit/several_in_flight", "threads"):
        assert verdicts[f"0/{name}"].status == "passed"
    assert verdicts["0/buffers/bound"].status == "inapplicable"
    target.close()


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def test_the_plugin_of_the_page_on_choosing_is_one() -> None:
    (program,) = python_blocks(ROOT / "docs/choosing.md")
    acme = ModuleType("acme")
    exec(compile(program, "docs/choosing.md", "exec"), vars(acme))
    made = Registry((*plugins.registry().plugins, Plugin("acme", "acme", acme)))
    assert made.failures == ()
    (entry,) = [e for e in made.compat_entries("cpu_ref") if e.name == "acme-f16"]
    assert entry.caps == {"f16_arithmetic": False}


def test_the_guide_shows_the_examples_as_they_are() -> None:
    """Every block of Python in CONTRIBUTING.md stands in a file of the examples."""
    files = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "examples").rglob("*.py"))]
    blocks = python_blocks(ROOT / "CONTRIBUTING.md")
    assert len(blocks) == 3
    for block in blocks:
        assert any(block in text for text in files), f"in no example:\n{block}"
