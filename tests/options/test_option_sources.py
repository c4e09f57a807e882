"""Dictionaries, TOML, variables and flags: one definition, and an order of precedence."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tflgpu
from tflgpu import DelegateOptions, OptionError, Precision
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.options import OPTIONS, OTHER_NAMES, sources
from tflgpu.options.definition import variable
from tflgpu.options.sources import OTHER_VARIABLES
from tflgpu.plugins.sources import SDK_RANGE
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
EXAMPLES: dict[str, tuple[str, Any]] = {  # by option: text, and what it means
    "backend": ("vulkan", "vulkan"), "device": ("1", 1), "allow_fallback": ("no", False),
    "cpu_backend": ("cpu_ref", "cpu_ref"), "num_threads": ("2", 2), "op_resolver": ("2", None),
    "precision": ("f16", Precision.F16), "is_precision_loss_allowed": ("1", True),
    "quantized_models_allowed": ("off", False), "quantized_numerics": ("integer", None),
    "round_hybrid_inputs": ("off", False), "strict": ("on", True),
    "inference_preference": ("balanced", tflgpu.InferencePreference.BALANCED),
    "inference_priority1": ("2", tflgpu.InferencePriority.MIN_LATENCY),
    "inference_priority2": ("min_memory_usage", None),
    "max_delegated_partitions": ("3", 3), "min_nodes_per_partition": ("2", 2),
    "partitioning": ("gain", PartitionBy.GAIN),
    "first_delegate_node_index": ("4", 4), "last_delegate_node_index": ("2147483647", 2**31 - 1),
    "include": ("CONV_2D, 7,t1", ("CONV_2D", 7, "t1")), "exclude": ("0", (0,)),
    "memory_limit": ("2KiB", 2048), "wait_type": ("active", tflgpu.WaitType.ACTIVE),
    "invoke_loop_times": ("5", 5), "keep_warm": ("60", 60.0), "guard_bands": ("true", True),
    "on_error": ("retry", tflgpu.OnError.RETRY), "run_timeout": ("2.5", 2.5),
    "shape_buckets": ("64, 16", (16, 64)),
    "accuracy_guard": ("runs=3, on_failure=keep", None),
}  # fmt: skip
#: Those that are only taken together with others.
TOGETHER = {"inference_priority3", "serialization_dir", "model_token", "enable_serialization"}


@pytest.fixture(autouse=True)
def warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has warned of nothing."""
    monkeypatch.setattr(sources, "_warned", set())


def toml(folder: Path, text: str) -> Path:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", EXAMPLES)
def test_text_variables_and_dictionaries_say_the_same(name: str) -> None:
    text, meant = EXAMPLES[name]
    options = DelegateOptions.from_text({name: text})
    assert DelegateOptions.from_environment({variable(name): text}) == options
    value = getattr(options, name)
    assert DelegateOptions.from_dict({name: value}) == options
    assert value != OPTIONS[name].default
    if meant is not None:
        assert value == meant


def test_no_option_is_forgotten_above() -> None:
    assert set(EXAMPLES) | TOGETHER >= set(OPTIONS)


@pytest.mark.skipif(sys.platform == "win32", reason="has no such device")
def test_a_file_of_options_has_an_end() -> None:
    """In a process of its own: reading the device to its end would fill the memory."""
    program = "import sys, tflgpu; tflgpu.DelegateOptions.from_toml(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << "
                               "30,) * 2)\n"
         + program, "/dev/zero"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "OptionError: /dev/zero: it is no TOML file: it is no regular file" in done.stderr


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text", [f"exclude = {'[' * 100_000}{']' * 100_000}", f"{'a.' * 100_000}b = 1"]
)
def test_options_that_are_nested_too_deep(text: str, tmp_path: Path) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(OptionError, match=r"options\.toml: it is no TOML file"):
        DelegateOptions.from_toml(path)


