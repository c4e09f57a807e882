"""How a model's inputs are made of photos, sounds and texts, and how its outputs are read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import field, frozen

from tflgpu.errors import InputError, OptionError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.tools import metadata as reader
from tflgpu.tools.answer import Answer
from tflgpu.tools.decoding import KINDS, OutputRules, kind_of, read_outputs
from tflgpu.tools.metadata_values import ModelMetadata, Normalization
from tflgpu.tools.picture import (
    GUESS,
    RESIZES,
    SUFFIXES,
    Fitted,
    ImageLayout,
    fit,
    numbers_of,
    read_picture,
)
from tflgpu.tools.port import ModelPort, ports_of
from tflgpu.tools.sound import Sound, is_sound, read_sound, resampled, window_length, windows
from tflgpu.tools.words import (
    Vocabulary,
    sentence_pieces,
    text_arrays,
    tokenizer_of,
    vocabulary_of,
)

Path_ = str | os.PathLike[str]
Numbers_ = float | Sequence[float]
#: What an option is about: kinds of answers, or of inputs.
_ABOUT: Mapping[str, frozenset[str]] = {
    "labels": frozenset({"classify", "detect", "segment", "keypoints"}),
    "top": frozenset({"classify"}),
    "threshold": frozenset({"classify", "detect", "segment", "keypoints"}),
    "anchors": frozenset({"detect"}),
    "mean": frozenset({"picture"}),
    "std": frozenset({"picture"}),
    "resize": frozenset({"picture"}),
    "vocabulary": frozenset({"text"}),
    "rate": frozenset({"sound"}),
}
_MOST_TEXT = 64 << 20  # bytes of a file of labels, words or anchors


@frozen
class TaskOptions:
    """What a user says of a model, where its file does not; `Task` describes each."""

    kind: str | None = None
    labels: Path_ | Sequence[str] | None = None
    mean: Numbers_ | None = None
    std: Numbers_ | None = None
    resize: str | None = None
    top: int | None = None
    threshold: float | None = None
    anchors: Path_ | Array | None = field(default=None, eq=False)
    vocabulary: Path_ | None = None
    rate: int | None = None

    def check(self) -> None:
        """Check the values.

        Raises:
            OptionError: one is out of its range.
        """
        for name, value, known in (("kind", self.kind, KINDS), ("resize", self.resize, RESIZES)):
            if value is not None and value not in known:
                raise OptionError(f"{name} is one of {', '.join(known)}, not {value!r}")
        if self.top is not None and self.top < 1:
            raise OptionError(f"top is {self.top}; an answer has one class at least")
        if self.rate is not None and self.rate < 1:
            raise OptionError(f"rate is {self.rate}; it is samples a second")


@frozen(eq=False)
class PreparedInput:
    """A source as a model takes it: ``arrays`` by tensor index, a picture, what was done to it, and
    of a part of a sound when it begins, in seconds."""

    arrays: Mapping[int, Array]
    fitted: Fitted | None = None
    said: str = ""
    at: float | None = None


class Recipe:
    """How a model's inputs are made, and how its outputs are read.

    Attributes:
        kind: Of the answers.
        takes: "picture", "sound", "text" or "array": what the first input is made of.
        inputs, outputs: With their shapes of now.
        labels: Names by class.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        metadata: ModelMetadata | None,
        options: TaskOptions,
        batch: int = 1,
    ) -> None:
        """Of an interpreter, which computes a ``batch`` of items; `refresh` follows where its
        tensors are allocated later.

        Raises:
            OptionError: an option out of its range.
            InputError: a file of labels, anchors or words that cannot be read.
        """
        options.check()
        self.options, self.metadata, self._batch = options, metadata, batch
        self.inputs, self.outputs = ports_of(interpreter, metadata, batch)
        said = next((p.said.labels for p in self.outputs if p.said.labels), ())
        given = options.labels
        self.labels = names_by_class(said if given is None else _lines(given, "labels"))
        self.takes = _takes(self.inputs[0]) if self.inputs else "array"
        self.kind = self._kind()
        count = self.outputs[0].shape[-1] if self.outputs and self.outputs[0].shape else 0
        if self.kind == "classify" and count > 1 and [*self.labels] == [*range(count - 1)]:
            # Files of ImageNet's 1,000 classes often go with models of 1,001.
            self.labels = {0: "background"} | {i + 1: n for i, n in self.labels.items()}
        self._anchors = None if options.anchors is None else _anchors(options.anchors)
        self._words: Vocabulary | None = None

    def refresh(self, interpreter: Interpreter) -> None:
        """Look at the shapes again, after tensors were allocated."""
        self.inputs, self.outputs = ports_of(interpreter, self.metadata, self._batch)
        self.kind = self._kind()

    def _kind(self) -> str:
        guess = kind_of(self.takes, self.outputs, has_labels=bool(self.labels))
        return self.options.kind or guess

    @property
    def possible(self) -> set[str]:
        """What the first input may be made of, likely or not."""
        port = self.inputs[0] if self.inputs else None
        found = {self.takes}
        if port is not None and ImageLayout.of(port.open_shape) is not None:
            found.add("picture")
        if port is not None and window_length(port.open_shape) is not None:
            found.add("sound")
        return found

    def check_effect(self, takes: set[str], prefix: str = "", *, is_read: bool = True) -> None:
        """Check that every option that was given has an effect.

        Args:
            takes: What the inputs are made of.
            prefix: Of names in the message.
            is_read: Whether an answer is read, and not only the arrays.

        Raises:
            OptionError: one has none.
        """
        about = {self.kind, *takes} if is_read else takes
        given = [name for name in _ABOUT if getattr(self.options, name) is not None]
        useless = [f"{prefix}{name}" for name in given if not _ABOUT[name] & about]
        if useless:
            raise OptionError(
                f"{', '.join(useless)}: without effect where a model of kind {self.kind!r} runs on "
                f"input of kind {' and '.join(sorted(takes))}; leave it out"
            )

    def kind_of_source(self, source: Any, position: int = 0) -> str:
        """What a source is for an input: "array", "picture", "sound" or "text"."""
        port = self.inputs[position]
        takes = self.takes if position == 0 else _takes(port)
        if isinstance(source, (str, os.PathLike)):
            suffix = Path(source).suffix.lower()
            if suffix == ".npy":
                return "array"
            if takes == "text" and suffix not in SUFFIXES:
                return "text"
            return "sound" if suffix == ".wav" else "picture"
        if isinstance(source, Sound):
            return "sound"
        if isinstance(source, np.ndarray):
            rank = len(port.open_shape)
            is_pixels = source.dtype == np.uint8 and source.ndim in (2, 3) and source.ndim < rank
            return "picture" if is_pixels and takes == "picture" else "array"
        return "picture"

    def prepare(self, source: Any, position: int = 0) -> Iterator[PreparedInput]:
        """The runs that a source takes: one, or one for each window of a long sound.

        Args:
            source: A path of a photo, a WAV or a .npy; a PIL image; an array: u8 [H,W,3] for a
                picture, else as the input takes it; a `Sound`; for a model of texts a text, or the
                `Path` of one.
            position: Which input it is for.

        Raises:
            InputError: it cannot be read, or does not fit the input.
        """
        port, kind = self.inputs[position], self.kind_of_source(source, position)
        if kind == "picture":
            yield self._picture(source, port)
        elif kind == "sound":
            yield from self._sound(source, port)
        elif kind == "text":
            is_file = isinstance(source, os.PathLike)
            text = "\n".join(_lines(source, "text")) if is_file else str(source)
            yield PreparedInput(self._text(text, port), said=f"{len(text)} characters")
        else:
            array = read_array(source) if isinstance(source, (str, os.PathLike)) else source
            yield PreparedInput({port.index: np.asarray(array)})

    def answer(self, arrays: Sequence[Array], prepared: PreparedInput | None = None) -> Answer:
        """The answer in the outputs of a run.

        Raises:
            OptionError: outputs that do not fit the kind of the answer.
        """
        fitted = None if prepared is None else prepared.fitted
        size = (0, 0)
        layout = ImageLayout.of(self.inputs[0].shape) if self.inputs else None
        if layout is not None:
            size = layout.width, layout.height
        if fitted is not None:
            size = fitted.pixels.shape[1], fitted.pixels.shape[0]
        top, threshold = self.options.top or 5, self.options.threshold
        rule = self._normalization(self.inputs[0]) or GUESS
        reading = OutputRules(self.labels, top, threshold, self._anchors, rule, size)
        answer = read_outputs(self.kind, self.outputs, arrays, reading, fitted)
        return attrs.evolve(
            answer,
            picture=None if fitted is None else fitted.image,
            said="" if prepared is None else prepared.said,
        )

    def _normalization(self, port: ModelPort) -> Normalization | None:
        given = self.options.mean, self.options.std
        said = port.said.normalization
        if given == (None, None):
            return said
        mean, std = (
            tuple(np.atleast_1d(n).astype(float)) if n is not None else None for n in given
        )
        base = said or GUESS
        return Normalization(mean or base.mean, std or base.std)

    def _picture(self, source: Any, port: ModelPort) -> PreparedInput:
        layout = ImageLayout.of(port.open_shape)
        if layout is None:
            raise InputError(
                f"{_shown(source)}: input {port.name} has shape {list(port.open_shape)}, which "
                "takes no image; an image needs [1, height, width, 1, 3 or 4 channels], or the "
                "channels first. Give a .npy file"
            )
        fitted = fit(read_picture(source), layout, port.said.size, self.options.resize or "stretch")
        rule = self._normalization(port)
        try:
            array, done = numbers_of(fitted.pixels, port, layout, rule)
        except InputError as error:
            raise InputError(f"{_shown(source)}: {error}") from None
        if rule is None and port.dtype.kind == "f":
            done += ", a guess: --mean and --std, or Task(mean=..., std=...), say it"
        return PreparedInput({port.index: array}, fitted, f"{fitted.said}, {done}")

    def _sound(self, source: Any, port: ModelPort) -> Iterator[PreparedInput]:
        sound = source if isinstance(source, Sound) else read_sound(source)
        rate = self.options.rate or port.said.sample_rate
        said = f"{len(sound.samples) / sound.rate:.2f} s of sound at {sound.rate} Hz"
        if rate and rate != sound.rate:
            sound = resampled(sound, rate)
            said += f" to {rate} Hz"
        elif not rate:
            said += ", a guess: --rate, or Task(rate=...), says what the model takes"
        parts = windows(sound, port)
        for at, array in parts:
            part = f", from {at:.2f} s" if len(parts) > 1 else ""
            yield PreparedInput({port.index: array}, said=said + part, at=at if part else None)

    def _text(self, text: str, port: ModelPort) -> dict[int, Array]:
        if port.dtype.kind == "S":
            return {port.index: np.array([text.encode()], object).reshape((1,) * len(port.shape))}
        if self._words is None:
            self._words = self._vocabulary(port)
        return text_arrays(text, self.inputs if self._words.is_framed else [port], self._words)

    def _vocabulary(self, port: ModelPort) -> Vocabulary:
        said = tokenizer_of(self.metadata)
        if self.options.vocabulary is not None:
            lines = _lines(self.options.vocabulary, "vocabulary")
            return vocabulary_of(lines, pattern="" if said is None else said.pattern)
        if said is None or self.metadata is None:
            raise InputError(
                f"input {port.name} takes numbers of words, and the file does not say which; give "
                "the model's vocabulary (--vocabulary FILE, Task(vocabulary=...)), or a .npy file "
                "of numbers"
            )
        if said.kind == "sentencepiece" and said.model:
            return sentence_pieces(self.metadata.read(said.model[0]))
        if not said.vocabulary:
            raise InputError(
                f"texts for this model are cut by {said.kind}, and no file behind it says how; "
                "give a .npy file of the numbers"
            )
        lines = reader.lines_of(self.metadata.read(said.vocabulary[0]))
        return vocabulary_of(lines, said.kind, said.pattern)


