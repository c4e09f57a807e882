"""Shuffles as OpGroupNonUniformShuffleXor, which SPIR-V has from version 1.3 on.

SPIR-V keeps an invocation group together where all of it gets to a construct together; that is
what the kernel language asks of a shuffle's place.
"""

from __future__ import annotations

from tflgpu.language.subgroup import SubgroupShuffleXor, group_size, lacking
from tflgpu.language.types import Scalar

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.convert import convert
from tflgpu_vulkan.spirv.grammar import SCOPE_SUBGROUP, Capability, Op


def shuffle(body: Body, stmt: SubgroupShuffleXor, value: Id) -> Id:
    """The value of a shuffle.

    Raises:
        KernelError: the device does not shuffle among so many neighbours.
    """
    declarations = body.declarations
    size, most = group_size(stmt.mask), declarations.target.subgroup_shuffle
    if size > most:
        raise declarations.fail(lacking(size, most))
    declarations.capabilities |= {Capability.GroupNonUniform, Capability.GroupNonUniformShuffle}
    kind = word = stmt.type
    if kind.scalar is Scalar.F16:
        # A device that shuffles 16-bit values says so by a feature of its own.
        word = kind.with_scalar(Scalar.F32)
        value = convert(body, kind, word, value)
    scope, mask = declarations.u32(SCOPE_SUBGROUP), declarations.u32(stmt.mask)
    found = body.emit(Op.GroupNonUniformShuffleXor, word, scope, value, mask)
    if kind == word or not declarations.target.f16_arithmetic:
        return found  # an f16 that can only be moved about is held as an f32
    return convert(body, word, kind, found)
