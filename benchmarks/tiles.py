"""What the models of a device predict of kernels, beside what the tuner timed.

    TFLGPU_CACHE_DIR=empty tflgpu tune MODEL... --backend vulkan --precision f16 --json > times.json
    python -m benchmarks.tiles times.json

With `--effort exhaustive` all candidates are timed, else the six best by the prediction; with an
empty cache folder those of all problems. A line for each problem says how long the candidate takes
that is predicted, how long the fastest one takes and by how much it is faster, and how well the
predicted costs order the measured times (Spearman's coefficient: 1 in the same order, 0 in none);
then a line for each kind of choice: the means, and the worst. So constants of
`tflgpu.lowering.tuning` are judged, and fitted: a change of one is right where these lines, for
models of many kinds, say so.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np


@attrs.frozen
class Problem:
    """The candidates of a problem that were timed.

    Attributes:
        key: As in `tflgpu.lowering.choices`.
        names: Of the candidates.
        costs: Predicted, in the unit of the kind.
        seconds: Measured.
    """

    key: str
    names: Sequence[str]
    costs: Sequence[float]
    seconds: Sequence[float]

    @property
    def kind(self) -> str:
        """What is chosen."""
        found = re.match(r"(.*?) (\d|\S+:)", self.key)
        return found[1] if found else self.key

    @property
    def predicted(self) -> int:
        """The number of the candidate of the least cost."""
        return int(np.argmin(self.costs))

    @property
    def best(self) -> int:
        """The number of the fastest."""
        return int(np.argmin(self.seconds))

    @property
    def ratio(self) -> float:
        """How many times longer the predicted candidate takes than the fastest."""
        return self.seconds[self.predicted] / self.seconds[self.best]

    @property
    def correlation(self) -> float:
        """Between the orders by cost and by time; NaN where all are equal."""
        orders = _ranks(self.costs), _ranks(self.seconds)
        if min(np.ptp(each) for each in orders) == 0:
            return float("nan")
        return float(np.corrcoef(*orders)[0, 1])


def _ranks(values: Sequence[float]) -> Any:
    """The place of each in the order of all; equal ones share the mean of theirs."""
    found, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    del found
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def problems_of(tuned: Sequence[dict[str, Any]]) -> list[Problem]:
    """The problems of what `tflgpu tune --json` says."""
    found = []
    for model in tuned:
        for key, timed in model["times"].items():
            columns = ([each[field] for each in timed] for field in ("name", "cost", "seconds"))
            found.append(Problem(key, *columns))
    return found


def main() -> None:
    """Print the lines of the files of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="TIMES.json")
    problems = [
        problem
        for path in parser.parse_args().files
        for problem in problems_of(json.loads(path.read_text(encoding="utf-8")))
    ]
    print("candidates  predicted us   fastest us  ratio  order  predicted -> fastest: problem")
    for each in sorted(problems, key=lambda each: (each.kind, -each.ratio)):
        predicted, best = (each.seconds[n] * 1e6 for n in (each.predicted, each.best))
        names = f"{each.names[each.predicted]} -> {each.names[each.best]}: {each.key}"
        print(
            f"{len(each.names):10} {predicted:13.2f} {best:12.2f} {each.ratio:6.3f} "
            f"{each.correlation:6.2f}  {names}"
        )
    for kind in sorted({each.kind for each in problems}):
        these = [each for each in problems if each.kind == kind]
        ratios = [each.ratio for each in these]
        orders = [each.correlation for each in these if not np.isnan(each.correlation)]
        order = f"{np.mean(orders):.2f}" if orders else "-"
        print(
            f"{kind}: {len(these)} problems, ratio {np.mean(ratios):.3f} in the mean, "
            f"{max(ratios):.3f} at most; order {order}"
        )


if __name__ == "__main__":
    main()