def names_by_class(lines: Sequence[str]) -> dict[int, str]:
    """Names by class of a file's lines: one a line, or all with their numbers ("3 dog")."""
    parts = [re.fullmatch(r"(\d{1,9})[\s:,]+(\S.*)", line) for line in lines]
    if lines and all(parts):
        return {int(p[1]): p[2] for p in parts if p}
    return dict(enumerate(lines))


def _takes(port: ModelPort) -> str:
    layout = ImageLayout.of(port.open_shape)
    if port.said.content == "image" or (layout is not None and layout.is_likely):
        return "picture"
    is_words = port.dtype.kind == "i" and len(port.open_shape) == 2 and port.open_shape[0] == 1
    if port.dtype.kind == "S" or port.said.tokenizer is not None:
        return "text"
    if is_sound(port):
        return "sound"
    return "text" if is_words and port.dtype.itemsize >= 4 else "array"


def _lines(source: Path_ | Sequence[str], what: str) -> Sequence[str]:
    if not isinstance(source, (str, os.PathLike)):
        return tuple(source)
    try:
        with Path(source).open("rb") as file:
            content = file.read(_MOST_TEXT + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: {os.fsdecode(source)} cannot be read: {error}") from error
    if len(content) > _MOST_TEXT:
        raise InputError(f"{what}: {os.fsdecode(source)} is longer than {_MOST_TEXT:,} bytes")
    return reader.lines_of(content)


def _anchors(source: Path_ | Array) -> Array:
    found: Any = source
    try:
        if isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".npy":
            found = read_array(source)
        elif isinstance(source, (str, os.PathLike)):
            found = [[float(n) for n in line.split(",")] for line in _lines(source, "anchors")]
        rows: Array = np.asarray(found, np.float32)
    except ValueError as error:
        raise InputError(f"anchors are rows of four numbers: {error}") from error
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise InputError(f"anchors are rows of four numbers, not an array {list(rows.shape)}")
    return rows


def read_array(path: Path_) -> Array:
    """The array in a .npy file.

    Raises:
        InputError: no such file, or no array that can be read without running code.
    """
    if not Path(path).is_file():
        raise InputError(f"there is no file {os.fsdecode(path)}")
    try:
        loaded: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a .npy file that can be read: {error}") from error
    return loaded


def _shown(source: Any) -> str:
    return os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else "the picture"
