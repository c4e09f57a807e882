"""`tflgpu run` on photos, sounds, texts and folders: what it prints, draws and refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec

from tests.cli.cli_helpers import Tflgpu
from tests.small_models import small_spec
from tests.tools import task_models as models

pytest.importorskip("PIL", reason="needs tflgpu[image]")

CPU = ("--backend", "cpu", "--cpu-backend", "cpu_ref")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one: a classifier of colours, its labels, and an orange photo."""
    monkeypatch.chdir(tmp_path)
    models.write(tmp_path / "m.tflite", models.colours())
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n", encoding="utf-8")
    models.picture(tmp_path / "photo.png")
    return tmp_path


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_names_and_probabilities(tflgpu: Tflgpu, folder: Path) -> None:
    result = tflgpu("run", "m.tflite", *CPU, "-i", "photo.png", "--labels", "labels.txt")
    said, *answer, time, device = result.stdout.splitlines()
    assert said.startswith("photo.png: 20x16 stretched to 10x8 (bilinear), RGB, pixels to -1 .. 1")
    assert "a guess: --mean and --std" in said
    assert [line.split()[-1] for line in answer] == ["red", "green", "blue"]
    assert answer[0] == "  69.0 %  red"
    assert "median of 10 runs" in time
    assert device.startswith("3 of 3 operators run on the CPU by NumPy references")


def test_quiet_is_the_answer_alone(tflgpu: Tflgpu, folder: Path) -> None:
    result = tflgpu("run", "m.tflite", *CPU, "-q", "-i", "photo.png", "--labels", "labels.txt")
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["red", "green", "blue"]


def test_verbose_has_all_outputs(tflgpu: Tflgpu, folder: Path) -> None:
    result = tflgpu("run", "m.tflite", *CPU, "-v", "-i", "photo.png", "--labels", "labels.txt")
    assert "0: 0.68977" in result.stdout  # the table
    assert "  69.0 %  red" in result.stdout


def test_json(tflgpu: Tflgpu, folder: Path) -> None:
    result = tflgpu("run", "m.tflite", *CPU, "--json", "-i", "photo.png", "--top", 1)
    (said,) = lines(result.stdout)
    (label,) = said["answer"]["labels"]
    assert (said["input"], label["index"], label["name"]) == ("photo.png", 0, "class 0")
    assert said["milliseconds"] > 0
    assert said["device"].startswith("3 of 3 operators run on the CPU")
    result = tflgpu("run", "m.tflite", *CPU, "--json", "-q", "-i", "photo.png")
    assert lines(result.stdout)[0].keys() == {"input", "answer"}


def test_a_folder(tflgpu: Tflgpu, folder: Path) -> None:
    (folder / "photos" / "inner").mkdir(parents=True)
    for name, colour in (
        ("a.png", (255, 0, 0)),
        ("b.jpg", (0, 255, 0)),
        ("inner/c.png", (0, 0, 255)),
    ):
        models.picture(folder / "photos" / name, colour)
    (folder / "photos" / "notes.md").write_text("no photo")
    (folder / "photos" / "d.png").write_bytes(b"no photo either")
    given = ("run", "m.tflite", *CPU, "--labels", "labels.txt", "-i", "photos")
    result = tflgpu(*given, "--json")
    assert result.exit_code == 1
    assert "d.png is neither a .npy file nor a readable image" in result.stderr
    found = lines(result.stdout)
    assert [(Path(f["input"]).name, f["answer"]["labels"][0]["name"]) for f in found] == [
        ("a.png", "red"), ("b.jpg", "green"), ("c.png", "blue"),
    ]  # fmt: skip
    result = tflgpu(*given)
    first, *_, runs, device = result.stdout.splitlines()
    assert first.startswith(f"{Path('photos/a.png')}: ")
    assert "% red; " in first
    assert runs.startswith("3 runs, 1 could not be read; ")
    assert "NumPy references" in device
    (folder / "photos" / "d.png").unlink()
    assert tflgpu(*given, "-q").exit_code == 0


def test_patterns(tflgpu: Tflgpu, folder: Path) -> None:
    for n in range(3):
        models.picture(folder / f"p{n}.png")
    for pattern, count in (("p?.png", 3), ("p2*", 1)):
        result = tflgpu("run", "m.tflite", *CPU, "--json", "-i", pattern)
        assert len(lines(result.stdout)) == count
    result = tflgpu("run", "m.tflite", *CPU, "-i", "q*.png")
    assert (result.exit_code, "no file is called like q*.png" in result.stderr) == (2, True)
    (folder / "empty").mkdir()
    result = tflgpu("run", "m.tflite", *CPU, "-i", "empty")
    assert (result.exit_code, "empty has no files that can be read" in result.stderr) == (2, True)
    (folder / "empty" / "x.png").write_bytes(b"")
    result = tflgpu("run", "m.tflite", *CPU, "-i", "empty")
    assert (result.exit_code, "none of 1 inputs could be read" in result.stderr) == (2, True)


