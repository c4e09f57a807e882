"""What a kernel costs its compiler, and how much a kernel may cost.

A compiler looks at a whole kernel at once, and some of its passes take time that grows faster than
the kernel: one of 500 functions took llvmpipe 18 to 33 seconds, and one of 2,000 ends PoCL's
compiler. So a kernel has a budget. Chains of elementwise nodes are cut where they would be over it
(`tflgpu.compiler.fuse`), generators write loops where unrolling would be, and a node whose own
kernel is over it all the same runs on the CPU.
"""

from __future__ import annotations

import weakref

from tflgpu.language.tree import Builtin, Call, Const, Kernel, Name
from tflgpu.language.walk import blocks, walk

#: Functions that a processor computes in dozens of instructions. PoCL and llvmpipe take 30 to 150
#: times as long to compile one as to compile an addition.
_HEAVY = frozenset({"exp", "log", "sin", "cos", "tanh", "erf", "pow", "atan2"})
_HEAVY_COST = 64
#: A block of an `if` or a loop: registers are merged behind it, and llvmpipe, which runs lanes of
#: one vector in lockstep, masks whatever is inside.
_BLOCK_COST = 32

#: Most that the elementwise chain in a store may cost: 15 heavy functions, or hundreds of
#: additions. PoCL and llvmpipe compile such a chain in less than a second.
MAX_CHAIN = 1024
#: Most that a whole kernel may cost: 4 times the costliest kernel of the real models that the tests
#: run (a first convolution, its 16 stores unrolled). PoCL and llvmpipe take a few seconds for it.
MAX_KERNEL = 8192
#: Most buffers that a kernel binds, however many a device allows (drivers say up to 2^20): reading
#: one more is a case more in a kernel that joins tensors.
MAX_BUFFERS = 32

#: Most blocks in each other. WGSL allows 127, of which a printer needs some, and whatever walks
#: blocks recursively stays far from Python's limit.
MAX_NESTING = 64


def nesting(kernel: Kernel) -> int:
    """How many blocks of a kernel are in each other, at most."""
    deepest = 0
    waiting = [(kernel.body, 0)]
    while waiting:
        body, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(block, depth + 1) for stmt in body for block in blocks(stmt)]
    return deepest


def cost(kernel: Kernel) -> int:
    """What a kernel costs to compile, in additions of a vector.

    A statement counts one. So does every distinct expression that it evaluates; blocks, and
    functions that a processor has no instruction for, count more. A loop's body counts once.
    Time is linear in the size of the kernel; it is counted once.
    """
    found = _costs.get(kernel)
    if found is None:
        found = _costs[kernel] = _count(kernel)
    return found


#: Kernels never change, and so neither do their costs.
_costs: weakref.WeakKeyDictionary[Kernel, int] = weakref.WeakKeyDictionary()


def _count(kernel: Kernel) -> int:
    total = 0
    waiting = [kernel.body]
    while waiting:
        for stmt in waiting.pop():
            evaluated = [e for e in walk(stmt).order if type(e) not in _FREE]
            heavy = [e for e in evaluated if type(e) is Call and e.fn in _HEAVY]
            total += 1 + len(evaluated) + (_HEAVY_COST - 1) * len(heavy)
            nested = [block for block in blocks(stmt) if block]
            total += _BLOCK_COST * len(nested)
            waiting += nested
    return total


_FREE = frozenset({Const, Name, Builtin})