def test_from_toml(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        'precision = "f16"\nexclude = ["ADD", 3]\nallow_fallback = false\nmemory_limit = 4096\n'
        'experimental_flags = "ENABLE_QUANT"\n[tool.tflgpu]\nnum_threads = 2\n',
    )
    with pytest.raises(OptionError, match=r"options\.toml: .*unknown option .*tool"):
        DelegateOptions.from_toml(path)
    assert DelegateOptions.from_toml(path, "tool.tflgpu") == DelegateOptions(num_threads=2)
    path.write_text(path.read_text().partition("[tool")[0])
    assert DelegateOptions.from_toml(str(path)) == DelegateOptions(
        precision="f16", exclude=["ADD", 3], allow_fallback=False, memory_limit=4096,
        experimental_flags=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "table", "says"),
    [
        ("precison = 1", "", "precison.*did you mean precision"),
        ('precision = "f8"', "", "precision is one of"),
        ("precision = ", "", "it is no TOML file"),
        ('precision = "f16"\nis_precision_loss_allowed = false', "", "forbids"),
        ("a = 1", "b", r"it has no table \[b\]"),
        ("a = 1", "a.b", r"it has no table \[a\.b\]"),
        ("a = 1", "a", r"\[a\] is no table"),
        (None, "", "No such file"),
        (f"a{'.a' * 200} = 1", "", "a line has more than 100 dots"),
        ("#" * (1 << 20) + "\n", "", "no regular file of at most 1 MiB"),
    ],
)
def test_what_is_wrong_with_a_file_names_it(
    text: str | None, table: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "options.toml"
    if text is not None:
        toml(tmp_path, text)
    with pytest.raises(OptionError, match=f"^{re.escape(str(path))}: .*{says}") as raised:
        DelegateOptions.from_toml(path, table)
    assert str(raised.value).count(str(path)) == 1


def test_what_is_no_dictionary() -> None:
    for given in ([("precision", "f16")], {1: 2}, "precision"):
        with pytest.raises(OptionError, match=r"^options are a mapping"):
            DelegateOptions.from_dict(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text"),
    [("precision", "f8"), ("invoke_loop_times", "many"), ("memory_limit", "all"),
     ("wait_type", "long"), ("experimental_flags", "QUANT"), ("device", "-1"),
     ("enable_quantization", "maybe")],
)  # fmt: skip
def test_errors_name_the_variable(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"^{variable(name)} is "):
        DelegateOptions.from_environment({variable(name): text})


def test_clashes_name_the_variables() -> None:
    environ = {variable("precision"): "f16", variable("is_precision_loss_allowed"): "0"}
    with pytest.raises(OptionError, match=r"said by TFLGPU_PREC.*, TFLGPU_IS_PRECISION_LOSS"):
        DelegateOptions.from_environment(environ)
    environ = {variable("enable_quantization"): "0", variable("quantized_models_allowed"): "1"}
    with pytest.raises(
        OptionError, match=r"TFLGPU_QUANTIZED.* and TFLGPU_ENABLE_QUANT.*contradict"
    ):
        DelegateOptions.from_environment(environ)
    del environ[variable("enable_quantization")]
    environ[variable("precision")] = "f16"
    with pytest.raises(OptionError, match=r"\(precision is from TFLGPU_PRECISION, quantized.*\)$"):
        DelegateOptions.gathered({"is_precision_loss_allowed": False}, environ=environ)


def test_blanks_say_nothing() -> None:
    assert DelegateOptions.from_environment({variable("precision"): " "}) == DelegateOptions()


def test_keyword_before_variable_before_file_before_default(tmp_path: Path) -> None:
    path = toml(tmp_path, "num_threads = 4\ninvoke_loop_times = 4\nmin_nodes_per_partition = 4\n")
    environ = {
        "TFLGPU_OPTIONS_FILE": str(path),
        variable("num_threads"): "3",
        variable("invoke_loop_times"): "3",
    }
    options = DelegateOptions.gathered({"num_threads": 2}, environ=environ)
    assert options == DelegateOptions(num_threads=2, invoke_loop_times=3, min_nodes_per_partition=4)


def test_precedence_is_by_meaning_and_not_by_name(tmp_path: Path) -> None:
    path = toml(tmp_path, "experimental_flags = 2\n")  # ENABLE_QUANT is off, and OpenCL only
    environ = {"TFLGPU_OPTIONS_FILE": str(path), variable("enable_quantization"): "1"}
    options = DelegateOptions.gathered({"backend": "vulkan"}, environ=environ)
    assert (options.quantized_models_allowed, options.backend) == (True, "vulkan")


def test_a_file_that_a_variable_names(tmp_path: Path) -> None:
    path = toml(tmp_path, "num_threads = 0\n")
    with pytest.raises(
        OptionError, match=r"^TFLGPU_OPTIONS_FILE=.*options\.toml: num_threads is 0"
    ):
        DelegateOptions.gathered({}, environ={"TFLGPU_OPTIONS_FILE": str(path)})


def test_a_delegate_takes_them_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = toml(tmp_path, 'backend = "vulkan"\ninvoke_loop_times = 4\nnum_threads = 4\n')
    monkeypatch.setenv("TFLGPU_OPTIONS_FILE", str(path))
    monkeypatch.setenv(variable("backend"), "cpu_ref")
    monkeypatch.setenv(variable("device"), "1")
    monkeypatch.setenv(variable("num_threads"), "3")
    with tflgpu.GpuDelegate(invoke_loop_times=2) as delegate:
        assert (delegate.options.invoke_loop_times, delegate.options.num_threads) == (2, 3)
        # Before the file, and reports say that a variable asked.
        assert delegate.device is not None
        assert delegate.device.info.backend == "cpu_ref"
        assert any("TFLGPU_BACKEND" in reason for reason in delegate.choice.reasons)
    with tflgpu.load_delegate("tflgpu", {"invoke_loop_times": "3"}) as delegate:
        assert (delegate.options.invoke_loop_times, delegate.options.num_threads) == (3, 3)
    with tflgpu.GpuDelegate(DelegateOptions()) as delegate:
        assert delegate.options == DelegateOptions()


def test_unknown_variables_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    wrong = "TFLGPU_" + "PRECISON"
    environ = {wrong: "f16", "TFLGPU_CACHE_DIR": "/x", "TFLGPUX": "", "OTHER": ""}
    with caplog.at_level(logging.WARNING, "tflgpu"):
        for _ in range(2):
            assert DelegateOptions.from_environment(environ) == DelegateOptions()
    (message,) = caplog.messages
    assert f"{wrong} is unknown (did you mean TFLGPU_PRECISION?)" in message


def test_every_variable_of_the_project_is_known() -> None:
    known = {variable(name) for name in (*OPTIONS, *OTHER_NAMES)} | set(OTHER_VARIABLES)
    known.add(SDK_RANGE)  # of plugins' modules
    found: dict[str, str] = {}
    own = Path(__file__).parent
    for folder in ("core", "backends", "tests", "benchmarks", "docs", "examples", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and own not in path.parents and path.suffix in (".py", ".md", ""):
                text = path.read_text(encoding="utf-8")
                found |= dict.fromkeys(re.findall(r"TFLGPU_[A-Z0-9_]*[A-Z0-9]", text), str(path))
    assert {"TFLGPU_CACHE_DIR", "TFLGPU_BACKEND"} <= set(found)
    assert {name: path for name, path in found.items() if name not in known} == {}


# The command line


@pytest.fixture
def command() -> Callable[..., Any]:
    from tflgpu.cli.app import make_app

    runner, app = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}), make_app()
    return lambda *arguments: runner.invoke(app, [str(a) for a in arguments])


