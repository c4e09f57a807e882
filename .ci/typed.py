"""What type checkers see of a wheel: `python .ci/typed.py WHEEL [MYPY]`.

Fails where a package has no `py.typed`. With the path of a mypy, also where a user's program is not
checked as it should be: `PROGRAM` has a mark at each line that is to be an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PROGRAM = """
from typing_extensions import assert_type
import numpy as np
import numpy.typing as npt
import tflgpu

x = np.zeros((1, 3), np.float32)


class Mine(tflgpu.Model): ...


with Mine("m.tflite", precision="f16", progress=print, saved="m.tflgpu") as mine:
    assert_type(mine, Mine)
    results = mine(x, named=[1.0])
    mine.after_fork()  # error
first: npt.NDArray[np.float32] = results[0]
by_name: npt.NDArray[np.float32] = results["scores"]
some: tuple[npt.NDArray[np.float32], ...] = results[1:]
some = results[1]  # error
results[1.0]  # error
tflgpu.Model("m.tflite", precision="f61")  # error
tflgpu.Model("m.tflite", precison="f16")  # error
tflgpu.Pool("m.tflite", on_error="retry", wait_type="busy")  # error
tflgpu.GpuDelegate(inference_priority1="min_latency", allow_fallback="maybe")  # error
tflgpu.DelegateOptions(quantized_numerics="integers")  # error
tflgpu.estimate("m.tflite", backend="cpu", partitioning="some")  # error
with tflgpu.Pool("m.tflite", batch=8, op_resolver="BUILTIN_REF") as pool:
    assert_type(pool, tflgpu.Pool)
    assert_type(pool.submit(x, timeout=1.0).result(), tflgpu.Results)
    assert_type(pool.reports, tuple[tflgpu.DelegationReport, ...])
with tflgpu.Interpreter("m.tflite", experimental_delegates=[tflgpu.GpuDelegate()]) as opened:
    detail = opened.get_input_details()[0]
    assert_type(detail, tflgpu.TensorDetails)
    opened.set_tensor(detail["index"], x)
    opened.set_tensor(detail["name"], x)  # error
    detail["shapes"]  # error
    opened.get_tensor(0).shape
    assert_type(opened.report, tflgpu.DelegationReport)
    opened.delegation_report()  # error
    assert_type(opened.get_signature_runner(), tflgpu.SignatureRunner)
    opened.get_signature_runner()(image=x)["scores"].shape
"""


def untyped(names: list[str]) -> list[str]:
    """Top-level packages among a wheel's file names that lack the marker."""
    packages = {n.split("/")[0] for n in names if n.count("/") == 1 and n.endswith("/__init__.py")}
    return sorted(p for p in packages if f"{p}/py.typed" not in names)


def wrongly_checked(wheel: zipfile.ZipFile, mypy: str) -> str:
    """What mypy says of the program where its errors are not at the marked lines; else ""."""
    with tempfile.TemporaryDirectory() as folder:
        wheel.extractall(Path(folder, "wheel"))
        program = Path(folder, "program.py")
        program.write_text(PROGRAM, encoding="utf-8")
        done = subprocess.run(  # noqa: S603
            [mypy, "--strict", "--python-version", "3.10", "--ignore-missing-imports",
             "--follow-imports", "silent", "--config-file", os.devnull, str(program)],
            cwd=folder, env={**os.environ, "MYPYPATH": str(Path(folder, "wheel"))},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
    found = {int(n) for n in re.findall(r"^program\.py:(\d+): error", done.stdout, re.MULTILINE)}
    lines = PROGRAM.split("\n")
    wanted = {n for n, line in enumerate(lines, 1) if line.endswith("# error")}
    return "" if found == wanted else f"{sorted(found ^ wanted)}\n{done.stdout}{done.stderr}"


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as opened:
        missing = untyped(opened.namelist())
        if missing:
            raise SystemExit(f"no py.typed in {', '.join(missing)}")
        if len(sys.argv) > 2 and (
            said := wrongly_checked(opened, str(Path(sys.argv[2]).absolute()))
        ):
            raise SystemExit(f"a user's program is checked otherwise than it should be: {said}")
