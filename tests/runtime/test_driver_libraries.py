"""Drivers that compile by LLVM, in a process that has another LLVM, as TensorFlow brings one.

Small libraries stand for the three: a driver, its LLVM, and another one whose functions end the
process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tflgpu.backend_kit.driver_libraries import vulkan_manifests

pytestmark = pytest.mark.skipif(
    not hasattr(os, "RTLD_DEEPBIND"), reason="symbols of libraries are kept apart on this system"
)

#: `llvm::errs()` and `llvm::outs()`, as C++ writes their names.
_ERRS, _OUTS = "_ZN4llvm4errsEv", "_ZN4llvm4outsEv"
SOURCES = {
    "libLLVM-own": f"int {_ERRS}(void) {{ return 1; }} int {_OUTS}(void) {{ return 1; }}",
    "libother": f"""#include <stdlib.h>
        int {_ERRS}(void) {{ abort(); }} int {_OUTS}(void) {{ abort(); }}""",
    "libdriver": f"""#include <stdlib.h>
        int {_ERRS}(void); int {_OUTS}(void);
        __attribute__((constructor)) static void loaded(void) {{ if ({_ERRS}() != 1) abort(); }}
        int compiled(void) {{ return {_OUTS}(); }}""",
    "libmalloc": """#include <stddef.h>
        void *__libc_malloc(size_t);
        void *malloc(size_t bytes) { return __libc_malloc(bytes); }""",
}
IMPORTS_OTHER = "import ctypes\nctypes.CDLL(libs + '/libother.so', ctypes.RTLD_GLOBAL)\n"
PROBES = (
    "from tflgpu.plugins.registry import registry\nprobe = registry().probe(backend)\n"
    "loaded = 'libdriver.so' in open('/proc/self/maps').read()\n"
)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the libraries, with a driver's files of both kinds."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to make a driver that needs an LLVM of its own")
    folder = tmp_path_factory.mktemp("libraries")
    for name, source in SOURCES.items():
        (folder / f"{name}.c").write_text(source, encoding="utf-8")
        own = ["-L.", "-lLLVM-own", "-Wl,-rpath,$ORIGIN"] if name == "libdriver" else []
        command = [compiler, "-shared", "-fPIC", "-Wl,-z,lazy", f"{name}.c", "-o", f"{name}.so"]
        subprocess.run([*command, *own], cwd=folder, check=True, timeout=60)
    (folder / "driver.icd").write_text(f"{folder}/libdriver.so\n", encoding="utf-8")
    manifest = {"file_format_version": "1.0.0",
                "ICD": {"library_path": "./libdriver.so", "api_version": "1.1.0"}}  # fmt: skip
    (folder / "driver.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


def run(program: str, environment: Mapping[str, str]) -> str:
    """What a Python program prints; a signal that ends it fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"ended by {done.returncode}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture(params=["opencl", "vulkan", "wgpu"])
def run_on(
    request: pytest.FixtureRequest, libraries: Path, require_backend: Callable[[str], Any]
) -> Callable[..., str]:
    """Run a program that has ``backend`` and ``libs``, where that driver is the only one there
    is."""
    require_backend(request.param)
    drivers = {"OCL_ICD_VENDORS": f"{libraries}/driver.icd",
               "VK_DRIVER_FILES": f"{libraries}/driver.json",
               "VK_ICD_FILENAMES": f"{libraries}/driver.json"}  # fmt: skip
    start = f"backend, libs = {request.param!r}, {str(libraries)!r}\n"
    return lambda program, **more: run(start + program, {**drivers, **more})


def test_a_driver_has_its_own_llvm_where_another_was_first(run_on: Callable[..., str]) -> None:
    assert run_on(IMPORTS_OTHER + PROBES + "print(loaded)") == "True"


def test_a_driver_keeps_its_own_llvm_where_another_comes_later(run_on: Callable[..., str]) -> None:
    program = PROBES + IMPORTS_OTHER + "print(ctypes.CDLL(libs + '/libdriver.so').compiled())"
    assert run_on(program) == "1"


