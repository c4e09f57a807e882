"""Where models come from, and what is said of files that are none."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path

import pytest
from tflgpu.errors import ModelError
from tflgpu.tflite.read import read_model
from tflgpu.tflite.write import write_model

from tests.tflite import samples


def test_path_and_string(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(write_model(samples.conv()))
    assert read_model(path).main.operators == read_model(str(path)).main.operators


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.tflite: no such file; check the path"):
        read_model(tmp_path / "gone.tflite")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it is a directory; give the path of the \.tflite file"):
        read_model(tmp_path)


def test_saved_model_directory(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ModelError, match=r"TFLiteConverter\.from_saved_model"):
        read_model(tmp_path)


def test_empty_file_and_empty_memory(tmp_path: Path) -> None:
    path = tmp_path / "empty.tflite"
    path.touch()
    with pytest.raises(ModelError, match=r"empty\.tflite: the file is empty"):
        read_model(path)
    with pytest.raises(ModelError, match="model of 0 bytes in memory: the file is empty"):
        read_model(b"")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ModelError, match="not a regular file"):
        read_model(path)


def test_path_with_a_zero_byte() -> None:
    with pytest.raises(ModelError, match=r"cannot be read: .*embedded null"):
        read_model("model\0.tflite")


def test_neither_path_nor_bytes() -> None:
    with pytest.raises(ModelError, match="a model is a path or bytes, not int"):
        read_model(3)  # type: ignore[arg-type]


def test_memory_with_gaps() -> None:
    with pytest.raises(ModelError, match="not contiguous"):
        read_model(memoryview(write_model(samples.conv()))[::2])


def test_zip(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(ModelError, match="looks like a zip archive"):
        read_model(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5 file"),
        (gzip.compress(b"model", mtime=0), "gzip archive; unpack it"),
        (b"\x08\x01\x12\xff\x04\n\x05serve", r"SavedModel \(saved_model.pb\)"),
        (b"\x08\x07\x12\x07pytorch\x1a\x051.8.0", "ONNX model"),
        (b"\n\x16\n\x05input\x12\x0bPlaceholder", r"frozen graph \(.pb\)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
        (b"<!DOCTYPE html><html>Not found", "web page"),
        (b"LITERTLM" + bytes(32), "LiteRT-LM bundle"),
        (b"tflgpu saved 2\n\0" + bytes(50), r"compiled model.*GpuDelegate\(saved="),
        (b"\x18\0\0\0ORTM" + bytes(32), r"ONNX Runtime \.ort model"),
        (b"\x18\0\0\0TFL2" + bytes(32), "identifier is TFL2, not TFL3"),
        (b"no model at all", "are not the identifier TFL3; check that the path is the right one"),
        (b"\x01", "are not the identifier TFL3"),
    ],
)
def test_what_else_it_may_be(head: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=f"not a TFLite model: .*{message}"):
        read_model(head)


def test_the_identifier_alone_is_no_model() -> None:
    with pytest.raises(ModelError, match="model: root table"):
        read_model(b"\x08\0\0\0TFL3")


def test_a_model_followed_by_a_zip_of_associated_files_reads() -> None:
    """TFLite Metadata appends label files as a zip archive."""
    data = write_model(samples.conv())
    assert read_model(data + b"PK\x03\x04labels.txt").main.operators
