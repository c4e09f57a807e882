"""Whether a model with no backend named is ever slower than LiteRT's own kernels.

    python -m benchmarks.default_device --models *.tflite

Each model is opened as `tflgpu.Interpreter(model)` opens it, and by LiteRT with so many threads.
Both are called by turns, in blocks, with arrays in and arrays out. A model is slower where its
median is so by more than 5 %, and by more than 2 us. The exit code is 1 where one is slower or
failed; the lines below it say why operators stayed on the CPU, with the estimates.

Where LiteRT's kernels run all of a model, what is left is our own Python: 1.2 us more for one input
and one output than LiteRT's own (on a machine of two cores, where its three calls took 3.8).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tflgpu import DelegateOptions
from tflgpu.tools.contestants import OnTflgpu, litert_cpu, on_tflgpu
from tflgpu.tools.turns import Racer, Settings, draw_sets, race

from benchmarks.run import find_model

_MARGIN, _CALLS = 0.05, 2e-6


def is_slower(ours: float, theirs: float) -> bool:
    """Whether a median of ours is that of a slower model; both in seconds."""
    return ours > max(theirs * (1 + _MARGIN), theirs + _CALLS)


def _is_fine(model: Path, threads: int, settings: Settings) -> bool:
    """Time both, and print a line; whether tflgpu was no slower."""
    own, other = racers = Racer(on_tflgpu(DelegateOptions())), Racer(litert_cpu(threads))
    try:
        race(racers, model, settings, draw_sets(model, 1, settings.seed), lambda what, share: None)
        if own.error is not None or other.error is not None:
            why = f"tflgpu: {own.failure or 'ran'}; LiteRT: {other.failure or 'ran'}"
            print(f"{model.stem:36} not compared: {why}", flush=True)
            return own.error is None
        ours, theirs = (float(np.median(racer.times)) for racer in racers)
        slower = is_slower(ours, theirs)
        assert isinstance(own.opened, OnTflgpu)
        print(
            f"{model.stem:36} {ours * 1e3:9.4f} {theirs * 1e3:9.4f} {ours / theirs:6.2f} "
            f"{'SLOWER' if slower else 'ok':6}  {own.opened.note}",
            flush=True,
        )
        if slower:
            reasons = dict.fromkeys(refusal.reason for refusal in own.opened.report.refusals)
            print("".join(f"{'':8}{reason}\n" for reason in reasons), end="", flush=True)
        return not slower
    finally:
        for racer in racers:
            racer.close()


def main() -> None:
    """Compare the models of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--threads", type=int, default=8, help="of LiteRT")
    parser.add_argument("--seconds", type=float, default=1.0, help="of warm-up, and of measuring")
    given = parser.parse_args()
    settings = Settings(duration=given.seconds, warm_up=given.seconds)
    print(f"{'ms':>46} {'LiteRT':>9}", flush=True)
    fine = [_is_fine(model, given.threads, settings) for model in map(find_model, given.models)]
    raise SystemExit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
