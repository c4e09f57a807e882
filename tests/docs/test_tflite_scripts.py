"""The two scripts in the manner of TensorFlow Lite's: as they stand, with one argument added, and
with one import changed; the same answers, and on the device where they say so."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu_cpu_ref.device import CpuRefDevice

from tests.small_models import small_model, tensor_of

pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

EXAMPLES = Path(__file__).parents[2] / "examples"
LABELS = ["nothing", "red", "green", "blue"]

#: TensorFlow's own label_image.py, where there is one.
ORIGINAL = os.environ.get("LABEL_IMAGE")
#: The edits that the scripts speak of.
IMPORT = (
    "from ai_edge_litert.interpreter import Interpreter",
    "from tflgpu.interpreter import Interpreter",
)
ARGUMENT = (
    "        model_path=arguments.model,\n",
    "        model_path=arguments.model,\n        experimental_delegates=[tflgpu.GpuDelegate()],\n",
)
EDITS: dict[str, list[tuple[str, str]]] = {
    "as it stands": [],
    "one argument": [("import numpy as np\n", "import numpy as np\nimport tflgpu\n"), ARGUMENT],
    "one import": [IMPORT],
}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """NumPy's interpreter of kernels stands for a GPU; the environment names it. How many kernels
    each plan has that it was given."""
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    monkeypatch.delenv("TFLGPU_DEFAULT_DELEGATE", raising=False)
    found: list[int] = []
    inner = CpuRefDevice.load

    def load(self: Any, plan: Any, **options: Any) -> Any:
        found.append(len(plan.dispatches))
        return inner(self, plan, **options)

    monkeypatch.setattr(CpuRefDevice, "load", load)
    return found


def run(name: str, how: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for old, new in EDITS[how]:
        assert text.count(old) == 1, f"{name} has no single {old!r}"
        text = text.replace(old, new)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    exec(compile(text, name, "exec"), {"__name__": "__main__"})


def classifier(quantized: bool) -> bytes:
    """Four classes: the mean of each colour, and of none."""
    kind = DType.U8 if quantized else DType.F32
    image, logits, weights = None, None, None
    data: Any = np.vstack([np.full(3, -0.5), np.eye(3)]).astype(np.float32)
    if quantized:
        image, logits = Quantization((1 / 128,), (128,)), Quantization((1 / 64,), (100,))
        weights = Quantization((1 / 64,), (128,))
        data = (data * 64 + 128).astype(np.uint8)
    return small_model(
        {
            "image": tensor_of((1, 6, 5, 3), kind, quantization=image),
            "axes": tensor_of((2,), DType.I32, np.array([1, 2], np.int32)),
            "mean": tensor_of((1, 3), kind, quantization=image),
            "weights": tensor_of((4, 3), kind, data, quantization=weights),
            "scores": tensor_of((1, 4), kind, quantization=logits),
        },
        ("mean = MEAN(image, axes)", {"keep_dims": False}),
        ("scores = FULLY_CONNECTED(mean, weights, -)", {}, {"version": 6}),
    )


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "uint8"])
def test_label_image(
    quantized: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    loads: list[int],
) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs tflgpu[image]")
    (tmp_path / "m.tflite").write_bytes(classifier(quantized))
    (tmp_path / "labels.txt").write_text("\n".join(LABELS), encoding="utf-8")
    pixels = np.zeros((12, 10, 3), np.uint8) + np.array([20, 250, 90], np.uint8)
    image.fromarray(pixels).save(tmp_path / "green.png")
    given = ["--model", "m.tflite", "--labels", "labels.txt", "--image", "green.png", "--top", "3"]
    monkeypatch.chdir(tmp_path)
    said = {}
    for how in EDITS:
        loads.clear()
        run("label_image.py", how, given, monkeypatch)
        said[how] = capsys.readouterr().out.splitlines()
        assert (sum(loads) > 0) == (how != "as it stands"), loads
    lines = said["as it stands"]
    assert [line.split()[1] for line in lines] == ["green", "nothing", "blue"]
    assert float(lines[0].split()[0]) == pytest.approx((250 - 127.5) / 127.5, abs=0.02)
    assert said["one argument"] == said["one import"] == lines


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "uint8"])
def test_the_original_label_image(
    quantized: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    loads: list[int],
) -> None:
    """TensorFlow's own script, of which only the import is another. It is not part of this."""
    image = pytest.importorskip("PIL.Image", reason="needs tflgpu[image]")
    if ORIGINAL is None:
        pytest.skip("LABEL_IMAGE names no tensorflow/lite/examples/python/label_image.py")
    text = Path(ORIGINAL).read_text(encoding="utf-8")
    old = "import tensorflow as tf\n"
    assert text.count(old) == 1
    new = "import types, tflgpu.interpreter\ntf = types.SimpleNamespace(lite=tflgpu.interpreter)\n"
    (tmp_path / "m.tflite").write_bytes(classifier(quantized))
    (tmp_path / "labels.txt").write_text("\n".join([*LABELS, "none"]), encoding="utf-8")
    pixels = np.zeros((12, 10, 3), np.uint8) + np.array([20, 250, 90], np.uint8)
    image.fromarray(pixels).save(tmp_path / "green.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["label_image.py", "-m", "m.tflite", "-l", "labels.txt", "-i", "green.png"]
    )
    exec(compile(text.replace(old, new), "label_image.py", "exec"), {"__name__": "__main__"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["green", "nothing"]
    assert lines[-1].startswith("time: ")
    assert sum(loads) > 0


def sum_and_product() -> bytes:
    """A signature of two inputs and two outputs, with an open batch size."""
    signature = SignatureInfo("serve", 0, {"x": 0, "y": 1}, {"plus": 2, "times": 3})
    return small_model(
        dict.fromkeys(("a", "b", "sum", "product"), tensor_of((1, 3), shape_signature=(-1, 3))),
        "sum = ADD(a, b)",
        "product = MUL(a, b)",
        signatures=(signature,),
    )


def test_run_signature(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    loads: list[int],
) -> None:
    (tmp_path / "m.tflite").write_bytes(sum_and_product())
    x, y = np.random.default_rng(3).standard_normal((2, 4, 3), np.float32)
    np.savez(tmp_path / "in.npz", x=x, y=y)
    monkeypatch.chdir(tmp_path)
    for how in EDITS:
        loads.clear()
        given = ["--model", "m.tflite", "--inputs", "in.npz", "--outputs", f"{how}.npz"]
        run("run_signature.py", how, given, monkeypatch)
        assert (sum(loads) > 0) == (how != "as it stands"), loads
        assert capsys.readouterr().out.splitlines() == [
            "in   x: float32[-1, 3]", "in   y: float32[-1, 3]",
            "out  plus: float32[4, 3]", "out  times: float32[4, 3]",
        ]  # fmt: skip
        with np.load(f"{how}.npz") as results:
            np.testing.assert_allclose(results["plus"], x + y, rtol=1e-6)
            np.testing.assert_allclose(results["times"], x * y, rtol=1e-6)


def test_what_does_not_fit_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.tflite").write_bytes(sum_and_product())
    (tmp_path / "none.tflite").write_bytes(classifier(quantized=False))
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 3), np.float32))
    files = ["--inputs", "in.npz", "--outputs", "out.npz"]
    for name, given, said in (
        ("run_signature.py", ["--model", "none.tflite", *files], "none.tflite has no signature"),
        ("run_signature.py", ["--model", "m.tflite", *files], "in.npz lacks y"),
        ("run_signature.py", ["--model", "m.tflite", "--signature", "z", *files], ("m.tflite has "
                                                                                  "serve")),
        ("label_image.py", ["--model", "m.tflite", "--image", "x.png"], "takes no picture"),
    ):  # fmt: skip
        with pytest.raises(SystemExit, match=said):
            run(name, "as it stands", given, monkeypatch)
