"""Texts as inputs: from words to the numbers that a vocabulary gives them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import frozen

from tflgpu.errors import InputError
from tflgpu.ir.dtypes import Array
from tflgpu.tools.metadata_values import ModelMetadata, Tokenizer
from tflgpu.tools.port import ModelPort

#: Between words, where nothing else is said.
_BETWEEN = r"[^\w\']+"
_START, _PAD, _UNKNOWN = "<START>", "<PAD>", "<UNKNOWN>"
_MARKS = ("[CLS]", "[SEP]", "[PAD]")
_LONGEST = 200  # characters of a word that is looked for in pieces


@frozen
class Vocabulary:
    """Words and their numbers, and how a text is cut into words: "regex", "bert", or
    "sentencepiece" by ``pieces``, a function from a text to numbers."""

    numbers: Mapping[str, int]
    kind: str = "regex"
    pattern: str = _BETWEEN
    pieces: Callable[[str], list[int]] | None = None

    @property
    def is_framed(self) -> bool:
        """Whether a text's numbers lie between [CLS] and [SEP], as BERT's models take them."""
        return self.kind != "regex"


def vocabulary_of(lines: Sequence[str], kind: str = "", pattern: str = "") -> Vocabulary:
    """Of a file's lines: a word a line, or a word and its number. ``kind`` is "bert" where it is
    not said and there is a word ``[CLS]``.

    Raises:
        InputError: a pattern that may take for ever.
    """
    parts = [line.rsplit(None, 1) for line in lines]
    if all(len(p) == 2 and p[1].isascii() and p[1].isdigit() for p in parts if p):
        numbers = {p[0]: int(p[1][:9]) for p in parts if p}
    else:
        numbers = {line: i for i, line in enumerate(lines)}
    pattern = pattern or _BETWEEN
    # Groups may be repeated inside of repetitions, which takes Python's matcher exponential time.
    if "(" in pattern or len(pattern) > 100:
        raise InputError(f"the pattern {pattern[:100]!r} between words is not read: it has groups")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"the pattern {pattern!r} between words is none: {error}") from error
    return Vocabulary(numbers, kind or ("bert" if "[CLS]" in numbers else "regex"), pattern)


def sentence_pieces(model: bytes) -> Vocabulary:
    """Of a SentencePiece model.

    Raises:
        InputError: the package is not installed, or it does not read the model.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise InputError(
            "texts for this model are cut by SentencePiece, which is not installed: "
            "`pip install tflgpu[text]`; or give a .npy file of the numbers"
        ) from None
    try:
        made = SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the SentencePiece model behind the file is damaged: {error}") from error
    marks = {name: made.piece_to_id(name) for name in _MARKS}
    known = {name: number for name, number in marks.items() if number != made.unk_id()}
    return Vocabulary({"[PAD]": max(made.pad_id(), 0), **known}, "sentencepiece", "", made.encode)


def tokenizer_of(metadata: ModelMetadata | None) -> Tokenizer | None:
    """The tokenizer that metadata have for the model or its first input with one."""
    if metadata is None:
        return None
    found = (t.tokenizer for t in metadata.inputs if t.tokenizer is not None)
    return metadata.tokenizer or next(found, None)


def text_arrays(text: str, ports: Sequence[ModelPort], words: Vocabulary) -> dict[int, Array]:
    """An array for each input by index: numbers of words, and of BERT's models which of them are
    words (mask), and zeros for the one sentence (segment).

    Raises:
        InputError: inputs that take no numbers of words.
    """
    found = {}
    for port in ports:
        if port.dtype.kind not in "fi" or port.shape[:1] != (1,) or len(port.shape) != 2:
            raise InputError(
                f"input {port.name} ({port.dtype}{list(port.open_shape)}) takes no words"
            )
        open_size = port.open_shape[1] == -1
        ids = _framed(text, words) if words.is_framed else _plain(text, words)
        size = max(len(ids), 1) if open_size else port.shape[1]
        if words.is_framed and len(ids) > size:
            ids = [*ids[: size - 1], ids[-1]]
        ids = ids[:size]
        pad = words.numbers.get("[PAD]" if words.is_framed else _PAD, 0)
        name = f"{port.said.name} {port.name}".lower()
        if "mask" in name:
            row = [1] * len(ids) + [0] * (size - len(ids))
        elif "segment" in name or "type" in name:
            row = [0] * size
        else:
            row = ids + [pad] * (size - len(ids))
        found[port.index] = np.array([row], port.dtype)
    return found


def _plain(text: str, words: Vocabulary) -> list[int]:
    unknown = words.numbers.get(_UNKNOWN, 0)
    start = [words.numbers[_START]] if _START in words.numbers else []
    parts = [part for part in re.split(words.pattern, text) if part]
    known = words.numbers
    return start + [known.get(part, known.get(part.lower(), unknown)) for part in parts]


def _framed(text: str, words: Vocabulary) -> list[int]:
    known = words.numbers
    found = _bert(text, known) if words.pieces is None else words.pieces(text)
    begin, end = ([known[mark]] if mark in known else [] for mark in ("[CLS]", "[SEP]"))
    return [*begin, *found, *end]


def _bert(text: str, known: Mapping[str, int]) -> list[int]:
    unknown = known.get("[UNK]", 0)
    plain = unicodedata.normalize("NFD", text.lower())
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    found: list[int] = []
    for word in re.findall(r"\w+|[^\w\s]", plain.replace("_", " _ ")):
        found += _pieces(word, known) or [unknown]
    return found


def _pieces(word: str, known: Mapping[str, int]) -> list[int]:
    """The numbers of the longest known pieces from the left; none where some part is unknown."""
    found, start = [], 0
    if len(word) > _LONGEST:
        return []
    while start < len(word):
        mark = "##" * bool(start)
        end = next((e for e in range(len(word), start, -1) if mark + word[start:e] in known), None)
        if end is None:
            return []
        found.append(known[mark + word[start:end]])
        start = end
    return found