def test_drawings(tflgpu: Tflgpu, folder: Path) -> None:
    from PIL import Image

    given = ("run", "m.tflite", *CPU, "-i", "photo.png", "--labels", "labels.txt")
    result = tflgpu(*given, "--save", "out/drawn.png")
    assert "saved out/drawn.png" in result.stdout.replace("\\", "/")
    assert Image.open("out/drawn.png").size == (20, 16)
    for _ in range(2):
        assert tflgpu(*given, "--save", "drawn").exit_code == 0
    assert sorted(p.name for p in Path("drawn").iterdir()) == ["photo.png", "photo_2.png"]
    result = tflgpu("run", "m.tflite", *CPU, "-i", "*.png", "--save", "one.png")
    assert (result.exit_code, "give a folder" in result.stderr) == (2, True)
    np.save("x.npy", np.zeros((1, 8, 10, 3), np.float32))
    result = tflgpu("run", "m.tflite", *CPU, "-i", "x.npy", "--save", "two.png")
    assert (result.exit_code, "without a picture" in result.stderr) == (2, True)


def test_sounds_in_windows(tflgpu: Tflgpu, folder: Path) -> None:
    models.write(folder / "s.tflite", models.loudness())
    loud = np.sin(np.arange(4000) * 0.3)
    models.sound(folder / "loud.wav", np.concatenate([np.zeros(4000), loud]), 4000)
    models.sound(folder / "short.wav", loud, 4000)
    result = tflgpu("run", "s.tflite", *CPU, "-i", "loud.wav", "--json", "--rate", 4000)
    assert [(f["at"], f["answer"]["labels"][0]["index"]) for f in lines(result.stdout)] == [
        (0.0, 0), (1.0, 1),
    ]  # fmt: skip
    result = tflgpu("run", "s.tflite", *CPU, "-i", "loud.wav", "--rate", 4000)
    assert result.stdout.splitlines()[1].startswith("loud.wav at 1.00 s: ")
    result = tflgpu("run", "s.tflite", *CPU, "-q", "-i", "short.wav", "--rate", 4000)
    assert "class 1" in result.stdout.splitlines()[0]


def test_texts(tflgpu: Tflgpu, folder: Path) -> None:
    models.write(folder / "t.tflite", models.words())
    (folder / "words.txt").write_text("<PAD> 0\n<UNKNOWN> 2\ngood 7\nbad 9\n")
    (folder / "texts.txt").write_text("good\n\nbad good\n")
    given = ("run", "t.tflite", *CPU, "--vocabulary", "words.txt", "--json", "-i")
    (said,) = lines(tflgpu(*given, "so bad").stdout)
    assert said["answer"]["outputs"]["floats"][0][:3] == [2, 9, 0]
    both = lines(tflgpu(*given, "texts.txt").stdout)
    assert [f["input"] for f in both] == ["texts.txt:1", "texts.txt:3"]
    assert [f["answer"]["outputs"]["floats"][0][0] for f in both] == [7, 9]
    result = tflgpu("run", "t.tflite", *CPU, "-i", "so bad")
    assert (result.exit_code, "give the model's vocabulary" in result.stderr) == (2, True)


