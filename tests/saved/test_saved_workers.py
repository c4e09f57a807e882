"""Workers that start at once, as processes and as threads, on an empty cache: one compiles."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.recovery.recovery_models import large

#: Compiles leave a line in a file; all threads of all workers begin together.
_WORKER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import tflgpu
from tflgpu.runtime import compile_or_load
from tflgpu.saved import location

folder, batch, number = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
compiled = location.compile_graph


def compile_graph(*args, **named):
    with (folder / "compiles").open("a") as file:
        file.write(number + "\\n")
    return compiled(*args, **named)


compile_or_load.compile_graph = location.compile_graph = compile_graph
(folder / f"ready{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)


def work(_):
    options = {"backend": "cpu_ref", "device": 1, "batch": batch}
    with tflgpu.Pool(str(folder / "model.tflite"), size=2, sizes=[batch], **options) as pool:
        (given,) = pool.inputs
        return pool(np.ones([batch, *given.open_shape[1:]], given.dtype))[0]


with ThreadPoolExecutor(2) as threads:
    first, second = threads.map(work, range(2))
np.testing.assert_array_equal(first, second)
np.save(folder / f"answer{number}.npy", first)
"""


def started_at_once(folder: Path, batch: int) -> list[str]:
    """The workers that compiled."""
    (folder / "model.tflite").write_bytes(large(1))
    environment = {**os.environ, "TFLGPU_CACHE_DIR": str(folder / "cache")}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(folder), str(batch), str(number)], env=environment
        )
        for number in range(3)
    ]
    try:
        while len(list(folder.glob("ready*"))) < len(workers):
            assert not any(worker.poll() for worker in workers)
            time.sleep(0.01)
        (folder / "go").touch()
        assert [worker.wait(300) for worker in workers] == [0] * len(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    answers = [np.load(path) for path in folder.glob("answer*.npy")]
    assert len(answers) == len(workers)
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])
    return (folder / "compiles").read_text().split()


def test_three_processes_of_two_threads_compile_once(tmp_path: Path) -> None:
    assert len(started_at_once(tmp_path, 1)) == 1


def test_so_do_those_that_run_batches(tmp_path: Path) -> None:
    """They have no start of a file, but one of a graph."""
    assert len(started_at_once(tmp_path, 3)) == 1
