"""`tflgpu check`: a device held against LiteRT, the operator from which on it differs, and what a
device that is not here takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, InputError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.lowering.rule import ElementwiseRule
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu.tools import check_runs
from tflgpu.tools.check_outputs import (
    Gap,
    OutputKind,
    boxes_apart,
    gap_of,
    kind_of,
    other_classes,
    ranking,
)

from tests.cli.cli_helpers import Hooks, Tflgpu
from tests.small_models import small_spec, tensor_of

pytest.importorskip("ai_edge_litert")

KERNELS = ("--backend", "cpu_ref", "--device", "1")
CHAIN = ("ABS", "SQRT", "TANH", "LOGISTIC", "EXP")


@pytest.fixture
def chain(write: Any) -> Path:
    """Five operators in a row, which share one kernel on a device."""
    tensors = [TensorSpec(f"t{i}", (3, 7)) for i in range(len(CHAIN) + 1)]
    operators = [OperatorSpec(op, {}, (i,), (i + 1,)) for i, op in enumerate(CHAIN)]
    return write("chain", ModelSpec(tensors, operators, (0,), (len(CHAIN),)))


@pytest.fixture
def planted(install: Any, cpu_ref: object) -> Any:
    """``planted(op, expression)``: the kernel of an operator computes this instead."""

    def plant(op: str, expression: Any) -> None:
        rule = ElementwiseRule(op, lambda k, attributes, operands: expression(k, operands[0]))
        install(cpu_ref=cpu_ref, wrong=Hooks(register_kernels=lambda backend: [rule]))

    return plant


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no such file"), (b"", "the file is empty"), (b"x" * 99, "TFL3")]
)
def test_a_file_that_is_no_model_is_named(
    tflgpu: Tflgpu, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "wrong.tflite"
    if content is not None:
        path.write_bytes(content)
    ran = tflgpu("check", path)
    assert ran.exit_code == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"error: {path}: ")
    assert said in line


def test_a_device_that_agrees(tflgpu: Tflgpu, chain: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ran = tflgpu("check", chain, *KERNELS, "--html", page)
    assert ran.exit_code == 0, ran.stderr
    assert "agrees with LiteRT (XNNPACK) on 4 samples" in ran.stdout
    assert "first differs" not in ran.stdout
    text = page.read_text()
    assert "agrees with LiteRT (XNNPACK)" in text
    assert "t5" in text
    found = json.loads(tflgpu("check", chain, *KERNELS, "--json").stdout)
    assert found["agrees"] is True
    (output,) = found["outputs"]
    assert output["name"] == "t5"
    assert 0 < output["gap"]["max_abs"] < 1e-5
    assert output["spread"] is not None  # of LiteRT's own kernels, beside ours
    assert sum(output["gap"]["histogram"]) == 4 * 21
    assert found["first_diverging"] is None


@pytest.mark.parametrize("op", CHAIN)
def test_a_planted_wrong_kernel_is_named(
    tflgpu: Tflgpu, chain: Path, planted: Any, op: str
) -> None:
    """Wherever it is among operators that share a kernel."""
    planted(op, lambda k, x: k.call("abs", x) * 0.5 + 0.25)
    ran = tflgpu("check", chain, *KERNELS)
    assert ran.exit_code == 1
    index = CHAIN.index(op)
    assert f"first differs at operator {index}, {op} (t{index + 1})" in ran.stdout
    assert "wrong with this operator alone on the device" in ran.stdout
    assert "DIFFERS from LiteRT (XNNPACK)" in ran.stdout


def test_values_that_are_lost_are_counted(tflgpu: Tflgpu, chain: Path, planted: Any) -> None:
    planted("SQRT", lambda k, x: (x - x) / (x - x))
    found = json.loads(tflgpu("check", chain, *KERNELS, "--json").stdout)
    assert found["outputs"][0]["gap"]["lost"] == 4 * 21
    assert "84 values are NaN or infinite" in found["outputs"][0]["why"]
    assert found["first_diverging"]["op"] == "SQRT"


def test_errors_that_add_up_are_told_from_a_wrong_kernel(chain: Path) -> None:
    """With a tolerance that is less than rounding no operator is to blame."""
    found = tflgpu.check(chain, backend="cpu_ref", device=1, tolerance=1e-9)
    assert not found.agrees
    assert "and 1e-09 is allowed" in found.outputs[0].why
    assert tflgpu.check(chain, backend="cpu_ref", device=1, tolerance=0.5).agrees


def test_equal_bits_are_suspicious(tflgpu: Tflgpu, image_model: Any, chain: Path) -> None:
    """Of a model that computes they are: here it only moves its image."""
    ran = tflgpu("check", image_model(), *KERNELS)
    assert ran.exit_code == 0
    assert "suspicious: every output is bit for bit equal" in ran.stderr
    assert "suspicious" not in tflgpu("check", chain, *KERNELS).stderr
    none = tflgpu("check", chain, *KERNELS, "--exclude", ",".join(CHAIN))
    assert "no operator runs on a device" in none.stderr
    left = tflgpu("check", chain, *KERNELS, "--exclude", "TANH", "--require-full-delegation")
    assert left.exit_code == 1
    assert "not all operators run on the device" in left.stderr


def test_samples_of_a_folder(tflgpu: Tflgpu, chain: Path, two_inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "notes.txt").write_text("not looked at")
    assert "has no images" in tflgpu("check", chain, *KERNELS, "--data", folder).stderr
    for number in range(3):
        np.save(folder / f"{number}.npy", np.full((3, 7), number, np.float32))
    assert "on 3 samples" in tflgpu("check", chain, *KERNELS, "--data", folder).stdout
    some = tflgpu("check", chain, *KERNELS, "--data", folder, "--count", 2)
    assert "on 2 samples" in some.stdout
    several = tflgpu("check", two_inputs, *KERNELS, "--data", folder)
    assert several.exit_code == 2
    assert "give .npz files with arrays by name: a, b" in several.stderr
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(pairs / "one.npz", a=array, b=array[::-1])
    assert "on 1 sample" in tflgpu("check", two_inputs, *KERNELS, "--data", pairs).stdout
    np.savez(pairs / "one.npz", a=array)
    assert "not the inputs a, b" in tflgpu("check", two_inputs, *KERNELS, "--data", pairs).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "cpu"), "check compares a device with the CPU"),
        (("--as", "adreno-740", "--backend", "opencl"), "--as is for a device that is not here"),
        (("--data", "absent"), "there is no such folder"),
        (("--std", "0"), "--std not 0"),
        (("--std", "2"), "--mean and --std are for images"),
    ],
)
def test_mistakes(tflgpu: Tflgpu, chain: Path, arguments: tuple[str, ...], message: str) -> None:
    ran = tflgpu("check", chain, *arguments)
    assert ran.exit_code == 2
    assert message in ran.stderr


def test_without_a_device(chain: Path, install: Any, cpu_ref: object, monkeypatch: Any) -> None:
    monkeypatch.delenv("TFLGPU_BACKEND", raising=False)
    install(cpu_ref=cpu_ref)
    with pytest.raises(DeviceError, match="there is no device to check"):
        tflgpu.check(chain)
    with pytest.raises(InputError, match="no samples"):
        tflgpu.check(chain, [])


class TestProfiles:
    """What a device that is not here takes."""

    @pytest.fixture
    def floats(self, write: Any) -> Path:
        """RGB, sizes that change, a move, and an operator that TFLite's delegate does not take."""
        return write(
            "floats",
            small_spec(
                {
                    "image": tensor_of((1, 4, 4, 3), shape_signature=(-1, 4, 4, 3)),
                    "flat": (1, 48),
                    "y": (1, 48),
                },
                ("flat = RESHAPE(image)", {"new_shape": (1, 48)}),
                "y = ROUND(flat)",
            ),
        )

    def test_exit_codes(self, tflgpu: Tflgpu, floats: Path, chain: Path) -> None:
        assert tflgpu("check", floats, "--as", "tflite-gpu").exit_code == 0
        full = "--require-full-delegation"
        assert tflgpu("check", floats, "--as", "tflite-gpu", full).exit_code == 1
        assert tflgpu("check", chain, "--as", "tflite-gpu", full).exit_code == 0

    def test_advice(self, tflgpu: Tflgpu, floats: Path, chain: Path) -> None:
        said = tflgpu("check", floats, "--as", "tflite-gpu").stdout
        assert "advice: 1 RESHAPE: on a GPU they may copy" in said
        assert "advice: input image has 3 channels (RGB)" in said
        assert "advice: input image has sizes that change" in said
        found = json.loads(tflgpu("check", chain, "--as", "tflite-gpu", "--json").stdout)
        assert found["advice"] == []
        assert len(found["report"]["operators"]) == len(CHAIN)

    def test_what_a_profile_is_about(self, tflgpu: Tflgpu, chain: Path) -> None:
        said = tflgpu("check", chain, "--as", "pixel-8").stdout
        assert "by the profile mali-g715" in said
        assert "this is what tflgpu would run on such a GPU" in said
        assert "tflite-gpu and litert-gpu" in said
        assert (
            "this is what tflgpu would run"
            not in tflgpu("check", chain, "--as", "litert-gpu").stdout
        )
        assert "(did you mean pixel-8?)" in tflgpu("check", chain, "--as", "pixle-8").stderr

    def test_every_phone_has_a_profile(self) -> None:
        from tflgpu.profiles.table import every, phones

        assert len(phones()) > 10
        assert {gpu for gpu, _ in phones().values()} <= {profile.name for profile in every()}
        assert all(source.startswith("https://") for _, source in phones().values())
        assert not set(phones()) & {profile.name for profile in every()}


