"""A kernel's whole module, as words for the driver or as text for people."""

from __future__ import annotations

from tflgpu.language.tree import Kernel

from tflgpu_vulkan.spirv.asm import Assembly, Instruction
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.declare import Declarations
from tflgpu_vulkan.spirv.expressions import Expressions
from tflgpu_vulkan.spirv.grammar import (
    AddressingModel,
    Capability,
    ExecutionMode,
    ExecutionModel,
    FunctionControl,
    Op,
)
from tflgpu_vulkan.spirv.listing import listing
from tflgpu_vulkan.spirv.matrix import memory_model
from tflgpu_vulkan.spirv.memory import Memory
from tflgpu_vulkan.spirv.statements import Statements
from tflgpu_vulkan.spirv.target import Target

ENTRY_POINT = "main"


def module_of(kernel: Kernel, target: Target, *, guard: int = 0) -> bytes:
    """The binary module, without names, so that equal kernels have equal modules.

    Args:
        kernel: The kernel.
        target: What the device has.
        guard: Bytes that are bound before the first element of every buffer.

    Raises:
        KernelError: the kernel needs what the device lacks.
    """
    return _assemble(kernel, target, guard, named=False).encode()


def text_of(kernel: Kernel, target: Target) -> str:
    """The module as SPIR-V assembly, with the kernel's own names.

    Raises:
        KernelError: the kernel needs what the device lacks.
    """
    return listing(_assemble(kernel, target, 0, named=True))


def _assemble(kernel: Kernel, target: Target, guard: int, *, named: bool) -> Assembly:
    assembly = Assembly()
    declarations = Declarations(kernel, target, assembly)
    void = declarations.declare(Op.TypeVoid)
    signature = declarations.declare(Op.TypeFunction, void)
    entry = assembly.new_id()
    declarations.name(entry, kernel.name)
    model = memory_model(declarations)
    body = Body(declarations)
    memory = Memory(body, guard)
    Statements(body, memory, expressions := Expressions(body, memory)).block(kernel.body)
    if body.is_open:
        body.do(Op.Return)
    for ident, value in expressions.names.items():
        declarations.name(value, ident)

    opening = Instruction(Op.Function, (FunctionControl.NoHint, signature), entry, void)
    closing = Instruction(Op.FunctionEnd, ())
    assembly.extend("functions", [opening, *body.instructions(), closing])
    assembly.add("memory model", Op.MemoryModel, AddressingModel.Logical, model)
    assembly.add(
        "entry points", Op.EntryPoint, ExecutionModel.GLCompute, entry, ENTRY_POINT,
        *declarations.interface,
    )  # fmt: skip
    size = ExecutionMode.LocalSize
    assembly.add("execution modes", Op.ExecutionMode, entry, size, *kernel.workgroup)
    for mode, capability, widths in (
        (ExecutionMode.DenormPreserve, Capability.DenormPreserve, target.keeps_denormals),
        (ExecutionMode.SignedZeroInfNanPreserve, Capability.SignedZeroInfNanPreserve,
         target.keeps_special),
        (ExecutionMode.RoundingModeRTE, Capability.RoundingModeRTE, target.rounds_to_even),
    ):  # fmt: skip
        for width in sorted(widths & declarations.float_widths):
            assembly.add("execution modes", Op.ExecutionMode, entry, mode, width)
            declarations.capabilities.add(capability)
            declarations.extensions.add("SPV_KHR_float_controls")
    for capability in sorted(declarations.capabilities):
        assembly.add("capabilities", Op.Capability, capability)
    for extension in sorted(declarations.extensions):
        assembly.add("extensions", Op.Extension, extension)
    if not named:
        assembly.clear("names")
    return assembly
