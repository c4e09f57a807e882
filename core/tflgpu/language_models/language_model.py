"""`LanguageModel`: a bundle that answers prompts; `generate`, the same in one call."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from tflgpu.backend_kit.forks import OfProcess
from tflgpu.backend_kit.run_guard import Closable, RunGuard
from tflgpu.compiler.report import DelegationReport
from tflgpu.errors import InputError, ModelError, OptionError, StateError
from tflgpu.errors.blame import shown
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.language_models.answer import (
    AnswerStream,
    Generation,
    PartialAnswer,
    numbers_of,
    stops_of,
)
from tflgpu.language_models.bundle import read_bundle
from tflgpu.language_models.decoder import Decoder
from tflgpu.language_models.sampling import SamplingRequest
from tflgpu.language_models.tokenizer import tokenizer_of
from tflgpu.options import DelegateOptions
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.options.kinds import WholeNumber
from tflgpu.tflite.source import Source

#: What asks for a delegate of the model's own.
_DEVICE = frozenset({"backend", "device"})


class LanguageModel(Closable, OfProcess):
    """A language model that answers prompts.

        with tflgpu.LanguageModel("model.litertlm") as model:
            print(model.generate("Why is the sky blue?"))
            for piece in model.stream("And at sunset?"):
                print(piece, end="", flush=True)

    It runs on the best GPU there is, or by LiteRT's kernels where there is none. Each prompt is one
    for itself. Threads may share it: their calls wait for one another.
    """

    def __init__(
        self,
        model: Source,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        delegate: GpuDelegate | DelegateOptions | None = None,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Open a bundle.

        Args:
            model: Path of a ``.litertlm`` or ``.task`` file, or of a ``.tflite`` file with
                signatures ``prefill_N`` and ``decode``; or what is in it.
            tokenizer: A ``tokenizer.json`` or a SentencePiece model, in the place of the bundle's.
            delegate: Runs it; it stays the caller's, and must be closed after the model. Or options
                of the default one.
            options: Those of `DelegateOptions`, where there is no delegate.

        Raises:
            ModelError: no such file, a damaged bundle, no language model, or a tokenizer that does
                not fit it.
            UnsupportedError: a kind of bundle or model that is not run here, or a package that
                lacks.
            OptionError: an unknown option, or options beside a delegate.
            DeviceError: the backend or device asked for is not there.
        """
        self._guard = RunGuard("this language model")
        self._turn = 0  # how many prompts were begun
        if delegate is not None and options:
            raise OptionError(f"{', '.join(options)}: options are for a model without a delegate")
        bundle = read_bundle(model, tokenizer)
        self._rules, self._tokenizer = bundle.rules, tokenizer_of(bundle)
        own = None
        if delegate is None and not _DEVICE.isdisjoint(options):
            own = delegate = GpuDelegate(**options)
        given: Any = DelegateOptions.gathered(options) if delegate is None else delegate
        if not isinstance(given, DelegateOptions):
            given = [given]
        opened: list[Any] = [] if own is None else [own]
        self._end = weakref.finalize(self, _close, opened)
        try:
            self._interpreter = Interpreter(
                model_content=bundle.model, experimental_delegates=given
            )
            opened.insert(0, self._interpreter)
            self._decoder = Decoder(self._interpreter, bundle.rules.most)
            self._check(bundle.name)
        except BaseException:
            self._end()
            raise

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        raw: bool = False,
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: A text.
            max_tokens: Most tokens of the answer; None is as many as there is room for.
            temperature: 0 takes the likeliest token each time. None is the bundle's, or 0.
            top_k: Only so many of the likeliest tokens; None is the bundle's, or all.
            top_p: Only the likeliest that have this probability together; likewise.
            seed: Of the choice; None is another one each time.
            stop: Texts that end the answer, besides the bundle's.
            raw: Whether the prompt is taken as it is, without what the bundle writes around it.

        Raises:
            InputError: a prompt that is no text, is empty, or has more tokens than there is room
                for.
            OptionError: a number out of its range.
            StateError: closed, or called from inside its own call.
            DeviceError: the device failed.
        """
        answer = self._begun(
            prompt, max_tokens, SamplingRequest(temperature, top_k, top_p), seed, stop, is_raw=raw
        )
        with self._guard:
            text = "".join(self._pieces(answer, contextlib.nullcontext()))
        return answer.generation(text)

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        raw: bool = False,
    ) -> AnswerStream:
        """The pieces of an answer as they come; arguments as those of `generate`. Another prompt
        ends it.

        Raises:
            As `generate`; when a piece is asked for, also StateError: another prompt was begun.
        """
        answer = self._begun(
            prompt, max_tokens, SamplingRequest(temperature, top_k, top_p), seed, stop, is_raw=raw
        )
        return AnswerStream(answer, self._pieces(answer, self._guard))

    @property
    def report(self) -> DelegationReport:
        """Which operators of a step run where, and why.

        Raises:
            StateError: closed or in use.
            UnsupportedError, DeviceError: it cannot be compiled.
        """
        with self._guard:
            return self._decoder.report

    # Inside

    def _close(self) -> None:
        self._guard.close(self._end)

    def _check(self, name: str) -> None:
        """That the tokenizer fits the model."""
        count, most = self._tokenizer.size, self._decoder.vocabulary
        if count > most:
            raise ModelError(
                f"{name}: the tokenizer has {count} tokens and the model logits for {most}, so "
                "that it is another model's; give the right one by tokenizer="
            )

    def _begun(
        self,
        prompt: str,
        max_tokens: int | None,
        request: SamplingRequest,
        seed: int | None,
        stop: str | Sequence[str],
        *,
        is_raw: bool,
    ) -> PartialAnswer:
        """An answer that is to be made, when everything about it is checked."""
        if not isinstance(prompt, str):
            raise InputError(f"a prompt is a text, not {shown(prompt)}")
        if max_tokens is not None:
            WholeNumber().read("max_tokens", max_tokens)
        rules, tokenizer = self._rules, self._tokenizer
        text = prompt if is_raw else f"{rules.prefix}{prompt}{rules.suffix}"
        tokens = [*numbers_of(rules.start, tokenizer), *tokenizer.encode(text)]
        self._decoder.check(tokens)
        stops = [*rules.stops, *([stop] if isinstance(stop, str) else stop)]
        room = self._decoder.room - len(tokens)
        most = room if max_tokens is None else min(room, max_tokens)
        return PartialAnswer(
            tokenizer,
            tokens,
            stops_of(stops, tokenizer),
            request.sampling(rules),
            np.random.default_rng(seed),
            most,
            "length" if max_tokens is not None and max_tokens <= room else "room",
        )

    def _pieces(self, answer: PartialAnswer, guard: AbstractContextManager[Any]) -> Iterator[str]:
        began = time.perf_counter()
        with guard:
            logits = self._decoder.prompt(answer.prompt)
            self._turn = turn = self._turn + 1
        while True:
            piece = answer.add(logits, time.perf_counter() - began)
            if piece:
                yield piece
            if answer.reason:
                return
            with guard:
                if self._turn != turn:
                    raise StateError("another prompt was begun, which ended this answer")
                logits = self._decoder.next(answer.tokens[-1])


def generate(
    model: Source | LanguageModel,
    prompt: str,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    raw: bool = False,
    **options: Unpack[OptionKeywords],
) -> Generation:
    """Answer a prompt by a language model: a bundle, which is opened and closed again, or an open
    `LanguageModel`. Arguments are those of `LanguageModel` and `LanguageModel.generate`.

        print(tflgpu.generate("model.litertlm", "Why is the sky blue?"))

    Raises:
        As these.
    """
    if isinstance(model, LanguageModel) and (options or tokenizer is not None):
        raise OptionError("tokenizer and options are for a model that is not open yet")
    with contextlib.ExitStack() as stack:
        opened = model
        if not isinstance(opened, LanguageModel):
            opened = stack.enter_context(LanguageModel(opened, tokenizer=tokenizer, **options))
        return opened.generate(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
            raw=raw,
        )


def _close(opened: list[Any]) -> None:
    while opened:
        opened.pop(0)._close()  # noqa: SLF001
