"""A kernel's whole module, as words for the driver or as text for people."""

from __future__ import annotations

from tflgpu.language.kernel import Kernel

from tflgpu_vulkan.spirv.asm import Assembly, first_word, text_words
from tflgpu_vulkan.spirv.grammar import (
    AddressingModel,
    Capability,
    Control,
    ExecutionMode,
    ExecutionModel,
    Op,
)
from tflgpu_vulkan.spirv.listing import listing
from tflgpu_vulkan.spirv.statements import Statements
from tflgpu_vulkan.spirv.target import ENTRY_POINT, Target


def module_of(kernel: Kernel, target: Target, *, guard: int = 0) -> bytes:
    """The binary module.

    Args:
        kernel: The kernel.
        target: What the device has.
        guard: Bytes that are bound before the first element of every buffer.

    Raises:
        KernelError: the kernel needs what the device lacks.
    """
    return _assemble(kernel, target, guard).encode()


def text_of(kernel: Kernel, target: Target) -> str:
    """The module as SPIR-V assembly, with the kernel's own names.

    Raises:
        KernelError: the kernel needs what the device lacks.
    """
    return listing(_assemble(kernel, target, 0))


def _assemble(kernel: Kernel, target: Target, guard: int) -> Assembly:
    code = Statements(kernel, target, guard)
    void = code.declare(Op.TypeVoid)
    signature = code.declare(Op.TypeFunction, void)
    entry = code.new_id()
    code.name(entry, kernel.name)
    code.block(kernel.body)
    code.forget_methods()
    if code.is_open:
        code.do(Op.Return)
    for ident, value in code.names.items():
        code.name(value, ident)

    opening = (first_word(Op.Function, 5), void, entry, Control.NoHint, signature)
    code.extend("functions", [*opening, *code.function(), first_word(Op.FunctionEnd, 1)])
    code.add("memory model", Op.MemoryModel, AddressingModel.Logical, code.memory_model)
    code.add(
        "entry points",
        Op.EntryPoint,
        ExecutionModel.GLCompute,
        entry,
        *text_words(ENTRY_POINT),
        *code.interface,
    )
    size = ExecutionMode.LocalSize
    code.add("execution modes", Op.ExecutionMode, entry, size, *kernel.workgroup)
    for mode, capability, widths in (
        (ExecutionMode.DenormPreserve, Capability.DenormPreserve, target.keeps_denormals),
        (
            ExecutionMode.SignedZeroInfNanPreserve,
            Capability.SignedZeroInfNanPreserve,
            target.keeps_special,
        ),
        (ExecutionMode.RoundingModeRTE, Capability.RoundingModeRTE, target.rounds_to_even),
    ):
        for width in sorted(widths & code.float_widths):
            code.add("execution modes", Op.ExecutionMode, entry, mode, width)
            code.capabilities.add(capability)
            code.extensions.add("SPV_KHR_float_controls")
    for capability in sorted(code.capabilities):
        code.add("capabilities", Op.Capability, capability)
    for extension in sorted(code.extensions):
        code.add("extensions", Op.Extension, *text_words(extension))
    return code
