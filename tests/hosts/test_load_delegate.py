"""`tflgpu.load_delegate`: options as text, as scripts give them."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tflgpu
from host_models import chain, host, litert, run
from tflgpu.hosts import callbacks
from tflgpu.hosts.library import elf
from tflgpu.options import DelegateOptions, options_from_text

linux_only = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the library is an ELF file for x86_64 and aarch64",
)


def test_in_litert() -> None:
    options = {"backend": "cpu_ref", "device": "1", "min_nodes_per_partition": "2"}
    with tflgpu.load_delegate("tflgpu", options) as delegate:
        x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
        np.testing.assert_array_equal(run(host(chain("ABS", "NEG"), delegate), x), [-np.abs(x)])
        assert delegate.reports[0].fully_delegated
        assert delegate.reports[0].dispatches == 1


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ({}, {}),
        ({"backend": "none", "device": "None"}, {}),
        ({"device": "nvidia"}, {"device": "nvidia"}),
        ({"precision": "f16", "max_delegated_partitions": "3"},
         {"precision": "f16", "max_delegated_partitions": 3}),
        ({"is_precision_loss_allowed": "1", "allow_fallback": "0"},
         {"is_precision_loss_allowed": True, "allow_fallback": False}),
        ({"is_precision_loss_allowed": "-1"}, {}),
        ({"inference_priority1": "2", "inference_preference": "1"},
         {"inference_priority1": "MIN_LATENCY", "inference_preference": "SUSTAINED_SPEED"}),
        ({"inference_priority1": "MIN_LATENCY"}, {"inference_priority1": 2}),
        ({"device": 1, "guard_bands": True}, {"device": 1, "guard_bands": True}),
    ],
)  # fmt: skip
def test_text(text: dict[str, object], same: dict[str, Any]) -> None:
    assert options_from_text(text) == DelegateOptions(**same)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"bakend": "opencl"}, "did you mean backend"),
        ({"max_delegated_partitions": "many"}, "max_delegated_partitions is a whole number"),
        ({"max_delegated_partitions": "0"}, "the least is 1"),
        ({"min_nodes_per_partition": "-2"}, "min_nodes_per_partition is a whole number"),
        ({"allow_fallback": "perhaps"}, "allow_fallback is True or False"),
        ({"precision": "none of these"}, "precision is one of"),
        ({"allow_fallback": "none"}, "allow_fallback is True or False"),
    ],
)
def test_mistakes(text: dict[str, object], says: str) -> None:
    with pytest.raises(tflgpu.OptionError, match=says):
        options_from_text(text)


def test_other_libraries() -> None:
    with pytest.raises(tflgpu.OptionError, match=r"libedgetpu\.so\.1.*ai_edge_litert.interpreter"):
        tflgpu.load_delegate("libedgetpu.so.1")


@linux_only
def test_litert_loads_the_library_itself() -> None:
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    for _ in range(2):
        delegate = litert.load_delegate(
            tflgpu.delegate_library(), {"backend": "cpu_ref", "device": "1"}
        )
        interpreter = host(chain("ABS", "NEG"), delegate)
        assert callbacks.live_kernels() == 1
        del delegate
        np.testing.assert_array_equal(run(interpreter, x), [-np.abs(x)])
        del interpreter
        assert callbacks.live_kernels() == 0


@linux_only
def test_what_is_wrong_with_options_comes_out_of_load_delegate() -> None:
    with pytest.raises(ValueError, match=r"tflgpu: unknown option bakend \(did you mean backend"):
        litert.load_delegate(tflgpu.delegate_library(), {"bakend": "opencl"})


@linux_only
def test_the_library_to_the_end_of_the_process() -> None:
    program = f"""
import sys
sys.path[:] = {sys.path!r}
import tflgpu
from ai_edge_litert.interpreter import Interpreter, load_delegate
delegate = load_delegate(tflgpu.delegate_library(), {{"backend": "cpu_ref"}})
interpreter = Interpreter(model_content={chain("ABS")!r}, experimental_delegates=[delegate])
interpreter.allocate_tensors()
interpreter.invoke()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(
        tflgpu.UnsupportedError, match=r"give the interpreter a tflgpu\.GpuDelegate"
    ):
        tflgpu.delegate_library()


def test_the_file_is_what_the_format_says() -> None:
    made = elf({"first": 0x1234, "second": 0x5678}, 62)
    assert made[:4] == b"\x7fELF"
    assert b"\0first\0second\0" in made
    assert (0x1234).to_bytes(8, "little") in made
    assert (0x5678).to_bytes(8, "little") in made
