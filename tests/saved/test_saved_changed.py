"""A model's file that somebody writes to while it is in use: what it becomes is kept for nobody."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tflgpu
from tflgpu.saved.store import entries
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model


def content(weight: float) -> bytes:
    weights = np.full((5, 6), weight, np.float32)
    tensors = [
        TensorSpec("x", (1, 6)),
        TensorSpec("w", (5, 6), data=weights),
        TensorSpec("y", (1, 5)),
    ]
    operator = OperatorSpec("FULLY_CONNECTED", {}, [0, 1, -1], [2])
    return write_model(ModelSpec(tensors, [operator], [0], [2]))


def opened(tmp_path: Path, model: Path | bytes | bytearray) -> tflgpu.Interpreter:
    folder = str(tmp_path / "kept")
    delegate = tflgpu.GpuDelegate(
        backend="cpu_ref", device=1, serialization_dir=folder, model_token="token"
    )
    given = {"model_path": model} if isinstance(model, Path) else {"model_content": model}
    return tflgpu.Interpreter(**given, experimental_delegates=[delegate])


def sums(interpreter: tflgpu.Interpreter, rows: int) -> float:
    interpreter.resize_tensor_input(0, (rows, 6))
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.ones((rows, 6), np.float32))
    interpreter.invoke()
    return float(interpreter.get_tensor(2)[0, 0])


def later(path: Path) -> None:
    """A clock is coarse: two writes may have one time."""
    time = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(time, time))


@pytest.mark.parametrize("cut", [False, True])
def test_a_file_that_is_written_over_is_not_compiled(tmp_path: Path, cut: bool) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content(1))
    with opened(tmp_path, path) as interpreter:
        assert sums(interpreter, 1) == 6
        with path.open("r+b") as file:
            if cut:
                file.truncate(0)
            else:
                file.write(content(2))
        later(path)
        with pytest.raises(tflgpu.TflgpuError, match=r"model\.tflite: somebody wrote to the file"):
            sums(interpreter, 3)
    # What has been kept is of the file that was opened.
    path.write_bytes(content(1))
    with opened(tmp_path, path) as interpreter:
        assert sums(interpreter, 3) == 6


def test_memory_that_is_written_over_is_not_compiled(tmp_path: Path) -> None:
    given = bytearray(content(1))
    with opened(tmp_path, given) as interpreter:
        assert sums(interpreter, 1) == 6
        given[:] = content(2)
        with pytest.raises(tflgpu.TflgpuError, match=r"the memory .* has been changed"):
            sums(interpreter, 3)
    with opened(tmp_path, content(1)) as interpreter:
        assert sums(interpreter, 3) == 6


def test_a_file_that_is_replaced_or_touched_stays_in_use(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content(1))
    with opened(tmp_path, path) as interpreter:
        assert sums(interpreter, 1) == 6
        later(path)
        assert sums(interpreter, 2) == 6
        other = tmp_path / "other"
        other.write_bytes(content(2))
        other.replace(path)
        assert sums(interpreter, 3) == 6
        path.unlink()
        assert sums(interpreter, 4) == 6
    assert len(entries(tmp_path / "kept" / "token" / "models")) == 4
