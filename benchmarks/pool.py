"""`Pool` under many callers: images a second and the time of a request, beside runs in flight.

    python -m benchmarks.pool --model mobilenet_v2_1.0_224_f32 --backend vulkan --precision f16
    python -m benchmarks.pool --model any.tflite --backend vulkan --case "threads=16 batch=8 size=3"
    python -m benchmarks.pool --model corner --backend opencl --case "threads=64 batch=32" --where

A case is a pool and who calls it:

* ``threads`` callers, each with one image a call; with ``ahead=N`` each keeps N requests of
  `Pool.submit` in the queue instead;
* ``size``, ``batch``, ``deadline`` (seconds) and ``sizes`` (as ``1/8/32``) are the pool's;
* ``u8=1``: images are bytes, as in `benchmarks.inflight`.

For cases without a batch the line before has what one thread gets out of `Interpreter.invoke_async`
with as many runs in flight as the pool has copies. A measurement is made ``--repeats`` times; the
median is told, and all rates. "Host" is the processor time of the process for a request, of all
threads; a sleep is a thread that gave its core away. Every result of the first round of each caller
is held against what `Model` gives for its image.

``--model tiny`` is a model of one operator on four numbers, and ``--model corner`` one of a picture
of 224 x 224, of which it reads a pixel: what they take is host time. ``--set
tflgpu.interpreter.gather._SMALL=0`` is another value of a constant, for comparisons. ``--where``
asks all threads a thousand times a second where they are, and lists the lines met most often; it
slows what it measures, so that it is a round of its own.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter, Model, Pool
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu.tools.load import TimedCalls, by_threads

from benchmarks.inflight import Given, _content, _images, _round
from benchmarks.run import find_model

_USUAL = (
    "threads=1 size=1",
    "threads=16 size=2",
    "threads=16 size=3",
    "threads=16 batch=8 size=3 deadline=0.0005 sizes=1/8",
    "threads=64 batch=32 size=2 sizes=1/8/32",
    "threads=1 ahead=256 batch=32 size=2 sizes=32",
    "threads=4 ahead=16 batch=32 size=3 sizes=8/16/32 u8=1",
)
#: Of the time for one measurement, what it is warmed up for.
_WARM = 1 / 4
_IMAGES = 4
_LONG = 60.0


@attrs.frozen
class Case:
    """A pool, and who calls it: see above."""

    threads: int = 1
    ahead: int = 0
    batch: int = 1
    size: int = 2
    deadline: float = 0.002
    sizes: tuple[int, ...] | None = None
    u8: bool = False

    @classmethod
    def read(cls, text: str) -> Case:
        """Of the words of the command line."""
        said: dict[str, Any] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            if name not in attrs.fields_dict(cls) or not value:
                raise argparse.ArgumentTypeError(
                    f"{word!r} is not NAME=VALUE of {', '.join(attrs.fields_dict(cls))}"
                )
            if name == "sizes":
                said[name] = tuple(int(n) for n in value.split("/"))
            else:
                said[name] = float(value) if name == "deadline" else int(value)
        return cls(**said)

    def __str__(self) -> str:
        how = f"{self.threads} threads"
        if self.ahead:
            how += f" with {self.ahead} in the queue"
        how += f", size={self.size}"
        if self.batch > 1:
            how += f", batch={self.batch}, deadline={self.deadline:g}"
            how += f", sizes={'/'.join(map(str, self.sizes))}" if self.sizes else ""
        return how + ", u8" * self.u8


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        default="mobilenet_v2_1.0_224_f32",
        help="a file, the name of one in $TFLGPU_MODELS, tiny, or corner",
    )
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device")
    parser.add_argument("--precision", default="f16", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--case", action="append", type=Case.read, metavar="WORDS", dest="cases",
                        help="as above; may be said again (usual: seven cases)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each case")
    parser.add_argument("--no-inflight", action="store_true", help="leave out invoke_async")
    parser.add_argument("--where", action="store_true", help="list where threads are")
    parser.add_argument("--set", action="append", default=[], metavar="MODULE.NAME=VALUE",
                        help="another value of a constant")  # fmt: skip
    asked = parser.parse_args()
    for said in asked.set:
        _change(said)
    options = {"backend": asked.backend, "precision": asked.precision}
    if asked.device is not None:
        options["device"] = asked.device
    path = None if asked.model in _MADE else find_model(asked.model)
    name = asked.model if path is None else path.stem
    print(f"{name} {asked.backend} {asked.precision}, Python {sys.version.split()[0]}", flush=True)
    beside: dict[int, float] = {}
    with GpuDelegate(**options) as delegate:
        for case in asked.cases or map(Case.read, _USUAL):
            content = _MADE[name]() if path is None else _bytes_of(path, u8=case.u8)
            if case.batch == 1 and not case.ahead and not asked.no_inflight:
                if case.size not in beside:
                    beside[case.size] = _in_flight(content, delegate, case.size, asked)
                    print(f"  {case.size} in flight, one thread: {beside[case.size]:.0f} images/s")
                _measure(content, delegate, case, asked, beside[case.size])
            else:
                _measure(content, delegate, case, asked, None)


def _bytes_of(path: Path, *, u8: bool) -> bytes:
    return _content(path, Given(1, u8, 127.5, 1 / 127.5, None, 0.0, 1))


def _tiny() -> bytes:
    tensors = [TensorSpec("x", (1, 4)), TensorSpec("y", (1, 4))]
    return write_model(ModelSpec(tensors, [OperatorSpec("ADD", {}, [0, 0], [1])], [0], [1]))


def _corner() -> bytes:
    tensors = [
        TensorSpec("x", (1, 224, 224, 3)), TensorSpec("y", (1, 1, 1, 3)),
        *(TensorSpec(n, (4,), DType.I32, data=np.array(data, np.int32))
          for n, data in (("begin", (0, 7, 7, 0)), ("size", (-1, 1, 1, 3)))),
    ]  # fmt: skip
    return write_model(ModelSpec(tensors, [OperatorSpec("SLICE", {}, [0, 2, 3], [1])], [0], [1]))


_MADE = {"tiny": _tiny, "corner": _corner}


def _change(said: str) -> None:
    place, _, value = said.partition("=")
    module, _, name = place.rpartition(".")
    found = importlib.import_module(module)
    setattr(found, name, type(getattr(found, name))(value))


def _in_flight(content: bytes, delegate: GpuDelegate, most: int, asked: Any) -> float:
    """Images a second by one thread: the median."""
    with Interpreter(
        model_content=content, experimental_delegates=[delegate], max_in_flight=most
    ) as interpreter:
        interpreter.allocate_tensors()
        images = _images(interpreter)
        outputs = [d["index"] for d in interpreter.get_output_details()]
        _round(interpreter, most, images, outputs, asked.seconds * _WARM)
        rates = [
            _round(interpreter, most, images, outputs, asked.seconds).rate
            for _ in range(asked.repeats)
        ]
    return float(np.median(rates))


def _measure(
    content: bytes, delegate: GpuDelegate, case: Case, asked: Any, beside: float | None
) -> None:
    with (
        Model(content, delegate=delegate) as model,
        Interpreter(model_content=content, experimental_delegates=[]) as plain,
    ):
        plain.allocate_tensors()
        images = [list(image.values()) for image in _images(plain)]
        wanted = [model(*image) for image in images]
    with Pool(
        content, delegates=[delegate], size=case.size, batch=case.batch, deadline=case.deadline,
        sizes=case.sizes,
    ) as pool:  # fmt: skip
        gap = max(_round_of(pool, case, images, asked.seconds * _WARM, wanted)[1], 0.0)
        before = sum(pool.runs.values()), sum(n * runs for n, runs in pool.runs.items())
        slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        rounds = [_round_of(pool, case, images, asked.seconds)[0] for _ in range(asked.repeats)]
        slept = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - slept
        runs = sum(pool.runs.values()) - before[0]
        items = sum(n * runs for n, runs in pool.runs.items()) - before[1]
        rates = sorted(each.rate for each in rounds)
        times = np.array([time for each in rounds for time in each.times]) * 1e3
        host = sum(each.host for each in rounds) / len(times)
        told = (
            f"  {case}: {np.median(rates):.0f} images/s ({', '.join(f'{r:.0f}' for r in rates)}), "
            f"p50 {np.quantile(times, 0.5):.2f} ms, p99 {np.quantile(times, 0.99):.2f} ms, "
            f"host {host * 1e6:.0f} us and {slept / len(times):.1f} sleeps a request"
        )
        told += f", {items / runs:.1f} items a run" if runs else ""
        told += f", {np.median(rates) / beside:.0%} of {case.size} in flight" if beside else ""
        print(f"{told}; results within {gap:.2g} of the largest", flush=True)
        if asked.where:
            _where(lambda: _round_of(pool, case, images, asked.seconds))


def _round_of(
    pool: Pool, case: Case, images: list[Any], seconds: float, wanted: list[Any] | None = None
) -> tuple[TimedCalls, float]:
    """All callers for so many seconds; and how far results are off where they are looked at."""
    gaps = [0.0]

    def check(found: Any, at: int) -> None:
        for mine, theirs in zip(found, (wanted or [])[at], strict=True):
            scale = float(np.abs(theirs.astype(np.float64)).max()) or 1.0
            gaps.append(float(np.abs(mine.astype(np.float64) - theirs).max()) / scale)

    def caller(number: int, going: Callable[[int], bool]) -> list[float]:
        mine: list[float] = []
        count = 0
        flying: deque[tuple[float, int, Future[Any]]] = deque()
        while going(count) or flying:
            at, start = (number + count) % _IMAGES, time.perf_counter()
            if not case.ahead:
                found = pool(*images[at])
            else:
                more = going(count)
                if more:
                    flying.append((start, at, pool.submit(*images[at])))
                    count += 1
                if more and len(flying) < case.ahead:
                    continue
                start, at, future = flying.popleft()
                found = future.result(_LONG)
            mine.append(time.perf_counter() - start)
            count += not case.ahead
            if wanted is not None and len(mine) <= _IMAGES:
                check(found, at)
        return mine

    made = by_threads(caller, case.threads, least=_IMAGES, seconds=seconds)
    return made, max(gaps)


def _where(work: Callable[[], object]) -> None:
    """List the lines at which threads were met most often, while something is done."""
    seen: Counter[str] = Counter()
    over = threading.Event()

    def look() -> None:
        while not over.wait(1e-3):
            for thread, frame in sys._current_frames().items():  # noqa: SLF001
                if thread != threading.get_ident():
                    code = frame.f_code
                    seen[f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"] += 1

    watcher = threading.Thread(target=look)
    watcher.start()
    work()
    over.set()
    watcher.join()
    for place, count in seen.most_common(20):
        print(f"    {count / sum(seen.values()):6.1%} {place}")


if __name__ == "__main__":
    main()