def test_what_cannot_be_kept_apart_is_not_loaded(
    run_on: Callable[..., str], libraries: Path
) -> None:
    """A library with symbols of its own first has the C library's malloc, too."""
    program = IMPORTS_OTHER + PROBES + "print(loaded, probe.available, probe.reason)"
    said = run_on(program, LD_PRELOAD=f"{libraries}/libmalloc.so")
    assert said.startswith("False False "), said
    for part in ("libdriver.so would crash this process", "malloc", "before TensorFlow"):
        assert part in said
    assert "OCL_ICD_VENDORS" in said or "VK_DRIVER_FILES" in said


@pytest.mark.parametrize(
    ("backend", "environment"),
    [
        ("opencl", {"OCL_ICD_VENDORS": "{libs}"}),
        ("opencl", {"OCL_ICD_VENDORS": "driver.icd", "OPENCL_VENDOR_PATH": "{libs}"}),
        ("opencl", {"OCL_ICD_VENDORS": "libdriver.so", "LD_LIBRARY_PATH": "{libs}"}),
        ("opencl", {"OPENCL_VENDOR_PATH": "{libs}"}),
        ("vulkan", {"VK_ICD_FILENAMES": "{libs}/driver.json"}),
        ("vulkan", {"VK_ADD_DRIVER_FILES": "/nowhere.json:{libs}/driver.json"}),
        ("vulkan", {"XDG_DATA_DIRS": "{libs}/share"}),
        ("vulkan", {"XDG_CONFIG_HOME": "{libs}/share"}),
    ],
)
def test_drivers_are_found_where_the_loaders_find_them(
    backend: str, environment: Mapping[str, str], libraries: Path
) -> None:  # fmt: skip
    folder = libraries / "share/vulkan/icd.d"
    folder.mkdir(parents=True, exist_ok=True)
    text = (libraries / "driver.json").read_text(encoding="utf-8")
    (folder / "driver.json").write_text(text.replace("./", f"{libraries}/"), encoding="utf-8")
    start = f"backend, libs = {backend!r}, {str(libraries)!r}\n"
    given = {name: value.format(libs=libraries) for name, value in environment.items()}
    assert run(start + IMPORTS_OTHER + PROBES + "print(loaded)", given) == "True"


@pytest.mark.parametrize(
    ("variable", "globs", "left"),
    [
        ("VK_LOADER_DRIVERS_DISABLE", "*Soft*, other", ["hard.json"]),
        ("VK_LOADER_DRIVERS_DISABLE", "~all~", []),
        ("VK_LOADER_DRIVERS_SELECT", "soft.json", ["soft.json"]),
        ("VK_LOADER_DRIVERS_SELECT", "", ["hard.json", "soft.json"]),
    ],
)
def test_drivers_that_the_loader_leaves_out_are_left_out(
    variable: str, globs: str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("soft.json", "hard.json", "notes.txt"):
        (tmp_path / name).touch()
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path))
    monkeypatch.setenv(variable, globs)
    assert [Path(file).name for file in vulkan_manifests()] == left


#: Runs the demo's model: in another precision it has other kernels, which are to be compiled.
RUNS = """
import tflgpu
from tflgpu.demo import load_digits
digits = load_digits()
def check(**arguments):
    model = tflgpu.Interpreter(model_content=digits.model, **arguments)
    model.allocate_tensors()
    model.set_tensor(model.get_input_details()[0]["index"], digits.images[0])
    model.invoke()
    found = model.get_tensor(model.get_output_details()[0]["index"])
    assert found.argmax() == digits.labels[0], found
def check_on(precision):
    with tflgpu.GpuDelegate(backend=backend, precision=precision) as delegate:
        check(experimental_delegates=[delegate])
"""
TENSORFLOW = "import tensorflow\nassert tensorflow.constant([1.0]).numpy() == 1\n"


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
@pytest.mark.parametrize(
    "program",
    [
        TENSORFLOW + RUNS + "check()\ncheck_on('f32')\n",
        RUNS + "check_on('f32')\n" + TENSORFLOW + "check_on('f16')\ncheck()\n",
    ],
    ids=["first", "later"],
)
def test_tensorflow_may_be_in_the_process(program: str, backend: str, tmp_path: Path) -> None:
    nothing_kept = {"TFLGPU_CACHE_DIR": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path / "pocl"),
                    "MESA_SHADER_CACHE_DISABLE": "1"}  # fmt: skip
    run(f"backend = {backend!r}\n" + program, nothing_kept)
