"""What `from tflgpu import GpuDelegate, Interpreter` brings: what every start uses, and no more.

A module costs about a millisecond, half of it for the classes that it makes. Whoever needs a name
for its type alone imports it under `TYPE_CHECKING`; values that options, contract and runtime name
have modules of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_models import small_model

#: Modules of tflgpu: it was 218, and is 188, with room for a file that becomes two. Where it is not
#: enough, what a start does not use is to be imported where it is used, before this is raised.
MOST = 190

#: By the first words of their names.
UNUSED = (
    *("tflgpu.kernels.", "tflgpu.passes.", "tflgpu.ops.base", "tflgpu.ops.facets",
    "tflgpu.plugins.ops"),
    *("tflgpu.lowering.lowering", "tflgpu.lowering.rule", "tflgpu.lowering.tuning"),
    *("tflgpu.language.builder", "tflgpu.language.make", "tflgpu.language.matrix",
    "tflgpu.language.expressions", "tflgpu.language.tree"),
    *("tflgpu.language.interpreter", "tflgpu.compiler.partition.", "tflgpu.compiler.target"),
    *("tflgpu.tflite.build", "tflgpu.runtime.reference", "pyopencl", "wgpu", "cffi",
    "ai_edge_litert"),
)  # fmt: skip

#: By the first words of their names: what makes, checks, prints or interprets kernels.
PRINTING = (
    *("tflgpu.language.tree", "tflgpu.language.builder", "tflgpu.language.check"),
    *(
        "tflgpu.language.interpreter",
        "tflgpu_vulkan.spirv.module",
        "tflgpu_opencl.printer",
        "tflgpu.kernels.",
    ),
    *("tflgpu.passes.", "tflgpu.compiler.lower"),
)


def printed(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_brings_what_a_start_uses() -> None:
    code = (
        "import sys, numpy\n"
        "from tflgpu import GpuDelegate, Interpreter\n"
        "print(*sys.modules, sep='\\n')\n"
    )
    loaded = printed(code).split()
    assert "tflgpu.runtime.compile_or_load" in loaded
    assert [name for name in loaded if f"{name}.".startswith(UNUSED)] == []
    assert sum(f"{name}.".startswith("tflgpu.") for name in loaded) <= MOST


def test_operators_build_trees_before_any_builder_was_made() -> None:
    """The tree brings what puts operands together."""
    code = (
        "from tflgpu.language.tree import Binary, Const\n"
        "from tflgpu.language.types import F32\n"
        "made = Const(F32, 1.0) + Const(F32, 2.0)\n"
        "print(type(made).__name__)\n"
    )
    assert printed(code).strip() in {"Binary", "Const"}


def test_reading_imports_the_tables_of_a_model_alone(tmp_path: Path) -> None:
    """The package `tflite` imports hundreds of modules."""
    path = tmp_path / "add.tflite"
    path.write_bytes(small_model({"x": [1, 4], "y": [1, 4]}, "y = ADD(x, x)"))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tflgpu.tflite.read import read_model\n"
        f"operator = read_model(Path({str(path)!r})).subgraphs[0].operators[0]\n"
        "print(operator.fields, 'tflite' in sys.modules)\n"
    )
    assert printed(code).split()[-1] == "False"


@pytest.mark.parametrize("backend", ["opencl", "vulkan"])
def test_a_kept_start_prints_nothing(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "relu.tflite"
    path.write_bytes(small_model({"x": [1, 4], "y": [1, 4]}, "y = RELU(x)"))
    code = (
        "import sys, numpy as np, tflgpu\n"
        f"d = tflgpu.GpuDelegate(backend={backend!r}, serialization_dir={str(tmp_path)!r}, "
        "model_token='relu', partitioning='all')\n"
        f"i = tflgpu.Interpreter({str(path)!r}, experimental_delegates=[d])\n"
        "i.allocate_tensors(); i.invoke()\n"
        "print(*sys.modules, sep='\\n')\n"
    )
    environment = {**os.environ, "TFLGPU_CACHE_DIR": str(tmp_path / "cache")}
    loaded: list[set[str]] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        loaded.append({n for n in done.stdout.split() if n.startswith(PRINTING)})
    assert loaded[0]
    assert not loaded[1]
