"""A SPIR-V module as it is written: ids, and sections of words in their order.

Instructions go straight into words, as tens of thousands of them are written for a model. A word
keeps its class (an id, a literal, an enumerant), which is how `tflgpu_vulkan.spirv.listing` reads
them again.
"""

from __future__ import annotations

import struct

from tflgpu_vulkan.spirv.grammar import GENERATOR, MAGIC, VERSION, Op


class Id(int):
    """A result id."""

    __slots__ = ()


class Literal(int):
    """A word of a constant or a text, and how people read it: ``text`` is "" where a word before it
    says that."""

    text: str

    def __new__(cls, word: int, text: str) -> Literal:
        """From 32 bits, without a sign."""
        made = super().__new__(cls, word)
        made.text = text
        return made


#: The order that the specification gives a module (2.4, logical layout of a module).
SECTIONS = (
    "capabilities",
    "extensions",
    "imports",
    "memory model",
    "entry points",
    "execution modes",
    "names",
    "decorations",
    "declarations",
    "functions",
)


class Assembly:
    """Sections of instructions; ids are handed out in order, so equal input gives equal bytes.

    Attributes:
        titles: Names of ids for people. They are in no module, so that equal kernels have equal
            ones.
    """

    def __init__(self) -> None:
        self.titles: dict[int, str] = {}
        self._sections: dict[str, list[int]] = {name: [] for name in SECTIONS}
        self._bound = 1

    def new_id(self) -> Id:
        """A fresh id."""
        found = Id(self._bound)
        self._bound += 1
        return found

    def add(self, section: str, op: Op, *operands: int) -> None:
        """Append an instruction without a result."""
        self._sections[section] += (first_word(op, 1 + len(operands)), *operands)

    def define(self, section: str, op: Op, *operands: int, type: Id | None = None) -> Id:
        """Append an instruction and give its result."""
        result = self.new_id()
        made = (result,) if type is None else (type, result)
        words = first_word(op, 1 + len(made) + len(operands))
        self._sections[section] += (words, *made, *operands)
        return result

    def extend(self, section: str, words: list[int]) -> None:
        """Append instructions made elsewhere."""
        self._sections[section] += words

    def section(self, name: str) -> list[int]:
        """The words of one of `SECTIONS`."""
        return self._sections[name]

    def encode(self) -> bytes:
        """The module without names, so that equal kernels have equal modules: little-endian
        words."""
        words = [MAGIC, VERSION, GENERATOR, self._bound, 0]
        for name in SECTIONS:
            words += self._sections[name]
        return struct.pack(f"<{len(words)}I", *words)


def first_word(op: Op, words: int) -> int:
    """What an instruction of so many words begins with."""
    return words << 16 | op


def text_words(text: str) -> list[Literal]:
    """UTF-8 with a terminating zero, filled up to whole words."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    words = struct.unpack(f"<{len(data) // 4}I", data)
    return [Literal(word, "" if i else quoted(text)) for i, word in enumerate(words)]


def quoted(text: str) -> str:
    """A text as people read it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
