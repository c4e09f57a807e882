"""`import tflgpu` is quick, loads no driver, and gives the public names."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
import tflgpu
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.lowering.lowering import Precision
from tflgpu.options import DelegateOptions, InferencePreference, InferencePriority

DRIVERS = {"pyopencl", "vulkan", "wgpu", "ai_edge_litert", "tensorflow"}


def in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_names_are_the_objects_of_their_modules() -> None:
    assert tflgpu.Interpreter is Interpreter
    assert tflgpu.GpuDelegate is GpuDelegate
    assert tflgpu.DelegateOptions is DelegateOptions
    assert tflgpu.Precision is Precision
    assert tflgpu.InferencePreference is InferencePreference
    assert tflgpu.InferencePriority is InferencePriority
    assert issubclass(tflgpu.errors.OptionError, tflgpu.errors.TflgpuError)
    assert tflgpu.__version__ == version("tflgpu")


def test_every_public_name_is_there_and_listed() -> None:
    for name in tflgpu.__all__:
        assert getattr(tflgpu, name) is not None
    assert set(tflgpu.__all__) <= set(dir(tflgpu))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tflgpu' has no attribute 'Interpeter'"):
        tflgpu.Interpeter  # noqa: B018


def test_importing_is_quick() -> None:
    # Of the processor's time: other processes may be using this machine's processors.
    code = (
        "import time; start = time.process_time(); import tflgpu; "
        "print(time.process_time() - start)"
    )
    assert min(float(in_a_new_process(code)) for _ in range(3)) < 0.3


@pytest.mark.parametrize("use", ["", "; tflgpu.Interpreter", "; tflgpu.GpuDelegate"])
def test_no_driver_is_imported(use: str) -> None:
    out = in_a_new_process(f"import sys, tflgpu{use}; print(*sys.modules, sep='\\n')")
    loaded = {name.split(".")[0] for name in out.split()}
    assert "tflgpu" in loaded
    assert loaded & DRIVERS == set()


def test_all_errors_are_public() -> None:
    for name, kind in vars(tflgpu.errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert getattr(tflgpu, name) is kind
            assert name in tflgpu.__all__
            assert issubclass(kind, tflgpu.TflgpuError)
