"""Which kernels a first start on Vulkan waits for: when the driver was asked for each, and how long
it took.

    python -m benchmarks.driver --models style_transfer_f16_384 --precision f32_f16

One process for each model, with empty folders for what tflgpu and NVIDIA's driver keep. A line for
each of the kernels that were ready last: milliseconds since the delegate was made when the driver
was asked and when it had done, kilobytes of SPIR-V, and the kernel. The line before them says when
the first result was there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.run import find_model


def _start(model: Path, precision: str, count: int) -> None:
    """Be the process."""
    import numpy as np
    import tflgpu_vulkan.pipelines
    from tflgpu import GpuDelegate, Interpreter, Precision
    from tflgpu.tools.runs import random_inputs

    kind: Any = tflgpu_vulkan.pipelines.Pipelines
    make, made = kind._make, []

    def timed(self: Any, kernel: Any, code: bytes) -> Any:
        asked = time.perf_counter()
        result = make(self, kernel, code)
        made.append((asked, time.perf_counter(), len(code), kernel))
        return result

    kind._make = timed
    begun = time.perf_counter()
    with (
        GpuDelegate(backend="vulkan", precision=Precision(precision)) as delegate,
        Interpreter(model, experimental_delegates=[delegate]) as interpreter,
    ):
        made.clear()  # of the probes of a device
        interpreter.allocate_tensors()
        for index, array in random_inputs(interpreter, np.random.default_rng(0)).items():
            interpreter.set_tensor(index, array)
        loaded = time.perf_counter()
        interpreter.invoke()
        over = time.perf_counter()
        size = sum(each[2] for each in made) / 1024
        print(
            f"{model.stem} {precision}: {len(made)} kernels, {size:.0f} KB; loaded "
            f"{(loaded - begun) * 1e3:.0f} ms, first result {(over - begun) * 1e3:.0f} ms"
        )
        for asked, done, nbytes, kernel in sorted(made, key=lambda each: -each[1])[:count]:
            print(
                f"  {(asked - begun) * 1e3:6.0f} to {(done - begun) * 1e3:6.0f} ms "
                f"{nbytes / 1024:6.1f} KB  {kernel.name} of {len(kernel.buffers)} buffers"
            )


def main() -> None:
    """Print the kernels of each model of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--precision", default="f32_f16", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--count", type=int, default=8, help="kernels of each model")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for model in map(find_model, given.models):
        if given.once:
            _start(model, given.precision, given.count)
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.driver", "--once", "--models", str(model)]
            command += ["--precision", given.precision, "--count", str(given.count)]
            kept = ("TFLGPU_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR")
            subprocess.run(command, env={**os.environ, **dict.fromkeys(kept, folder)}, check=True)


if __name__ == "__main__":
    main()