def test_one_series_beside_another_input(tflgpu: Tflgpu, folder: Path) -> None:
    shape = (1, 8, 10, 3)
    spec = small_spec(dict.fromkeys("abc", shape), "c = ADD(a, b)")
    models.write(folder / "add.tflite", spec)
    np.save("ones.npy", np.ones(shape, np.float32))
    for n in range(2):
        models.picture(folder / f"p{n}.png", (0, 0, 0))
    given = ("run", "add.tflite", *CPU, "--json", "--kind", "values")
    for more in (("p?.png", "ones.npy"), ("p?.png", "b=ones.npy"), ("b=ones.npy", "p?.png")):
        inputs = [part for text in more for part in ("-i", text)]
        found = lines(tflgpu(*given, *inputs).stdout)
        assert [f["answer"]["outputs"]["c"][0][0][0][0] for f in found] == [0, 0]
    result = tflgpu(*given, "-i", "p?.png", "-i", "p*.png")
    assert (result.exit_code, "only one may" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mean", "1"), "--mean: without effect on random inputs"),
        (("--labels", "labels.txt"), "--labels: without effect on random inputs"),
        (("-i", "photo.png", "--anchors", "a.csv"), "--anchors"),
        (("-i", "photo.png", "--rate", "8000"), "--rate: without effect"),
        (("-i", "photo.png", "--vocabulary", "x"), "--vocabulary: without effect"),
        (("-i", "photo.png", "--seed", "1"), "--seed: without effect, since no input is random"),
        (("-i", "x.npy", "--mean", "1"), "--mean: without effect"),
        (("-i", "photo.png", "-q", "-v"), "--quiet and --verbose: give one"),
        (("-i", "photo.png", "-q", "--runs", "3"), "--runs: without effect"),
        (("-i", "photo.png", "--json", "--compare"), "--compare: without effect"),
        (("-i", "*.png", "--runs", "3"), "--runs: without effect where one -i"),
        (("-i", "*.png", "--batch", "2"), "--batch: without effect where one -i"),
        (("-i", "*.png", "--output", "o"), "--output: without effect where one -i"),
        (("-i", "photo.png", "--mean", "a,b"), "--mean a,b: it takes a number"),
        (("-i", "photo.png", "--std", "0,1,1"), "--std 0,1,1: it takes a number"),
        (("-i", "photo.png", "--mean", "1,2"), "2 numbers for mean or std"),
        (("-i", "photo.png", "--kind", "dog"), "kind is one of"),
        (("-i", "photo.png", "--kind", "detect"), "not those of a model of kind 'detect'"),
    ],
)
def test_options_that_are_wrong_or_have_no_effect(
    tflgpu: Tflgpu, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    np.save("x.npy", np.zeros((1, 8, 10, 3), np.float32))
    models.picture(folder / "other.png")
    (folder / "a.csv").write_text("1,2,3,4\n")
    result = tflgpu("run", "m.tflite", *CPU, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_what_is_not_finite_gets_a_hint(tflgpu: Tflgpu, folder: Path) -> None:
    models.write(folder / "log.tflite", models.same("LOG"))
    result = tflgpu("run", "log.tflite", *CPU, "-i", "photo.png", "--runs", 1)
    assert result.exit_code == 0
    assert "160 of 240 numbers are not finite; 16-bit floats overflow" in result.stderr
    assert "--mean, --std" in result.stderr
    np.save("nan.npy", np.full((1, 8, 10, 3), np.nan, np.float32))
    result = tflgpu("run", "log.tflite", *CPU, "-i", "nan.npy", "--runs", 1)
    assert "240 of 240 numbers are not finite; the input has such numbers" in result.stderr
    json.loads(tflgpu("run", "log.tflite", *CPU, "-i", "nan.npy", "--json").stdout)


def test_raw_boxes_without_anchors_are_shown_as_they_are(tflgpu: Tflgpu, folder: Path) -> None:
    shape = (1, 8, 12, 3)
    tensors = [
        TensorSpec("image", shape),
        TensorSpec("boxes", (1, 72, 4)),
        TensorSpec("scores", (1, 72, 4)),
    ]
    reshapes = [OperatorSpec("RESHAPE", {"new_shape": (1, 72, 4)}, (0,), (i,)) for i in (1, 2)]
    models.write(folder / "ssd.tflite", ModelSpec(tensors, reshapes, (0,), (1, 2)))
    result = tflgpu("run", "ssd.tflite", *CPU, "-i", "photo.png", "--runs", 1)
    assert result.exit_code == 0
    assert "72 raw boxes; they take anchors (--anchors FILE" in result.stderr
    assert "float32[1, 72, 4]" in result.stdout
    rows = "\n".join(["0.5,0.5,1,1"] * 72)
    (folder / "a.csv").write_text(rows)
    result = tflgpu("run", "ssd.tflite", *CPU, "-i", "photo.png", "-q", "--anchors", "a.csv")
    assert " at " in result.stdout


def test_damaged_metadata_are_a_warning(tflgpu: Tflgpu, folder: Path) -> None:
    spec = models.colours()
    broken = ModelSpec(
        spec.tensors, spec.operators, (0,), spec.outputs, metadata={"TFLITE_METADATA": b"nothing"}
    )
    models.write(folder / "broken.tflite", broken)
    result = tflgpu("run", "broken.tflite", *CPU, "-q", "-i", "photo.png")
    assert result.exit_code == 0
    assert "the model runs without them" in result.stderr


def test_video_and_camera_that_cannot_be_had(
    tflgpu: Tflgpu, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (folder / "clip.mp4").write_bytes(b"not looked at")
    result = tflgpu("run", "m.tflite", *CPU, "-i", "clip.mp4")
    assert result.exit_code == 2
    assert "reading the video clip.mp4 takes PyAV; run: pip install av" in result.stderr
    monkeypatch.setattr(sys, "platform", "linux")
    result = tflgpu("run", "m.tflite", *CPU, "-i", "camera:97")
    assert result.exit_code == 2
    assert "there is no camera /dev/video97" in result.stderr


def test_a_video(tflgpu: Tflgpu, folder: Path) -> None:
    av = pytest.importorskip("av", reason="needs tflgpu[video]")
    with av.open("clip.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for colour in ((255, 0, 0), (0, 0, 255)) * 2:
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), colour, np.uint8), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    result = tflgpu("run", "m.tflite", *CPU, "--json", "--labels", "labels.txt", "-i", "clip.mp4")
    found = lines(result.stdout)
    assert [f["answer"]["labels"][0]["name"] for f in found] == ["red", "blue"] * 2
    assert [f["input"] for f in found][:2] == ["clip.mp4@0.0", "clip.mp4@0.1"]
    (folder / "bad.mp4").write_bytes(b"no video")
    result = tflgpu("run", "m.tflite", *CPU, "-i", "bad.mp4")
    assert (result.exit_code, "bad.mp4 cannot be read" in result.stderr) == (2, True)
