"""SKIP_GRAM: the groups of words in a text, some words between them left out. TFLite version 1.

It takes and gives texts only, so that no graph has it: the host runs it (`tflgpu.flow.texts`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tflgpu.errors import DynamicError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import Accuracy, Arrays, Contents, Fields, OpDef, Operands
from tflgpu.values import frozen

#: What C's isspace takes for one, in the C locale.
_SPACES = frozenset(b" \t\n\v\f\r")
#: Groups that one run may find.
_MOST = 1 << 20


@frozen
class SkipGram:
    """``size`` words a group, at most ``skip`` left out between two of them; with ``every`` groups
    of fewer words too."""

    size: int
    skip: int
    every: bool


def _parse(fields: Fields) -> SkipGram:
    return SkipGram(
        fields.integer("ngram_size"),
        fields.integer("max_skip_size"),
        fields.flag("include_all_ngrams"),
    )


def _infer(attributes: SkipGram, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands("SKIP_GRAM", operands, 1)
    if x.dtype is not DType.STRING:
        raise ModelError(f"SKIP_GRAM takes texts, not {x.dtype.value}")
    if 0 in x.shape:
        raise ModelError(f"SKIP_GRAM takes a text; its operand of shape {list(x.shape)} has none")
    if x.data is None:
        raise DynamicError("SKIP_GRAM: the text (operand 0) must be a constant")
    return [TensorSpec((len(_groups(attributes, x.data)),), DType.STRING)]


def _reference(attributes: SkipGram, arrays: Arrays) -> list[Array]:
    groups = _groups(attributes, present(arrays[0]))
    found = np.empty(len(groups), np.object_)
    found[:] = groups
    return [found]


def _groups(attributes: SkipGram, texts: Array) -> list[bytes]:
    """Of the first text; TFLite's kernel does not look at others."""
    words = _words(texts.reshape(-1)[0])
    if len(words) < attributes.size:
        return []  # not even the smaller ones
    found: list[bytes] = []
    for group in _chosen(attributes, len(words)):
        found.append(b" ".join(words[i] for i in group))
        if len(found) > _MOST:
            raise ModelError(f"SKIP_GRAM finds more than {_MOST:,} groups of words")
    return found


def _words(text: bytes) -> list[bytes]:
    """As TFLite's kernel splits: it looks for the end of a word from the second byte on, so that a
    space in front hides the word behind it, unless that ends the text."""
    words, first = [], 0
    for i in range(1, len(text)):
        if text[i] in _SPACES:
            if i > first and text[first] not in _SPACES:
                words.append(text[first:i])
            first = i + 1
    if len(text) > first:
        words.append(text[first:])
    return words


def _chosen(attributes: SkipGram, words: int) -> Iterator[tuple[int, ...]]:
    """Groups of words by number, in TFLite's order: what begins with a group comes before it.

    Nothing is begun that too few words follow to become a group, so that none are looked for in
    vain.
    """

    def begins(first: int, stop: int, missing: int) -> Iterator[int]:
        """Where the next of ``missing`` words may be."""
        enough = words if attributes.every else words - missing + 1
        return iter(range(first, min(stop, enough) if missing > 0 else first))

    group: list[int] = []
    ahead = [begins(0, words, attributes.size)]
    while ahead:
        following = next(ahead[-1], None)
        if following is not None:
            group.append(following)
            stop = following + attributes.skip + 2
            deeper = begins(following + 1, stop, attributes.size - len(group))
            ahead.append(deeper)
            continue
        ahead.pop()
        if group:
            if attributes.every or len(group) == attributes.size:
                yield tuple(group)
            group.pop()


SKIP_GRAM = OpDef(
    "SKIP_GRAM",
    _parse,
    _infer,
    _reference,
    tuple,
    accuracy=Accuracy.EXACT,
    contents=Contents(texts=True),
)
