"""examples/tasks and examples/recipes: whole programs, run as they are."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tools import task_models as models

Image = pytest.importorskip("PIL.Image", reason="needs tflgpu[image]")
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted([*(EXAMPLES / "tasks").glob("*.py"), *(EXAMPLES / "recipes").glob("*.py")])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, *arguments: object, code: int = 0) -> str:
    """What a program prints, or its errors."""
    program = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_programs_are_short_and_say_how_they_are_called(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    name = path.relative_to(ROOT).as_posix()
    calls = re.findall(rf"^    python {re.escape(name)}(.*)$", text, re.MULTILINE)
    assert calls
    if path.parent.name == "recipes":
        pytest.importorskip(path.stem.partition("_")[0])
    usage = run(path.relative_to(EXAMPLES).as_posix(), "--help")
    for call in calls:
        for flag in re.findall(r"--[a-z]+", call):
            assert flag in usage


def test_classify(here: Path) -> None:
    said = run("tasks/classify.py").splitlines()
    (digit,) = re.findall(r"digit.png shows a (\d)", said[0])
    assert said[1].startswith("digit.png: 160x160 stretched to 8x8")
    assert said[2].split("  ")[-1] == f"a {digit}"
    models.write(here / "m.tflite", models.colours())
    models.picture(here / "orange.jpg")
    (here / "labels.txt").write_text("red\ngreen\nblue\n")
    said = run("tasks/classify.py", "--model", "m.tflite", "--labels", "labels.txt", "orange.jpg")
    assert said.splitlines()[1].endswith("red")
    assert "give photos" in run("tasks/classify.py", "--model", "m.tflite", code=2)


def test_detect(here: Path) -> None:
    said = run("tasks/detect.py").splitlines()
    assert said == [
        "  93.8 %  red  at 32,64 to 64,96", "  93.8 %  blue  at 160,128 to 192,160",
    ]  # fmt: skip
    assert Image.open("found.png").size == (256, 256)


def test_segment(here: Path) -> None:
    said = dict(reversed(line.split(" %  ")) for line in run("tasks/segment.py").splitlines())
    shares = {name: float(share) for name, share in said.items()}
    assert shares["sky"] == pytest.approx(55.7, abs=1)
    assert shares["grass"] == pytest.approx(39.6, abs=1)
    assert shares["neither"] == pytest.approx(4.7, abs=1)
    assert Image.open("mask.png").size == (300, 200)


def test_pose(here: Path) -> None:
    """It takes a trained model; one of PoseNet's form stands for it."""
    models.picture(here / "photo.png")
    assert "give PoseNet" in run("tasks/pose.py", "--model", "absent.tflite", "photo.png", code=2)
    models.write(here / "pose.tflite", models.heat_maps())
    said = run("tasks/pose.py", "--model", "pose.tflite", "photo.png")
    assert said.splitlines()[0].startswith("20x16 padded to 16x16")
    assert len(said.splitlines()) == 18
    assert Image.open("pose.png").size == (20, 16)


def test_style(here: Path) -> None:
    models.picture(here / "photo.png", size=(64, 48))
    assert "a picture of 256x256" in run("tasks/style.py", "photo.png")
    pixels = np.asarray(Image.open("styled.png"))
    assert pixels.shape == (256, 256, 3)
    assert pixels[128, 128].std() > 1  # a plain colour stays one


def test_speech(here: Path) -> None:
    said = [line.split() for line in run("tasks/speech.py").splitlines()]
    assert [(line[0], line[-1]) for line in said] == [("0.00", "e"), ("1.00", "a"), ("2.00", "c")]


def test_a_folder_of_sounds(here: Path) -> None:
    models.write(here / "s.tflite", models.loudness())
    loud = np.sin(np.arange(4000) * 0.3)
    (here / "recordings").mkdir()
    models.sound(here / "recordings" / "a.wav", np.concatenate([np.zeros(4000), loud]), 4000)
    (here / "recordings" / "b.wav").write_bytes(b"no sound")
    (here / "labels.txt").write_text("quiet\nloud\n")
    options = ["--model", "s.tflite", "--labels", "labels.txt", "--rate", 4000]
    table = list(csv.reader(run("tasks/sound_folder.py", "recordings", *options).splitlines()))
    assert table[0] == ["file", "start", "end", "name", "score"]
    assert [row[1:4] for row in table[1:]] == [
        ["0.00", "1.00", "quiet"], ["1.00", "2.00", "loud"],
    ]  # fmt: skip


def test_pandas(here: Path) -> None:
    pd = pytest.importorskip("pandas")
    models.write(here / "m.tflite", models.colours())
    for n, colour in enumerate([(255, 0, 0), (255, 9, 0), (0, 0, 255)]):
        models.picture(here / f"{n}.png", colour)
    (here / "labels.txt").write_text("red\ngreen\nblue\n")
    said = run("recipes/pandas_table.py", ".", "--model", "m.tflite", "--labels", "labels.txt")
    assert re.search(r"red +2 ", said)
    table = pd.read_csv("answers.csv")
    assert list(table.columns) == ["photo", "rank", "index", "name", "score"]
    assert len(table) == 9


def test_torch(here: Path) -> None:
    pytest.importorskip("torch")
    said = run("recipes/torch_batches.py", "--items", 21, "--batch", 8)
    assert said.startswith("21 items; classes [")


def test_the_container_starts_the_server_as_it_is_called() -> None:
    """What the Dockerfile copies and names is there; it is not built here."""
    text = (EXAMPLES / "docker" / "Dockerfile").read_text(encoding="utf-8")
    (source,) = re.findall(r"cp /source/(\S+) /server\.py", text)
    assert (ROOT / source).is_file()
    (extras,) = re.findall(r"/source\[(.*?)\]", text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    flags = [part for part in shlex.split(entry.strip("[]").replace(",", " ")) if "--" in part]
    usage = run("server.py", "--help")
    assert flags
    assert all(flag in usage for flag in flags)
    assert "/health" in text


def test_the_dockerfile_is_well_formed() -> None:
    """Its instructions are Docker's, and what RUN runs is shell; nothing is built."""
    text = (EXAMPLES / "docker" / "Dockerfile").read_text(encoding="utf-8")
    lines = [n for n in text.replace("\\\n", " ").splitlines() if n and not n.startswith("#")]
    instructions = [line.partition(" ")[::2] for line in lines]
    known = {"FROM", "RUN", "COPY", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}
    assert {name for name, _ in instructions} <= known
    assert instructions[0][0] == "FROM"
    assert instructions[-1][0] == "ENTRYPOINT"
    shell = [rest for name, rest in instructions if name == "RUN"]
    assert len(shell) >= 3
    for script in shell:
        subprocess.run(["sh", "-n", "-c", script], check=True, timeout=60)
