"""Programs that other processes compile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
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
from tflgpu.errors import CompileError, StateError
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


def ended() -> None:
    """Wait for the ends of all processes that were closed."""
    for thread in threading.enumerate():
        if thread.name == workers.THREAD_NAME:
            thread.join(30)
            assert not thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    """Wait for other threads and processes."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


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
    ended()
    fresh = serial()  # what they compiled is kept
    before = fresh.compiled
    check(fresh, several(7))
    assert fresh.compiled == before


def test_a_binary_is_loaded_once(
    serial: Callable[..., Any], binaries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, original = [], program.Compiler._from_binary

    def from_binary(self: program.Compiler, binary: bytes) -> program.Entry:
        loaded.append(binary)
        return original(self, binary)

    monkeypatch.setattr(program.Compiler, "_from_binary", from_binary)
    check(serial(), several(5))
    assert any(binaries)
    assert len(loaded) == 5
    before = (fresh := serial()).compiled
    check(fresh, several(5))
    assert sorted(loaded[5:]) == sorted(loaded[:5])
    assert fresh.compiled == before
    assert not fresh._kernels._loaded


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
    assert worker.why.startswith("clBuildProgram: ")
    assert not worker.fault
    assert worker.binary("__kernel void k(__global int* a) { a[0] = 1; }")
    worker.kill()
    worker.wait()
    assert not worker.is_there
    assert worker.binary("__kernel void k(__global int* a) { a[0] = 2; }") == b""


def test_a_worker_that_ends_by_itself_says_so(
    serial: Callable[..., Any], told: Callable[[], str]
) -> None:
    device = serial()
    device._kernels.start_workers()
    pool = device._kernels._workers
    for worker in list(pool._every):
        worker._process.kill()
    pool.begin("__kernel void k(__global int* a) { a[0] = 1; }")
    ended()
    assert not pool._every
    check(device, several(2))
    assert told().endswith(f"exit code {worker._process.returncode}")
    assert not pool._every  # others would end as well


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system does not stop processes")
def test_a_worker_that_does_not_answer_is_not_waited_for(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(workers._arguments(serial()._kernels._handle))
    worker._process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(workers, "LONGEST", 0.05)
    assert worker.binary("__kernel void k(__global int* a) { a[0] = 1; }") == b""
    assert worker.why == worker.fault == "no answer within 0.1 s"
    worker.wait()


def test_a_program_that_a_process_keeps_is_not_waited_for(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = serial()._kernels._workers
    pool._running.add("a program")  # and its thread never comes back
    monkeypatch.setattr(workers, "LONGEST", 0.01)
    with pool.binary("a program") as found:
        assert found == (b"", "no program within 0.04 s")


def test_programs_wait_for_processes_that_have_started(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = serial()._kernels._workers
    monkeypatch.setattr(workers, "LONGEST", 0.01)
    sources = ["one", "another", "a third"]
    pool._waiting.update(dict.fromkeys(sources))
    pool._every.append(SimpleNamespace(kill=lambda: None))
    late = (b"", "no program within 0.04 s")
    with pool.binary("one") as found:
        assert found == (b"", "")  # no process has made anything yet
        with pool.binary("another") as other:
            assert other == late  # one at a time
    pool._are_ready = True
    with pool.binary("a third") as found:
        assert found == late
    assert not pool._waiting
    pool._every.clear()


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
    ended()
    assert not kernels._workers._every
    monkeypatch.undo()
    kernels.start_workers()
    assert len(kernels._workers._every) == workers._count(kernels._handle, 99)
    kernels.end_workers()
    kernels.start_workers()
    ended()
    assert not kernels._workers._every


def test_there_are_more_for_more_programs(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_count", lambda handle, programs: programs // 2)
    pool, counts, over = serial()._kernels._workers, [], threading.Event()
    monkeypatch.setattr(Workers, "_next", lambda self: over.wait() and "")
    try:
        for i in range(5):
            pool.begin(f"program {i // 2 * 2}")  # each twice
            counts.append(len(pool._every))
    finally:
        over.set()
        ended()
    assert counts == [0, 0, 1, 1, 1]


def test_kernels_are_compiled_before_there_is_a_plan(
    serial: Callable[..., Any], binaries: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, made = serial(), several(4)
    for each in made.dispatches:
        device.begin(each.kernel)
        device.begin(each.kernel)
    pool = device._kernels._workers
    until(lambda: len(pool._found) == 4)
    assert all(binaries)
    monkeypatch.setattr(program.Compiler, "_here", None)
    check(device, made)
    assert len(binaries) == 4
    assert not pool._found
    fresh = serial()
    for each in made.dispatches:  # which are kept
        fresh.begin(each.kernel)
    assert not fresh._kernels._workers._every
    check(fresh, made)
    assert len(binaries) == 4


def test_what_no_plan_has_does_not_pile_up(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "KEPT", 2)
    device, made = serial(), several(5)
    for each in made.dispatches:
        device.begin(each.kernel)
    pool = device._kernels._workers
    until(lambda: not (pool._waiting or pool._running))
    assert len(pool._found) == 2
    check(device, made)


def test_what_is_wrong_with_a_kernel_is_for_load_to_say(serial: Callable[..., Any]) -> None:
    class Wrong:
        def source(self, kernel: Kernel) -> str:
            return f"__kernel void {kernel.name}(__global float* p) {{ undeclared_thing(p); }}"

    device = serial(dialect=Wrong())
    made = several(1)
    device.begin(made.dispatches[0].kernel)
    with pytest.raises(CompileError, match="undeclared_thing"):
        device.load(made)
    with pytest.raises(CompileError, match="undeclared_thing"):
        device.load(made)


def test_processes_that_are_killed_with_programs_begun(
    serial: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, made = serial(), several(7)
    killed = []

    def binary(self: Worker, source: str) -> bytes:
        self.kill()
        killed.append(source)
        return original(self, source)

    original = Worker.binary
    monkeypatch.setattr(Worker, "binary", binary)
    for each in made.dispatches[:5]:
        device.begin(each.kernel)
    until(lambda: killed)
    check(device, made)


def test_a_closed_device_begins_nothing(serial: Callable[..., Any]) -> None:
    device = serial()
    device.close()
    with pytest.raises(StateError, match="closed"):
        device.begin(several(1).dispatches[0].kernel)
    device._kernels._workers.begin("a program that came too late")
    assert not device._kernels._workers._every


def test_one_process_at_a_time_has_some(serial: Callable[..., Any]) -> None:
    handle = serial()._kernels._handle
    cache = serial()._kernels._cache
    cache.store("0" * 64, b"")  # which makes the folder
    pool = Workers(handle, cache)
    with exclusive(workers.lock_of(cache), 0.0) as others:
        assert not others
        pool.start()
        assert not pool._every
    pool.start()
    assert len(pool._every) == 3
    pool.kill()
    ended()
    with exclusive(workers.lock_of(cache), 0.0) as others:
        assert not others


_ENDS = """
    import os, signal, sys, threading
    from pathlib import Path
    from tflgpu.cache.disk_cache import DiskCache
    from tflgpu.conformance.plans import affine, dispatch, io, plan
    from tflgpu.compiler.plan import InputRef, OutputRef
    from tflgpu.errors import StateError
    from tflgpu_opencl import workers
    from tflgpu_opencl.device import OpenCLDevice

    workers._count = lambda handle, programs: 2
    original, may_interrupt = workers.Worker.binary, threading.Event()
    is_first = iter([True])

    def binary(self, source):
        if sys.argv[2] == "signal" and next(is_first, False):
            may_interrupt.wait()
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, source)

    workers.Worker.binary = binary
    device = OpenCLDevice(cache=DiskCache(Path(sys.argv[1])), keep_binaries=True)
    device._kernels._is_serial = True
    kernels = [affine(8, i + 2) for i in range(6)]
    made = plan([dispatch(k, 8, [InputRef(0), OutputRef(i)]) for i, k in enumerate(kernels)],
                [io("x", (8,))], [io(f"y{i}", (8,)) for i in range(6)])
    for kernel in kernels:
        device.begin(kernel)
    if sys.argv[2] == "fork":
        if not os.fork():
            try:
                device.begin(affine(8, 99))
            except StateError:
                sys.exit(7)
            sys.exit(0)
        print("child", os.waitstatus_to_exitcode(os.wait()[1]))
        device.load(made)
    elif sys.argv[2] == "signal":
        try:
            may_interrupt.set()
            device.load(made)
            print("loaded")
        except KeyboardInterrupt:
            print("interrupted")
        device.load(made)
    print("ends")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
@pytest.mark.parametrize(
    ("how", "said"),
    [("exit", "ends"), ("fork", "child 7\nends"), ("signal", "interrupted\nends")],
)
def test_a_process_ends_with_programs_begun(
    how: str, said: str, require_backend: Callable[[str], Any], tmp_path: Path
) -> None:
    require_backend("opencl")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_ENDS), str(tmp_path / "kept"), how],
        env={**os.environ, "POCL_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


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
    pool = Workers(program.cl.get_platforms()[0].get_devices()[0], DiskCache(tmp_path))
    pool.begin("a program")
    assert not pool._every
    with pool.binary("a program") as found:
        assert found == (b"", "")


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
