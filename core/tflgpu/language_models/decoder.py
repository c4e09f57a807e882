"""Runs a language model's signatures: a prompt in chunks, then token by token.

    prefill_128(tokens 0..127) -> caches -> prefill_128(128..255) -> ... -> decode(last) -> logits

Caches stay on the device; what comes from there are the logits of one token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.compiler.report import DelegationReport
from tflgpu.errors import InputError, ModelError, UnsupportedError
from tflgpu.errors.blame import listed
from tflgpu.interpreter import Interpreter, SignatureRunner
from tflgpu.ir.dtypes import Array

_TOKENS, _POSITIONS = ("tokens", "token_ids"), ("input_pos", "positions")
_MASKS, _PARAMETERS, _LOGITS = ("mask", "attn_mask"), ("param_tensor",), ("logits",)
_DECODE, _PREFILL = "decode", "prefill"
#: What hides a position in a mask of floats, as a share of the type's largest number.
_HIDDEN = 0.7


class _Step:
    """A signature, and its inputs by what they are."""

    def __init__(self, interpreter: Interpreter, key: str) -> None:
        self.key = key
        self.runner: SignatureRunner = interpreter.get_signature_runner(key, carry=True)
        self.inputs = self.runner.get_input_details()
        self.tokens = self._one(_TOKENS)
        self.positions, self.mask = self._one(_POSITIONS), self._one(_MASKS)
        self.parameters = self._one(_PARAMETERS)
        names = (self.tokens, self.positions, self.mask, self.parameters)
        unknown = [n for n in self.inputs if n not in names and n not in self.runner.carried]
        if not self.tokens or unknown:
            raise UnsupportedError(
                f"signature {key!r} has inputs {listed([*self.inputs])}; a language model has "
                f"tokens ({' or '.join(_TOKENS)}) and may have positions, a mask, param_tensor and "
                f"caches that are outputs too; {listed(unknown or ['no tokens'])} cannot be filled"
            )
        self.count = int(self.inputs[self.tokens]["shape"][-1])

    def _one(self, names: Sequence[str]) -> str:
        return next((n for n in names if n in self.inputs), "")

    def run(self, tokens: Sequence[int], at: int) -> dict[str, Array]:
        """Run on tokens that begin at a position; where they are fewer than the signature takes,
        the rest is filled up, and later tokens replace that in the caches."""
        count = self.count
        row = np.zeros(count, np.int32)
        row[: len(tokens)] = tokens
        places = np.arange(at, at + count)
        given: dict[str, Any] = {self.tokens: row}
        if self.positions:
            given[self.positions] = places
        if self.mask:
            given[self.mask] = self._visible(places)
        if self.parameters:
            numbers = np.zeros(self.inputs[self.parameters]["shape"], np.int32)
            numbers.reshape(-1)[:3] = at, at + count, at + count
            given[self.parameters] = numbers
        return self.runner(
            **{
                name: np.asarray(value, self.inputs[name]["dtype"]).reshape(
                    self.inputs[name]["shape"]
                )
                for name, value in given.items()
            }
        )

    def _visible(self, places: Array) -> Array:
        """A mask in which each token sees those up to itself."""
        details = self.inputs[self.mask]
        seen = np.arange(details["shape"][-1]) <= places[:, None]
        dtype = np.dtype(details["dtype"])
        if dtype.kind != "f":
            return seen
        return np.where(seen, 0, -_HIDDEN * np.finfo(dtype).max).astype(dtype)


class Decoder:
    """A language model as a function from tokens to logits. One thread at a time.

    Attributes:
        room: Tokens that the caches have room for.
        vocabulary: Logits of a token.
    """

    def __init__(self, interpreter: Interpreter, most: int = 0) -> None:
        """Look at a model's signatures.

        Args:
            interpreter: Of the model.
            most: Tokens of prompt and answer that the bundle allows; 0 is not said.

        Raises:
            ModelError: it has no signature ``decode``, with logits.
            UnsupportedError: an input that a language model does not have here.
        """
        keys = interpreter.get_signature_list()
        if _DECODE not in keys:
            raise ModelError(
                f"the model has no signature {_DECODE!r} but {listed([*keys]) if keys else 'none'};"
                " export a language model with litert-torch, with prefill and decode"
            )
        self._decode = _Step(interpreter, _DECODE)
        outputs = self._decode.runner.get_output_details()
        self._logits = next((n for n in _LOGITS if n in outputs), "")
        if not self._logits:
            raise ModelError(f"signature {_DECODE!r} has no logits but {listed([*outputs])}")
        self.vocabulary = int(outputs[self._logits]["shape"][-1])
        steps: list[_Step] = []
        for key in keys:
            # One that takes a picture, say, is not for a text.
            with contextlib.suppress(UnsupportedError):
                steps += [_Step(interpreter, key)] if key.startswith(_PREFILL) else []
        self._prefill = sorted(steps, key=lambda step: -step.count)
        self.room = self._room()
        if most:
            self.room = min(self.room, most)
        self._at = 0

    def check(self, tokens: Sequence[int]) -> None:
        """That a prompt can be answered.

        Raises:
            InputError: no tokens, tokens that the model lacks, or more than there is room for.
        """
        if not tokens or len(tokens) >= self.room:
            raise InputError(
                f"the prompt has {len(tokens)} tokens, and the model has room for {self.room} "
                "with its answer; give a shorter one (and at least one token), or export the model "
                "with larger caches"
            )
        unknown = [n for n in tokens if not 0 <= n < self.vocabulary]
        if unknown:
            raise InputError(
                f"token {unknown[0]} of the prompt is none of the model's {self.vocabulary}; the "
                "tokenizer is another model's"
            )

    @property
    def report(self) -> DelegationReport:
        """Which operators of a step run where, and why."""
        return self._decode.runner.report

    def prompt(self, tokens: Sequence[int]) -> Array:
        """Begin anew with a prompt; the logits [tokens] of what follows it.

        Raises:
            InputError: as `check`.
            StateError, DeviceError: as a signature's runner.
        """
        self.check(tokens)
        self._decode.runner.reset_caches()
        self._at = 0
        rest = list(tokens[:-1])
        while rest:
            step = self._chunk(len(rest))
            part, rest = rest[: step.count], rest[step.count :]
            step.run(part, self._at)
            self._at += len(part)
        return self.next(tokens[-1])

    def next(self, token: int) -> Array:
        """The logits [tokens] of what follows another token.

        Raises:
            StateError, DeviceError: as a signature's runner.
        """
        made = self._decode.run([token], self._at)[self._logits]
        self._at += 1
        return made.reshape(-1)[-self.vocabulary :]

    def _chunk(self, count: int) -> _Step:
        """What runs next of so many tokens: the largest chunk that they fill, or the smallest one,
        filled up, if there is room."""
        for step in self._prefill:
            if step.count <= count:
                return step
        smallest = self._prefill[-1] if count > 1 and self._prefill else self._decode
        return smallest if self._at + smallest.count <= self.room else self._decode

    def _room(self) -> int:
        step = self._decode
        if step.mask:
            return int(step.inputs[step.mask]["shape"][-1])
        caches = [step.inputs[name]["shape"] for name in step.runner.carried]
        rooms = {int(shape[1]) for shape in caches if len(shape) > 1}
        if not rooms:
            raise ModelError("the model has no caches: no output is an input of the next call")
        return min(rooms)