class TestOutputs:
    """How each kind of output is judged."""

    @pytest.mark.parametrize(
        ("shape", "dtype", "kind"),
        [
            ((1, 1000), np.float32, OutputKind.SCORES),
            ((1, 1, 1, 1001), np.uint8, OutputKind.VALUES),
            ((1, 9), np.float32, OutputKind.VALUES),
            ((2, 1000), np.float32, OutputKind.VALUES),
            ((1, 64, 64, 21), np.float32, OutputKind.MASK),
            ((1, 8, 8, 21), np.float32, OutputKind.VALUES),
            ((1, 64, 64), np.int64, OutputKind.WHOLE),
        ],
    )
    def test_kinds(self, shape: tuple[int, ...], dtype: Any, kind: OutputKind) -> None:
        assert kind_of(np.zeros(shape, dtype)) is kind

    def test_gaps(self) -> None:
        y = np.array([1, -4, np.inf, 2], np.float32)
        x = np.array([1.5, np.nan, 7, 2], np.float32)
        gap = gap_of(x, y)
        assert (gap.max_abs, gap.share, gap.lost, gap.not_finite) == (0.5, 0.125, 1, 1)
        assert not gap.equal
        assert gap_of(y, y).equal
        steps = gap_of(np.array([3, 5], np.int8), np.array([3, 4], np.int8), (0.5, -1))
        assert (steps.max_abs, steps.share) == (0.5, 0.2)
        assert gap_of(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])).share == 0.25
        assert gap_of(np.zeros(3), np.zeros(4)).share == np.inf
        halves = gap_of(np.array([3, 0], np.float32), np.array([3, 4], np.float32))
        assert (halves.max_abs, halves.rms) == (4, pytest.approx(0.8))
        parts = gap_of(np.array([1 + 5j, 2], np.complex64), np.array([1 - 5j, 2], np.complex64))
        assert parts.max_abs == 10
        assert parts.rms == pytest.approx(10 / 30**0.5)
        far = gap_of(np.array([0], np.uint8), np.array([255], np.uint8), (1.0, 0))
        assert far.max_abs == 255  # unsigned numbers do not wrap
        texts = np.array([b"a", b"b"], object)
        assert gap_of(texts, texts).share == 0
        assert gap_of(texts, np.array([b"a", b"c"], object)).share == 0.5
        both = gap.merged(steps)
        assert (both.share, both.lost) == (0.2, 1)
        assert sum(both.histogram) == 4
        assert Gap().merged(gap) == gap

    def test_rankings(self) -> None:
        right = np.linspace(1, 0, 20)
        swapped = right.copy()
        swapped[[0, 1]] = right[[1, 0]]
        assert ranking(right, right, 0) == ""
        assert ranking(swapped, right, 0.01) == "the best is 1, not 0"
        assert ranking(swapped, right, 0.06) == ""  # a tie
        last = right.copy()
        last[19] = 0.9
        assert ranking(last, right, 0.01) == "[19] are among the first 5"

    def test_masks(self) -> None:
        y = np.zeros((1, 10, 10, 2), np.float32)
        y[..., 1] = 1
        x = y.copy()
        x[0, 0, :3] = [2, 0]
        assert other_classes(x, y) == 0.03
        single = np.linspace(0, 1, 100, dtype=np.float32).reshape(1, 10, 10, 1)
        assert other_classes(single + 0.1, single) == pytest.approx(0.1, abs=0.02)

    def test_boxes(self) -> None:
        boxes = np.array([[[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]], np.float32)
        right = [boxes, np.array([[1, 2]], np.float32), np.array([[0.9, 0.8]], np.float32)]
        assert boxes_apart(right, right) == ""
        turned = [a[:, ::-1] for a in right]
        assert boxes_apart(turned, right) == ""  # the order does not matter
        moved = [boxes + np.float32(0.1), *right[1:]]
        assert "detection 0 (class 1, score 0.90)" in boxes_apart(moved, right)
        renamed = [boxes, np.array([[1, 3]], np.float32), right[2]]
        assert "detection 1 (class 2" in boxes_apart(renamed, right)
        unsure = [boxes, right[1], np.array([[0.9, 0.1]], np.float32)]
        assert boxes_apart(renamed, unsure) == ""


def test_a_model_of_scores() -> None:
    digits = Path(__file__).parents[2] / "core/tflgpu/demo/digits.tflite"
    result = tflgpu.check(digits, backend="cpu_ref", device=1)
    assert result.agrees, result
    assert result.outputs[0].kind is OutputKind.SCORES
    assert result.outputs[0].limit == 1e-3


def test_limits_of_quantized_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of the output's scale where LiteRT's kernels agree; more where they do not, and
    where that is not known."""
    scale = Quantization((0.5,), (0,))
    tensors = [TensorSpec(n, (1, 8), DType.I8, quantization=scale) for n in ("x", "y")]
    content = write_model(ModelSpec(tensors, [OperatorSpec("RELU", {}, (0,), (1,))], (0,), (1,)))
    x = np.full((1, 8), 100, np.int8)

    def limit() -> float:
        return tflgpu.check(content, [x], backend="cpu_ref", device=1).outputs[0].limit

    assert limit() == 2 * 0.5 / 50
    other = [[np.full((1, 8), 97, np.int8)]]
    made = check_runs._litert
    monkeypatch.setattr(
        check_runs, "_litert", lambda *a, plain: other if plain else made(*a, plain=plain)
    )
    assert limit() == 2 * 3 / 100
    monkeypatch.setattr(
        check_runs, "_litert", lambda *a, plain: "no" if plain else made(*a, plain=plain)
    )
    assert limit() == 0.1


@pytest.mark.needs("opencl")
def test_a_quantized_model_is_not_read_as_broken(model_path: Any) -> None:
    """Its kernels may round the other way, as LiteRT's own do among each other."""
    path = model_path("mobilenet_v2_1.0_224_ptq_int8")
    result = tflgpu.check(path, backend="opencl")
    (output,) = result.outputs
    assert result.agrees, result
    assert output.spread is not None
    assert output.limit == 2 * output.spread.share > output.gap.share > 1e-3
