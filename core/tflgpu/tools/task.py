"""`Task`: a model that takes photos, sounds and texts, and gives answers with names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import InputError, OptionError
from tflgpu.interpreter.callers import Pool
from tflgpu.interpreter.model import Model
from tflgpu.ir.dtypes import Array
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.tflite.source import Source
from tflgpu.tools.answer import Answer
from tflgpu.tools.metadata import metadata
from tflgpu.tools.recipe import Numbers_, Path_, PreparedInput, Recipe, TaskOptions


class Task:
    """A model that takes photos, sounds and texts, and gives answers with names.

        with tflgpu.Task("mobilenet.tflite", labels="labels.txt") as task:
            answer = task("cat.jpg")
            print(answer)  # the five likeliest classes
            answer.draw().save("cat.png")

    What the model takes and gives is read from its metadata (`tflgpu.metadata`), shapes and
    operators; what these do not say, the arguments do. Threads may share it.

    Attributes:
        model: The `Model` or `Pool`, for runs on arrays.
        metadata: Of the file, or None.
    """

    def __init__(
        self,
        model: Source | Model | Pool,
        *,
        kind: str | None = None,
        labels: Path_ | Sequence[str] | None = None,
        mean: Numbers_ | None = None,
        std: Numbers_ | None = None,
        resize: str | None = None,
        top: int | None = None,
        threshold: float | None = None,
        anchors: Path_ | Array | None = None,
        vocabulary: Path_ | None = None,
        rate: int | None = None,
        use_metadata: bool = True,
        **options: Unpack[OptionKeywords],
    ) -> None:
        """Read a model and make it ready to run.

        Args:
            model: Path of a `.tflite` file, what is in it, or a `Model` or `Pool`, which stays the
                caller's.
            kind: "classify", "detect", "segment", "keypoints", "embed", "image" (a picture comes
                out) or "values"; None for what the file says.
            labels: Names of classes, or a file with one a line (or "0 name" with its number).
            mean: With ``std``: ``(pixel - mean) / std``, for all channels or for each, of pixels
                from 0 to 255. By default the metadata's, else numbers from -1 to 1.
            std: See ``mean``.
            resize: "stretch" (default), "crop" (the middle) or "pad" (black edges).
            top: How many classes an answer has; 5.
            threshold: The least score of what is in an answer. By default the metadata's, else
                0.5 for boxes and masks, 0.3 for points that are drawn, none for classes.
            anchors: Of an SSD model without its own post-processing: f32 [boxes, 4] of y, x,
                height, width from 0 to 1, or a .npy or .csv file of them.
            vocabulary: A file with a word a line, for a model of texts.
            rate: Samples a second that a model of sounds takes.
            use_metadata: False: the file's metadata are not looked at.
            options: As `Model` takes them.

        Raises:
            ModelError: no such file, or the model or its metadata are damaged.
            OptionError: an option out of its range, one that has no effect on such a model, or
                options beside a `Model` or `Pool`.
            InputError: a file of labels, anchors or words cannot be read.
            DeviceError, UnsupportedError: as `Model`.
        """
        said = TaskOptions(
            kind, labels, mean, std, resize, top, threshold, anchors, vocabulary, rate
        )
        said.check()
        self._is_own = not isinstance(model, (Model, Pool))
        if isinstance(model, (Model, Pool)):
            if options:
                raise OptionError(f"{', '.join(options)}: the model was given, and has its options")
            self.model: Model | Pool = model
        else:
            self.model = Model(model, **options)
        one = self.model._model if isinstance(self.model, Pool) else self.model  # noqa: SLF001
        interpreter = one._interpreter  # noqa: SLF001
        content = interpreter._model.content  # noqa: SLF001
        try:
            self.metadata = metadata(content) if use_metadata else None
            self._recipe = Recipe(interpreter, self.metadata, said, one._size)  # noqa: SLF001
            self._recipe.check_effect(self._recipe.possible)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<Task: {self.takes} -> {self.kind}>"

    def __enter__(self) -> Task:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the model, unless it was given."""
        if self._is_own:
            self.model.close()

    @property
    def kind(self) -> str:
        """Of the answers."""
        return self._recipe.kind

    @property
    def takes(self) -> str:
        """What the first input is made of: "picture", "sound", "text" or "array"."""
        return self._recipe.takes

    def __call__(self, *sources: Any) -> Answer:
        """The answer to one input: of a sound that is longer than the model's, that of the mean of
        all windows' scores.

        Args:
            sources: One for each input: a path of a photo, a WAV, a .npy; a photo's bytes; a PIL
                image; u8 [H,W,3]; for a model of texts a text, or the `Path` of one; an array as
                the input takes it. Of BERT's models one text is for all inputs.

        Raises:
            InputError: a source that cannot be read, or does not fit; too few or too many.
            DeviceError, StateError: as `Model`.
        """
        runs = list(self._runs(sources))
        prepared, results = runs[0]
        if len(runs) > 1 and self.kind == "classify":
            every = [r for _, r in runs]
            results = [np.concatenate(parts) for parts in zip(*every, strict=True)]
        return self._recipe.answer(results, prepared)

    def each(self, *sources: Any) -> Iterator[tuple[float | None, Answer]]:
        """The answer to each window of a sound, and when it begins, in seconds; of anything else
        the one answer, and None. As calling it otherwise."""
        for prepared, results in self._runs(sources):
            yield prepared.at, self._recipe.answer(results, prepared)

    def prepare(self, *sources: Any) -> PreparedInput:
        """What the model is given for one run, without running it: for runs elsewhere, as by a
        `Pool`: ``task.answer(pool(*prepared.arrays.values()), prepared)``.

        Raises:
            InputError: as calling it, or a sound of several windows.
        """
        found = list(self._prepared(sources))
        if len(found) > 1:
            raise InputError(f"the sound is of {len(found)} windows; a run is of one")
        return found[0]

    def answer(self, outputs: Sequence[Array], prepared: PreparedInput) -> Answer:
        """The answer in the outputs of a run on what `prepare` gave."""
        return self._recipe.answer(outputs, prepared)

    def _runs(self, sources: Sequence[Any]) -> Iterator[tuple[PreparedInput, Sequence[Array]]]:
        for prepared in self._prepared(sources):
            yield prepared, self.model(*prepared.arrays.values())

    def _prepared(self, sources: Sequence[Any]) -> Iterator[PreparedInput]:
        """Each with the arrays of all inputs, in the model's order."""
        recipe = self._recipe
        if not sources or len(sources) > len(recipe.inputs):
            names = ", ".join(p.name for p in recipe.inputs)
            raise InputError(f"{len(sources)} sources for the inputs {names}")
        others: dict[int, Array] = {}
        for position, source in enumerate(sources[1:], 1):
            others |= next(recipe.prepare(source, position)).arrays
        for prepared in recipe.prepare(sources[0]):
            arrays = {**others, **prepared.arrays}
            lacking = [p.name for p in recipe.inputs if p.index not in arrays]
            if lacking:
                raise InputError(f"no source for {', '.join(lacking)}; give one for each input")
            ordered = {p.index: arrays[p.index] for p in recipe.inputs}
            yield attrs.evolve(prepared, arrays=ordered)
