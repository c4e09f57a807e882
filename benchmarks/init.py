"""How long a model takes from its file to ready to run, with the driver's caches warm.

    python -m benchmarks.init --models mobilenet_v2.tflite --backends opencl vulkan

Every round opens a device of its own and then, on the clock, makes an interpreter; the first two
rounds, which warm imports and the driver's caches, do not count. Medians:

total   from the file to ready
python  processor time of the threads in which Python works: what reads, compiles and prints.
        Threads that a backend starts to compile in are the driver's, so their time is not in it

With --saved the model is compiled into a file first, off the clock, and every round reads that.
With --kept every round starts from what the first one kept of the model in a folder.

To compare two versions, run this file with one and then the other on PYTHONPATH; options that the
older one does not know are left out. What is compiled in the thread that asks for it, because it is
a single program, counts as Python's.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
from tflgpu import GpuDelegate, Interpreter
from tflgpu.options import DelegateOptions

from benchmarks.run import find_model

_WARM_UP = 2
_KNOWN = frozenset(field.name for field in attrs.fields(DelegateOptions))


@attrs.define
class Round:
    """Seconds of one start."""

    total: float
    python: float


class _Aside:
    """The processor time of threads that backends start, but for those that compile."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """While inside, threads that are started directly report what they took."""
        run: Callable[[threading.Thread], None] = threading.Thread.run
        self.seconds = 0.0

        def timed(thread: threading.Thread) -> None:
            begun = time.thread_time()
            try:
                run(thread)
            finally:
                if not _is_pooled(thread):
                    self.seconds += time.thread_time() - begun

        setattr(threading.Thread, "run", timed)  # noqa: B010  (mypy has methods fixed)
        try:
            yield
        finally:
            setattr(threading.Thread, "run", run)  # noqa: B010


def _is_pooled(thread: threading.Thread) -> bool:
    """Whether it is a thread of a pool: those are numbered."""
    return thread.name.rpartition("_")[2].isdigit()


def start(model: str, options: dict[str, Any], saved: Path | None = None) -> Round:
    """Start once."""
    known = {name: value for name, value in options.items() if name in _KNOWN}
    given: dict[str, Any] = {} if saved is None else {"saved": saved}
    with GpuDelegate(**known, **given) as delegate:
        gc.collect()
        aside = _Aside()
        with aside.counted():
            begun, worked = time.perf_counter(), time.thread_time()
            interpreter = Interpreter(model, experimental_delegates=[delegate])
            interpreter.allocate_tensors()
            found = Round(time.perf_counter() - begun, time.thread_time() - worked)
        del interpreter
    found.python += aside.seconds
    return found


def main() -> None:
    """Print a line for each model and backend."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--backends", nargs="+", required=True)
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--saved", action="store_true", help="read a saved model")
    parser.add_argument("--kept", action="store_true", help="start from what a folder keeps")
    given = parser.parse_args()
    print(f"{'model':36} {'backend':8} {'total ms':>9} {'python ms':>10}")
    for name in given.models:
        model = find_model(name)
        for backend in given.backends:
            options: dict[str, Any] = {"backend": backend, "precision": given.precision}
            with tempfile.TemporaryDirectory() as folder:
                saved = Path(folder) / "saved.tflgpu" if given.saved else None
                if saved is not None:
                    with GpuDelegate(**options) as delegate:
                        delegate.save(str(model), saved)
                options["enable_serialization"] = False
                if given.kept:
                    place = {"serialization_dir": folder, "model_token": "kept"}
                    options = {**options, **place, "enable_serialization": True}
                rounds = [start(str(model), options, saved) for _ in range(given.rounds + _WARM_UP)]
            kept = rounds[_WARM_UP:]
            total = statistics.median(r.total for r in kept) * 1e3
            python = statistics.median(r.python for r in kept) * 1e3
            print(f"{model.stem[:36]:36} {backend:8} {total:9.0f} {python:10.0f}", flush=True)


if __name__ == "__main__":
    main()
