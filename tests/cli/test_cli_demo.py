"""`tflgpu demo`, its model, and that a device which is wrong is found out."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.cli.models import opened
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, NodeRun, Probe
from tflgpu.contract.pending import FINISHED, Pending
from tflgpu.demo import load_digits
from tflgpu.ir.graph import Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.rule import Unsupported
from tflgpu.runtime.reference import ReferenceRecording

from tests.cli.cli_helpers import Hooks, Tflgpu
from tests.running import raising, set_and_run

INFO = DeviceInfo("toy", 0, "a toy")


def test_files_are_small() -> None:
    sizes = [len((files("tflgpu.demo") / n).read_bytes()) for n in ("digits.tflite", "digits.npz")]
    assert sum(sizes) < 200_000


def answers(interpreter: Any, images: Any) -> np.ndarray:
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    result = interpreter.get_output_details()[0]["index"]
    found = []
    for image in images:
        set_and_run(interpreter, {source: image})
        found.append(interpreter.get_tensor(result)[0])
    return np.array(found)


def test_the_model_is_accurate_and_the_references_agree_with_litert(litert: Any) -> None:
    digits = load_digits()
    theirs = answers(litert.Interpreter(model_content=digits.model), digits.images)
    accuracy = (theirs.argmax(axis=1) == digits.labels).mean()
    assert accuracy >= 0.95
    with opened(digits.model, "cpu") as interpreter:
        ours = answers(interpreter, digits.images)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_every_device_agrees(tflgpu: Tflgpu) -> None:
    result = tflgpu("demo", "--images", 20)
    assert result.exit_code == 0
    rows = [r.split() for r in result.stdout.splitlines() if r.endswith("ok")]
    assert {"cpu", "cpu_ref"} <= {r[0] for r in rows}


def test_opencl(tflgpu: Tflgpu, require_backend: Any) -> None:
    devices = require_backend("opencl").devices
    result = tflgpu("demo", "--images", 5)
    rows = [r for r in result.stdout.splitlines() if r.startswith("opencl")]
    assert len(rows) == len(devices)
    assert all(r.rstrip().endswith("ok") for r in rows)


class Skewed:
    """A recording whose outputs are off by a constant."""

    def __init__(self, run: NodeRun, offset: float) -> None:
        self._right = ReferenceRecording(run)
        self._offset = offset
        self.inputs = self._right.inputs
        self.outputs = self._right.outputs

    def run(self) -> None:
        self._right.run()
        for array in self.outputs:
            np.add(array, self._offset, out=array)

    def submit(self) -> Pending:
        self.run()
        return FINISHED

    def bind(self, inputs: Any = None, outputs: Any = None) -> Unsupported:
        return Unsupported("the toy has no buffers")

    def profile(self) -> list[Any]:
        return []

    def close(self) -> None:
        self._right.close()


class Toy:
    """A device that runs nodes, rightly or not."""

    info = INFO
    caps = DeviceCaps()

    def __init__(self, offset: float) -> None:
        self._offset = offset

    def supports(self, node: Node, ops: Any) -> None:
        return None

    def load_nodes(self, run: NodeRun) -> Skewed:
        return Skewed(run, self._offset)

    def close(self) -> None:
        """Nothing to release."""


def toy(offset: float) -> Hooks:
    return Hooks(
        register_backends=lambda: [BackendInfo("toy", API_VERSION)],
        probe=lambda backend: Probe(True, devices=(INFO,)) if backend == "toy" else None,
        open_device=lambda backend, index, options: Toy(offset) if backend == "toy" else None,
    )


@pytest.mark.parametrize(
    ("offset", "code", "verdict"),
    [(0, 0, "ok"), (1e-3, 1, "WRONG: differs"), (np.nan, 1, "WRONG: differs")],
)
def test_a_wrong_device_is_found_out(
    tflgpu: Tflgpu, install: Any, offset: float, code: int, verdict: str
) -> None:
    install(toy=toy(offset))
    result = tflgpu("demo", "--images", 3)
    assert result.exit_code == code
    (row,) = [r for r in result.stdout.splitlines() if r.startswith("toy")]
    assert verdict in row
    assert ("some answers are wrong" in result.stderr) == (code == 1)


def test_a_device_that_fails_is_wrong(tflgpu: Tflgpu, install: Any) -> None:
    broken = toy(0)
    broken.tflgpu_open_device = Hooks(
        open_device=raising(RuntimeError("out of smoke"))
    ).tflgpu_open_device  # type: ignore[attr-defined]
    install(toy=broken)
    result = tflgpu("demo", "--images", 3)
    assert result.exit_code == 1
    assert "failed: " in result.stdout
    assert "out of smoke" in result.stdout


def test_missing_backends_are_named(tflgpu: Tflgpu, install: Any) -> None:
    info = BackendInfo("gone", API_VERSION, system_hint="apt install gone-driver")
    hooks = Hooks(register_backends=lambda: [info], probe=lambda backend: Probe(False, "no loader"))
    install(gone=hooks)
    result = tflgpu("demo", "--images", 1)
    assert result.exit_code == 0
    assert "gone is not available: no loader" in result.stdout
    assert "apt install gone-driver" in result.stdout


def test_where_the_images_are_from_is_shipped() -> None:
    """CC BY asks for it, wherever they go."""
    said = (files("tflgpu.demo") / "NOTICE").read_text(encoding="utf-8")
    assert "Optical Recognition of Handwritten Digits" in said
    assert "https://creativecommons.org/licenses/by/4.0/" in said


def test_the_model_of_the_documents_is_written(tflgpu: Tflgpu, tmp_path: Path) -> None:
    """It recognizes the digits that are written beside it."""
    assert tflgpu("demo", "--save", tmp_path / "new").exit_code == 0
    images = [np.load(tmp_path / "new" / "images" / f"digit_{d}.npy") for d in range(10)]
    with opened(tmp_path / "new" / "model.tflite", "cpu") as interpreter:
        found = answers(interpreter, images)
    assert (found.argmax(axis=1) == np.arange(10)).mean() >= 0.9
    (tmp_path / "file").write_text("")
    refused = tflgpu("demo", "--save", tmp_path / "file")
    assert refused.exit_code == 2
    assert "cannot write into" in refused.stderr
