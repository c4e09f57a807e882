"""A `Pool` under load for a long time: nothing is lost, and memory stays as it is.

    nice -n 19 python -m benchmarks.endurance --minutes 30 --backend opencl
    python -m benchmarks.endurance --requests 5000 --backend cpu_ref

Threads ask by `Pool.__call__`, `Pool.submit` and, each by a loop of its own, `Pool.run`. One
request in fifty does not fit. The queue has a limit that is reached now and then, and the model is
replaced again and again. Every request has to be answered by the model that was there when it came,
or by one that came later, or be refused by name; anything else is "wrong". What is told of the
resident memory (RSS) leaves out the first tenth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

_WIDTH = 256
_WEIGHTS = np.random.default_rng(0).normal(size=(_WIDTH, _WIDTH)).astype(np.float32)
#: One request in so many does not fit.
_POISONED = 50
_LONG = 60.0


def model(factor: int) -> bytes:
    """``y`` is ``factor`` times the product of ``x`` and a matrix."""
    tensors = [
        TensorSpec("x", (1, _WIDTH)),
        TensorSpec("w", _WEIGHTS.shape, data=_WEIGHTS * np.float32(factor)),
        TensorSpec("y", (1, _WIDTH)),
    ]
    return write_model(
        ModelSpec(tensors, [OperatorSpec("FULLY_CONNECTED", {}, [0, 1], [2])], [0], [2])
    )


def resident() -> int:
    """Bytes of memory that this process has at the moment."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@attrs.define
class Load:
    """Threads that ask a pool, and what came of it.

    Attributes:
        pool: What is asked.
        pause: Seconds between two requests of a thread.
        most: Requests and replacements after which it ends; None where time is the limit.
        counts: "answered", "did not fit", "queue full", and "wrong".
        examples: What was wrong, the first few.
        current: The factor of the model that is surely in use.
    """

    pool: tflgpu.Pool
    pause: float
    most: tuple[int, int] | None
    counts: Counter[str] = attrs.Factory(Counter)
    examples: list[str] = attrs.Factory(list)
    current: int = 1
    over: threading.Event = attrs.Factory(threading.Event)
    _lock: threading.Lock = attrs.Factory(threading.Lock)

    def ask(self, number: int) -> None:
        """Ask until it is over; the work of a thread."""
        draw = random.Random(number)
        loop = asyncio.new_event_loop()
        try:
            while not self.over.is_set():
                self._note(*self._one(draw, loop))
                if self.pause:
                    self.over.wait(self.pause)
        finally:
            loop.close()

    def replace(self, every: float) -> None:
        """Replace the model again and again; the work of a thread."""
        while not self.over.wait(every):
            self.pool.replace(model(self.current + 1))
            self.current += 1

    def _one(self, draw: random.Random, loop: asyncio.AbstractEventLoop) -> tuple[str, str]:
        fits = bool(draw.randrange(_POISONED))
        x = np.zeros((1, _WIDTH if fits else _WIDTH - 1), np.float32)
        at = draw.randrange(_WIDTH - 1)
        x[0, at] = 1.0
        before = self.current
        try:
            (found,) = self._answer(draw.randrange(3), x, loop)
        except tflgpu.QueueFullError:
            return "queue full", ""
        except tflgpu.InputError as error:
            return ("wrong", repr(error)) if fits else ("did not fit", "")
        except Exception as error:  # noqa: BLE001  (told)
            return "wrong", repr(error)
        # A replacement is known to its thread a little later than to the pool.
        for factor in range(before, self.current + 2):
            if fits and np.allclose(found[0], factor * _WEIGHTS[:, at], rtol=1e-3, atol=1e-3):
                return "answered", ""
        return "wrong", f"not the model's answer: {found[0, :4]}, factors from {before}"

    def _answer(self, way: int, x: Any, loop: asyncio.AbstractEventLoop) -> Any:
        if way == 0:
            return self.pool(x)
        if way == 1:
            return self.pool.submit(x).result(_LONG)
        return loop.run_until_complete(self.pool.run(x))

    def _note(self, outcome: str, said: str) -> None:
        with self._lock:
            self.counts[outcome] += 1
            if said and len(self.examples) < 5:
                self.examples.append(said)
            done = self.counts.total(), self.current - 1
            if self.most is not None and all(map(int.__ge__, done, self.most)):
                self.over.set()


@attrs.frozen
class Outcome:
    """What came of a load; ``rss`` is bytes, once a second, after the first tenth."""

    counts: dict[str, int]
    examples: list[str]
    replacements: int
    seconds: float
    rss: list[int]

    @property
    def spread(self) -> float:
        """How far the resident memory was from its mean at most, as a part of that."""
        mean = sum(self.rss) / len(self.rss)
        return max(abs(each - mean) for each in self.rss) / mean

    @property
    def growth(self) -> float:
        """From the mean of the first quarter to that of the last, as a part."""
        part = max(len(self.rss) // 4, 1)
        first, last = self.rss[:part], self.rss[-part:]
        return sum(last) / len(last) / (sum(first) / len(first)) - 1


def run(
    *,
    seconds: float = _LONG,
    requests: int | None = None,
    replacements: int = 0,
    threads: int = 8,
    pause: float = 0.0,
    every: float = 2.0,
    **options: Any,
) -> Outcome:
    """Put a load on a pool, for so many requests and replacements, or so many seconds."""
    most = None if requests is None else (requests, replacements)
    with tflgpu.Pool(model(1), **{"size": 2, "batch": 2, "queue_limit": 1, **options}) as pool:
        load = Load(pool, pause, most)
        names = [load.ask] * threads
        work = [threading.Thread(target=name, args=(n,)) for n, name in enumerate(names)]
        work.append(threading.Thread(target=load.replace, args=(every,)))
        start, rss = time.monotonic(), []
        for thread in work:
            thread.start()
        while not load.over.wait(1.0):
            rss.append(resident())
            if requests is None and time.monotonic() - start > seconds:
                load.over.set()
        for thread in work:
            thread.join()
        rss.append(resident())
        passed = time.monotonic() - start
    kept = rss[len(rss) // 10 :]
    return Outcome(dict(load.counts), load.examples, load.current - 1, passed, kept)


def main() -> None:
    """Run it as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--requests", type=int, help="end after so many, whatever the time")
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two of a thread")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between replacements")
    said = parser.parse_args()
    outcome = run(
        seconds=said.minutes * 60,
        requests=said.requests,
        threads=said.threads,
        pause=said.pause,
        every=said.every,
        backend=said.backend,
    )
    mib = [each / 2**20 for each in outcome.rss]
    print(f"{outcome.seconds:.0f} s, {outcome.replacements} replacements, {outcome.counts}")
    print(
        f"RSS: {min(mib):.1f} to {max(mib):.1f} MiB; at most {100 * outcome.spread:.2f} % from the "
        f"mean, {100 * outcome.growth:+.2f} % from the first quarter to the last"
    )
    tenths = [mib[len(mib) * n // 10] for n in range(10)]
    print("RSS in MiB, ten times:", *(f"{each:.1f}" for each in tenths))
    for each in outcome.examples:
        print("wrong:", each)
    if outcome.counts.get("wrong"):
        sys.exit(1)


if __name__ == "__main__":
    main()
