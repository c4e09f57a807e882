"""`tflgpu run`: inputs of every kind, outputs, comparisons, and every way to get it wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.write import write_model

from tests.cli.cli_helpers import CPU, Tflgpu, save, saved
from tests.running import allocated
from tests.small_models import small_spec, tensor_of


class TestRunning:
    def test_random_input_is_said_and_seeded(self, tflgpu: Tflgpu, scale: Path) -> None:
        first = tflgpu("run", scale, *CPU)
        assert first.exit_code == 0
        assert "input x: random float32[1, 3], seed 0" in first.stdout
        rows = [r.stdout.split("\n\n")[0] for r in (first, tflgpu("run", scale, *CPU))]
        assert rows[0] == rows[1]
        assert tflgpu("run", scale, *CPU, "--seed", 1).stdout.split("\n\n")[0] != rows[0]

    def test_npy_in_and_out(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.array([[1, 2, 3]], np.float32))
        result = tflgpu("run", scale, *CPU, "-i", x, "--output", tmp_path / "out")
        assert result.exit_code == 0
        assert "random" not in result.stdout
        assert "2: 9, 0: 1, 1: -4" in result.stdout
        assert (tmp_path / "out" / "0_y_out.npy").is_file()
        np.testing.assert_array_equal(saved(tmp_path / "out"), [[1, -4, 9]])

    def test_several_items(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        one = save(tmp_path / "one.npy", np.array([[1, 2, 3]], np.float32))
        more = save(tmp_path / "two.npy", np.array([[1, 2, 3], [4, 5, 6]], np.float32))
        for path, rows in ((one, [[1, -4, 9]] * 2), (more, [[1, -4, 9], [4, -10, 18]])):
            folder = tmp_path / path.stem
            result = tflgpu(
                "run", scale, *CPU, "--batch", 2, "-i", path, "--output", folder, "--compare"
            )
            assert result.exit_code == 0
            assert "ms an item" in result.stdout
            np.testing.assert_array_equal(saved(folder), rows)
            assert "the CPU agrees with LiteRT (XNNPACK) on 2 samples" in result.stdout
        result = tflgpu("run", scale, *CPU, "--batch", 3, "-i", more)
        assert "has 2 items; with --batch 3 it is 1 or 3" in result.stderr

    def test_a_free_size_follows_the_file(
        self, tflgpu: Tflgpu, scale: Path, tmp_path: Path
    ) -> None:
        x = save(tmp_path / "x.npy", np.ones((5, 3), np.float32))
        assert "float32[5, 3]" in tflgpu("run", scale, *CPU, "-i", x).stdout

    def test_doubles_are_narrowed(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.array([[0.5, 0, 0]]))
        assert tflgpu("run", scale, *CPU, "-i", x).exit_code == 0

    def test_inputs_by_position_and_by_name(
        self, tflgpu: Tflgpu, two_inputs: Path, tmp_path: Path
    ) -> None:
        small = save(tmp_path / "s.npy", np.full((2, 3), 1, np.float32))
        large = save(tmp_path / "l.npy", np.full((2, 3), 10, np.float32))
        out = tmp_path / "out"
        tflgpu("run", two_inputs, *CPU, "-i", small, "-i", large, "--output", out)
        assert (saved(out) == -9).all()
        tflgpu("run", two_inputs, *CPU, "-i", f"b={small}", "-i", f"a={large}", "--output", out)
        assert (saved(out) == 9).all()

    def test_timing_and_report(self, tflgpu: Tflgpu, scale: Path) -> None:
        output = tflgpu("run", scale, "--backend", "cpu_ref", "--device", 1, "--runs", 4).stdout
        assert "median of 4 runs" in output
        assert "1 of 1 operators run on cpu_ref (NumPy kernel interpreter, f32)" in output

    def test_without_any_device_it_runs_on_the_cpu(
        self, tflgpu: Tflgpu, scale: Path, install: Any, cpu_ref: object,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
        install(cpu_ref=cpu_ref)
        result = tflgpu("run", scale, "--runs", 1)
        assert result.exit_code == 0
        assert "1 of 1 operators run on the CPU" in result.stdout
        assert result.stdout.count("there is no GPU that can be used") == 1
        assert result.stderr.count("no GPU was found, so the CPU runs the model") == 1
        named = tflgpu("run", scale, "--backend", "cpu_ref", "--device", "1", "--runs", 1)
        assert "no GPU was found" not in named.stderr

    @pytest.mark.needs("opencl")
    def test_without_a_backend_it_runs_where_an_interpreter_does(
        self, tflgpu: Tflgpu, scale: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A device that computes on the CPU is used only by its name."""
        for variable in ("TFLGPU_BACKEND", "TFLGPU_DEVICE"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
        with allocated(Interpreter(str(scale))) as interpreter:
            expected = interpreter.report.summary
        assert expected in tflgpu("run", scale, "--runs", 1).stdout
        monkeypatch.setenv("TFLGPU_BACKEND", "opencl")
        assert "1 of 1 operators run on opencl" in tflgpu("run", scale, "--runs", 1).stdout

    @pytest.mark.needs("litert")
    def test_the_cpu_side_is_chosen(
        self, tflgpu: Tflgpu, scale: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TFLGPU_CPU_BACKEND")
        for more in ([], ["--compare"], ["--cpu-backend", "litert"]):
            options = ["--backend", "cpu", "--runs", "1", *more]
            result = tflgpu("run", scale, *options)
            assert result.exit_code == 0
            assert "operators run on the CPU by LiteRT CPU kernels (ai-edge-litert" in result.stdout
            assert "no delegate was given" in result.stdout
            assert "NumPy references" not in result.stdout
            compared = "--compare" in more
            assert ("agrees with LiteRT (XNNPACK)" in result.stdout) == compared
            assert ("no operator runs on a device" in result.stderr) == compared
        result = tflgpu("run", scale, *CPU)
        assert "operators run on the CPU by NumPy references" in result.stdout

    @pytest.mark.needs("litert")
    def test_the_cpu_side_of_a_device(self, tflgpu: Tflgpu, mystery: Path, scale: Path) -> None:
        options = ["--backend", "cpu_ref", "--device", "1", "--cpu-backend"]
        result = tflgpu("run", scale, *options, "toaster")
        assert result.exit_code == 2
        assert "cpu_backend is one of" in result.stderr
        assert "not 'toaster'" in result.stderr
        result = tflgpu("run", mystery, *options, "litert")
        assert result.exit_code == 2
        assert "Mystery" in result.stderr
        assert "LiteRT" in result.stderr  # which was asked whether it has it

    def test_that_there_is_no_device_is_said_once(
        self, tflgpu: Tflgpu, scale: Path, install: Any, cpu_ref: object,
        caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.delenv("TFLGPU_BACKEND", raising=False)
        monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
        install(cpu_ref=cpu_ref)
        for command in ("run", "inspect"):
            assert tflgpu(command, scale).exit_code == 0
            assert "tflgpu.choice" not in {r.name for r in caplog.records}
        refused = tflgpu("run", scale, "--allow-fallback", "false")
        assert refused.exit_code == 2
        assert "there is no device and allow_fallback is off" in refused.stderr
        assert "everything runs on the CPU" not in refused.stderr
        GpuDelegate().close()
        assert "tflgpu.choice" in {r.name for r in caplog.records}

    def test_what_is_left_is_said_once(
        self, tflgpu: Tflgpu, scale: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The report is shown; the log's sentence would say it again."""
        options = ["--backend", "cpu_ref", "--device", "1", "--exclude", "MUL", "--runs", 1]
        result = tflgpu("run", scale, *options)
        assert "(-v says why not all)" in result.stdout
        result = tflgpu("run", scale, *options, "-v")
        assert result.exit_code == 0
        assert result.stdout.count("is named by exclude") == 1
        assert not caplog.records
        with (
            GpuDelegate(backend="cpu_ref", device=1, exclude="MUL") as delegate,
            Interpreter(str(scale), experimental_delegates=[delegate]) as interpreter,
        ):
            interpreter.allocate_tensors()
        assert [r.name for r in caplog.records] == ["tflgpu.delegation"]

    @pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux")
    @pytest.mark.needs("litert")
    def test_a_name_that_is_no_utf8_is_compared(self, tflgpu: Tflgpu, scale: Path) -> None:
        path = scale.with_name(os.fsdecode(b"m\xff\xe9.tflite"))
        path.write_bytes(scale.read_bytes())
        ran = tflgpu("run", path, *CPU, "--runs", 1, "--compare")
        assert ran.exit_code == 0
        assert "the CPU agrees with LiteRT (XNNPACK) on 1 sample" in ran.stdout

    def test_precision_is_used(self, tflgpu: Tflgpu, scale: Path) -> None:
        options = ("--backend", "cpu_ref", "--device", "interpreter", "--precision", "f32_f16")
        assert "interpreter, f32_f16)" in tflgpu("run", scale, "--runs", 1, *options).stdout

    @pytest.mark.needs("opencl")
    def test_opencl(self, tflgpu: Tflgpu, scale: Path) -> None:
        result = tflgpu("run", scale, "--backend", "opencl", "--compare", "--runs", 2)
        assert result.exit_code == 0
        assert "1 of 1 operators run on opencl" in result.stdout
        assert "opencl (" in result.stdout.splitlines()[-1]
        assert ") agrees with LiteRT (XNNPACK) on 1 sample" in result.stdout.splitlines()[-1]


class TestCompare:
    """The checks themselves are those of `tflgpu check` (test_cli_check.py)."""

    @pytest.fixture
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """``answers(array)``: what the model's run gives."""

        def put(array: np.ndarray) -> None:
            monkeypatch.setattr("tflgpu.cli.job.run_once", lambda *_: [array])

        return put

    @pytest.mark.needs("litert")
    def test_it_is_a_check_of_this_run(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.array([[1, 2, 3]], np.float32))
        device = ("--backend", "cpu_ref", "--device", 1)
        ran = tflgpu("run", scale, *device, "-i", x, "--compare", "--runs", 1)
        assert ran.exit_code == 0
        (tmp_path / "data").mkdir()
        x.rename(tmp_path / "data" / "x.npy")
        checked = tflgpu("check", scale, *device, "--data", tmp_path / "data")
        assert checked.exit_code == 0
        assert ran.stdout.endswith(checked.stdout)
        assert "agrees with LiteRT (XNNPACK) on 1 sample" in checked.stdout

    def test_without_litert(
        self, tflgpu: Tflgpu, scale: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
        result = tflgpu("run", scale, *CPU, "--compare")
        assert result.exit_code == 0
        assert "LiteRT (XNNPACK): ai-edge-litert is not installed" in result.stderr
        assert "agrees with NumPy references" in result.stdout

    @pytest.mark.needs("litert")
    def test_differences_are_seen(self, tflgpu: Tflgpu, scale: Path, answers: Any) -> None:
        answers(np.full((1, 3), 100, np.float32))
        ran = tflgpu("run", scale, *CPU, "--compare")
        assert ran.exit_code == 1
        assert "off by" in ran.stdout
        assert "the CPU DIFFERS from LiteRT (XNNPACK) on 1 sample" in ran.stdout
        assert "`tflgpu check` looks for the operator" in ran.stdout

    @pytest.mark.needs("litert")
    def test_a_step_of_quantized_numbers_is_little(
        self, tflgpu: Tflgpu, tmp_path: Path, answers: Any
    ) -> None:
        scale = Quantization((0.05,), (0,))
        path = tmp_path / "relu.tflite"
        content = small_spec(
            dict.fromkeys(("x", "y"), tensor_of((1, 8), DType.I8, quantization=scale)),
            "y = RELU(x)",
        )
        path.write_bytes(write_model(content))
        x = save(tmp_path / "x.npy", np.full((1, 8), 100, np.int8))
        for steps, code in ((1, 0), (2, 0), (3, 1)):
            answers(np.full((1, 8), 100 - steps, np.int8))
            assert tflgpu("run", path, *CPU, "-i", x, "--compare").exit_code == code

    @pytest.mark.needs("litert")
    def test_what_is_not_finite_differs(self, tflgpu: Tflgpu, scale: Path, answers: Any) -> None:
        answers(np.full((1, 3), np.nan, np.float32))
        ran = tflgpu("run", scale, *CPU, "--compare")
        assert ran.exit_code == 1
        assert "3 values are NaN or infinite, and finite on the CPU" in ran.stdout


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--backend", "abacus"), "there is no backend 'abacus'"),
            (("--backend", "cpu_ref", "--device", 7), "has no device 7"),
            (("--backend", "cpu_ref", "--device", "quantum"), "has no device 'quantum'"),
            (("--backend", "cpu_ref", "--precision", "f8"), "precision is one of"),
            (("--backend", "cpu", "--device", 0), "--device is for a GPU backend"),
            (("--backend", "cpu", "--precision", "f16"), "--precision is for a GPU backend"),
            ((*CPU, "-i", "absent.npy"), "there is no file absent.npy"),
        ],
    )
    def test_options(
        self, tflgpu: Tflgpu, scale: Path, arguments: tuple[object, ...], message: str
    ) -> None:
        result = tflgpu("run", scale, *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr

    def test_runs_below_one(self, tflgpu: Tflgpu, scale: Path) -> None:
        assert tflgpu("run", scale, "--runs", 0).exit_code == 2

    def test_a_file_that_is_no_model(self, tflgpu: Tflgpu, tmp_path: Path) -> None:
        path = tmp_path / "text.tflite"
        path.write_text("hello, I am not a model at all")
        result = tflgpu("run", path)
        assert result.exit_code == 2
        assert str(path) in result.stderr

    @pytest.mark.parametrize("content", [b"", b"junk", b"\x93NUMPY\x01\x00"])
    def test_a_file_that_is_no_array(
        self, tflgpu: Tflgpu, scale: Path, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "bad.npy"
        path.write_bytes(content)
        result = tflgpu("run", scale, *CPU, "-i", path)
        assert result.exit_code == 2
        assert "bad.npy is not a .npy file that can be read" in result.stderr

    def test_pickles_are_not_loaded(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        path = tmp_path / "pickle.npy"
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        assert tflgpu("run", scale, *CPU, "-i", path).exit_code == 2

    def test_a_file_that_is_no_image(
        self, tflgpu: Tflgpu, image_model: Callable[..., Path], tmp_path: Path
    ) -> None:
        pytest.importorskip("PIL")
        path = tmp_path / "notes.txt"
        path.write_text("no picture")
        result = tflgpu("run", image_model(), *CPU, "-i", path)
        assert result.exit_code == 2
        assert "neither a .npy file nor a readable image" in result.stderr

    def test_wrong_shape(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
        result = tflgpu("run", scale, *CPU, "-i", x)
        assert result.exit_code == 2
        assert "has shape [1, 4], but input x has [-1, 3]" in result.stderr

    def test_wrong_type(self, tflgpu: Tflgpu, image_model: Any, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.zeros((1, 4, 6, 3), np.float32))
        result = tflgpu("run", image_model(DType.U8), *CPU, "-i", x)
        assert result.exit_code == 2
        assert "x.npy: input 'image' (uint8" in result.stderr
        assert "an array of float32 is not converted, since it might change" in result.stderr

    def test_bytes_for_floats_may_be_of_any_range(
        self, tflgpu: Tflgpu, image_model: Any, tmp_path: Path
    ) -> None:
        """As a `Model` has it."""
        x = save(tmp_path / "x.npy", np.zeros((1, 4, 6, 3), np.uint8))
        result = tflgpu("run", image_model(), *CPU, "-i", x)
        assert result.exit_code == 2
        assert "convert it by x.astype(np.float32) or" in result.stderr

    @pytest.mark.parametrize(
        ("dtype", "values"),
        [(DType.I8, np.full((1, 4, 6, 3), 300)), (DType.F32, np.full((1, 4, 6, 3), 1e300))],
    )
    def test_values_that_do_not_fit_are_not_wrapped(
        self, tflgpu: Tflgpu, image_model: Any, tmp_path: Path, dtype: DType, values: Any
    ) -> None:
        fitting = save(tmp_path / "fitting.npy", np.full_like(values, 100))
        assert tflgpu("run", image_model(dtype), *CPU, "-i", fitting).exit_code == 0
        x = save(tmp_path / "x.npy", values)
        result = tflgpu("run", image_model(dtype), *CPU, "-i", x)
        assert result.exit_code == 2
        assert "x.npy: input 'image' (" in result.stderr
        assert "do not fit" in result.stderr

    def test_infinities_are_values(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.array([[np.inf, np.nan, -np.inf]]))
        assert tflgpu("run", scale, *CPU, "-i", x).exit_code == 0

    def test_a_mistyped_name_is_told_from_a_file(
        self, tflgpu: Tflgpu, scale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        save(tmp_path / "a=b.npy", np.zeros((1, 3), np.float32))
        assert tflgpu("run", scale, *CPU, "-i", "a=b.npy").exit_code == 0
        result = tflgpu("run", scale, *CPU, "-i", "imaeg=x.npy")
        assert result.exit_code == 2
        assert "no input 'imaeg', nor a file imaeg=x.npy; the model has x" in result.stderr

    def test_too_many_inputs(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
        result = tflgpu("run", scale, *CPU, "-i", x, "-i", x)
        assert result.exit_code == 2
        assert "2 inputs were given" in result.stderr

    def test_two_files_for_one_input(self, tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
        x = save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
        result = tflgpu("run", scale, *CPU, "-i", x, "-i", f"x={x}")
        assert result.exit_code == 2
        assert "two files for one input" in result.stderr

    def test_a_model_that_nothing_can_run(self, tflgpu: Tflgpu, mystery: Path) -> None:
        result = tflgpu("run", mystery, *CPU)
        assert result.exit_code == 2
        assert "Mystery" in result.stderr

    def test_a_folder_that_cannot_be_made(
        self, tflgpu: Tflgpu, scale: Path, tmp_path: Path
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        result = tflgpu("run", scale, *CPU, "--output", blocked / "out")
        assert result.exit_code == 2
        assert "cannot save outputs" in result.stderr
        assert result.stdout == ""  # found before anything ran
