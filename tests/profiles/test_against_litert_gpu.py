"""The profile of LiteRT's GPU accelerator beside the accelerator itself, where it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tflgpu
from tflgpu.profiles import every

pytest.importorskip("ai_edge_litert")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are no package that is installed

from benchmarks.delegation import PROFILE, Answer, agrees, ask, counted  # noqa: E402

DIGITS = ROOT / "core" / "tflgpu" / "demo" / "digits.tflite"


@pytest.fixture(scope="module")
def accelerator() -> None:
    answer = ask(DIGITS)
    if answer.failure:
        pytest.skip(f"LiteRT's GPU accelerator does not run here: {answer.failure}")


@pytest.mark.parametrize(
    "name",
    ["mobilenet_v1_0.25_224_float", "mobilenet_v2_1.0_224_f32", "litert_torchaudio_conformer",
     "ssd_mobilenet_v2_oidv4_fp16", "dtln_model_quant_1", "movie_review_nl_classifier"],
)  # fmt: skip
@pytest.mark.usefixtures("accelerator")
def test_says_what_the_accelerator_does(name: str, model_path: Callable[[str], Path]) -> None:
    path = model_path(name)
    answer = ask(path)
    if answer.failure:
        pytest.skip(f"LiteRT does not open it on its GPU: {answer.failure}")
    assert agrees(answer, tflgpu.profiles.report(str(path), PROFILE)), answer


def test_the_profile_is_there() -> None:
    assert PROFILE in {profile.name for profile in every()}


def test_the_log_is_read() -> None:
    gpu = "INFO: Replacing 100 out of 138 node(s) with delegate (GPU) node, yielding 3 partitions"
    cpu = (
        "INFO: Replacing 30 out of 39 node(s) with delegate (TfLiteXNNPackDelegate) node, "
        "yielding 1"
    )
    assert counted(f"{cpu}\n{gpu}\n{cpu}") == 100
    assert (
        counted("29 operations will run on the GPU, and the remaining 2 operations will run on")
        == 29
    )
    assert counted(cpu) is None


def test_agreeing() -> None:
    report = tflgpu.profiles.report(str(DIGITS), PROFILE)
    part = report.delegated_nodes
    assert agrees(Answer(whole=report.fully_delegated, on_gpu=part), report)
    assert agrees(Answer(whole=report.fully_delegated), report)
    assert not agrees(Answer(whole=not report.fully_delegated), report)
    assert not agrees(Answer(whole=report.fully_delegated, on_gpu=part + 1), report)
