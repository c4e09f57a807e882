"""Texts as tokens: by SentencePiece, or by Hugging Face's tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import Failed, attempt, in_a_line
from tflgpu.language_models.bundle import Bundle


class Tokenizer(Protocol):
    """What a language model needs of a tokenizer."""

    @property
    def size(self) -> int:
        """How many tokens there are, from 0 on."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any at its beginning or end."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no text yet are U+FFFD."""

    def number_of(self, text: str) -> int | None:
        """The token whose text this is; None where there is none."""


class SentencePieceTokenizer:
    """A SentencePiece model, read by the package sentencepiece."""

    def __init__(self, content: bytes) -> None:
        """Read the bytes of a model.

        Raises:
            UnsupportedError: the package is not installed.
            ModelError: the bytes are no such model.
        """
        package = _package("sentencepiece", "a SentencePiece model")
        self._inner = package.SentencePieceProcessor()
        read = attempt(self._inner.LoadFromSerializedProto, content)
        if isinstance(read, Failed):
            raise _damaged(read.error)

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return int(self._inner.GetPieceSize())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any at its beginning or end."""
        return [int(n) for n in self._inner.EncodeAsIds(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no text yet are U+FFFD."""
        return str(self._inner.DecodeIds(list(tokens)))

    def number_of(self, text: str) -> int | None:
        """The token whose text this is; None where there is none."""
        found = int(self._inner.PieceToId(text))
        return None if found == self._inner.unk_id() else found


class HuggingFaceTokenizer:
    """A ``tokenizer.json``, read by the package tokenizers."""

    def __init__(self, text: str) -> None:
        """Read the text of such a file.

        Raises:
            UnsupportedError: the package is not installed.
            ModelError: the text is no such tokenizer.
        """
        package = _package("tokenizers", "a tokenizer.json")
        read = attempt(package.Tokenizer.from_str, text)
        if isinstance(read, Failed):
            raise _damaged(read.error)
        self._inner = read
        self._size = 1 + max(map(int, read.get_vocab().values()), default=-1)

    @property
    def size(self) -> int:
        """One more than the largest token, added ones among them."""
        return self._size

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any at its beginning or end."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no text yet are U+FFFD."""
        return str(self._inner.decode(list(tokens)))

    def number_of(self, text: str) -> int | None:
        """The token whose text this is; None where there is none."""
        found = self._inner.token_to_id(text)
        return None if found is None else int(found)


def tokenizer_of(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a bundle.

    Raises:
        ModelError: there is none, or it is damaged.
        UnsupportedError: the package that reads it is not installed.
    """
    if bundle.sentencepiece is not None:
        return SentencePieceTokenizer(bundle.sentencepiece)
    if bundle.hugging_face is not None:
        return HuggingFaceTokenizer(bundle.hugging_face)
    raise ModelError(
        f"{bundle.name} has no tokenizer; give one by tokenizer=PATH (--tokenizer): a "
        "tokenizer.json, or a SentencePiece model"
    )


def _package(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UnsupportedError(
            f"the model's tokenizer is {what}, which the package {name} reads; install it: "
            "pip install tflgpu[text]"
        ) from None


def _damaged(error: BaseException) -> ModelError:
    return ModelError(f"the tokenizer cannot be read: {in_a_line(error)}; fetch the bundle again")
