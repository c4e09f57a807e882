"""The command line in this process, small models, and made-up plugins."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.cli.app import make_app
from tflgpu.compiler.machines import Limits
from tflgpu.demo import load_digits
from tflgpu.devices import limits
from tflgpu.ir.dtypes import DType
from tflgpu.plugins import registry as plugins
from tflgpu.plugins.registry import Registry
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import ModelSpec
from tflgpu.tflite.write import write_model
from typer.testing import CliRunner

from tests.cli.cli_helpers import Ran, Tflgpu
from tests.small_models import small_spec, tensor_of


@pytest.fixture
def tflgpu() -> Tflgpu:
    """``tflgpu("run", model, ...)`` runs the command; an error that no user should see is raised
    here, except where ``crash=True`` asks for it in the result."""

    def call(*arguments: object, crash: bool = False) -> Ran:
        with redirect_stderr(io.StringIO()) as before:
            app = make_app()
        # Wide enough that no table folds, so that tests can look for whole sentences.
        runner = CliRunner(env={"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"})
        result = runner.invoke(app, [str(a) for a in arguments])
        if result.exception and not isinstance(result.exception, SystemExit) and not crash:
            raise result.exception
        stderr = before.getvalue() + result.stderr
        return Ran(result.exit_code, result.stdout, stderr, result.exception)

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, ModelSpec], Path]:
    """``write(name, spec)``: a model's file."""

    def to_file(name: str, spec: ModelSpec) -> Path:
        path = tmp_path / f"{name}.tflite"
        path.write_bytes(write_model(spec))
        return path

    return to_file


@pytest.fixture
def scale(write: Any) -> Path:
    """``y = x * [1, -2, 3]`` with a free batch size and a signature."""
    factors = np.array([1, -2, 3], np.float32)
    return write(
        "scale",
        small_spec(
            {
                "x": tensor_of((1, 3), shape_signature=(-1, 3)),
                "factors": tensor_of((3,), data=factors),
                "y/out": tensor_of((1, 3), shape_signature=(-1, 3)),
            },
            "y/out = MUL(x, factors)",
            signatures=(SignatureInfo("serve", 0, {"image": 0}, {"scores": 2}),),
            description="three factors",
        ),
    )


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """The demo's model: 7 operators, of which a RESHAPE has no kernel."""
    path = tmp_path / "digits.tflite"
    path.write_bytes(load_digits().model)
    return path


@pytest.fixture
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles that do not measure what the device can do: 1 GB/s and 10 GFLOP/s."""
    monkeypatch.setattr(limits, "limits_of", lambda device, owner: Limits(1e9, 1e10))


@pytest.fixture
def image_model(write: Any) -> Callable[..., Path]:
    """``image_model(dtype, shape)``: gives its image back, in other words a RESHAPE."""

    def make(dtype: DType = DType.F32, shape: tuple[int, ...] = (1, 4, 6, 3)) -> Path:
        return write(
            "image",
            small_spec(
                {"image": tensor_of(shape, dtype), "same": tensor_of(shape, dtype)},
                ("same = RESHAPE(image)", {"new_shape": shape}),
            ),
        )

    return make


@pytest.fixture
def two_inputs(write: Any) -> Path:
    """``c = a - b``."""
    return write("sub", small_spec(dict.fromkeys("abc", (2, 3)), "c = SUB(a, b)"))


@pytest.fixture
def mystery(write: Any) -> Path:
    """A custom op that nothing knows, then a RELU."""
    return write(
        "mystery", small_spec(dict.fromkeys("abc", (2, 3)), "b = Mystery(a)", "c = RELU(b)")
    )


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """``install(toy=plugin, ...)``: the given plugins in place of the installed ones."""

    def put(*, distribution: str = "explicit", **targets: object) -> Registry:
        made = Registry.of(targets, distribution)
        monkeypatch.setattr(plugins, "_registry", made)
        return made

    return put


@pytest.fixture
def cpu_ref() -> object:
    """The plugin of the reference backend, which is always there."""
    return next(p.target for p in plugins.registry().plugins if p.name == "cpu_ref")
