"""A module as text, in the form that spirv-dis prints and spirv-as reads."""

from __future__ import annotations

import enum
import re

from tflgpu.language.code import Names

from tflgpu_vulkan.spirv.asm import Assembly, Id, Instruction, Literal, Operand
from tflgpu_vulkan.spirv.grammar import Op

_MARGIN = 24


def listing(assembly: Assembly) -> str:
    """The whole module. Ids that have a name of their own go by it."""
    names = _names(assembly)
    lines = ["; SPIR-V 1.3"]
    lines += [_line(instruction, names) for instruction in assembly.instructions()]
    return "\n".join(lines) + "\n"


def _names(assembly: Assembly) -> dict[int, str]:
    # An id that is all digits would be a number.
    free = Names((), lambda ident: ident[0].isdigit())
    names: dict[int, str] = {}
    for instruction in assembly.instructions():
        if instruction.op is Op.Name:
            target, text = instruction.operands
            assert isinstance(target, Id)
            stem = re.sub(r"\W", "_", str(text), flags=re.ASCII)
            names[target] = free.fresh(stem or "_")
    return names


def _line(instruction: Instruction, names: dict[int, str]) -> str:
    parts = [f"Op{instruction.op.name}"]
    if instruction.type is not None:
        parts.append(_id(instruction.type, names))
    parts += [_operand(operand, names) for operand in instruction.operands]
    text = " ".join(parts)
    if instruction.result is None:
        return " " * _MARGIN + text
    return f"{_id(instruction.result, names):>{_MARGIN - 3}} = {text}"


def _operand(operand: Operand, names: dict[int, str]) -> str:
    if isinstance(operand, Id):
        return _id(operand, names)
    if isinstance(operand, Literal):
        return operand.text
    if isinstance(operand, str):
        return '"' + operand.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(operand, enum.Enum):
        # What Python cannot have as a member's name.
        return "None" if operand.name == "NoHint" else str(operand.name)
    return str(operand)


def _id(value: Id, names: dict[int, str]) -> str:
    return "%" + names.get(value, str(int(value)))
