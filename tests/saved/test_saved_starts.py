"""A model that was started once starts from what is kept of its file: nothing is built or
compiled."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler import compile as compiling
from tflgpu.errors import AllocationError, DeviceError
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.ir.dtypes import DType
from tflgpu.runtime import compile_or_load
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.saved import facts, location
from tflgpu.saved.kernel import SavedKernel
from tflgpu.saved.location import entries
from tflgpu.saved.model import checked
from tflgpu.saved.model_lookup import SavedSource
from tflgpu.saved.start import Start
from tflgpu.tflite import build as building

from tests.running import allocated, raising, set_and_run
from tests.saved.saved_models import convolved
from tests.saved.test_saved_delegates import REF, assert_same, never, run
from tests.small_models import small_model, tensor_of

Device = Callable[..., GpuDelegate]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "token" / "models"


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """Delegates that keep models in the same folder."""

    def made(**options: Any) -> GpuDelegate:
        given = {**REF, "serialization_dir": str(tmp_path), "model_token": "token", **options}
        return GpuDelegate(**given)

    return made


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is built and compiled from now on."""
    said: list[str] = []

    def noted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **more: Any) -> Any:
            said.append(what)
            return call(*given, **more)

        return made

    monkeypatch.setattr(building, "build_graph", noted("built", building.build_graph))
    monkeypatch.setattr(compiling, "compile", noted("compiled", compiling.compile))
    return said


