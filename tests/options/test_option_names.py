"""Names for one thing agree or clash, flags are read in every way, and kinds of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu import DelegateOptions, OptionError
from tflgpu.options import ExperimentalFlags as Flags
from tflgpu.options.enums import ForceBackend

ALL_ON = Flags.ENABLE_QUANT | Flags.CL_ONLY


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"enable_quantization": False}, {"quantized_models_allowed": False}),
        ({"allow_precision_loss": True}, {"is_precision_loss_allowed": 1}),
        ({"precision_loss_allowed": False}, {"is_precision_loss_allowed": 0}),
        ({"force_backend": "OPENCL"}, {"backend": "opencl"}),
        ({"force_backend": 2}, {"backend": "opengl"}),
        ({"force_backend": "unset", "backend": "vulkan"}, {"backend": "vulkan"}),
        ({"gpu_invoke_loop_times": 3}, {"invoke_loop_times": 3}),
        ({"experimental_flags": 3, "backend": "opencl"}, {"backend": "opencl"}),
        ({"experimental_flags": 0, "enable_quantization": 0}, {"quantized_models_allowed": False}),
    ],
)
def test_names_for_one_thing(given: dict[str, Any], same: dict[str, Any]) -> None:
    options, other = DelegateOptions(**given), DelegateOptions(**same)
    # Flags say that serialization is off, too.
    assert options.changed(enable_serialization=None) == other


@pytest.mark.parametrize(
    ("given", "both"),
    [
        ({"enable_quantization": True, "quantized_models_allowed": False},
         ("enable_quantization=true", "quantized_models_allowed=false")),
        ({"quantized_models_allowed": True, "experimental_flags": "CL_ONLY"},
         ("quantized_models_allowed=true", "experimental_flags=CL_ONLY")),
        ({"experimental_flags": Flags.CL_ONLY, "backend": "vulkan"},
         ("experimental_flags=CL_ONLY", "backend=vulkan")),
        ({"force_backend": "opencl", "backend": "vulkan"}, ("force_backend=OPENCL", "backend=vul")),
        ({"allow_precision_loss": False, "is_precision_loss_allowed": 1},
         ("allow_precision_loss=false", "is_precision_loss_allowed=true")),
        ({"gpu_invoke_loop_times": 2, "invoke_loop_times": 3},
         ("gpu_invoke_loop_times=2", "invoke_loop_times=3")),
        ({"experimental_flags": 6}, ("CL_ONLY", "GL_ONLY")),
        ({"experimental_flags": "CL_ONLY", "serialization_dir": "a", "model_token": "b"},
         ("serialization_dir", "ENABLE_SERIALIZATION")),
        ({"experimental_flags": 9}, ("ENABLE_SERIALIZATION", "serialization_dir and model_token")),
        ({"serialization_dir": "a"}, ("serialization_dir", "without model_token")),
        ({"model_token": "a"}, ("model_token", "without serialization_dir")),
        ({"first_delegate_node_index": 3, "last_delegate_node_index": 2},
         ("last_delegate_node_index=2", "first_delegate_node_index=3")),
        ({"wait_type": "do_not_wait"}, ("DO_NOT_WAIT", "use PASSIVE")),
        ({"wait_type": 3}, ("AGGRESSIVE", "ACTIVE is the nearest")),
    ],
)  # fmt: skip
def test_a_clash_names_both(given: dict[str, Any], both: tuple[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        DelegateOptions(**given)
    for one in both:
        assert one in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [ALL_ON, 3, np.int32(3), "3", "ENABLE_QUANT|CL_ONLY", "cl_only, enable_quant",
     "TFLITE_GPU_EXPERIMENTAL_FLAGS_ENABLE_QUANT | TFLITE_GPU_EXPERIMENTAL_FLAGS_CL_ONLY"],
)  # fmt: skip
def test_flags(given: Any) -> None:
    options = DelegateOptions(experimental_flags=given)
    assert options.experimental_flags == ALL_ON
    assert (options.backend, options.quantized_models_allowed) == ("opencl", True)


@pytest.mark.parametrize("given", [16, -1, True, 1.0, None, "", "QUANT", "1|2", []])
def test_what_are_no_flags(given: Any) -> None:
    with pytest.raises(OptionError, match=r"^experimental_flags is any of ENABLE_QUANT"):
        DelegateOptions(experimental_flags=given)


def test_flags_and_other_names_are_read_back() -> None:
    options = DelegateOptions(serialization_dir=Path("a"), model_token="b", force_backend="opencl")
    assert options.experimental_flags == Flags(11)
    assert options.force_backend is ForceBackend.OPENCL
    assert DelegateOptions(backend="wgpu").force_backend is ForceBackend.UNSET
    assert options.changed(enable_quantization=False).experimental_flags == Flags(10)


def test_the_backend_that_is_not_there_is_told() -> None:
    with pytest.raises(tflgpu.DeviceError, match=r"there is no backend 'opengl' \(.*known: "):
        tflgpu.GpuDelegate(experimental_flags="ENABLE_QUANT|GL_ONLY")


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [(1, 1), ("100", 100), ("64MiB", 64 << 20), ("2 GB", 2 * 10**9), ("1kb", 1000), (1 << 40,) * 2],
)
def test_sizes(given: Any, nbytes: int) -> None:
    assert DelegateOptions(memory_limit=given).memory_limit == nbytes


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "much", "1.5GB", "-3", "MB", "4 XB", ""])
def test_what_are_no_sizes(given: Any) -> None:
    with pytest.raises(OptionError, match=r"^memory_limit is "):
        DelegateOptions(memory_limit=given)


def test_nodes_are_named_once_each() -> None:
    assert DelegateOptions(exclude=[3, "ADD", np.int64(3)]).exclude == (3, "ADD")
    assert DelegateOptions(exclude="ADD").exclude == ("ADD",)
    assert DelegateOptions(include=0).include == (0,)


@pytest.mark.parametrize("given", [[-1], [1.5], [""], [None], [True], 2.5, {"a": 1}])
def test_what_names_no_nodes(given: Any) -> None:
    with pytest.raises(OptionError, match=r"^exclude (has|is) "):
        DelegateOptions(exclude=given)


@pytest.mark.parametrize("token", ["", "..", "a/b", "a\\b", "c:d", 3, "a\0"])
def test_a_token_is_a_folder_and_no_way_out(token: Any) -> None:
    with pytest.raises(OptionError, match=r"^model_token names a folder"):
        DelegateOptions(serialization_dir="x", model_token=token)


@pytest.mark.parametrize("folder", ["", 3, b"x", "a\0b"])
def test_what_is_no_folder(folder: Any) -> None:
    with pytest.raises(OptionError, match=r"^serialization_dir is the path of a folder"):
        DelegateOptions(serialization_dir=folder, model_token="x")
