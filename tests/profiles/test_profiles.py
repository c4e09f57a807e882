"""Profiles: what they are, what `tflgpu.profiles.report` makes of them, and real models through
all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu import profiles
from tflgpu.errors import ModelError, OptionError
from tflgpu.ir.dtypes import DType
from tflgpu.language.caps import DeviceCaps
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry
from tflgpu.profiles import Profile
from tflgpu.profiles.table import rule_table
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import raising
from tests.small_models import small_model, tensor_of

SMALL = DeviceCaps(max_bindings=64, max_buffer_bytes=1 << 27)


def packing(count: int) -> bytes:
    """PACK of ``count`` tensors: a kernel that binds one buffer more than that."""
    tensors = [TensorSpec(f"t{i}", (3, 5)) for i in range(count)]
    tensors.append(TensorSpec("y", (count, 3, 5)))
    fields = {"axis": 0, "values_count": count}
    packed = OperatorSpec("PACK", fields, tuple(range(count)), (count,))
    return write_model(ModelSpec(tensors, [packed], tuple(range(count)), (count,)))


def squeezed() -> bytes:
    """y = tanh(squeeze(x))."""
    return small_model(
        {"x": (1, 3, 1, 5), "m": (3, 5), "y": (3, 5)},
        ("m = SQUEEZE(x)", {"squeeze_dims": (0, 2)}),
        "y = TANH(m)",
    )


class TestTable:
    def test_names_are_unique_and_of_every_vendor(self) -> None:
        names = [p.name for p in profiles.list()]
        assert len(set(names)) == len(names)
        assert {
            "adreno-740", "mali-g715", "apple-m1", "apple-a16", "powervr-ge8320", "intel-uhd",
            "rtx-class",
            "tflite-gpu", "litert-gpu",
        } <= set(names)  # fmt: skip

    @pytest.mark.parametrize("profile", profiles.list(), ids=lambda p: p.name)
    def test_every_profile_says_where_it_is_from(self, profile: Profile) -> None:
        assert all(len(source) > 10 for source in profile.sources)
        assert len(set(profile.sources)) == len(profile.sources)
        if profile.caps is not None:
            assert set(profile.apis) <= {"opencl", "vulkan", "wgpu"}
            assert profile.caps.is_gpu
            # The backend for WebGPU has bytes in words, whatever the device.
            assert profile.apis[0] != "wgpu" or profile.caps.int8_storage

    def test_no_device_has_less_than_its_api_asks_for(self) -> None:
        least = {"vulkan": "vulkan-least", "wgpu": "webgpu-core"}
        for profile in profiles.list():
            if profile.caps is None or profile.apis[0] not in least:
                continue
            floor = profiles.get(least[profile.apis[0]]).caps
            assert floor is not None
            for name in ("max_workgroup", "shared_bytes", "max_buffer_bytes", "max_bindings"):
                assert getattr(profile.caps, name) >= getattr(floor, name), (profile.name, name)

    def test_get(self) -> None:
        assert profiles.get(" Adreno-740 ").title == "Qualcomm Adreno 740"
        with pytest.raises(
            OptionError, match=r"'adreno-74' \(did you mean adreno-740\?\).*mali-g715"
        ):
            profiles.get("adreno-74")

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"name": "My GPU"}, "small letters"),
            ({"caps": None}, "either the caps of a device or rules"),
            ({"rules": rule_table("tflite-gpu")}, "either the caps of a device or rules"),
            ({"apis": ()}, "caps but no API"),
            ({"sources": ()}, "no source"),
        ],
    )
    def test_mistakes(self, fields: dict[str, Any], text: str) -> None:
        given = {
            "name": "mine",
            "title": "Mine",
            "apis": ("opencl",),
            "caps": SMALL,
            "sources": ("me",),
        }
        Profile(**given)
        with pytest.raises(OptionError, match=text):
            Profile(**given | fields)


class TestCheck:
    def test_a_device(self) -> None:
        report = tflgpu.profiles.report(packing(3), "adreno-740")
        assert (report.delegated_nodes, report.total_nodes, report.partitions) == (1, 1, 1)
        assert (report.backend, report.precision) == ("opencl", "f32")
        assert report.device == "Qualcomm Adreno 740, by its profile"
        assert report.choice[0] == "judged by the profile adreno-740: no device was opened"
        assert report.fully_delegated

    def test_its_limits_hold(self) -> None:
        report = tflgpu.profiles.report(packing(4), "vulkan-least")
        (refusal,) = report.refusals
        assert refusal.reason == "PACK needs 5 buffers in a kernel, the device binds 4"
        assert tflgpu.profiles.report(packing(4), "v3d").fully_delegated
        caps = attrs.evolve(SMALL, max_buffer_bytes=64)
        mine = Profile("mine", "Mine", ("opencl",), caps, sources=("me",))
        (refusal,) = tflgpu.profiles.report(packing(2), mine).refusals
        assert "the largest buffer has 64" in refusal.reason

    def test_bytes_cross_as_words_where_an_api_has_none(self) -> None:
        image = TensorSpec("x", (1, 3), DType.U8)
        cast = OperatorSpec("CAST", {}, (0,), (1,))
        model = write_model(ModelSpec([image, TensorSpec("y", (1, 3))], [cast], (0,), (1,)))
        with_bytes = Profile(
            "bytes", "Bytes", ("opencl",), attrs.evolve(SMALL, int8_storage=True), sources=("me",)
        )
        assert tflgpu.profiles.report(model, with_bytes).delegated_nodes == 1
        assert not tflgpu.profiles.report(model, "apple-m1").refusals

    def test_another_delegate(self) -> None:
        report = tflgpu.profiles.report(squeezed(), "tflite-gpu")
        assert (report.delegated_nodes, report.total_nodes, report.partitions) == (1, 2, 1)
        assert [(r.node, r.op, r.reason) for r in report.refusals] == [
            (0, "SQUEEZE", "the op SQUEEZE is not taken")
        ]
        assert report.backend == "tflite-gpu"
        assert report.device == "TFLite's GPU delegate (V2)"
        assert tflgpu.profiles.report(squeezed(), "mali-g715").fully_delegated

    def test_what_the_original_takes_and_gets_wrong_is_said(self) -> None:
        model = small_model({"x": (1, 3), "y": (1, 3)}, "y = FLOOR(x)")
        report = tflgpu.profiles.report(model, "tflite-gpu")
        assert report.fully_delegated
        assert "#0 FLOOR is taken, but OpenCL has no kernel for it" in report.choice[-1]

    def test_a_path_bytes_or_a_file_that_was_read(self, tmp_path: Path) -> None:
        path = tmp_path / "model.tflite"
        path.write_bytes(squeezed())
        reports = [
            tflgpu.profiles.report(model, profile)
            for model in (str(path), path, squeezed(), read_model(squeezed()))
            for profile in ("tflite-gpu", profiles.get("tflite-gpu"))
        ]
        assert all(report == reports[0] for report in reports)

    def test_options(self) -> None:
        options = DelegateOptions(precision="f16", max_delegated_partitions=2)  # type: ignore[arg-type]
        assert tflgpu.profiles.report(squeezed(), "mali-g715", options).precision == "f16"
        # It lacks 16-bit floats, and so does the report.
        assert tflgpu.profiles.report(squeezed(), "v3d", options).precision == "f32"
        model = small_model({"x": (1, 3), "y": tensor_of((1, 3), DType.I8)}, "y = QUANTIZE(x)")
        allowed, refused = (
            tflgpu.profiles.report(
                model, "tflite-gpu", DelegateOptions(quantized_models_allowed=on)
            )
            for on in (True, False)
        )
        assert allowed.fully_delegated
        assert refused.refusals[0].reason == "quantized models are not allowed"

    def test_no_device_is_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Registry, "open_device", raising(AssertionError("a device was opened")))
        for name in ("adreno-740", "litert-gpu"):
            assert tflgpu.profiles.report(packing(2), name).fully_delegated

    def test_backends_need_not_be_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tflgpu.plugins.registry._registry", Registry.of({}))
        assert tflgpu.profiles.report(packing(2), "apple-m1").fully_delegated

    def test_an_op_that_nobody_knows(self) -> None:
        model = small_model(dict.fromkeys("abc", (2, 3)), "b = Mystery(a)", "c = RELU(b)")
        for name in ("adreno-740", "tflite-gpu"):
            report = tflgpu.profiles.report(model, name)
            assert (report.delegated_nodes, report.refusals[0].op) == (1, "Mystery")
        assert report.refusals[0].reason == "the custom op Mystery is not taken"

    def test_mistakes(self) -> None:
        with pytest.raises(OptionError, match="there is no profile 'abacus'"):
            tflgpu.profiles.report(squeezed(), "abacus")
        with pytest.raises(OptionError, match="a name or a Profile, not int"):
            tflgpu.profiles.report(squeezed(), 740)  # type: ignore[arg-type]
        for name in ("adreno-740", "tflite-gpu"):
            with pytest.raises(ModelError):
                tflgpu.profiles.report(b"no model", name)


def test_a_precision_that_a_device_lacks_shows() -> None:
    weights = np.zeros((4, 3), np.float32)
    model = small_model(
        {"x": (2, 3), "w": tensor_of((4, 3), data=weights), "y": (2, 4)},
        "y = FULLY_CONNECTED(x, w)",
    )
    for precision in ("f32", "f32_f16", "f16"):
        options = DelegateOptions(precision=precision)  # type: ignore[arg-type]
        assert tflgpu.profiles.report(model, "rtx-class", options).precision == precision


MODELS = (
    "deeplabv3_257_mv_gpu", "dtln_model_quant_1", "edsr_f32b5_fp32", "litert_torchaudio_conformer",
    "mobilenet_v1_0.25_224_float", "mobilenet_v1_1.0_224_f32",
    "mobilenet_v1_1.0_224_quant_embedding",
    "mobilenet_v2_1.0_224_f32", "mobilenet_v2_1.0_224_ptq_int8", "movie_review_nl_classifier",
    "mp_hair_segmentation_customops", "mp_pose_landmark_full_f16", "mp_selfie_segmentation_f16",
    "posenet_mobilenet_v1_100_257_f32", "posenet_mobilenet_v1_100_257_int8_float_io",
    "ssd_mobilenet_v1_coco_quant", "ssd_mobilenet_v2_oidv4_fp16", "style_transfer_f16_384",
    "tflm_mnist_lstm_fp32",
)  # fmt: skip
#: Of these, all profiles take a moment.
QUICK = ("dtln_model_quant_1", "movie_review_nl_classifier", "tflm_mnist_lstm_fp32")
#: One of those that are alike in all that counts.
DEVICES = list({p.caps: p.name for p in profiles.list() if p.caps is not None}.values())
DELEGATES = [p.name for p in profiles.list() if p.rules is not None]


@pytest.mark.parametrize("name", MODELS)
def test_real_models(name: str, model_path: Callable[[str], Path]) -> None:
    """Every model through a profile, by turns; TFLGPU_TEST_EVERYTHING=1 takes all through all."""
    everything = os.environ.get("TFLGPU_TEST_EVERYTHING") == "1" or name in QUICK
    turn = DEVICES[MODELS.index(name) % len(DEVICES)]
    file = read_model(str(model_path(name)))
    for profile in [*(DEVICES if everything else [turn]), *DELEGATES]:
        report = tflgpu.profiles.report(file, profile)
        assert report.total_nodes == report.delegated_nodes + len(report.refusals)
        assert all(refusal.reason for refusal in report.refusals)
        # What stays is the exception: each of these was made for phones' GPUs, or nearly.
        assert report.delegated_nodes >= 0.7 * report.total_nodes


@pytest.mark.parametrize(
    "name", ["edsr_f32b5_fp32", "mobilenet_v1_0.25_224_float", "posenet_mobilenet_v1_100_257_f32"]
)
def test_an_rtx_class_gpu_takes_what_an_h200_took(
    name: str, model_path: Callable[[str], Path]
) -> None:
    """As the benchmarks recorded it there."""
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "all_h200.md"
    section = results.read_text(encoding="utf-8").split(f"\n{name}\n")[1]
    took = re.search(r"(\d+) of (\d+) operators on NVIDIA H200", section)
    assert took is not None
    report = tflgpu.profiles.report(str(model_path(name)), "rtx-class")
    assert (report.delegated_nodes, report.total_nodes) == tuple(map(int, took.groups()))