MODEL = ROOT / "core/tflgpu/demo/digits.tflite"
HERE = ("--backend", "cpu_ref", "--device", "1")


@pytest.mark.parametrize("name", ["run", "shader"])
def test_every_option_is_a_flag(command: Any, name: str) -> None:
    """All of them are in the long help, with what they take; the short one fits a screen."""
    text = command(name, "--help-all").output
    for option in (*OPTIONS, *OTHER_NAMES):
        assert re.search(rf"--{option.replace('_', '-')}\s", text), option
    assert "--wait-type passive|active|do_not_wait|aggressive" in text
    short = command(name, "--help").output
    assert "--wait-type" not in short
    assert "--help-all" in short


def test_flags_reach_the_delegate(command: Any, tmp_path: Path) -> None:
    path = toml(tmp_path, 'include = ["CONV_2D"]\nexclude = ["CONV_2D"]\n')
    flags = ("--exclude", "SOFTMAX,0", "--options-file", path, "--include", "CONV_2D,SOFTMAX")
    done = command("run", MODEL, *HERE, "--runs", 1, "-v", *flags)
    assert done.exit_code == 0, done.output
    rows = [" ".join(line.split()) for line in done.output.splitlines()]
    for start in ("#2 CONV_2D cpu_ref", "#6 SOFTMAX CPU", "#5 FULLY_CONNECTED CPU"):
        assert any(row.startswith(start) for row in rows), done.output


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--invoke-loop-times", "x"), "--invoke-loop-times is a whole number, not 'x'"),
        (("--precision", "f8"), "--precision is one of F32, F16, F32_F16, not 'f8'"),
        (("--numerics", "f8"), "--numerics is one of FLOAT, INTEGER, not 'f8'"),
        (("--numerics", "float", "--quantized-numerics", "float"), "are one option; give one"),
        (("--enable-quantization", "0", "--quantized-models-allowed", "1"),
         "--enable-quantization=false contradict each other"),
        (("--options-file", "nowhere.toml"), "--options-file nowhere.toml: No such file"),
    ],
)  # fmt: skip
def test_errors_name_the_flag(command: Any, flags: tuple[str, ...], says: str) -> None:
    done = command("shader", MODEL, *HERE, *flags)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_the_references_have_no_options(command: Any) -> None:
    done = command("run", MODEL, "--backend", "cpu", "--exclude", "0")
    assert "--exclude is for a GPU backend" in " ".join(done.output.split())


def test_type_checkers_know_a_mistyped_keyword(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(
        "import tflgpu\n"
        'tflgpu.GpuDelegate(precision="f16", exclude=["ADD", 1], wait_type=1)\n'
        'tflgpu.GpuDelegate(precison="f16")\n'
        'tflgpu.DelegateOptions(precison="f16")\n'
        "tflgpu.DelegateOptions(memory_limit=1.5)\n"
    )
    # Of the package what says which keywords there are; all of it takes three times as long.
    core = ROOT / "core" / "tflgpu"
    said = [core / "__init__.py", *(core / "options").glob("*.py"),
            core / "interpreter/gpu_delegate.py", core / "lowering/precision.py",
            core / "compiler/numerics.py", core / "compiler/partition_by.py"]  # fmt: skip
    call = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml"]
    call += ["--follow-imports=skip", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*call, str(program), *map(str, said)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = re.findall(r"program\.py:(\d+): error: (.*)  \[", done.stdout)
    assert [number for number, _ in lines] == ["3", "4", "5"], done.stdout + done.stderr
    assert 'did you mean "precision"?' in lines[0][1]
