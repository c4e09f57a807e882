"""Functions that printed kernels call and OpenCL C does not have.

Those about `half` values use the language's own operators only, because NVIDIA's driver
computes with `half` and has no function that takes one. Its compiler also fails ("Do not know
how to split the result of this operator") on any load of four halves, also where it joins four
loads itself; hence `load_half4`, by words.

The smaller and the larger of two floats are NaN if either is, where OpenCL's fmin and fmax give the
other one. ``at_least`` and ``at_most`` are for a limit that is no NaN, and take one comparison.
"""

from __future__ import annotations

#: Functions called for one lane at a time: those of PoCL 3 give wrong results in all lanes of a
#: vector that has a NaN or a huge number in one. GPUs compute lane by lane anyway.
BY_LANES = frozenset({"sin", "cos"})

_BITS = """\
#ifdef cl_khr_fp16
#define BITS_TO_HALF2(x) as_half2(x)
#define HALF2_TO_BITS(x) as_uint(x)
#else
#define BITS_TO_HALF2(x) __builtin_astype(x, half2)
#define HALF2_TO_BITS(x) __builtin_astype(x, uint)
#endif"""

_LOAD = """\
half4 load_{space}half4(__{address} const half4* p, int i) {{
    const uint2 bits = ((__{address} const uint2*)p)[i];
    return (half4)(BITS_TO_HALF2(bits.x), BITS_TO_HALF2(bits.y));
}}"""


def _helpers() -> dict[str, str]:
    found = {
        "load_half4": _LOAD.format(space="", address="global"),
        "load_local_half4": _LOAD.format(space="local_", address="local"),
        "half4_bits": "uint2 half4_bits(half4 v) "
        "{ return (uint2)(HALF2_TO_BITS(v.xy), HALF2_TO_BITS(v.zw)); }",
        "bits_half4": "half4 bits_half4(uint2 v) "
        "{ return (half4)(BITS_TO_HALF2(v.x), BITS_TO_HALF2(v.y)); }",
    }
    for width in (1, 2, 3, 4):
        for scalar in ("float", "half"):
            kind = scalar + (str(width) if width > 1 else "")
            for op, sign in (("min", "<"), ("max", ">")):
                name = f"{scalar}_{op}{width}"
                body = f"return ((a {sign} b) | (a != a)) ? a : b;"
                found[name] = f"{kind} {name}({kind} a, {kind} b) {{ {body} }}"
            for op, sign in (("at_most", ">"), ("at_least", "<")):
                name = f"{scalar}_{op}{width}"
                body = f"return x {sign} limit ? limit : x;"
                found[name] = f"{kind} {name}({kind} x, {kind} limit) {{ {body} }}"
        kind = f"float{width}" if width > 1 else "float"
        for fn in sorted(BY_LANES):
            name = f"float_{fn}{width}"
            lanes = ", ".join(f"{fn}(x.{lane})" for lane in "xyzw"[:width])
            found[name] = f"{kind} {name}({kind} x) {{ return ({kind})({lanes}); }}"
        lanes = "" if width == 1 else str(width)
        terms = (f"((x << {at}) >> 24) * ((y << {at}) >> 24)" for at in (0, 8, 16, 24))
        found[f"dot4_i8_{width}"] = (
            f"int{lanes} dot4_i8_{width}(uint{lanes} a, uint{lanes} b) {{ "
            f"const int{lanes} x = as_int{lanes}(a), y = as_int{lanes}(b); "
            f"return {' + '.join(terms)}; }}"
        )
        name = f"float_sign{width}"
        found[name] = f"{kind} {name}({kind} x) {{ return isnan(x) ? x : sign(x); }}"
        for source, target in (("half", "float"), ("float", "half")) if width > 1 else ():
            name = f"{source}_to_{target}{width}"
            lanes = ", ".join(f"({target})v.{lane}" for lane in "xyzw"[:width])
            result = f"{target}{width}"
            found[name] = f"{result} {name}({source}{width} v) {{ return ({result})({lanes}); }}"
    return found


_HELPERS = _helpers()


def prelude(helpers: set[str], f16: bool) -> list[str]:
    """Lines before a kernel that uses the named functions, and `half` values if ``f16``."""
    lines = ["#pragma OPENCL EXTENSION cl_khr_fp16 : enable"] if f16 else []
    if any(name.startswith("load_") or name in ("half4_bits", "bits_half4") for name in helpers):
        lines.append(_BITS)
    lines += [_HELPERS[name] for name in sorted(helpers)]
    return [*lines, ""] if lines else []
