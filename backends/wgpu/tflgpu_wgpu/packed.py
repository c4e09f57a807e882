"""8- and 16-bit integers in buffers, which WGSL does not have: four or two of them lie in a word.

Invocations may store into one word, so a buffer that is written consists of atomic words. A store
of less than a word clears the element's bits and then sets them; no other invocation has to do with
these bits.
"""

from __future__ import annotations

import attrs
from tflgpu.language.code import ATOM, Code
from tflgpu.language.defining import DefiningPrinter
from tflgpu.language.tree import KernelBuffer, Load, Store
from tflgpu.language.types import I32, Scalar, Type

_WORD = 32
_U32 = Type(Scalar.U32)


@attrs.frozen
class Element:
    """Where an element lies.

    Attributes:
        bits: Of a lane.
        words: The words that it is in, or is a part of.
        shift: The first of its bits in the first word; "" for 0.
    """

    bits: int
    words: tuple[str, ...]
    shift: str

    def lane(self, index: int) -> tuple[str, str]:
        """The word of a lane, and the first of its bits there."""
        word, bit = divmod(index * self.bits, _WORD)
        return self.words[word], f"{self.shift} + {bit}u" if self.shift else f"{bit}u"


class PackedPrinter(DefiningPrinter):
    """Prints loads and stores of such buffers.

    Attributes:
        band: Bytes in front of every buffer's first element.
    """

    band = 0

    def packed_type(self, buffer: KernelBuffer) -> str:
        """What the buffer consists of."""
        return "u32" if buffer.access == "read" else "atomic<u32>"

    def packed_load(self, expr: Load, index: Code) -> Code:
        """An element or a lane, as i32."""
        buffer, lanes = expr.buffer, expr.type.width
        element = self._element(buffer, index, lanes)
        read = [w if buffer.access == "read" else f"atomicLoad(&{w})" for w in element.words]
        if lanes > 1:
            read = [self._named(Code(word, ATOM - 1), _U32) for word in read]
        element = attrs.evolve(element, words=tuple(read))
        found = []
        for i in range(lanes):
            word, first = element.lane(i)
            if buffer.scalar is Scalar.U8:
                found.append(f"i32(extractBits({word}, {first}, {element.bits}u))")
            else:
                found.append(f"extractBits(bitcast<i32>({word}), {first}, {element.bits}u)")
        return Code(found[0] if lanes == 1 else f"{self.type_name(expr.type)}({', '.join(found)})")

    def packed_store(self, stmt: Store, index: Code, value: Code) -> str:
        """Write an element or a lane; of the value its last bits."""
        lanes = stmt.value.type.width
        element = self._element(stmt.buffer, index, lanes)
        name = self._named(Code(value.text, ATOM - 1), stmt.value.type)
        parts: dict[str, list[str]] = {}
        for i in range(lanes):
            lane = name if lanes == 1 else f"{name}.{'xyzw'[i]}"
            word, first = element.lane(i)
            bits = f"(bitcast<u32>({lane}) & {(1 << element.bits) - 1:#x}u) << ({first})"
            parts.setdefault(word, []).append(f"({bits})")
        if not element.shift:
            return " ".join(f"atomicStore(&{w}, {' | '.join(b)});" for w, b in parts.items())
        ((word, packed),) = parts.items()
        mask = f"{(1 << element.bits * lanes) - 1:#x}u << {element.shift}"
        self._line(f"atomicAnd(&{word}, ~({mask}));")
        return f"atomicOr(&{word}, {' | '.join(packed)});"

    # Inside

    def _element(self, buffer: KernelBuffer, index: Code, lanes: int) -> Element:
        bits = 8 * buffer.scalar.itemsize
        size, skip = bits * lanes, self.band * 8 // (bits * lanes)
        at = self._named(self.infix("add", index, Code(str(skip))) if skip else index, I32)
        name = self.names[buffer.name]
        if size >= _WORD:
            count = size // _WORD
            places = [at] if count == 1 else [f"{at} * {count} + {i}" for i in range(count)]
            return Element(bits, tuple(f"{name}[{place}]" for place in places), "")
        each = _WORD // size
        word = f"{name}[{at} >> {each.bit_length() - 1}u]"
        shift = self._named(Code(f"u32({at} & {each - 1}) * {size}u", ATOM - 1), _U32)
        return Element(bits, (word,), shift)

    def _named(self, code: Code, type: Type) -> str:
        """A name for a value that is used several times."""
        if code.level >= ATOM:
            return code.text
        ident = self.names.fresh("part")
        self._line(self.declare(ident, type, code.text, False))
        return ident
