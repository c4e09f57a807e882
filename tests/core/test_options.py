"""What `DelegateOptions` takes, as TFLite spells it, and what it refuses, in the caller's words."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu import DelegateOptions, InferencePreference, InferencePriority, OptionError, Precision
from tflgpu.devices.choose import find_candidates
from tflgpu.plugins.registry import registry

TRUTHS = ("allow_fallback", "quantized_models_allowed", "guard_bands")
LATENCY = InferencePriority.MIN_LATENCY


@pytest.mark.parametrize("option", TRUTHS)
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (True, True), (False, False), (1, True), (0, False), ("true", True), ("FALSE", False),
        ("Yes", True), ("no", False), ("on", True), (" Off ", False), ("1", True), ("0", False),
        (np.True_, True), (np.False_, False), (np.int64(0), False), (np.uint8(1), True),
    ],
)  # fmt: skip
def test_truth_values(option: str, given: Any, meant: bool) -> None:
    assert getattr(DelegateOptions(**{option: given}), option) is meant


@pytest.mark.parametrize("option", TRUTHS)
@pytest.mark.parametrize(
    "given", ["maybe", "", "2", 2, -1, None, 1.0, float("nan"), [], [True], np.array([1, 0])]
)
def test_what_is_no_truth_value(option: str, given: Any) -> None:
    with pytest.raises(OptionError, match=rf"^{option} is True or False .*not ") as caught:
        DelegateOptions(**{option: given})
    assert repr(given) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        (-1, Precision.F32), (None, Precision.F32), ("-1", Precision.F32), (0, Precision.F32),
        (np.int32(-1), Precision.F32), ("no", Precision.F32), ("False", Precision.F32),
        (1, Precision.F16), (True, Precision.F16), ("yes", Precision.F16),
    ],
)  # fmt: skip
def test_precision_loss_in_tflites_codes(given: Any, precision: Precision) -> None:
    assert DelegateOptions(is_precision_loss_allowed=given).wanted_precision is precision


def test_undefined_precision_loss_follows_the_priorities() -> None:
    options = DelegateOptions(is_precision_loss_allowed=-1, inference_priority1=LATENCY)
    assert options.wanted_precision is Precision.F16


@pytest.mark.parametrize("given", [tflgpu.Numerics.INTEGER, "integer", " Integer "])
def test_numerics_by_member_or_name(given: Any) -> None:
    options = DelegateOptions(quantized_numerics=given)
    assert options.quantized_numerics is tflgpu.Numerics.INTEGER
    assert DelegateOptions().quantized_numerics is None
    assert DelegateOptions().wanted_numerics is tflgpu.Numerics.FLOAT


@pytest.mark.parametrize("given", ["int8", 1, True, "", tflgpu.Precision.F32])
def test_what_are_no_numerics(given: Any) -> None:
    with pytest.raises(OptionError, match=r"^quantized_numerics is one of FLOAT, INTEGER, not "):
        DelegateOptions(quantized_numerics=given)


@pytest.mark.parametrize("given", [2, -2, "perhaps", 1.0, "", [], float("nan")])
def test_what_is_no_precision_loss(given: Any) -> None:
    with pytest.raises(OptionError, match=r"^is_precision_loss_allowed is .*-1.*priorities, not "):
        DelegateOptions(is_precision_loss_allowed=given)


@pytest.mark.parametrize(
    "given",
    [LATENCY, 2, np.int64(2), "2", "min_latency", "MIN_LATENCY",
     "TFLITE_GPU_INFERENCE_PRIORITY_MIN_LATENCY"],
)  # fmt: skip
def test_a_priority_by_member_code_or_name(given: Any) -> None:
    assert DelegateOptions(inference_priority1=given).inference_priority1 is LATENCY


@pytest.mark.parametrize("given", [1, "TFLITE_GPU_INFERENCE_PREFERENCE_SUSTAINED_SPEED"])
def test_a_preference_by_code_or_name(given: Any) -> None:
    options = DelegateOptions(inference_preference=given)
    assert options.inference_preference is InferencePreference.SUSTAINED_SPEED


@pytest.mark.parametrize(
    "given",
    [True, np.True_, 1.0, 2.0, float("nan"), 4, -1, "fast", "", "²", None, [2],
     InferencePreference.SUSTAINED_SPEED, "TFLITE_GPU_INFERENCE_PREFERENCE_BALANCED"],
)  # fmt: skip
@pytest.mark.parametrize("option", ["inference_priority1", "inference_priority2"])
def test_what_is_no_priority(option: str, given: Any) -> None:
    with pytest.raises(OptionError, match=rf"^{option} is one of AUTO \(0\), .*MIN_LATENCY"):
        DelegateOptions(**{option: given})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "f8"}, "^precision is one of F32, F16, F32_F16, not 'f8'"),
        ({"precision": 1}, "^precision is one of"),
        ({"backend": ""}, "^backend is a name, not ''"),
        ({"backend": 3}, "^backend is a name, not 3"),
        ({"device": -1}, "^device is an index from 0, part of a name, or uuid:UUID, not -1"),
        ({"device": True}, "^device is an index"),
        ({"device": 1.0}, "^device is an index"),
        ({"device": ""}, "^device is an index"),
        ({"max_delegated_partitions": 0}, "^max_delegated_partitions is 0; the least is 1"),
        ({"max_delegated_partitions": True}, "^max_delegated_partitions is a whole number"),
        ({"min_nodes_per_partition": "2"}, "^min_nodes_per_partition is a whole number"),
        ({"min_nodes_per_partition": None}, "^min_nodes_per_partition is a whole number"),
    ],
)
def test_other_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DelegateOptions(**options)


def test_numpys_integers_are_integers() -> None:
    options = DelegateOptions(device=np.int64(0), max_delegated_partitions=np.int32(3))  # type: ignore[arg-type]
    assert type(options.device) is int
    assert options.max_delegated_partitions == 3


@pytest.mark.parametrize("make", [DelegateOptions, tflgpu.GpuDelegate])
def test_an_unknown_option_with_the_one_that_was_meant(make: Any) -> None:
    with pytest.raises(OptionError, match=r"unknown option precison \(did you mean precision\?\)"):
        make(precison="f16")
    with pytest.raises(
        OptionError, match=r"unknown option xyzzy; there are accuracy_guard, allow_fallback, "
    ):
        make(xyzzy=1)


def test_an_object_and_keywords_are_not_mixed() -> None:
    with pytest.raises(OptionError, match="either a DelegateOptions or keyword"):
        tflgpu.GpuDelegate(DelegateOptions(), backend="cpu_ref")


def test_options_are_values() -> None:
    options = DelegateOptions(allow_fallback="no")  # type: ignore[arg-type]
    changed = attrs.evolve(options, device=1)
    assert (changed.allow_fallback, changed.device) == (False, 1)
    assert changed == DelegateOptions(allow_fallback=False, device=1)


@pytest.mark.parametrize("text", ["-1", "-0004"])
def test_the_environments_device_is_named(text: str) -> None:
    with pytest.raises(OptionError, match=r"^TFLGPU_DEVICE is an index from 0"):
        find_candidates(registry(), DelegateOptions(), {"TFLGPU_DEVICE": text})


@pytest.mark.parametrize("text", ["²", "9" * 5000])  # digits, but no index
def test_a_device_that_only_looks_like_a_number_is_a_name(text: str) -> None:
    with pytest.raises(tflgpu.DeviceError, match="no backend has a device"):
        find_candidates(registry(), DelegateOptions(), {"TFLGPU_DEVICE": text})


def test_blanks_in_the_environment_ask_for_nothing() -> None:
    environ = {"TFLGPU_BACKEND": " ", "TFLGPU_DEVICE": ""}
    assert not find_candidates(registry(), DelegateOptions(), environ).explicit


def test_a_compatibility_list_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="plugins is a Registry, not str"):
        tflgpu.CompatibilityList("opencl")  # type: ignore[arg-type]
    monkeypatch.setenv("TFLGPU_DEVICE", "-1")
    known = tflgpu.CompatibilityList()
    assert not known.is_delegate_supported_on_this_device
    assert "TFLGPU_DEVICE is an index" in known.choice.reasons[0]
    assert known.devices == ()
