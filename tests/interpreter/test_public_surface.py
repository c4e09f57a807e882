"""What users see: public names, types that resolve, options that type checkers know, and reprs."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import tflgpu
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.lowering.lowering import Precision
from tflgpu.options import (
    OPTIONS,
    DelegateOptions,
    InferencePreference,
    InferencePriority,
    OptionKeywords,
)
from tflgpu.options.kinds import EnumMember, OptionKind, OrNone

from tests.interpreter import interpreter_models as models

X = np.ones((1, 3), np.float32)
DRIVERS = {"pyopencl", "vulkan", "wgpu", "ai_edge_litert", "tensorflow"}

MODEL = {"close", "input_names", "inputs", "keeps_state", "output_names", "outputs", "report"}
METHODS = {
    tflgpu.Model: MODEL,
    tflgpu.Pool: {
        "close", "input_names", "inputs", "output_names", "outputs", "replace", "reports", "run",
        "runs", "submit",
    },
    tflgpu.GpuDelegate: {
        "accuracy_checks", "caps", "choice", "close", "device", "memory", "options", "precision",
        "reports", "save", "tune",
    },
    tflgpu.DeviceBuffer: {"close", "export", "read", "reshaped", "write"},
    tflgpu.Invocation: {"done", "get_tensor", "results", "wait"},
    tflgpu.Results: {"asdict", "count", "index"},
    tflgpu.Task: {"answer", "close", "each", "kind", "prepare", "takes"},
}  # fmt: skip


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.__name__)
def test_a_class_shows_its_own_methods_only(cls: type) -> None:
    assert {name for name in dir(cls) if name[0] != "_"} == METHODS[cls]


def in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_shows_its_public_names_only() -> None:
    code = "import tflgpu, tflgpu.interpreter.api; print(dir(tflgpu) == sorted(tflgpu.__all__))"
    assert in_a_new_process(code).split() == ["True"]


def annotated() -> Iterator[tuple[str, Any]]:
    """All that is public and has annotations: classes, functions, and the methods of classes."""
    for name in tflgpu.__all__:
        thing = getattr(tflgpu, name)
        if inspect.isclass(thing):
            yield name, thing
            for part in dir(thing):
                if part[0] != "_" or part in ("__init__", "__call__", "__enter__", "__getitem__"):
                    found = inspect.getattr_static(thing, part)
                    found = getattr(found, "__func__", found)
                    found = found.fget if isinstance(found, property) else found
                    found = found.func if isinstance(found, functools.cached_property) else found
                    if inspect.isfunction(found):
                        yield f"{name}.{part}", found
        elif inspect.isfunction(thing):
            yield name, thing


def unresolved(thing: Any) -> Exception | None:
    """Why the annotations of a function or class are no types."""
    try:
        get_type_hints(thing, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        return error
    return None


def test_annotations_resolve() -> None:
    found = dict(annotated())
    assert {"Model.__init__", "Interpreter.get_tensor", "Pool.submit", "estimate"} <= set(found)
    why = {name: unresolved(thing) for name, thing in found.items()}
    assert {name: error for name, error in why.items() if error is not None} == {}


def words(hint: Any) -> set[str]:
    """The words of the literals in a type."""
    if typing.get_origin(hint) is typing.Literal:
        return {word for word in get_args(hint) if isinstance(word, str)}
    return set().union(*map(words, get_args(hint)))


def member(kind: OptionKind) -> EnumMember | None:
    inner = kind.inner if isinstance(kind, OrNone) else kind
    return inner if isinstance(inner, EnumMember) else None


MEMBERS = {o.name: m for o in OPTIONS.values() if (m := member(o.kind)) is not None}
REFUSED = {"DO_NOT_WAIT", "AGGRESSIVE"}


@pytest.mark.parametrize("name", MEMBERS)
def test_type_checkers_know_the_words_of_an_option(name: str) -> None:
    kind = MEMBERS[name]
    names = {m.name for m in kind.members} - REFUSED
    prefixed = {kind.prefix + n for n in names} if kind.prefix else set()
    expected = names | {n.lower() for n in names} | prefixed
    assert words(get_type_hints(OptionKeywords)[name]) == expected
    for word in expected:
        assert kind.read(name, word).name.endswith(word.upper().removeprefix(kind.prefix))


def on_cpu(cls: Callable[..., Any], **options: Any) -> Any:
    return cls(models.chain(), backend="cpu", cpu_backend="cpu_ref", **options)


def test_the_cpu_alone(caplog: pytest.LogCaptureFixture) -> None:
    with on_cpu(tflgpu.Model) as model:
        report = model.report
        assert report.backend == ""
        assert report.delegated_nodes == 0
        assert "backend cpu was asked for by the option backend" in " ".join(report.choice)
    with tflgpu.GpuDelegate(backend="cpu") as delegate:
        assert delegate.device is None
    with on_cpu(tflgpu.Pool, size=1) as pool:
        assert pool.reports[0].delegated_nodes == 0
    assert not caplog.messages


def test_the_cpu_alone_is_no_device() -> None:
    with pytest.raises(tflgpu.OptionError, match="backend=cpu uses no device, and device=0"):
        tflgpu.GpuDelegate(backend="cpu", device=0)
    with pytest.raises(tflgpu.OptionError, match=r"backend=cpu .* allow_fallback=False"):
        tflgpu.Model(models.chain(), backend="cpu", allow_fallback=False)


def test_the_variable_for_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu")
    with tflgpu.GpuDelegate() as delegate:
        assert delegate.device is None
        assert "asked for by TFLGPU_BACKEND" in " ".join(delegate.choice.reasons)
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    with pytest.raises(tflgpu.DeviceError, match=r"backend cpu .* has no devices"):
        tflgpu.GpuDelegate()


def test_what_is_saved_and_progress(tmp_path: Path) -> None:
    path, seen = tmp_path / "m.tflgpu", []
    on = {"backend": "cpu_ref", "device": 1}
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        delegate.save(models.chain(), path)
    for make in (tflgpu.Model, functools.partial(tflgpu.Pool, size=1)):
        with make(models.chain(), saved=path, progress=lambda *n: seen.append(n), **on) as opened:
            (expected,) = on_cpu(tflgpu.Model)(X)
            np.testing.assert_allclose(opened(X)[0], expected, rtol=1e-6)
        with pytest.raises(tflgpu.SavedModelError):
            make(models.static(), saved=path, **on)
    delegate = tflgpu.GpuDelegate(backend="cpu_ref")
    with delegate, pytest.raises(tflgpu.OptionError, match="saved: options are for a delegate of"):
        tflgpu.Model(models.chain(), delegate=delegate, saved=path)
    with delegate, pytest.raises(tflgpu.OptionError, match="either delegates, or devices and opt"):
        tflgpu.Pool(models.chain(), delegates=[delegate], progress=print)


@pytest.mark.parametrize("batch", [1, 2])
def test_submit_takes_a_timeout(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with tflgpu.Pool(models.static(), size=1, batch=batch, backend="cpu", deadline=0.0) as pool:
        (expected,) = pool(X)
        assert np.array_equal(pool.submit(X, timeout=60).result(60)[0], expected)
        assert np.array_equal(pool.submit(X, timeout=None).result(60)[0], expected)
        with pytest.raises(tflgpu.ArgumentError, match="timeout is a number of seconds or None"):
            pool.submit(X, timeout="soon")  # type: ignore[arg-type]

        def busy(self: Any, *arrays: Any, timeout: float | None = None) -> Any:
            raise tflgpu.BusyError(f"not in {timeout} seconds")

        monkeypatch.setattr(tflgpu.Pool, "__call__", busy)
        with pytest.raises(tflgpu.BusyError, match=r"not in 0\.5 seconds"):
            pool.submit(X, timeout=0.5).result(60)


def test_reprs_say_what_a_thing_is() -> None:
    with tflgpu.Interpreter(model_content=models.chain(), experimental_delegates=[]) as opened:
        assert repr(opened) == "<Interpreter: x -> y; not allocated>"
        opened.allocate_tensors()
        assert repr(opened) == "<Interpreter: x -> y; ready>"
    assert repr(opened) == "<Interpreter: x -> y; not allocated>"
    with on_cpu(tflgpu.Model) as model:
        assert repr(model) == "<Model: 'image' (float32[-1, 3]) -> 'scores' (float32[-1, 3])>"
        assert repr(model(X)) == "<Results: scores float32[1, 3]>"
    with on_cpu(tflgpu.Pool, size=2) as pool:
        assert repr(pool) == f"<Pool: 2 of {model!r}>"
    assert repr(pool) == "<Pool: closed>"
    assert repr(tflgpu.DelegateOptions()) == "DelegateOptions()"
    assert repr(tflgpu.DelegateOptions(precision="f16", device=1)) == (
        "DelegateOptions(device=1, precision='F16')"
    )


def test_results_by_position_slice_and_name() -> None:
    with on_cpu(tflgpu.Model) as model:
        found = model(X)
    assert found[0] is found["scores"]
    assert found[:1] == (found[0],)
    assert found[np.int64(0)] is found[0]


def test_devices_with_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    found = tflgpu.devices()
    by_name = {(d.info.backend, d.info.index): d for d in found}
    (chosen,) = [d for d in found if d.state == "chosen"]
    assert chosen is by_name["cpu_ref", 1]
    assert chosen.reason.startswith("chosen")
    assert chosen.caps is not None
    assert by_name["cpu_ref", 0].state == "ok"
    assert all(d.reason for d in found)
    assert {d.state for d in found} <= {"chosen", "ok", "failed", "missing"}


def test_a_backend_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tflgpu.contract.device import Probe
    from tflgpu.plugins.registry import registry

    missing = Probe(False, "no driver")
    monkeypatch.setattr(registry(), "probe", lambda backend, refresh=False: missing)
    found = tflgpu.devices()
    assert {d.state for d in found} == {"missing"}
    assert {d.reason for d in found} == {"no driver"}
    assert [d.info.backend for d in found] == list(registry().backends)


# `import tflgpu` is quick, loads no driver, and gives the public names.


def test_names_are_the_objects_of_their_modules() -> None:
    assert tflgpu.Interpreter is Interpreter
    assert tflgpu.GpuDelegate is GpuDelegate
    assert tflgpu.DelegateOptions is DelegateOptions
    assert tflgpu.Precision is Precision
    assert tflgpu.InferencePreference is InferencePreference
    assert tflgpu.InferencePriority is InferencePriority
    assert issubclass(tflgpu.errors.OptionError, tflgpu.errors.TflgpuError)
    assert tflgpu.__version__ == version("tflgpu")


def test_every_public_name_is_there() -> None:
    for name in tflgpu.__all__:
        assert getattr(tflgpu, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tflgpu' has no attribute 'Interpeter'"):
        tflgpu.Interpeter  # noqa: B018


def test_importing_is_quick() -> None:
    """Quicker than to import NumPy, on any machine: of the processor's time, which other processes
    may be using as well."""
    code = (
        "import time; times = [time.process_time()]; import tflgpu; "
        "times.append(time.process_time()); import numpy; times.append(time.process_time()); "
        "print(times[1] - times[0] - (times[2] - times[1]))"
    )
    assert min(float(in_a_new_process(code)) for _ in range(3)) < 0


def test_no_driver_is_imported() -> None:
    """Nor by the two names that most programs use."""
    code = "import sys, tflgpu; tflgpu.Interpreter; tflgpu.GpuDelegate; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in in_a_new_process(code).split()}
    assert "tflgpu" in loaded
    assert loaded & DRIVERS == set()


def test_all_errors_are_public() -> None:
    for name, kind in vars(tflgpu.errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert getattr(tflgpu, name) is kind
            assert name in tflgpu.__all__
            assert issubclass(kind, tflgpu.TflgpuError)
