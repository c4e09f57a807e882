"""Hold the profile `litert-gpu` against what LiteRT's GPU accelerator takes on this machine.

    python -m benchmarks.delegation --models a.tflite b.tflite

Each model is opened on LiteRT's GPU in a process of its own. Whether all of it went there is asked
of LiteRT; how many operators did is read from its log, where that says it. Exit code 0 where the
profile says the same of every model that LiteRT opened, 1 where not, 2 where it opened none.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import attrs
import tflgpu
from tflgpu.cli import console
from tflgpu.compiler.report import DelegationReport
from tflgpu.tools.contestants import probe_litert_gpu

from benchmarks.run import find_model

PROFILE = "litert-gpu"

#: How TensorFlow Lite's log says how much a delegate took (tflite/core/subgraph.cc), and how GPU
#: delegates say it (tflite/delegates/gpu/common/model_builder.cc).
_REPLACED = re.compile(r"Replacing (\d+) out of (\d+) node\(s\) with delegate \(([^)]*)\)")
_REMAINING = re.compile(r"(\d+) operations will run on the GPU, and the remaining (\d+) operations")


@attrs.frozen
class Answer:
    """What LiteRT made of a model.

    Attributes:
        whole: All of it is on the GPU.
        on_gpu: Operators on the GPU; None where the log does not say.
        failure: Why it was not opened.
    """

    whole: bool = False
    on_gpu: int | None = None
    failure: str = ""


def counted(log: str) -> int | None:
    """How many operators a GPU delegate took, by its log; None where that says nothing."""
    for replaced, _, delegate in _REPLACED.findall(log):
        if "xnnpack" not in delegate.lower():
            return int(replaced)
    found = _REMAINING.search(log)
    return None if found is None else int(found.group(1))


def ask(model: Path) -> Answer:
    """What LiteRT's GPU accelerator takes of a model."""
    try:
        done = probe_litert_gpu(model, "f32")
    except RuntimeError as error:
        return Answer(failure=str(error))
    if done.returncode:
        lines = [n.strip() for n in done.stderr.splitlines() if n.startswith("ERROR")]
        return Answer(failure=f"exit code {done.returncode}: {lines[0] if lines else 'no reason'}")
    return Answer("whole model on the GPU" in done.stdout, counted(done.stderr))


def agrees(answer: Answer, report: DelegationReport) -> bool:
    """Whether a profile's report says what LiteRT did."""
    same = answer.on_gpu is None or answer.on_gpu == report.delegated_nodes
    return same and answer.whole == report.fully_delegated


def main() -> None:
    """Compare the models of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    given = parser.parse_args()
    table = console.table(
        f"{PROFILE} and LiteRT's GPU", "model", "profile", "LiteRT", "", right=("profile",)
    )
    verdicts = []
    for model in map(find_model, given.models):
        report = tflgpu.profiles.report(str(model), PROFILE)
        answer = ask(model)
        said = answer.failure or ("all" if answer.whole else str(answer.on_gpu or "a part"))
        verdict = (
            "not compared" if answer.failure else "same" if agrees(answer, report) else "OTHER"
        )
        verdicts.append(verdict)
        profile = f"{report.delegated_nodes} of {report.total_nodes}"
        table.add_row(model.stem, profile, said, verdict)
    console.show(table)
    if set(verdicts) == {"not compared"}:
        raise SystemExit(2)
    raise SystemExit(1 if "OTHER" in verdicts else 0)


if __name__ == "__main__":
    main()
