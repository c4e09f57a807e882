"""A run of the fuzzer: cases to children, answers to classes, findings to a folder."""

from __future__ import annotations

import collections
import json
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs

from tests.differential import mutate
from tests.differential.case import Outcome, Script
from tests.differential.classes import classify, sentence, signature
from tests.differential.fact import Fact
from tests.differential.mutate import Recipe
from tests.differential.pool import Child


@attrs.frozen
class Verdict:
    """What a case came to.

    Attributes:
        name: of its class; "FINDING" where it has none.
        sentence: what differs.
        signature: the sentence without its numbers.
        answers: what both sides said, ours first, where one refused.
    """

    name: str
    sentence: str = ""
    signature: str = ""
    answers: tuple[str, ...] = ()

    @property
    def is_finding(self) -> bool:
        """Whether somebody has to look at it."""
        return self.name == "FINDING"


class Bench:
    """Both sides of the comparison: a child process each."""

    def __init__(self, backend: str, device: int = 0, *, seconds: float = 30.0) -> None:
        self.backend = backend
        self.litert = Child(["litert"], seconds=20.0)
        self.ours = Child(["ours", backend, str(device)], seconds=seconds)

    def judge(self, content: bytes, script: Script) -> Verdict:
        """Run a case on both sides and class it."""
        theirs = self.litert.ask(content, script)
        ours = self.ours.ask(content, script)
        return self.verdict(content, script, theirs, ours)

    def verdict(self, content: bytes, script: Script, theirs: Outcome, ours: Outcome) -> Verdict:
        """The class of what came."""

        def ask(kernels: str) -> Any:
            return self.litert.ask(content, script, kernels)

        fact = Fact(content, script, theirs, ours, ask)
        found = classify(fact)
        answers = tuple(
            f"{o.stage}: {o.error}: {o.message[:400]}" if o.error else "ran" for o in (ours, theirs)
        )
        if found is not None:
            return Verdict(found.name, answers=answers)
        return Verdict("FINDING", sentence(fact), signature(fact), answers)

    def close(self) -> None:
        """End both processes."""
        self.litert.close()
        self.ours.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@attrs.define
class Result:
    """What came of a run.

    Attributes:
        classes: cases of each class.
        findings: by signature, how often, and the first one: number, recipe, verdict.
        unwritten: mutants that no file could be made of.
        seconds: how long it took.
        slowest: seconds of the slowest case.
        stopped: whether it was ended before all numbers were done.
        recycled: processes of ours that were ended between two cases, since their memory had grown.
    """

    classes: collections.Counter[str] = attrs.field(factory=collections.Counter)
    findings: dict[str, list[tuple[int, Recipe, Verdict]]] = attrs.field(factory=dict)
    unwritten: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    stopped: bool = False
    recycled: int = 0

    def add(self, number: int, recipe: Recipe, verdict: Verdict, seconds: float) -> None:
        """Count a case."""
        self.classes[verdict.name] += 1
        self.slowest = max(self.slowest, seconds)
        if verdict.is_finding:
            self.findings.setdefault(verdict.signature, []).append((number, recipe, verdict))

    def summary(self) -> dict[str, Any]:
        """All that is printed, for a file."""
        return {
            "mutants": sum(self.classes.values()),
            "unwritten": self.unwritten,
            "seconds": round(self.seconds, 1),
            "slowest": round(self.slowest, 1),
            "stopped": self.stopped,
            "recycled": self.recycled,
            "classes": dict(self.classes.most_common()),
            "findings": [
                {"kind": sign, "numbers": [n for n, _, _ in found], "recipe": str(found[0][1]),
                 "sentence": found[0][2].sentence}
                for sign, found in self.findings.items()
            ],
        }  # fmt: skip


def run(
    backend: str,
    numbers: Iterable[int],
    seed: int = 0,
    *,
    device: int = 0,
    workers: int = 1,
    real: bool = True,
    cases: Path | None = None,
    progress: Callable[[Result], None] | None = None,
    deadline: float | None = None,
    bench: Bench | None = None,
) -> Result:
    """Run the mutants with these numbers.

    Args:
        backend: whose device to compare with LiteRT.
        numbers: of the mutants.
        seed: of all of them.
        device: the backend's device.
        workers: pairs of child processes.
        real: whether pieces of real models are among the seeds.
        cases: a file for one line of JSON a case that is not equal, as they come.
        progress: called now and then.
        deadline: seconds after which no further case is begun.
        bench: child processes to use instead of new ones, by one worker.

    An interrupt (Ctrl-C) or a SIGTERM that the caller turns into one begins no further case either.
    """
    result = Result()
    start = time.perf_counter()
    mutate.families(real)  # made once, before the threads want it
    queue = iter(numbers)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with Bench(backend, device) if bench is None else nullcontext(bench) as used:
                recycled = used.ours.recycled
                while True:
                    with lock:
                        number = next(queue, None)
                        late = deadline is not None and time.perf_counter() - start > deadline
                        if number is None or errors or result.stopped:
                            return
                        if late:
                            result.stopped = True
                            return
                        recipe = mutate.draw(seed, number, real=real)
                        made = mutate.make(recipe, real=real)
                        if made is None:
                            result.unwritten += 1
                            continue
                    begin = time.perf_counter()
                    verdict = used.judge(*made)
                    with lock:
                        result.add(number, recipe, verdict, time.perf_counter() - begin)
                        result.recycled += used.ours.recycled - recycled
                        recycled = used.ours.recycled
                        result.seconds = time.perf_counter() - start
                        if cases is not None and verdict.name != "equal: both run":
                            with cases.open("a") as lines:
                                lines.write(_line(seed, number, recipe, verdict) + "\n")
                        if progress is not None:
                            progress(result)
        except BaseException as error:  # noqa: BLE001 (raised again below, in the main thread)
            errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                result.stopped = True  # what is being judged is judged to its end
    if errors:
        raise errors[0]
    result.seconds = time.perf_counter() - start
    return result


def _line(seed: int, number: int, recipe: Recipe, verdict: Verdict) -> str:
    return json.dumps(
        {
            "seed": seed,
            "number": number,
            "recipe": str(recipe),
            "class": verdict.name,
            "sentence": verdict.sentence,
            "answers": verdict.answers,
        }
    )
