"""One run of the fuzzer in several processes: each has a part of the numbers and all else its
own."""

from __future__ import annotations

import collections
import itertools
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def parts(first: int, count: int, processes: int) -> list[tuple[int, int]]:
    """First number and count of each process."""
    bounds = [first + count * i // processes for i in range(processes + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(bounds) if b > a]


def share(
    arguments: Sequence[str], first: int, count: int, processes: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run ``arguments`` with a part of the numbers in each of so many processes.

    Returns:
        The summaries of those that ended with one, and what the others said last.
    """
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for i, (begin, length) in enumerate(parts(first, count, processes)):
            log, said = Path(folder) / f"{i}.json", Path(folder) / f"{i}.txt"
            command = [
                sys.executable, "-m", "tests.differential", *arguments, "--processes", "1",
                "--first", str(begin), "--count", str(length), "--log", str(log),
            ]  # fmt: skip
            with said.open("wb") as stream:
                child = subprocess.Popen(
                    command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            running.append((child, log, said))
        for child, _, _ in running:
            while child.returncode is None:
                try:
                    child.wait()
                except KeyboardInterrupt:
                    for other, _, _ in running:
                        other.send_signal(signal.SIGINT)
        found = [json.loads(log.read_text()) for _, log, _ in running if log.exists()]
        failed = [said.read_text(errors="replace")[-1000:] for _, log, said in running
                  if not log.exists()]  # fmt: skip
    return found, failed


def merged(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The summaries of `Result.summary` as one."""
    found = list(summaries)
    classes: collections.Counter[str] = collections.Counter()
    kinds: dict[str, dict[str, Any]] = {}
    for summary in found:
        classes.update(summary["classes"])
        for finding in summary["findings"]:
            known = kinds.setdefault(finding["kind"], {**finding, "numbers": []})
            known["numbers"] = [*known["numbers"], *finding["numbers"]]
    return {
        "mutants": sum(s["mutants"] for s in found),
        "unwritten": sum(s["unwritten"] for s in found),
        "seconds": max((s["seconds"] for s in found), default=0.0),
        "slowest": max((s["slowest"] for s in found), default=0.0),
        "recycled": sum(s["recycled"] for s in found),
        "stopped": any(s["stopped"] for s in found),
        "classes": dict(classes.most_common()),
        "findings": list(kinds.values()),
    }
