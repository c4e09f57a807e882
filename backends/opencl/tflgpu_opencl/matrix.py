"""Matrix tiles in OpenCL C for NVIDIA: inline PTX, one instruction for a whole subgroup.

PTX ISA, "Warp-level matrix instructions": a lane of `mma.m16n8k16` holds four registers of ``a``,
two of ``b``, and four sums; a 16 x 16 tile of ``b`` and of sums is two of those side by side.
`ldmatrix` reads 8 x 8 quarters, whose rows the lanes' addresses name, into just the registers
that `mma` wants (transposed for ``b``, whose columns a lane walks).
"""

from __future__ import annotations

MATRIX_PRELUDE = r"""
typedef struct { uint x0, x1, x2, x3; } matrix_operand;
typedef struct { float x0, x1, x2, x3, x4, x5, x6, x7; } matrix_sums;

uint matrix_lane(void) {
    uint lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// Lanes 0-15 name the rows of the left half, lanes 16-31 those of the right half.
uint matrix_row(__local const half* tile, int stride) {
    const int lane = (int)matrix_lane();
    return (uint)(size_t)(tile + ((lane & 15) * stride + (lane >> 4) * 8));
}

// The quarters below the first and beside it change places.
uint matrix_row_transposed(__local const half* tile, int stride) {
    const int lane = (int)matrix_lane();
    return (uint)(size_t)(tile + (((lane & 7) + (lane >> 4) * 8) * stride + (lane & 8)));
}

matrix_operand matrix_load_a(__local const half* tile, int stride) {
    matrix_operand m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(m.x0), "=r"(m.x1), "=r"(m.x2), "=r"(m.x3) : "r"(matrix_row(tile, stride))
        : "memory");
    return m;
}

matrix_operand matrix_load_b(__local const half* tile, int stride) {
    matrix_operand m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(m.x0), "=r"(m.x1), "=r"(m.x2), "=r"(m.x3) : "r"(matrix_row(tile, stride))
        : "memory");
    return m;
}

matrix_operand matrix_load_a_transposed(__local const half* tile, int stride) {
    matrix_operand m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(m.x0), "=r"(m.x1), "=r"(m.x2), "=r"(m.x3) : "r"(matrix_row_transposed(tile, stride))
        : "memory");
    return m;
}

matrix_operand matrix_load_b_transposed(__local const half* tile, int stride) {
    matrix_operand m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(m.x0), "=r"(m.x1), "=r"(m.x2), "=r"(m.x3) : "r"(matrix_row_transposed(tile, stride))
        : "memory");
    return m;
}

matrix_sums matrix_multiply(matrix_sums c, matrix_operand a, matrix_operand b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x0), "+f"(c.x1), "+f"(c.x2), "+f"(c.x3)
        : "r"(a.x0), "r"(a.x1), "r"(a.x2), "r"(a.x3), "r"(b.x0), "r"(b.x1));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x4), "+f"(c.x5), "+f"(c.x6), "+f"(c.x7)
        : "r"(a.x0), "r"(a.x1), "r"(a.x2), "r"(a.x3), "r"(b.x2), "r"(b.x3));
    return c;
}

matrix_sums matrix_fill(float x) {
    const matrix_sums m = {x, x, x, x, x, x, x, x};
    return m;
}

matrix_sums matrix_add(matrix_sums a, matrix_sums b, float f) {
    const matrix_sums m = {
        fma(b.x0, f, a.x0), fma(b.x1, f, a.x1), fma(b.x2, f, a.x2), fma(b.x3, f, a.x3),
        fma(b.x4, f, a.x4), fma(b.x5, f, a.x5), fma(b.x6, f, a.x6), fma(b.x7, f, a.x7)};
    return m;
}

void matrix_store(__local float* tile, int stride, matrix_sums m) {
    const int lane = (int)matrix_lane();
    __local float* upper = tile + ((lane >> 2) * stride + (lane & 3) * 2);
    __local float* lower = upper + 8 * stride;
    *(__local float2*)upper = (float2)(m.x0, m.x1);
    *(__local float2*)lower = (float2)(m.x2, m.x3);
    *(__local float2*)(upper + 8) = (float2)(m.x4, m.x5);
    *(__local float2*)(lower + 8) = (float2)(m.x6, m.x7);
}
""".strip()
