"""An answer of a language model while it is made: its tokens, and the text that is sure by now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tflgpu.errors import InputError
from tflgpu.errors.blame import shown
from tflgpu.ir.dtypes import Array
from tflgpu.language_models.prompt_rules import Token
from tflgpu.language_models.sampling import Sampling
from tflgpu.language_models.tokenizer import Tokenizer
from tflgpu.values import frozen

#: What stands for a character of which only some bytes are there.
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@frozen
class Generation:
    """An answer; as text it is that.

    Attributes:
        text: Without what ended it.
        tokens: Of the answer, a token that ended it among them.
        prompt_tokens: How many the prompt has.
        reason: What ended it: "stop", "length" (as many as were asked for) or "room" (of the
            caches).
        seconds: Until the first token, and from there to the last.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    reason: str
    seconds: tuple[float, float]

    def __str__(self) -> str:
        """The text."""
        return self.text


@frozen
class Stops:
    """What ends an answer.

    Attributes:
        tokens: Any of these sequences of tokens.
        texts: Any of these texts.
    """

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]

    def count(self, tokens: Sequence[int]) -> int:
        """How many tokens at the end of these end the answer; 0 where it goes on."""
        return next((len(s) for s in self.tokens if tuple(tokens[-len(s) :]) == s), 0)

    def cut(self, text: str) -> int:
        """Where the first of the texts begins in a text; -1 where there is none."""
        found = [at for at in (text.find(stop) for stop in self.texts) if at >= 0]
        return min(found, default=-1)

    def sure(self, text: str) -> int:
        """How much of a text does not depend on what follows: no text that may come begins in
        it."""
        end = len(text.rstrip(_UNFINISHED))
        for stop in self.texts:
            for size in range(min(len(stop) - 1, end), 0, -1):
                if text[:end].endswith(stop[:size]):
                    end -= size
                    break
        return end


class PartialAnswer:
    """An answer that grows token by token.

    Attributes:
        prompt: The prompt's tokens.
        tokens: The answer's.
        reason: What ended it, as `Generation`; "" as long as it goes on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stops: Stops,
        sampling: Sampling,
        random: np.random.Generator,
        most: int,
        last: str,
    ) -> None:
        """An answer of at most ``most`` tokens, which end it for the reason ``last``."""
        self.prompt = prompt
        self.tokens: list[int] = []
        self.reason = ""
        self._tokenizer, self._stops = tokenizer, stops
        self._sampling, self._random = sampling, random
        self._most, self._last = most, last
        self._given = 0  # characters that were given out
        self._seconds: list[float] = []

    def add(self, logits: Array, seconds: float) -> str:
        """Choose the next token; gives the text that is sure by it."""
        self._seconds.append(seconds)
        known = logits[: self._tokenizer.size]  # models have logits for more, to a round number
        self.tokens.append(self._sampling.choose(known, self._random))
        ended = self._stops.count(self.tokens)
        text = self._tokenizer.decode(self.tokens[: len(self.tokens) - ended])
        cut = self._stops.cut(text)
        if ended or cut >= 0:
            self.reason = "stop"
        elif len(self.tokens) >= self._most:
            self.reason = self._last
        sure = len(text) if self.reason else self._stops.sure(text)
        end = cut if cut >= 0 else sure
        begin, self._given = self._given, max(self._given, end)
        return text[begin : self._given]

    def generation(self, text: str) -> Generation:
        """The answer, with its text."""
        first, last = self._seconds[0], self._seconds[-1]
        return Generation(
            text, tuple(self.tokens), len(self.prompt), self.reason, (first, last - first)
        )


class AnswerStream(Iterator[str]):
    """The pieces of an answer as they come."""

    def __init__(self, answer: PartialAnswer, pieces: Iterator[str]) -> None:
        """Of an answer that ``pieces`` makes."""
        self._answer, self._pieces = answer, pieces
        self._text = ""

    def __next__(self) -> str:
        """The next piece.

        Raises:
            StateError: another prompt was begun, or the model is closed.
            DeviceError: the device failed.
        """
        piece = next(self._pieces)
        self._text += piece
        return piece

    @property
    def generation(self) -> Generation | None:
        """The whole answer; None as long as it goes on."""
        return self._answer.generation(self._text) if self._answer.reason else None


def numbers_of(token: Token, tokenizer: Tokenizer) -> list[int]:
    """The tokens that a bundle means."""
    if not isinstance(token, str):
        return list(token)
    number = tokenizer.number_of(token)
    return tokenizer.encode(token) if number is None else [number]


def stops_of(stops: Sequence[Token], tokenizer: Tokenizer) -> Stops:
    """What ends an answer: a text that is a token as that, another one as text.

    Raises:
        InputError: one is neither tokens nor a text, or is empty.
    """
    tokens: list[tuple[int, ...]] = []
    texts: list[str] = []
    for stop in stops:
        if not isinstance(stop, (str, tuple)) or not stop:
            raise InputError(f"a stop is a text that is not empty, not {shown(stop)}")
        number = tokenizer.number_of(stop) if isinstance(stop, str) else None
        if number is not None:
            tokens.append((number,))
        if isinstance(stop, str):
            texts.append(stop)
        else:
            tokens.append(stop)
    return Stops(tuple(tokens), tuple(texts))
