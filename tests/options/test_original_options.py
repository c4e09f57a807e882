"""Every option of TensorFlow Lite's GPU delegates is here: by its name, with its default or a
reason for another, and with its meaning or a refusal."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
import tflgpu
from tflgpu.options import OPTIONS, OTHER_NAMES, DelegateOptions, OptionKeywords
from tflgpu.options import ExperimentalFlags as Flags
from tflgpu.options.enums import ForceBackend
from tflgpu.options.other_names import REFUSED

PREFERENCES, PRIORITIES = tflgpu.InferencePreference, tflgpu.InferencePriority
OTHERWISE = object()  # a default of our own, below

#: `TfLiteGpuDelegateOptionsV2` (delegate_options.h), `TFLGpuDelegateOptions` (metal_delegate.h),
#: `GpuDelegateFactory.Options` (Java) and the GL delegate of 2019, in snake case: name and default.
ORIGINAL: dict[str, dict[str, Any]] = {
    "V2": {
        "is_precision_loss_allowed": None,  # -1
        "inference_preference": PREFERENCES.FAST_SINGLE_ANSWER,
        "inference_priority1": PRIORITIES.MAX_PRECISION,
        "inference_priority2": PRIORITIES.AUTO,
        "inference_priority3": PRIORITIES.AUTO,
        "experimental_flags": Flags.ENABLE_QUANT,
        "max_delegated_partitions": OTHERWISE,
        "serialization_dir": None,
        "model_token": None,
        "first_delegate_node_index": 0,
        "last_delegate_node_index": OTHERWISE,
        "gpu_invoke_loop_times": 1,
    },
    "Metal": {
        "allow_precision_loss": OTHERWISE,
        "wait_type": tflgpu.WaitType.PASSIVE,
        "enable_quantization": True,
    },
    "Java": {
        "precision_loss_allowed": OTHERWISE,
        "quantized_models_allowed": True,
        "inference_preference": PREFERENCES.FAST_SINGLE_ANSWER,
        "serialization_params": OTHERWISE,
        "force_backend": ForceBackend.UNSET,
    },
    "GL": {
        "precision_loss_allowed": OTHERWISE,
        "preferred_gl_object_type": OTHERWISE,
        "dynamic_batch_enabled": OTHERWISE,
        "inline_parameters": OTHERWISE,
    },
}
#: What we do where the original has another default, or none.
OURS = {
    "max_delegated_partitions": None,  # parts are ranked by what they gain; docs/options.md
    "last_delegate_node_index": None,  # INT_MAX
    "allow_precision_loss": None,  # two of the delegates disagree; V2's rules are the priorities'
    "precision_loss_allowed": None,
}
FIELDS = [(api, name) for api, fields in ORIGINAL.items() for name in fields]


@pytest.mark.parametrize(("api", "name"), FIELDS)
def test_every_field_is_known_with_its_default(api: str, name: str) -> None:
    if name in REFUSED:
        with pytest.raises(tflgpu.OptionError, match=f"^{name} is no option here: "):
            DelegateOptions(**{name: 1})
        return
    assert name in OPTIONS or name in OTHER_NAMES
    default = ORIGINAL[api][name]
    wanted = OURS[name] if default is OTHERWISE else default
    assert getattr(DelegateOptions(), name) == wanted


def test_the_enumerations_have_the_originals_codes() -> None:
    assert {p.name: p.value for p in PREFERENCES} == {
        "FAST_SINGLE_ANSWER": 0, "SUSTAINED_SPEED": 1, "BALANCED": 2,
    }  # fmt: skip
    assert {p.name: p.value for p in PRIORITIES} == {
        "AUTO": 0, "MAX_PRECISION": 1, "MIN_LATENCY": 2, "MIN_MEMORY_USAGE": 3,
    }  # fmt: skip
    assert {f.name: f.value for f in Flags if f.value} == {
        "ENABLE_QUANT": 1, "CL_ONLY": 2, "GL_ONLY": 4, "ENABLE_SERIALIZATION": 8,
    }  # fmt: skip
    assert [w.name for w in tflgpu.WaitType] == ["PASSIVE", "ACTIVE", "DO_NOT_WAIT", "AGGRESSIVE"]


def test_the_keywords_for_type_checkers_are_the_options() -> None:
    assert set(get_type_hints(OptionKeywords)) == set(OPTIONS) | set(OTHER_NAMES)


def test_every_option_says_what_it_does() -> None:
    for option in OPTIONS.values():
        assert option.effect.endswith("."), option.name
        assert option.kind.takes, option.name
        assert option.kind.read(option.name, option.default) == option.default
        text = option.kind.shown(option.default)
        assert option.kind.parse(option.name, text) == option.default, option.name


def test_the_originals_defaults_can_be_had() -> None:
    given = DelegateOptions.from_v2(experimental_flags="ENABLE_QUANT|CL_ONLY")
    assert given == DelegateOptions(
        max_delegated_partitions=1, backend="opencl", enable_serialization=False
    )
    for api, name in FIELDS:
        if api == "V2" and ORIGINAL[api][name] is not OTHERWISE:
            assert getattr(DelegateOptions.from_v2(), name) == ORIGINAL[api][name]
    assert DelegateOptions.from_v2().max_delegated_partitions == 1
    assert DelegateOptions.from_v2(max_delegated_partitions=3).max_delegated_partitions == 3
    with pytest.raises(tflgpu.OptionError, match="max_delegated_partition"):
        DelegateOptions.from_v2(max_delegated_partition=3)  # type: ignore[call-arg]
