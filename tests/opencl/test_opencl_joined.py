"""PoCL gets several kernels in one program; each is what it would be in one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.backend_kit.joined_kernels import join, pieces
from tflgpu.compiler.plan import InputRef, OutputRef, Plan
from tflgpu.conformance.plans import affine, dispatch, io, plan
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel

pytest.importorskip("pyopencl", reason="pip install tflgpu[opencl]")
from tflgpu_opencl.prelude import _HELPERS, prelude
from tflgpu_opencl.program import Compiler
from tflgpu_opencl.subgroup import shuffle_prelude

SHUFFLES = "\n".join(shuffle_prelude({"float", "float4"}, ptx=True))


def text(name: str, body: str = "", prelude: str = "") -> str:
    return (
        f"{prelude}__kernel __attribute__((reqd_work_group_size(8, 1, 1)))\n"
        f"void {name}(\n    __global float* restrict p) {{\n{body}}}\n"
    )


def several(count: int) -> Plan:
    """Kernels of one name, the last of them of another."""
    names = ["affine"] * (count - 1) + ["affine_k0"]
    return plan(
        [
            dispatch(affine(8, i + 2, name=name), 8, [InputRef(0), OutputRef(i)])
            for i, name in enumerate(names)
        ],
        [io("x", (8,))],
        [io(f"y{i}", (8,)) for i in range(count)],
    )


def test_kernels_of_one_program_have_names_of_their_own() -> None:
    sources = [text("a"), text("a", "// b\n"), text("a_k0"), text("a_k")]
    (joined,), alone = join([*sources, sources[0]], Compiler.opening)
    assert not alone
    assert list(joined.entries) == sources
    assert len(set(joined.entries.values())) == 4
    for name in joined.entries.values():
        assert joined.text.count(f"void {name}(") == 1
    assert joined.text.count("__kernel") == 4


def test_only_what_begins_alike_is_joined() -> None:
    helper = "float f(float x) { return x; }\n\n"
    other = "float f(float x) { return -x; }\n\n"
    sources = [text("a", prelude=helper), text("b", prelude=other), text("c", prelude=helper)]
    strange = ["__kernel void d(__global float* p) {}", text("e") + text("f"), "nothing"]
    (joined,), alone = join([*sources, *strange], Compiler.opening)
    assert list(joined.entries) == [sources[0], sources[2]]
    assert joined.text.count("float f(") == 1
    assert alone == [*strange, sources[1]]


def test_other_functions_are_put_together() -> None:
    f, g = "float f(float x) { return x; }", "float g(\n    float x) {\n    return f(x);\n}"
    sources = [text("a", prelude=f"{f}\n\n"), text("b"), text("c", prelude=f"{f}\n{g}\n\n")]
    (joined,), alone = join(sources, Compiler.opening)
    assert not alone
    assert list(joined.entries) == sources
    assert joined.text.startswith(f"{f}\n{g}\n\n__kernel")
    assert joined.text.count("float f(") == joined.text.count("float g(") == 1


def test_a_directive_is_not_put_before_other_kernels() -> None:
    on = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
    either = "#ifdef A\n#define B(x) x\n#else\n#define B(x) -x\n#endif\n"
    sources = [text(f"a{i}", prelude=each) for i, each in enumerate(["", on, either, on + either])]
    assert join(sources, Compiler.opening) == ([], sources)
    (joined,), alone = join([*sources, text("b", prelude=on)], Compiler.opening)
    assert list(joined.entries) == [sources[1], text("b", prelude=on)]
    assert alone == [sources[0], *sources[2:]]


@pytest.mark.parametrize("text", [SHUFFLES, "float f(\n", "}\nint a;", ""])
def test_pieces_are_all_that_there_is(text: str) -> None:
    assert "\n".join(pieces(text)).splitlines() == text.splitlines()


def test_each_shipped_function_is_a_piece() -> None:
    lines = prelude(set(_HELPERS), True)
    assert pieces("\n".join(lines)) == lines[:-1]


@pytest.mark.parametrize("joins", [True, False])
def test_they_compute_what_they_do_alone(open_device: Callable[..., Any], joins: bool) -> None:
    device = open_device()
    device._kernels._shares_its_own = joins  # as on PoCL, or as elsewhere
    before = device.compiled
    made = several(5)
    recording = device.load(made)
    assert device.compiled - before == 5
    kept = device._kernels.get((d.kernel, device._dialect) for d in made.dispatches)
    programs = {id(entry.program) for entry in kept.values()}
    if not device._kernels._keeps:
        assert len(programs) == (1 if joins else 5)
    recording.inputs[0][...] = np.arange(8)
    recording.run()
    for i, output in enumerate(recording.outputs):
        np.testing.assert_array_equal(output, np.arange(8) * (i + 2) + 1)
    device.load(several(5))
    assert device.compiled - before == 5


def test_the_one_at_fault_is_named(open_device: Callable[..., Any]) -> None:
    class Partly:
        def source(self, kernel: Kernel) -> str:
            wrong = kernel.name == "affine_k0"
            return text(kernel.name, f"// {id(kernel)}\n{'undeclared_thing(p);' * wrong}\n")

    device = open_device(dialect=Partly())
    device._kernels._shares_its_own = True
    with pytest.raises(CompileError) as caught:
        device.load(several(3))
    message = str(caught.value)
    assert "refused kernel affine_k0\n" in message
    assert message.count("__kernel") == 1
    assert "undeclared_thing" in message.split("--- source\n")[1]
