"""Programs that other processes compile."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.cache.file_lock import exclusive
from tflgpu.compiler.plan import InputRef, OutputRef, Plan
from tflgpu.conformance.plans import affine, dispatch, io, plan
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel

pytest.importorskip("pyopencl", reason="pip install tflgpu[opencl]")
from tflgpu_opencl import compile_worker, program, workers
from tflgpu_opencl.workers import Worker, Workers

GIB = 1 << 30


def several(count: int) -> Plan:
    return plan(
        [dispatch(affine(8, i + 2), 8, [InputRef(0), OutputRef(i)]) for i in range(count)],
        [io("x", (8,))],
        [io(f"y{i}", (8,)) for i in range(count)],
    )


@pytest.fixture
def serial(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    """``open_device``, for a device whose programs three other processes compile."""
    # Of the processes alone: files of PoCL's cache are not for several at a time.
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    monkeypatch.setattr(workers, "_count", lambda handle, programs: 3)

    def opened(**arguments: Any) -> Any:
        device = open_device(keep_binaries=True, **arguments)
        device._kernels._is_serial = True  # as on NVIDIA
        return device

    return opened


@pytest.fixture
def binaries(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What processes gave back."""
    found: list[bytes] = []
    original = Worker.binary

    def binary(self: Worker, source: str) -> bytes:
        made = original(self, source)
        found.append(made)
        return made

    monkeypatch.setattr(Worker, "binary", binary)
    return found


def check(device: Any, made: Plan) -> None:
    recording = device.load(made)
    recording.inputs[0][...] = np.arange(8)
    recording.run()
    for i, output in enumerate(recording.outputs):
        np.testing.assert_array_equal(output, np.arange(8) * (i + 2) + 1)
    recording.close()


def test_they_compute_what_is_compiled_here(
    serial: Callable[..., Any], binaries: list[bytes]
) -> None:
    device = serial()
    before = device.compiled
    check(device, several(7))
    assert device.compiled - before == 7
    assert binaries
    assert all(binaries)
    device.close()
    assert device._kernels._workers is None
    fresh = serial()  # what they compiled is kept
    before = fresh.compiled
    check(fresh, several(7))
    assert fresh.compiled == before


def test_the_kernel_that_is_refused_is_named(serial: Callable[..., Any]) -> None:
    class Partly:
        def source(self, kernel: Kernel) -> str:
            wrong = "undeclared_thing(p);" * (kernel.name == "affine_bad")
            return f"__kernel void {kernel.name}(__global float* p) {{ {wrong} }} // {id(kernel)}"

    device = serial(dialect=Partly())
    bad = affine(8, 3, name="affine_bad")
    kernels = [affine(8, 2), bad, affine(8, 4)]
    made = plan(
        [dispatch(k, 8, [InputRef(0), OutputRef(0)]) for k in kernels], [io("x", (8,))],
        [io("y", (8,))],
    )  # fmt: skip
    with pytest.raises(CompileError, match="refused kernel affine_bad\n") as caught:
        device.load(made)
    assert "undeclared_thing" in str(caught.value)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """What was logged of processes since it was last asked."""

    def said() -> str:
        found = "\n".join(r.getMessage() for r in caplog.records if "process" in r.getMessage())
        caplog.clear()
        return found

    return said


def test_without_them_this_process_compiles_and_says_so(
    serial: Callable[..., Any], binaries: list[bytes], monkeypatch: pytest.MonkeyPatch,
    told: Callable[[], str],
) -> None:  # fmt: skip
    device = serial()
    check(device, several(3))
    assert not told()
    device = serial()
    binaries.clear()
    right = workers._arguments(device._kernels._handle)
    monkeypatch.setattr(
        workers, "_arguments", lambda handle: [*right[:4], "another driver", *right[5:]]
    )
    check(device, several(8))
    assert set(binaries) == {b""}  # the device is another one for them
    said = told()
    assert said.endswith("0 is another one")
    assert said.count("process that compiles") == 1

    def refused(*arguments: Any, **named: Any) -> Any:
        raise PermissionError("no processes here")

    monkeypatch.setattr(workers.subprocess, "Popen", refused)
    check(serial(), several(12))
    assert told().endswith("cannot be started: no processes here")


def test_a_binary_that_the_driver_does_not_take(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, told: Callable[[], str]
) -> None:
    monkeypatch.setattr(Worker, "binary", lambda self, source: b"no binary")
    check(serial(), several(5))
    assert told().count("its binary of affine is refused") == 1


