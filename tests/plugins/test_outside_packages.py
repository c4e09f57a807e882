"""Packages from outside, installed as a user would: a backend, an op, and one that is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow
PACKAGES = ("tflgpu-example-backend", "tflgpu-example-op", "tflgpu-broken")


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # Before the folders that this process was told of, not instead of them.
    paths = [environment.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, text=True, check=False,
        capture_output=True, timeout=500,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three packages installed, built from copies of their sources.

    They find tflgpu and its dependencies where this Python does; nothing is downloaded.
    """
    folder = tmp_path_factory.mktemp("site")
    pytest.importorskip("hatchling", reason="building packages offline needs hatchling installed")
    paths = [str(HERE / name) for name in PACKAGES]
    done = run(
        ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation",
         "--disable-pip-version-check", "--target", str(folder), *paths]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


#: A device that runs kernels by NumPy, as this one does, is asked of every op in tests/conformance.
#: Here all that is the device's own is asked (levels 0 and 1, and level 4 in f32), and some ops in
#: f32 at a partition's edge: one of each kind of kernel, that of the other package, and one that
#: has none. Its recordings are tflgpu's: thousands of runs of them show nothing of a driver's.
#: With TFLGPU_TEST_EVERYTHING=1 this one is asked all.
OPS = ("ABS", "CONV_2D", "ExampleSwish", "GATHER", "MEAN", "NON_MAX_SUPPRESSION_V4", "SOFTMAX")
REST = (
    "not internal] and not f16/edge] and not f16] and not [3/ and not interrupted_"
    " and not runs_take_no_memory and (not [2/ and not guards"
    f" or {' or '.join(f'/{name}/ or /{name}]' for name in OPS)})"
)
ASKED = [] if os.environ.get("TFLGPU_TEST_EVERYTHING") else ["-k", REST]


def test_the_example_backend_conforms(site: Path, tmp_path: Path) -> None:
    report = tmp_path / "support.json"
    done = run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--pyargs",
         "tflgpu.conformance", "--tflgpu-backend", "example", "--tflgpu-report", str(report),
         *ASKED],
        PYTHONPATH=str(site), PYTEST_ADDOPTS="",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = json.loads(report.read_text())
    assert found["ops"]["CONV_2D"]["example"]["support"] == "full"
    # The op of the other package is tested with those that are shipped.
    assert found["ops"]["ExampleSwish"]["example"]["support"] == "full"
    assert found["ops"]["NON_MAX_SUPPRESSION_V4"]["example"]["support"] == "none"
    assert not any("failed" in level for level in found["backends"]["example"]["levels"].values())


MODEL = """
import sys
import numpy as np
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu_example_op.op import NAME, options

tensors = [TensorSpec(name, (1, 3, 5, 7)) for name in ("x", "a", "b", "y")]
operators = [
    OperatorSpec("NEG", {}, (0,), (1,)),
    OperatorSpec("NEG", {}, (1,), (2,)),
    OperatorSpec(NAME, {}, (2,), (3,), custom_options=options(1.5)),
]
model = write_model(ModelSpec(tensors, operators, (0,), (3,)))
delegate = tflgpu.GpuDelegate(backend=sys.argv[1], device=int(sys.argv[2]))
plan_of = tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
plan_of.allocate_tensors()
x = np.linspace(-4, 4, 105, dtype=np.float32).reshape(1, 3, 5, 7)
plan_of.set_tensor(plan_of.get_input_details()[0]["index"], x)
plan_of.invoke()
y = plan_of.get_tensor(plan_of.get_output_details()[0]["index"])
assert np.abs(y - x / (1 + np.exp(-1.5 * x))).max() < 1e-5
report = plan_of.report
print(report.delegated_nodes, report.total_nodes, report.dispatches)
"""


@pytest.mark.parametrize(("backend", "index"), [("cpu_ref", 1), ("opencl", 0)])
def test_a_model_with_the_example_op_runs(site: Path, backend: str, index: int) -> None:
    done = run(["-c", MODEL, backend, str(index)], PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    # All three operators; the pass left the custom op's kernel alone.
    assert done.stdout.split() == ["3", "3", "1"]


def test_the_host_goes_on_beside_a_broken_plugin(site: Path) -> None:
    done = run(["-m", "tflgpu.cli.app", "devices", "--json"], PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (failure,) = found["failed_plugins"]
    assert failure["distribution"] == "tflgpu-broken"
    assert "libbroken.so.1" in failure["error"]
    names = {b["name"]: b for b in found["backends"]}
    assert names["example"]["available"] and names["example"]["distribution"] == (
        "tflgpu-example-backend"
    )
    assert names["cpu_ref"]["available"]


def test_a_backend_that_cannot_be_opened_is_a_failure(site: Path) -> None:
    done = run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "tflgpu.conformance",
         "--tflgpu-backend", "example", "--tflgpu-device", "7", "--tflgpu-level", "0"],
        PYTHONPATH=str(site), PYTEST_ADDOPTS="",
    )  # fmt: skip
    assert done.returncode == 1
    assert "backend example, device 7 cannot be tested" in done.stdout + done.stderr
