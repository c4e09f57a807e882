"""What `from tflgpu import GpuDelegate, Interpreter` brings: what every start uses, and no more.

A module costs about a millisecond, half of it for the classes that it makes. Whoever needs a name
for its type alone imports it under `TYPE_CHECKING`; values that options, contract and runtime name
have modules of their own.
"""

from __future__ import annotations

import subprocess
import sys

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