def test_a_worker_that_was_killed(serial: Callable[..., Any]) -> None:
    worker = Worker(workers._arguments(serial()._kernels._handle))
    assert worker.binary("nonsense") == b""
    assert worker.fault.startswith("clBuildProgram: ")
    assert worker.binary("__kernel void k(__global int* a) { a[0] = 1; }")
    worker.kill()
    worker.wait()
    assert not worker.is_there
    assert worker.binary("__kernel void k(__global int* a) { a[0] = 2; }") == b""


def test_a_worker_that_ends_by_itself_says_so_and_does_not_come_again(
    serial: Callable[..., Any],
) -> None:
    kernels = serial()._kernels
    kernels.start_workers()
    pool = kernels._workers
    for _ in range(3):
        with pool.one() as found:
            assert not found.fault
            found._process.kill()
            assert found.binary("__kernel void k(__global int* a) { a[0] = 1; }") == b""
            assert found.fault == f"exit code {found._process.returncode}"
    with pool.one() as found:
        assert found is None


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system does not stop processes")
def test_a_worker_that_does_not_answer_is_not_waited_for(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(workers._arguments(serial()._kernels._handle))
    worker._process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(workers, "LONGEST", 0.05)
    assert worker.binary("__kernel void k(__global int* a) { a[0] = 1; }") == b""
    assert worker.fault == "no answer within 0.1 s"
    worker.wait()


def test_what_takes_too_long_is_ended() -> None:
    ended = threading.Event()
    with compile_worker._within(0.0, ended.set):
        assert ended.wait(60)
    ended.clear()
    with compile_worker._within(3600.0, ended.set):
        pass
    assert not any(isinstance(t, threading.Timer) and t.interval == 3600.0 and t.is_alive()
                   and not t.finished.is_set() for t in threading.enumerate())  # fmt: skip


def test_a_worker_without_work_ends(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PATIENCE", 0.0)
    kernels = serial()._kernels
    kernels.start_workers()
    first = kernels._workers
    for worker in first._every:
        worker.wait()
    assert not first.are_there
    monkeypatch.undo()
    kernels.start_workers(2)
    assert kernels._workers is not first
    assert not kernels._workers._every  # so few programs are not worth any
    kernels.start_workers(3 * workers.PROGRAMS_EACH)
    kernels.end_workers()


def test_one_process_at_a_time_has_some(serial: Callable[..., Any]) -> None:
    handle = serial()._kernels._handle
    cache = serial()._kernels._cache
    cache.store("0" * 64, b"")  # which makes the folder
    with exclusive(workers.lock_of(cache), 0.0) as others:
        assert not others
        assert not Workers(handle, 9, cache)._every
    pool = Workers(handle, 9, cache)
    assert len(pool._every) == 3
    pool.kill()
    for thread in threading.enumerate():
        if thread.name == "tflgpu-opencl-workers":
            thread.join()
    with exclusive(workers.lock_of(cache), 0.0) as others:
        assert not others


@pytest.mark.parametrize(
    ("programs", "memory", "cores", "count"),
    [(30, 140, 16, 8), (30, 16, 16, 4), (30, 140, 4, 2), (7, 140, 16, 2), (2, 140, 16, 0),
     (30, 2, 16, 0), (30, 140, 1, 0)],
)  # fmt: skip
def test_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch, programs: int, memory: int, cores: int, count: int
) -> None:
    monkeypatch.setattr(workers, "usable_cpus", lambda: cores)
    handle = SimpleNamespace(global_mem_size=memory * GIB)
    assert workers._count(handle, programs) == count


@pytest.mark.parametrize("executable", ["/usr/sbin/uwsgi", "", None])
def test_an_application_with_python_inside_is_not_started(
    executable: str | None, monkeypatch: pytest.MonkeyPatch, require_backend: Callable[[str], Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    require_backend("opencl")
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(workers, "_count", lambda handle, programs: 3)
    pool = Workers(program.cl.get_platforms()[0].get_devices()[0], 9, DiskCache(tmp_path))
    with pool.one() as worker:
        assert worker is None
    assert not pool._every


def test_messages_are_whole_or_none(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    with path.open("wb") as stream:
        for content in (b"one", b"", b"three"):
            compile_worker.send(stream, content)
    with path.open("rb") as stream:
        found = [compile_worker.receive(stream) for _ in range(4)]
    assert found == [b"one", b"", b"three", None]
    path.write_bytes(path.read_bytes()[:-1])
    with path.open("rb") as stream:
        assert [compile_worker.receive(stream) for _ in range(3)] == [b"one", b"", None]
