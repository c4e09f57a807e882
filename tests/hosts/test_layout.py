"""A LiteRT whose structs are not those known here is refused in a sentence, before it can hurt."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import attrs
import cffi
import pytest
import tflgpu
from tflgpu.hosts import callbacks, cdef, layout, reading, runtimes
from tflgpu.hosts.params import declarations
from tflgpu.hosts.runtimes import Runtime, runtime_of

from tests.hosts.host_models import chain, host

MODULE = "ai_edge_litert.interpreter"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not tried anything yet."""
    monkeypatch.setattr(layout, "_verdicts", {})


def test_the_runtime_that_is_here(fresh: Any) -> None:
    runtime = runtime_of(MODULE)
    assert layout.was_tried(runtime), "a new LiteRT: run the tests, then add it to layout._TRIED"
    layout.check_layout(runtime)
    assert layout._verdicts == {MODULE: None}
    assert callbacks.live_kernels() == 0


#: What LiteRT might change, and what is noticed first. What shows only behind a pointer is found in
#: the process that tries a version which nobody has tried.
CHANGES = {
    "a field before all of the context": (
        "struct TfLiteContext {", "struct TfLiteContext { void* newer;", "tensors"),
    "a larger tensor": (
        "TfLiteIntArray* dims_signature;", "TfLiteIntArray* dims_signature; void* newer;",
        "tensor 1"),
    "no legacy quantization": (
        "  struct { float scale; int32_t zero_point; } params;\n", "", "tensor 0"),
    "bytes before the kind of memory": (
        "  int allocation_type;\n  size_t bytes;", "  size_t bytes;\n  int allocation_type;",
        "tensor 0"),
    "another order of flags": (
        "  bool data_is_stale;\n  bool is_variable;", "  bool is_variable;\n  int64_t stale;",
        "tensor"),
}  # fmt: skip


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_another_layout_is_refused(
    change: str, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if LiteRT had it: here what is declared is changed instead."""
    old, new, says = CHANGES[change]
    assert old in cdef._COMMON
    other = cffi.FFI()
    other.cdef(cdef._COMMON.replace(old, new))
    other.cdef(declarations())
    other.cdef(cdef._ALLOCATOR)
    # The callbacks keep the true declarations: their signatures have pointers only.
    callbacks._functions()
    true = cdef.ffi()

    def cast(kind: str, value: Any) -> Any:
        if isinstance(value, true.CData) and true.typeof(value).kind == "pointer":
            value = other.cast("void*", int(true.cast("uintptr_t", value)))
        return other.cast(kind, value)

    def look(self: Any, context: Any, preview: Any) -> Any:
        return looked(self, cast("TfLiteContext*", context), preview)

    looked = layout._Probe._look
    monkeypatch.setattr(layout._Probe, "_look", look)
    for module in (cdef, reading):
        monkeypatch.setattr(module, "ffi", lambda: other)
    with pytest.raises(
        tflgpu.UnsupportedError, match="keeps its data in a way that is not known"
    ) as e:
        layout.check_layout(runtime_of(MODULE))
    assert says in str(e.value)
    assert "use tflgpu.Interpreter" in str(e.value)


@pytest.fixture
def newer(fresh: Any) -> Iterator[Runtime]:
    yield attrs.evolve(runtime_of(MODULE), version="99.1.0")


def test_a_version_that_nobody_tried_is_tried_elsewhere_first(newer: Runtime) -> None:
    assert not layout.was_tried(newer)
    layout.check_layout(newer)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("raise SystemExit('tensor 3 is not what the model says')", "tensor 3 is not"),
    ],
)
def test_a_trial_that_ends_badly(
    program: str, says: str, newer: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = layout.subprocess.run

    def instead(command: list[str], **options: Any) -> Any:
        return run([command[0], "-c", program], **options)

    monkeypatch.setattr(layout.subprocess, "run", instead)
    with pytest.raises(tflgpu.UnsupportedError, match=f"99.1.0 keeps .* never tried.*{says}"):
        layout.check_layout(newer)
    with pytest.raises(tflgpu.UnsupportedError, match=says):  # remembered
        layout.check_layout(newer)


def test_the_calling_runtime_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow may be loaded too: only the one that calls is tried."""
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.__version__ = "2.99.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    inner = types.ModuleType("tensorflow.lite.python.interpreter")
    monkeypatch.setitem(sys.modules, inner.__name__, inner)
    assert {str(r) for r in runtimes.calling_runtimes()} == {
        f"ai_edge_litert {runtime_of(MODULE).version}", "tensorflow 2.99.0",
    }  # fmt: skip
    found = []
    monkeypatch.setattr(
        "tflgpu.hosts.litert.check_layout", lambda runtime: found.append(runtime.module)
    )
    with tflgpu.GpuDelegate(backend="cpu_ref") as delegate:
        host(chain("ABS"), delegate)
    assert found == [MODULE]


def test_without_any_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in runtimes._MODULES:
        monkeypatch.setitem(sys.modules, module, None)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref") as delegate,
        pytest.raises(tflgpu.UnsupportedError, match="no TensorFlow Lite interpreter is loaded"),
    ):
        delegate._get_native_delegate_pointer()
