"""A SPIR-V module as lists of instructions: ids, sections in their order, words."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Union

import attrs

from tflgpu_vulkan.spirv.grammar import GENERATOR, MAGIC, VERSION, Op


class Id(int):
    """A result id."""


@attrs.frozen
class Literal:
    """A word of a constant, and how people read it."""

    word: int
    text: str


Operand = Union[Id, Literal, enum.IntEnum, enum.IntFlag, int, str]

#: The order that the specification gives a module (2.4, logical layout of a module).
SECTIONS = (
    "capabilities", "extensions", "imports", "memory model", "entry points", "execution modes",
    "names", "decorations", "declarations", "functions",
)  # fmt: skip


@attrs.frozen
class Instruction:
    """An instruction; ``operands`` leave out its result id and its result type."""

    op: Op
    operands: tuple[Operand, ...]
    result: Id | None = None
    type: Id | None = None

    def words(self) -> list[int]:
        """Its encoding."""
        found: list[int] = []
        if self.type is not None:
            found.append(self.type)
        if self.result is not None:
            found.append(self.result)
        for operand in self.operands:
            if isinstance(operand, str):
                found.extend(_string(operand))
            elif isinstance(operand, Literal):
                found.append(operand.word)
            else:
                found.append(int(operand) & 0xFFFFFFFF)
        return [(len(found) + 1) << 16 | self.op, *found]


class Assembly:
    """Sections of instructions; ids are handed out in order, so equal input gives equal bytes."""

    def __init__(self) -> None:
        self._sections: dict[str, list[Instruction]] = {name: [] for name in SECTIONS}
        self._bound = 1

    def new_id(self) -> Id:
        """A fresh id."""
        self._bound += 1
        return Id(self._bound - 1)

    def add(self, section: str, op: Op, *operands: Operand) -> None:
        """Append an instruction without a result."""
        self._sections[section].append(Instruction(op, operands))

    def define(self, section: str, op: Op, *operands: Operand, type: Id | None = None) -> Id:
        """Append an instruction and give its result."""
        result = self.new_id()
        self._sections[section].append(Instruction(op, operands, result, type))
        return result

    def extend(self, section: str, instructions: list[Instruction]) -> None:
        """Append instructions made elsewhere."""
        self._sections[section].extend(instructions)

    def instructions(self) -> Iterator[Instruction]:
        """All instructions, in the order of a module."""
        for name in SECTIONS:
            yield from self._sections[name]

    def encode(self) -> bytes:
        """The module without names, so that equal kernels have equal modules: little-endian words."""
        words = [MAGIC, VERSION, GENERATOR, self._bound, 0]
        for instruction in self.instructions():
            if instruction.op is not Op.Name:
                words.extend(instruction.words())
        return struct.pack(f"<{len(words)}I", *words)


def _string(text: str) -> list[int]:
    """UTF-8 with a terminating zero, filled up to whole words."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))
