"""Pieces of printed text: an expression's code with its precedence, names, literals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tflgpu.language.types import Scalar

# Binding strength of an expression's outermost operator, as in C.
ATOM, UNARY, MUL, ADD, SHIFT, RELATION, EQUALITY = 15, 14, 13, 12, 11, 10, 9
BIT_AND, BIT_XOR, BIT_OR, AND, OR, TERNARY = 8, 7, 6, 5, 4, 3

#: By operation: the operator, and how strongly it binds.
OPERATORS: dict[str, tuple[str, int]] = {
    "mul": ("*", MUL), "div": ("/", MUL), "rem": ("%", MUL), "add": ("+", ADD), "sub": ("-", ADD),
    "shl": ("<<", SHIFT), "shr": (">>", SHIFT), "lt": ("<", RELATION), "le": ("<=", RELATION),
    "gt": (">", RELATION), "ge": (">=", RELATION), "eq": ("==", EQUALITY), "ne": ("!=", EQUALITY),
    "and": ("&", BIT_AND), "xor": ("^", BIT_XOR), "or": ("|", BIT_OR), "land": ("&&", AND),
    "lor": ("||", OR),
}  # fmt: skip


class Code(NamedTuple):
    """The text of an expression and how strongly its outermost operator binds."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses where it binds weaker than ``level``."""
        return self.text if self.level >= level else f"({self.text})"

    @property
    def atom(self) -> str:
        """The text as an operand of anything."""
        return self.at(ATOM)


def _operand_levels(level: int) -> tuple[int, int]:
    """How strongly the operands of an operator have to bind to go without parentheses. For
    arithmetic that follows from precedence; where readers (and WGSL) do not trust it, around
    operands of shifts, bits and other logic, they are always there."""
    if level in (MUL, ADD):
        return level, level + 1  # chains read from left to right
    if level in (RELATION, EQUALITY):
        return ADD, ADD
    return (EQUALITY, EQUALITY) if level in (AND, OR) else (UNARY, UNARY)


_INFIX = {op: (sign, level, *_operand_levels(level)) for op, (sign, level) in OPERATORS.items()}


def infix(op: str, a: Code, b: Code) -> Code:
    """``a op b``."""
    sign, level, left, right = _INFIX[op]
    if level <= AND and a.level == level:
        left = level  # these chains, too, read from left to right
    first = a.text if a.level >= left else f"({a.text})"
    second = b.text if b.level >= right else f"({b.text})"
    return Code(f"{first} {sign} {second}", level)


class Names:
    """Identifiers of the kernel -> identifiers of the language: valid, free, and stable."""

    def __init__(self, used: Sequence[str], is_reserved: Callable[[str], bool]) -> None:
        self._is_reserved = is_reserved
        self._taken = set(used)
        self._of: dict[str, str] = {}

    def __getitem__(self, ident: str) -> str:
        found = self._of.get(ident)
        if found is None:
            found = re.sub(r"\W", "_", ident, flags=re.ASCII)
            if not found or found[0].isdigit():
                found = "n" + found
            if found != ident or self._is_reserved(found):
                found = self.fresh(found)
            self._of[ident] = found
        return found

    def fresh(self, stem: str) -> str:
        """An identifier that nothing else has, made from ``stem``."""
        if self._is_reserved(stem):
            stem = "k_" + stem
        name, count = stem, 0
        while name in self._taken:
            name = f"{stem}_{count}"
            count += 1
        self._taken.add(name)
        return name


def shortest(value: float, scalar: Scalar) -> str:
    """The shortest decimal that reads back as exactly this f32 or f16, with a point or an
    exponent. The value is finite."""
    lane = scalar.numpy.type(value)
    # An f16 is written as the f32 it equals, because its literal is an f32 that is converted.
    text = str(np.float32(lane))
    return text if any(c in text for c in ".e") else text + ".0"
