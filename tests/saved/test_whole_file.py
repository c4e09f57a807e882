"""Names that stand for something else than a file of one's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import tflgpu
from tflgpu.cache import whole_file

#: The demo's model.
MODEL = Path(tflgpu.__file__).parent / "demo" / "digits.tflite"


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    """Nor is a device: who may write to /dev would have a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is no file"):
        whole_file.write(pipe, [b"x"])
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    whole_file.write(tmp_path / "file", [b"x"])
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_link_is_named_as_what_it_is(tmp_path: Path) -> None:
    whole_file.write(tmp_path / "file", [b"x"])
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="it is a symbolic link"):
        whole_file.opened(tmp_path / "link")


@pytest.mark.parametrize("name", ["a\0b", "link", "pipe"])
def test_delegates_refuse_them(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    path = str(tmp_path / name)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, saved=path) as delegate,
        tflgpu.Interpreter(str(MODEL), experimental_delegates=[delegate]) as interpreter,
        pytest.raises(tflgpu.SavedModelError, match="cannot be used: "),
    ):
        interpreter.allocate_tensors()
    if name != "link":
        with (
            tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
            pytest.raises(tflgpu.SavedModelError, match="cannot be written: "),
        ):
            delegate.save(str(MODEL), path)
