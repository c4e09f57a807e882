"""A module as text, in the form that spirv-dis prints and spirv-as reads."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

from tflgpu.language.code import Names

from tflgpu_vulkan.spirv.asm import SECTIONS, Assembly, Id, Literal, quoted
from tflgpu_vulkan.spirv.grammar import WITHOUT_RESULT, WITHOUT_TYPE, Op

_MARGIN = 24


def listing(assembly: Assembly) -> str:
    """The whole module. Ids that have a name of their own go by it."""
    names = _names(assembly)
    lines = ["; SPIR-V 1.3"]
    for section in SECTIONS:
        if section == "names":
            lines += [_named(target, text, names) for target, text in assembly.titles.items()]
        lines += [_line(*each, names) for each in _instructions(assembly.section(section))]
    return "\n".join(lines) + "\n"


def _names(assembly: Assembly) -> dict[int, str]:
    # An id that is all digits would be a number.
    free = Names((), lambda ident: ident[0].isdigit())
    names: dict[int, str] = {}
    for target, text in assembly.titles.items():
        stem = re.sub(r"\W", "_", text, flags=re.ASCII)
        names[target] = free.fresh(stem or "_")
    return names


def _instructions(words: list[int]) -> Iterator[tuple[Op, list[int]]]:
    """The instructions that a section's words are, each with what follows its first word."""
    at = 0
    while at < len(words):
        op, size = Op(words[at] & 0xFFFF), words[at] >> 16
        yield op, words[at + 1 : at + size]
        at += size


def _named(target: int, text: str, names: dict[int, str]) -> str:
    return f"{' ' * _MARGIN}OpName {_id(target, names)} {quoted(text)}"


def _line(op: Op, words: list[int], names: dict[int, str]) -> str:
    result = None
    parts = [f"Op{op.name}"]
    if op in WITHOUT_TYPE:
        result, *words = words
    elif op not in WITHOUT_RESULT:
        kind, result, *words = words
        parts.append(_id(kind, names))
    parts += [text for word in words if (text := _operand(word, names))]
    line = " ".join(parts)
    if result is None:
        return " " * _MARGIN + line
    return f"{_id(result, names):>{_MARGIN - 3}} = {line}"


def _operand(word: int, names: dict[int, str]) -> str:
    if isinstance(word, Id):
        return _id(word, names)
    if isinstance(word, Literal):
        return word.text
    if isinstance(word, enum.Enum):
        # What Python cannot have as a member's name.
        return "None" if word.name == "NoHint" else str(word.name)
    return str(word)


def _id(value: int, names: dict[int, str]) -> str:
    return "%" + names.get(value, str(int(value)))
