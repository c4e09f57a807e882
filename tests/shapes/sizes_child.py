"""What the tests of sizes run in processes of their own, and how these are started and measured.

A process that is forked from a test's would inherit the locks that its other threads hold, and
drivers that it has opened. So a server is started first, which has neither: it imports what the
children need, and they are forked from it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import TflgpuError

#: What the server imports. None of it starts threads, but NumPy's BLAS, which is told not to.
_PRELOAD = ["tests.shapes.sizes_server"]
_NO_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@attrs.frozen
class Measured:
    """What a child did.

    Attributes:
        said: What it returned; of an error its type and text, after "raw" where it is none of ours.
        extra: Bytes that its peak memory is above what it had when it began.
        seconds: Of the processor.
    """

    said: Any
    extra: int
    seconds: float


def measured(action: Callable[..., Any], *args: Any, patience: float) -> Measured:
    """Do something in a process of its own; ``action`` is a function of a module.

    Raises:
        TimeoutError: it has not ended after ``patience`` seconds.
        ChildProcessError: it died.
    """
    context = multiprocessing.get_context("forkserver")
    with _without_threads():
        context.set_forkserver_preload(_PRELOAD)
        forkserver.ensure_running()
    reading, writing = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(writing, dict(os.environ), action, args))
    child.start()
    writing.close()  # so that reading ends where the child does
    try:
        if not reading.poll(patience):
            raise TimeoutError(f"nothing after {patience} s")
        return Measured(*reading.recv())
    except EOFError:
        child.join()
        raise ChildProcessError(f"it ended with status {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
        reading.close()


@contextmanager
def _without_threads() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _NO_THREADS}
    os.environ.update(dict.fromkeys(_NO_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _child(pipe: Any, environment: dict[str, str], action: Callable[..., Any], args: Any) -> None:
    # The server has the environment of its own start.
    os.environ.clear()
    os.environ.update(environment)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        said = action(*args)
    except TflgpuError as error:
        said = f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - what is raw is what the test looks for
        said = f"raw {type(error).__name__}: {error}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    pipe.send((said, peak * 1024, time.process_time() - began))


def run(content: bytes, backend: str | None, resized: Sequence[int] | None = None) -> Any:
    """The outputs for inputs of ones."""
    delegate = None if backend is None else GpuDelegate(backend=backend)
    try:
        delegates = None if delegate is None else [delegate]
        with Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
            if resized is not None:
                interpreter.resize_tensor_input(0, resized)
                interpreter.get_input_details()
            interpreter.allocate_tensors()
            for details in interpreter.get_input_details():
                ones = np.ones(details["shape"], details["dtype"])
                interpreter.set_tensor(details["index"], ones)
            interpreter.invoke()
            interpreter.get_output_details()
            return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    finally:
        if delegate is not None:
            delegate.close()


def beginnings(content: bytes, backend: str | None, resized: Sequence[int] | None) -> Any:
    """The first few elements of each output."""
    return [y.ravel()[:8].tolist() for y in run(content, backend, resized)]


def prepare(content: bytes, size: Sequence[int]) -> str:
    """The shape of the first input after a resize, on OpenCL."""
    with GpuDelegate(backend="opencl") as delegate:
        interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
        with interpreter:
            interpreter.resize_tensor_input(0, size)
            interpreter.allocate_tensors()
            return str(interpreter.get_input_details()[0]["shape"].tolist())


def waste(nbytes: int, seconds: float) -> str:
    """Take memory and time, to show that it is noticed."""
    taken, began = np.ones(nbytes, np.uint8), time.process_time()
    while time.process_time() - began < seconds:
        pass
    return f"{taken.size} bytes"


def die() -> None:
    """End as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def server_state() -> dict[str, Any]:
    """How many threads the server has, and which drivers it has opened."""
    server = Path("/proc") / str(os.getppid())
    maps = (server / "maps").read_text(encoding="utf-8")
    drivers = [d for d in ("libOpenCL", "libpocl", "libvulkan", "wgpu_native") if d in maps]
    threads = len(list((server / "task").iterdir()))
    return {"threads": threads, "drivers": drivers, "numpy": "numpy" in maps}
