"""`tflgpu run`: pictures, texts, random numbers and .npy files as inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.cli import results as results_module
from tflgpu.cli.inputs import load
from tflgpu.errors import InputError
from tflgpu.ir.dtypes import DType
from tflgpu.tools.runs import random_input

from tests.cli.cli_helpers import CPU, Tflgpu, save, saved
from tests.small_models import small_spec, tensor_of


class TestImages:
    @pytest.fixture
    def picture(self, tmp_path: Path) -> Path:
        image = pytest.importorskip("PIL.Image")
        path = tmp_path / "picture.png"
        pixels = np.zeros((8, 12, 3), np.uint8)
        pixels[:, :, 0] = 255
        image.fromarray(pixels).save(path)
        return path

    def run(self, tflgpu: Tflgpu, model: Path, *arguments: object) -> np.ndarray:
        out = model.parent / "out"
        assert tflgpu("run", model, *CPU, "--output", out, *arguments).exit_code == 0
        return saved(out)

    def test_floats_are_normalised_to_one(
        self, tflgpu: Tflgpu, image_model: Callable[..., Path], picture: Path
    ) -> None:
        out = self.run(tflgpu, image_model(), "-i", picture)
        assert out.shape == (1, 4, 6, 3)
        assert (out[..., 0] == 1).all()
        assert (out[..., 1:] == -1).all()

    def test_mean_and_std(
        self, tflgpu: Tflgpu, image_model: Callable[..., Path], picture: Path
    ) -> None:
        out = self.run(tflgpu, image_model(), "-i", picture, "--mean", 0, "--std", 255)
        assert (out[..., 0] == 1).all()
        assert (out[..., 1:] == 0).all()

    @pytest.mark.parametrize(("dtype", "least"), [(DType.U8, 0), (DType.I8, -128)])
    def test_bytes_stay_bytes(
        self,
        tflgpu: Tflgpu,
        image_model: Callable[..., Path],
        picture: Path,
        dtype: DType,
        least: int,
    ) -> None:
        out = self.run(tflgpu, image_model(dtype), "-i", picture)
        assert out.dtype == dtype.numpy
        assert (out[..., 0] == least + 255).all()
        assert (out[..., 1:] == least).all()

    def test_one_channel_is_grey(
        self, tflgpu: Tflgpu, image_model: Callable[..., Path], picture: Path
    ) -> None:
        out = self.run(tflgpu, image_model(DType.U8, (1, 4, 6, 1)), "-i", picture)
        assert (out == 76).all()  # ITU-R 601: 0.299 of red

    def test_shapes_that_are_no_image(self, tflgpu: Tflgpu, scale: Path, picture: Path) -> None:
        result = tflgpu("run", scale, *CPU, "-i", picture)
        assert result.exit_code == 2
        assert "takes no image" in result.stderr

    def test_types_that_are_no_image(
        self, tflgpu: Tflgpu, image_model: Callable[..., Path], picture: Path
    ) -> None:
        result = tflgpu("run", image_model(DType.I32), *CPU, "-i", picture)
        assert result.exit_code == 2
        assert "int32, which takes no image" in result.stderr

    def test_without_pillow(
        self,
        tflgpu: Tflgpu,
        image_model: Callable[..., Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setitem(sys.modules, "PIL", None)
        path = tmp_path / "picture.png"
        path.write_bytes(b"not looked at")
        result = tflgpu("run", image_model(), *CPU, "-i", path)
        assert result.exit_code == 2
        assert "takes Pillow; run: " in result.stderr
        assert "pip install" in result.stderr
        assert "pillow" in result.stderr

    def test_std_of_zero(self, tflgpu: Tflgpu, image_model: Callable[..., Path]) -> None:
        result = tflgpu("run", image_model(), *CPU, "--std", 0)
        assert result.exit_code == 2
        assert "--std" in result.stderr


class TestTexts:
    """What the input and the output of a model are made of, in files too."""

    @pytest.fixture
    def echo(self, write: Any) -> Path:
        to = np.array([1, 2], np.int32)
        return write(
            "echo",
            small_spec(
                {
                    "x": tensor_of((2,), DType.STRING),
                    "to": tensor_of((2,), DType.I32, data=to),
                    "y": tensor_of((1, 2), DType.STRING),
                },
                "y = RESHAPE(x, to)",
            ),
        )

    @pytest.mark.parametrize("texts", [np.array(["a", "größe"]), np.array([b"a", b"gr\xc3\xb6"])])
    def test_they_come_and_go(
        self, tflgpu: Tflgpu, echo: Path, tmp_path: Path, texts: np.ndarray
    ) -> None:
        x = save(tmp_path / "x.npy", texts)
        ran = tflgpu("run", echo, "-i", x, "--runs", 1, "--compare", "--output", tmp_path)
        assert ran.exit_code == 0, ran.stderr
        assert "the CPU agrees with " in ran.stdout
        (found,) = np.load(tmp_path / "0_y.npy")
        wanted = texts if texts.dtype.kind == "S" else np.char.encode(texts, "utf-8")
        assert found.tolist() == wanted.tolist()

    def test_none_are_drawn(self, tflgpu: Tflgpu, echo: Path) -> None:
        ran = tflgpu("run", echo)
        assert ran.exit_code == 2
        assert "input x takes texts; give a .npy file of them by -i" in ran.stderr

    def test_what_a_file_cannot_hold_is_refused(self) -> None:
        assert results_module.plain("y", np.array([b"a", b""], object)).tolist() == [b"a", b""]
        with pytest.raises(InputError, match="output y has texts that end in zeros"):
            results_module.plain("y", np.array([b"a\0"], object))


def detail(dtype: Any, shape: tuple[int, ...] = (4, 50)) -> dict[str, Any]:
    return {"name": "x", "index": 0, "shape": shape, "shape_signature": shape, "dtype": dtype}


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [
        (np.float32, -1, 1),
        (np.float16, -1, 1),
        (np.int8, -128, 127),
        (np.uint8, 0, 255),
        (np.int64, 0, 1),
        (np.bool_, 0, 1),
    ],
)
def test_random_inputs(dtype: Any, least: float, most: float) -> None:
    array = random_input(detail(dtype), np.random.default_rng(1))
    assert array.dtype == dtype
    assert array.shape == (4, 50)
    assert least <= array.min() < array.max() <= most


def test_npy_is_loaded_as_it_is(tmp_path: Path) -> None:
    path = save(tmp_path / "x.npy", np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)))
    array = load(path, detail(np.int32, (2, 3)))
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])
