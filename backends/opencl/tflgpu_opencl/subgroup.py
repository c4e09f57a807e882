"""Shuffles in OpenCL C: NVIDIA's instruction as inline PTX, or cl_khr_subgroup_shuffle's function.

PTX ISA, "shfl.sync": in ``bfly`` mode a lane gets the register of the lane whose number is its own
XOR the second operand; 0x1f does not divide the 32 lanes into segments, and all of them take part.
Both move one word, so vectors go lane by lane.
"""

from __future__ import annotations

from collections.abc import Iterable

from tflgpu.language.types import Scalar, Type

_PTX = """\
uint subgroup_xor_uint(uint x, uint mask) {
    uint other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
        : "=r"(other) : "r"(x), "r"(mask));
    return other;
}"""

_KHR = """\
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
uint subgroup_xor_uint(uint x, uint mask) { return sub_group_shuffle_xor(x, mask); }"""

_WORDS = {Scalar.F32: "float", Scalar.I32: "int", Scalar.U32: "uint"}


def shuffle_function(kind: Type) -> str:
    """The name of the function for values of a type (f16 is shuffled as f32)."""
    return f"subgroup_xor_{_name(kind)}"


def shuffle_prelude(kinds: Iterable[Type], *, ptx: bool) -> list[str]:
    """The functions for some types."""
    wanted = {k for kind in kinds for k in (kind, kind.with_width(1))}
    lines = [_PTX if ptx else _KHR]
    for kind in sorted(wanted, key=lambda k: (k.width, _name(k))):
        name, call = _name(kind), shuffle_function(kind.with_width(1))
        if kind.width > 1:
            body = ", ".join(f"{call}(x.{lane}, mask)" for lane in "xyzw"[: kind.width])
            body = f"({name})({body})"
        elif kind.scalar is Scalar.U32:
            continue
        else:
            body = f"as_{name}(subgroup_xor_uint(as_uint(x), mask))"
        lines.append(f"{name} {shuffle_function(kind)}({name} x, uint mask) {{ return {body}; }}")
    return lines


def _name(kind: Type) -> str:
    return _WORDS[kind.scalar] + (str(kind.width) if kind.width > 1 else "")
