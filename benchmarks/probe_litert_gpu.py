"""Run a model once on LiteRT's GPU, in a process that may crash: `MODEL f32|f16`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tflgpu.tools.runs import random_input

from benchmarks.contestants import LiteRTCpu, LiteRTGpu


def main() -> None:
    """Exit code 0 where it works; says how much of the model is on the GPU."""
    path, precision = Path(sys.argv[1]), sys.argv[2]
    details = LiteRTCpu(path, 1).interpreter.get_input_details()
    rng = np.random.default_rng(0)
    opened = LiteRTGpu(path, half=precision != "f32")
    opened.run({int(d["index"]): random_input(d, rng) for d in details})
    print(opened.note)
    opened.close()


if __name__ == "__main__":
    main()
