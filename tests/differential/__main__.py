"""``python -m tests.differential --backend opencl --count 20000 --processes 8 --workers 1``

Exit code: 0 where every mutant has a class, 1 with findings, 2 where a process of several failed.
Ctrl-C, SIGTERM and --seconds end a run early, with its report.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.differential import mutate
from tests.differential.case import Script
from tests.differential.classes import CLASSES
from tests.differential.kept import keep
from tests.differential.minimise import minimise
from tests.differential.run import Bench, Result, Verdict, run
from tests.differential.sharing import merged, share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seconds", type=float, help="begin no further mutant after that")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--processes", type=int, default=1, help="share the numbers among so many "
                        "processes of --workers each")  # fmt: skip
    parser.add_argument("--log", type=Path, help="a JSON file for the counts of classes and the "
                        "findings")  # fmt: skip
    parser.add_argument("--cases", type=Path, help="a file for all cases that are not equal, one "
                        "line of JSON each")  # fmt: skip
    parser.add_argument("--keep", type=Path, help="minimise findings, one of each kind, and add "
                        "them to the corpus in this folder")  # fmt: skip
    parser.add_argument("--no-real", action="store_true", help="no pieces of real models")
    parser.add_argument("--show", type=int, default=40, help="kinds of findings to print")
    parser.add_argument("--only", type=int, help="run the mutant of this number and tell all")
    options = parser.parse_args()
    real = not options.no_real
    logging.getLogger("tflgpu").setLevel(logging.ERROR)
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT may have been inherited as ignored
        signal.signal(number, signal.default_int_handler)
    if options.processes > 1:
        return shared(options)
    if real and not os.environ.get("TFLGPU_MODELS"):
        print("no pieces of real models: TFLGPU_MODELS is not set")
    if options.only is not None:
        return _one(options.backend, options.device, options.seed, options.only, real)
    result = run(
        options.backend,
        range(options.first, options.first + options.count),
        options.seed,
        device=options.device,
        workers=options.workers,
        real=real,
        cases=options.cases,
        deadline=options.seconds,
        progress=_progress if sys.stderr.isatty() else None,
    )
    report(result.summary(), options.show)
    if options.log is not None:
        options.log.write_text(json.dumps(result.summary(), indent=1))
    if options.keep is not None:
        _keep(result, options, real)
    return 1 if result.findings else 0


def shared(options: argparse.Namespace) -> int:
    """Run the numbers in several processes, and report them as one run."""
    summaries, failed = share(sys.argv[1:], options.first, options.count, options.processes)
    total = merged(summaries)
    report(total, options.show)
    for text in failed:
        print(f"a process ended without a report: {text}")
    if options.log is not None:
        options.log.write_text(json.dumps(total, indent=1))
    return 2 if failed else 1 if total["findings"] else 0


def report(summary: Mapping[str, Any], show: int = 40) -> None:
    """Print what came of a run, from `Result.summary`."""
    total, seconds = summary["mutants"], summary["seconds"]
    stopped = ", ended early" if summary["stopped"] else ""
    print(f"{total} mutants in {seconds:.0f} s, {total / max(seconds, 1e-9):.1f} a second, "
          f"slowest {summary['slowest']:.1f} s, {summary['unwritten']} not written, "
          f"{summary['recycled']} processes renewed for their memory{stopped}")  # fmt: skip
    reasons = {c.name: c.reason for c in CLASSES}
    for name, count in sorted(summary["classes"].items(), key=lambda item: -item[1]):
        print(f"{count:7} {name}: {reasons.get(name, 'somebody has to look')}")
    for found in sorted(summary["findings"], key=lambda f: -len(f["numbers"]))[:show]:
        numbers = ", ".join(map(str, found["numbers"][:6]))
        print(f"\n{len(found['numbers'])} x {found['kind']}\n    {numbers}: {found['recipe']}\n"
              f"    {found['sentence'][:400]}")  # fmt: skip


def _progress(result: Result) -> None:
    total = sum(result.classes.values())
    if total % 100 == 0:
        print(f"\r{total} {len(result.findings)} kinds of findings", end="", file=sys.stderr)


def _keep(result: Result, options: argparse.Namespace, real: bool) -> None:
    with Bench(options.backend, options.device) as bench:
        for sign, found in result.findings.items():
            number, recipe, verdict = found[0]
            made = mutate.make(recipe, real=real)
            assert made is not None

            def same(content: bytes, script: Script, sign: str = sign) -> bool:
                return kind(bench.judge(content, script)) == sign.split(" {", maxsplit=1)[0]

            def kind(verdict: Verdict) -> str:
                return verdict.signature.split(" {")[0]

            content, script = minimise(recipe, made, same, real)
            name = keep(content, script, verdict.sentence[:300], options.keep,
                        backend=options.backend, recipe=str(recipe),
                        seed=options.seed, number=number)  # fmt: skip
            print(f"kept {name} ({len(content)} bytes): {sign}")


def _one(backend: str, device: int, seed: int, number: int, real: bool) -> int:
    recipe = mutate.draw(seed, number, real=real)
    print(recipe)
    print(recipe.script)
    made = mutate.make(recipe, real=real)
    if made is None:
        print("not written")
        return 0
    Path("/tmp/mutant.tflite").write_bytes(made[0])
    from tflgpu.errors import TflgpuError
    from tflgpu.tflite.read import read_model

    try:
        model = read_model(made[0])
        for t in model.main.tensors:
            print(f"  {t.index} {t.dtype.value}{list(t.shape)} sig={list(t.shape_signature)}"
                  f" {'const ' + str(t.data.reshape(-1)[:8]) if t.data is not None else ''}"
                  f"{' variable' if t.is_variable else ''} {t.quantization or ''}")  # fmt: skip
        for o in model.main.operators:
            print(f"  {o.name} v{o.version} {o.inputs} -> {o.outputs} {dict(o.fields)}")
        print("  inputs", model.main.inputs, "outputs", model.main.outputs)
    except TflgpuError as error:
        print("not read:", error)
    with Bench(backend, device) as bench:
        theirs, ours = bench.litert.ask(*made), bench.ours.ask(*made)
        for name, outcome in (("LiteRT", theirs), ("ours", ours)):
            print(name, outcome.state, outcome.stage, outcome.error, outcome.message)
            for outputs in outcome.outputs:
                for o in outputs:
                    print("   ", o.dtype, o.shape, o.reshape(-1)[:12])
        verdict = bench.verdict(*made, theirs, ours)
    print(verdict.name, verdict.sentence)
    return 1 if verdict.is_finding else 0


if __name__ == "__main__":
    raise SystemExit(main())
