"""``python -m tests.differential --backend opencl --count 20000 --seed 0 --workers 2``"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.differential import mutate
from tests.differential.case import Script
from tests.differential.classes import CLASSES
from tests.differential.kept import keep
from tests.differential.minimise import minimise
from tests.differential.run import Bench, Result, Verdict, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seconds", type=float, help="begin no further mutant after that")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--log", type=Path, help="a file for findings, one line of JSON each")
    parser.add_argument("--keep", type=Path, help="minimise findings, one of each kind, and add "
                        "them to the corpus in this folder")  # fmt: skip
    parser.add_argument("--no-real", action="store_true", help="no pieces of real models")
    parser.add_argument("--show", type=int, default=40, help="kinds of findings to print")
    parser.add_argument("--only", type=int, help="run the mutant of this number and tell all")
    options = parser.parse_args()
    real = not options.no_real
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
        log=options.log,
        deadline=options.seconds,
        progress=_progress if sys.stderr.isatty() else None,
    )
    report(result, options.show)
    if options.keep is not None:
        _keep(result, options, real)
    return 1 if result.findings else 0


def report(result: Result, show: int = 40) -> None:
    """Print what came of a run."""
    total = sum(result.classes.values())
    print(f"{total} mutants in {result.seconds:.0f} s, "
          f"{total / max(result.seconds, 1e-9):.1f} a second, slowest {result.slowest:.1f} s, "
          f"{result.unwritten} not written")  # fmt: skip
    reasons = {c.name: c.reason for c in CLASSES}
    for name, count in result.classes.most_common():
        print(f"{count:7} {name}: {reasons.get(name, 'somebody has to look')}")
    kinds = sorted(result.findings.items(), key=lambda item: -len(item[1]))
    for sign, found in kinds[:show]:
        _number, recipe, verdict = found[0]
        numbers = ", ".join(str(n) for n, _, _ in found[:6])
        print(f"\n{len(found)} x {sign}\n    {numbers}: {recipe}\n    {verdict.sentence[:400]}")


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