def mixed_model() -> bytes:
    """MUL on the device, an operator that it lacks, and ADD."""
    return small_model(
        {
            "x": (3, 5),
            "a": (3, 5),
            "b": (3, 5),
            "y": (3, 5),
            "two": tensor_of((5,), data=np.full(5, 2, np.float32)),
            "axis": tensor_of((), DType.I32, data=np.array(1, np.int32)),
        },
        "a = MUL(x, two)",
        ("b = CUMSUM(a, axis)", {"exclusive": True, "reverse": True}),
        "y = ADD(b, two)",
    )


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
def test_the_second_start_builds_nothing(
    backend: str, device: Device, folder: Path, compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    which = {} if backend == "cpu_ref" else {"backend": backend, "device": 0}
    with device(**which) as delegate:
        first = run(convolved(), delegate)
    assert compiled == ["built", "compiled"]
    assert len(entries(folder)) == 1
    with device(**which) as delegate:
        if backend != "cpu_ref":  # which has no code but the statements
            monkeypatch.setattr(SavedKernel, "body", property(never))
        assert_same(run(convolved(), delegate), first)
    assert compiled == ["built", "compiled"]


def test_equal_devices_share_a_start(device: Device, folder: Path, compiled: list[str]) -> None:
    """However a device is named."""
    for name in (1, "kernel interpreter"):
        with device(device=name) as delegate:
            run(convolved(), delegate)
    assert compiled == ["built", "compiled"]
    assert len(entries(folder)) == 1


def test_it_is_so_without_asking(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's cache folder, unless `enable_serialization` is off."""
    monkeypatch.setattr(location, "default_folder", lambda: tmp_path / "kept")
    for _ in range(2):
        with GpuDelegate(**REF) as delegate:
            run(convolved(), delegate)
    assert compiled == ["built", "compiled"]
    assert len(entries(tmp_path / "kept")) == 1
    with GpuDelegate(**REF, enable_serialization=False) as delegate:
        run(convolved(), delegate)
    assert compiled == 2 * ["built", "compiled"]


def test_parts_on_the_cpu_are_as_the_file_has_them(
    device: Device, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What LiteRT is given of an operator is looked up in the graph, which is built for that
    alone."""
    pytest.importorskip("ai_edge_litert.interpreter")
    options = {"exclude": "CUMSUM", "cpu_backend": "litert"}
    with device(**options) as delegate:
        first = run(mixed_model(), delegate)
    assert len(first[1].refusals) == 1
    assert first[1].refusals[0].runs_on.startswith("LiteRT")
    looked: list[SavedSource] = []
    found = SavedSource.found
    monkeypatch.setattr(
        SavedSource, "found",
        property(lambda self: looked.append(self) or found.__get__(self)),
    )  # fmt: skip
    with device(**options) as delegate:
        assert_same(run(mixed_model(), delegate), first)
    assert looked
    assert compiled == ["built", "compiled", "built"]


def test_other_shapes_are_kept_beside(device: Device, folder: Path) -> None:
    def result(delegate: GpuDelegate, rows: int) -> bytes:
        with tflgpu.Interpreter(
            model_content=mixed_model(), experimental_delegates=[delegate]
        ) as interpreter:
            interpreter.resize_tensor_input(0, (rows, 5))
            interpreter.allocate_tensors()
            assert interpreter.get_output_details()[0]["shape"].tolist() == [rows, 5]
            assert interpreter.get_input_details()[0]["shape"].tolist() == [rows, 5]
            set_and_run(interpreter, {0: np.arange(5 * rows, dtype=np.float32).reshape(rows, 5)})
            return interpreter.get_tensor(3).tobytes()

    with device() as delegate:
        first = [result(delegate, rows) for rows in (3, 2, 7)]
    assert len(entries(folder)) == 3
    with device() as delegate:
        assert [result(delegate, rows) for rows in (3, 2, 7)] == first


def changed_weight(model: bytes) -> bytes:
    """The lowest bit of one weight."""
    weight = np.full(5, 2, np.float32).tobytes()
    at = model.index(weight)
    return model[:at] + bytes([model[at] ^ 1]) + model[at + 1 :]


@pytest.mark.parametrize(
    "what", ["weight", "metadata", "option", "driver", "capability", "rule", "source"]
)
def test_whatever_changes_it_is_made_anew(
    what: str, device: Device, folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mixed_model()
    with device() as delegate:
        run(model, delegate)
        run(model, delegate)
    assert compiled == ["built", "compiled"]
    options: dict[str, Any] = {"precision": "f32_f16"} if what == "option" else {}
    if what == "weight":
        model = changed_weight(model)
    if what == "metadata":
        model += b"\0"  # a file is its bytes, whatever they are for
    if what == "rule":
        monkeypatch.setattr(
            compile_or_load, "facts_of_registry", lambda *_: (("plugins' rules", "x"),)
        )
    if what == "source":
        monkeypatch.setattr("tflgpu.saved.facts.stamp", lambda place: "another")
        location.facts_of.__globals__["_own"].cache_clear()
    with device(**options) as delegate:
        assert delegate.device is not None
        inner: Any = delegate.device
        if what == "driver":
            inner.info = attrs.evolve(inner.info, driver="another")
        if what == "capability":
            inner.caps = attrs.evolve(inner.caps, cache_bytes=12345)
        run(model, delegate)
    location.facts_of.__globals__["_own"].cache_clear()
    assert compiled == 2 * ["built", "compiled"]
    assert len(entries(folder)) == 2


def test_every_option_is_in_the_key() -> None:
    """Also one that comes later."""
    said = dict(facts.facts_of_options(tflgpu.DelegateOptions()))
    names = {field.name for field in attrs.fields(tflgpu.DelegateOptions)}
    places = {"serialization_dir", "model_token", "enable_serialization", "device"}
    assert {name.removeprefix("option ") for name in said} == names - places
    other = dict(facts.facts_of_options(tflgpu.DelegateOptions(exclude=("ADD",))))
    assert {name for name in said if said[name] != other[name]} == {"option exclude"}


def test_a_file_under_the_name_of_another_is_dropped(
    device: Device, folder: Path, compiled: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    models = [mixed_model(), changed_weight(mixed_model())]
    with device() as delegate:
        first = [run(model, delegate) for model in models]
    one, other = (entry.path for entry in entries(folder))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    compiled.clear()
    with device() as delegate, caplog.at_level(logging.WARNING):
        for model, results in zip(models, first, strict=True):
            assert_same(run(model, delegate), results)
    assert compiled == 2 * ["built", "compiled"]
    assert sum("is for something else" in r.getMessage() for r in caplog.records) == 2


def test_a_part_that_cannot_be_loaded_goes_to_the_cpu(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is made of the graph then, which is built for it."""
    model = mixed_model()
    monkeypatch.setattr(OpenedDevice, "may_fall_back", True)
    with device() as delegate:
        first = run(model, delegate)

    with device() as delegate:
        assert delegate.device is not None
        monkeypatch.setattr(type(delegate.device), "load", raising(DeviceError("no more memory")))
        outputs, report = run(model, delegate)
    np.testing.assert_allclose(outputs[0], first[0][0], rtol=1e-5)
    assert report.delegated_nodes == 0
    assert "no more memory" in report.refusals[0].reason


@pytest.mark.parametrize("failure", [DeviceError, MemoryError])
def test_a_kept_model_that_is_not_to_blame_stays(
    failure: type[Exception],
    device: Device,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A load that fails is no reason to drop what is the same when it is compiled anew, nor to say
    that it was dropped: whether the second attempt fails too or not."""
    with device() as delegate:
        first = run(convolved(), delegate)
    content = [entry.path.read_bytes() for entry in entries(folder)]

    def full(*_: Any, **__: Any) -> None:
        raise failure("no more memory")

    with device() as delegate, caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(type(delegate.device), "load", full)
            with pytest.raises((DeviceError, AllocationError), match="memory"):
                run(convolved(), delegate)
        assert "dropped" not in caplog.text
        assert [entry.path.read_bytes() for entry in entries(folder)] == content
        real, loads = type(delegate.device).load, []

        def once(*given: Any, **more: Any) -> Any:
            loads.append(1)
            return full() if len(loads) == 1 else real(*given, **more)

        with monkeypatch.context() as patch:
            patch.setattr(type(delegate.device), "load", once)
            assert_same(run(convolved(), delegate), first)
        assert "dropped" not in caplog.text
        assert [entry.path.read_bytes() for entry in entries(folder)] == content


def test_what_became_kernels_is_not_read(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither nodes nor options: importing the ops that have these takes as long as all of a start.
    Parts of the CPU are there whole."""
    seen: list[Start] = []
    read = location.read_start
    monkeypatch.setattr(location, "read_start", lambda *a: seen.append(read(*a)) or seen[-1])
    with device(exclude="CUMSUM") as delegate:
        first = run(mixed_model(), delegate)
    with device(exclude="CUMSUM") as delegate:
        assert_same(run(mixed_model(), delegate), first)
    (start,) = seen
    parts = start.compiled.parts
    assert [(p.delegated, p.count, len(p.nodes)) for p in parts] == [
        (True, 1, 0), (False, 1, 1), (True, 1, 0),
    ]  # fmt: skip
    assert [node.op for node in start.compiled.graph.nodes] == ["CUMSUM"]
    assert [p.label for p in parts][:2] == ["1 nodes on the device", "1 nodes on the CPU"]


def test_a_part_that_cannot_be_loaded_is_compiled_anew(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept without its nodes, by which it could run on the CPU. Which parts pay follows from
    measured times, which are in no key, so that the whole model is compiled again."""
    model = mixed_model()
    monkeypatch.setattr(OpenedDevice, "may_fall_back", True)
    with device(exclude="CUMSUM") as delegate:
        first = run(model, delegate)
    with device(exclude="CUMSUM") as delegate:
        real, failures, compiled = type(delegate.device).load, list[str](), list[int]()

        def lost(*given: Any, **more: Any) -> Any:
            if failures:
                raise DeviceError(failures.pop())
            return real(*given, **more)

        again = compile_or_load._compiled

        def counted(opened: Any, source: Any) -> Any:
            compiled.append(1)
            return again(opened, source)

        monkeypatch.setattr(type(delegate.device), "load", lost)
        monkeypatch.setattr(compile_or_load, "_compiled", counted)
        for times, delegated in ((1, 2), (2, 1)):
            failures.extend(["no more memory"] * times)
            compiled.clear()
            outputs, report = run(model, delegate)
            assert (len(compiled), report.delegated_nodes) == (1, delegated)
            np.testing.assert_array_equal(outputs[0], first[0][0])


def test_what_only_others_understand_is_not_kept_by_its_file(
    device: Device, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What LiteRT makes of it hangs on LiteRT's version."""
    pytest.importorskip("ai_edge_litert.interpreter")
    model = small_model({"x": (3, 5), "y": (3, 5), "z": (3, 5)}, "y = HARD_SWISH(x)", "z = ABS(y)")
    with device(cpu_backend="litert") as delegate:
        known = dict(delegate.provider.ops)
        del known["ABS"]
        monkeypatch.setattr(delegate.provider.opened.registry, "_merged", known)
        run(model, delegate)
        run(model, delegate)
    assert all(not entry.path.name.startswith(digest_start(model)) for entry in entries(folder))


def digest_start(model: bytes) -> str:
    from tflgpu.cache.digest import digest_of

    return digest_of(model).hex()[:16]


@pytest.mark.parametrize(
    "options",
    [
        {"experimental_preserve_all_tensors": True},
        {"experimental_disable_delegate_node_fusion": True},
    ],
)
def test_other_graphs_of_the_same_file_are_not_mixed_up(
    options: dict[str, Any], device: Device
) -> None:
    model = mixed_model()

    def dispatches(delegate: GpuDelegate, **more: Any) -> int:
        with allocated(
            tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate], **more)
        ) as interpreter:
            return interpreter.report.dispatches

    with device() as delegate:
        plain, other = dispatches(delegate), dispatches(delegate, **options)
    with device() as delegate:
        assert (dispatches(delegate), dispatches(delegate, **options)) == (plain, other)
    assert plain < other


#: What a start from what is kept has no use for, by the first words of modules' names. Importing
#: all of tflgpu takes longer than such a start.
UNUSED = (
    *("tflgpu.kernels.", "tflgpu.runtime.guard", "tflgpu.profiles", "tflgpu.cli",
    "tflgpu.conformance"),
    *("tflgpu.hosts", "tflgpu.tflite.converters", "tflgpu.tflite.build"),
    *("tflgpu.tflite.write", "tflgpu.saved.flatten", "tflgpu.devices.measure.",
    "tflgpu.devices.targets"),
    *("tflgpu.flow.session", "tflgpu.flow.program", "tflgpu.runtime.timing"),
    *("tflgpu.runtime.cpu_session", "tflgpu.compiler.compile.", "tflgpu.compiler.lower"),
    *("tflgpu.compiler.target", "tflgpu.compiler.fuse", "tflgpu.compiler.partition.",
    "tflgpu.passes."),
    *("tflgpu.compiler.times", "tflgpu.compiler.work", "tflgpu.ops.base", "tflgpu.ops.facets"),
    # Options of nodes that became kernels; pyopencl's own way to bind arguments, by text that it
    # compiles.
    *("tflgpu.ops.binary", "tflgpu.ops.activation", "tflgpu.ops.windows", "tflgpu.ops.elementwise"),
    *("pyopencl.invoker", "pytools.py_codegen"),
    *("tflite.", "flatbuffers", "tomllib", "difflib", "statistics", "asyncio", "rich", "typer",
    "numpy.random"),
)  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan"])
def test_it_imports_no_compiler(backend: str, device: Device, tmp_path: Path) -> None:
    which: dict[str, Any] = {} if backend == "cpu_ref" else {"backend": backend, "device": 0}
    with device(**which) as delegate:
        run(convolved(), delegate)
    (tmp_path / "model.tflite").write_bytes(convolved())
    options = {**REF, "serialization_dir": str(tmp_path), "model_token": "token", **which}
    code = (
        "import sys, numpy as np, tflgpu\n"
        f"with tflgpu.GpuDelegate(**{options!r}) as delegate, tflgpu.Interpreter(\n"
        f"    {str(tmp_path / 'model.tflite')!r}, experimental_delegates=[delegate]\n"
        ") as interpreter:\n"
        "    interpreter.allocate_tensors()\n"
        "    for each in interpreter.get_input_details():\n"
        "        interpreter.set_tensor(each['index'], np.zeros(each['shape'], each['dtype']))\n"
        "    interpreter.invoke()\n"
        "    for each in interpreter.get_output_details():\n"
        "        interpreter.get_tensor(each['index'])\n"
        "print(*sys.modules, sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = [set(checked(each.path)[1].facts) for each in entries(tmp_path / "token" / "models")]
    assert len(facts) == 1, facts[0] ^ facts[1]  # both processes say the same of the device
    loaded = done.stdout.split()
    assert "tflgpu.saved.rebuild" in loaded
    assert [name for name in loaded if f"{name}.".startswith(UNUSED)] == [], done.stderr
