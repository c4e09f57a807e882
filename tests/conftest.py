"""Fixtures that tests of every area use: what a test needs, or a reason why it is skipped."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

# Before NumPy is imported, also by the workers and children of this process: NumPy's BLAS would
# start a thread on each core in each of them, and threads that wait for one another spin. With a
# worker for each core (`-n auto`) products of matrices would take four times their processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# llvmpipe, which runs Vulkan and WebGPU where there is no GPU, spends a third of conformance's time
# in LLVM's optimiser (212 and 151 CPU seconds for 1,408 checks, with it and without), on kernels
# that run once. What the optimiser makes of them is asked where everything is.
if not os.environ.get("TFLGPU_TEST_EVERYTHING"):
    os.environ.setdefault("GALLIVM_PERF", "nopt")

import pytest
from hypothesis import HealthCheck, settings
from tflgpu.contract.device import Device, Probe
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry
from tflgpu.saved import location

#: Seconds after which a child that a test forked is ended: its parent may wait for it for ever.
CHILD = 120


def _end_in_time() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CHILD)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_time)

# How long Hypothesis takes for an example says how busy this machine is, not what is right. Its
# examples are the same in every run; others are looked for where everything is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("TFLGPU_TEST_EVERYTHING"),
)  # fmt: skip
settings.load_profile("any machine")

# What a device leaves is run by the references, to which tests compare. What LiteRT's kernels do in
# their place is asked where it is said (tests/litert, and by `cpu_backend="litert"`).
os.environ.setdefault("TFLGPU_CPU_BACKEND", "cpu_ref")
# An interpreter without a delegate is one on the CPU, also where there is a GPU; the default
# delegate has tests of its own (tests/plugins/test_default_delegate.py).
os.environ.setdefault("TFLGPU_DEFAULT_DELEGATE", "0")

# Where a test's toy is a GPU, or this machine has one, what goes there must not hang on a measured
# time. What pays is asked where it is said (`partitioning="gain"`).
os.environ.setdefault("TFLGPU_PARTITIONING", "all")


#: What `pytest -m quick` runs: reader, graph, passes, partition, compiler and language, one level
#: of conformance on the kernel interpreter, and the interpreter, where a test has no driver, no
#: process and no real model to wait for.
QUICK = re.compile(
    r"tests/(tflite|passes|options|compiler|cpu_ref|language|core)/"
    r"|tests/conformance/test_suite\.py::test_conformance\[cpu_ref:1/2/.*/f32/edge\]"
    r"|tests/interpreter/test_(model|interpreter_mistakes|buffers|interpreter_edges)\.py"
)
_DRIVERS = re.compile(r"opencl|vulkan|wgpu|pocl|hostile|budget|fuzz|one_compiler|type_checkers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if QUICK.match(item.nodeid) and not _DRIVERS.search(item.nodeid):
            item.add_marker(pytest.mark.quick)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """The tests themselves are a million objects and live to the end: no search for garbage, of
    which tests ask for many, has to look at them. Searches on the way there find nothing."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _nothing_is_kept_for_the_next() -> Iterator[None]:
    """Compiled models are kept in the user's folder unless somebody says otherwise; what a test
    sees must not hang on what another has left there. Tests of it name a folder, or bring this
    back."""
    import_module("tflgpu.cli.cache")  # whose commands show the user's folder all the same
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(location, "default_folder", lambda: None)
        yield


def _require_backend(name: str) -> Probe:
    probe = registry().probe(name)
    if probe.available:
        return probe
    info = registry().backends[name]
    reason = f"backend {name}: {probe.reason}"
    if info.system_hint:
        reason += f" (it may need: {info.system_hint})"
    # A machine that is set up to have a backend must not pass by skipping its tests.
    if name in os.environ.get("TFLGPU_REQUIRE_BACKENDS", "").replace(",", " ").split():
        pytest.fail(f"{reason}; TFLGPU_REQUIRE_BACKENDS asks for it")
    pytest.skip(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test needs the backends of its marks, ``needs("opencl")``, and that of its parameter
    ``backend``: where one has no device here, it is skipped or fails as by `require_backend`."""
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    parameters = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    for name in (*names, parameters.get("backend")):
        if isinstance(name, str) and name in registry().backends:
            _require_backend(name)


@pytest.fixture(scope="session")
def require_backend() -> Callable[[str], Probe]:
    """``require_backend(name)`` skips unless the backend has a device here, and fails instead
    where the environment variable TFLGPU_REQUIRE_BACKENDS lists the backend."""
    return _require_backend


@pytest.fixture(scope="session")
def litert() -> Any:
    """LiteRT's module of interpreters."""
    return pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    """The kernel interpreter, with 16-bit arithmetic; some rooms have devices of their own."""
    opened = registry().open_device("cpu_ref", 1, DelegateOptions())
    assert isinstance(opened, Device)
    yield opened
    opened.close()


@pytest.fixture
def pocl_without_its_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of many kernels that run once: PoCL's compiler takes most of their time, and half
    of it without optimising (26.8 and 13.5 CPU seconds for 89 checks, Python's own time included).
    PoCL reads the variable for each program. The other tests, and all with
    TFLGPU_TEST_EVERYTHING=1, see what its optimiser makes of kernels."""
    if not os.environ.get("TFLGPU_TEST_EVERYTHING"):
        monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of .tflite files: TFLGPU_MODELS, or shared/models beside the checkout."""
    given = os.environ.get("TFLGPU_MODELS")
    folder = Path(given) if given else Path(__file__).parents[2] / "shared" / "models"
    if not folder.is_dir():
        pytest.skip(f"no models at {folder}; set TFLGPU_MODELS to a folder of .tflite files")
    return folder


@pytest.fixture(scope="session")
def model_path(models_dir: Path) -> Callable[[str], Path]:
    """``model_path(name)``: a model's file, with or without its suffix; skips where absent."""

    def find(name: str) -> Path:
        path = models_dir / (name if name.endswith(".tflite") else f"{name}.tflite")
        if not path.is_file():
            pytest.skip(f"no model {path.name} in {models_dir}")
        return path

    return find
