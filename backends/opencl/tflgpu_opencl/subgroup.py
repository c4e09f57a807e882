"""Shuffles in OpenCL C: NVIDIA's instruction as inline PTX, or cl_khr_subgroup_shuffle's function.

PTX ISA, "shfl.sync": in ``bfly`` mode a lane gets the register of the lane whose number is its own
XOR the second operand; 0x1f does not divide the 32 lanes into segments, and all of them take part.
Both move one word, so vectors go lane by lane.
"""

from __future__ import annotations

from collections.abc import Collection

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

#: How the functions' names begin; a type follows.
SHUFFLE = "subgroup_xor_"


def shuffle_prelude(kinds: Collection[str], *, ptx: bool) -> list[str]:
    """The functions for values of some types ("float4"), each behind those that it calls."""
    lines = [_PTX if ptx else _KHR]
    scalars = {kind.rstrip("234") for kind in kinds}
    for name in sorted(scalars - {"uint"}):
        body = f"as_{name}({SHUFFLE}uint(as_uint(x), mask))"
        lines.append(f"{name} {SHUFFLE}{name}({name} x, uint mask) {{ return {body}; }}")
    for name in sorted(set(kinds) - scalars, key=lambda kind: (kind[-1], kind)):
        call = SHUFFLE + name.rstrip("234")
        body = ", ".join(f"{call}(x.{lane}, mask)" for lane in "xyzw"[: int(name[-1])])
        lines.append(f"{name} {SHUFFLE}{name}({name} x, uint mask) {{ return ({name})({body}); }}")
    return lines
