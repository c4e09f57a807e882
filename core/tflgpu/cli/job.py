"""What `tflgpu run` runs: a model, and each of the inputs that the user gave."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tflgpu.cli import console
from tflgpu.cli.inputs import Item, assign, load, series_of
from tflgpu.cli.models import allocate
from tflgpu.errors import InputError, ModelError, OptionError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.tools.metadata import metadata
from tflgpu.tools.metadata_values import ModelMetadata
from tflgpu.tools.recipe import PreparedInput, Recipe, TaskOptions
from tflgpu.tools.runs import random_input, run_once


class RunJob:
    """An interpreter and what it is run on: `look` finds out which inputs there are, and then
    `first` runs the only one, or `each` all of them.

    Attributes:
        interpreter: Its tensors are allocated with the first run.
        recipe: How inputs are made and outputs read; None where all inputs are random.
        batch: Items at once.
        arrays: Of the last run, by tensor index.
        prepared: What the last run was made of.
        name: Of the last input.
        times: Milliseconds of the last run.
        count: How many inputs there are; None where that is not known.
        failed: How many inputs of a series could not be read.
        said_random: Which inputs are random.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        model: Path,
        options: TaskOptions,
        given: Sequence[str],
        batch: int,
        seed: int | None,
    ) -> None:
        self.interpreter, self.batch = interpreter, batch
        self._options, self._seed, self._model = options, seed, model
        self._given = assign(given, interpreter.get_input_details())
        self.recipe: Recipe | None = None
        self.arrays: dict[int, Array] = {}
        self.prepared = PreparedInput({})
        self.name = ""
        self.times: list[float] = []
        self._fixed: dict[int, Array] = {}
        self._random: dict[int, Array] = {}
        self._is_allocated = False
        self._is_whole = False  # whether one text fills all inputs
        self.failed = 0
        self.said_random: list[str] = []
        self.count: int | None = 1
        self._items: Iterator[tuple[Item, PreparedInput]] = iter(
            [(Item("", None), PreparedInput({}))]
        )

    def look(self) -> bool:
        """Find out what is given; whether that is one run.

        Raises:
            InputError: an input that cannot be read.
            OptionError: an option that has no effect.
        """
        given = [n for n, v in attrs.asdict(self._options, recurse=False).items() if v is not None]
        if self._given:
            found = _metadata(self._model)
            self.recipe = Recipe(self.interpreter, found, self._options, self.batch)
            takes = self._series(self.recipe)
            self.recipe.check_effect(takes, "--", is_read=self.batch == 1)
        elif given:
            raise OptionError(
                f"--{', --'.join(given)}: without effect on random inputs; give one by -i"
            )
        every = {*range(len(self.interpreter.get_input_details()))}
        if self._seed is not None and (self._is_whole or every == {*self._given}):
            raise OptionError("--seed: without effect, since no input is random")
        return self.count == 1

    def _series(self, recipe: Recipe) -> set[str]:
        """Takes apart what is given: one input may be a series, the others are read at once."""
        series = {
            position: series_of(text, recipe.takes if position == 0 else "array")
            for position, text in self._given.items()
        }
        several = [position for position, one in series.items() if not one.is_one]
        if len(several) > 1:
            raise InputError("two -i stand for several inputs each; only one may")
        main = several[0] if several else next(iter(series))
        takes = set()
        for position in series.keys() - {main}:
            item = next(series[position].items)
            takes.add(recipe.kind_of_source(item.source, position))
            self._fixed |= self._prepared(recipe, item, position)[0].arrays
        first = next(series[main].items, None)
        if first is None:
            raise InputError(f"{self._given[main]} has no frames")
        kind = recipe.kind_of_source(first.source, main)
        if several:
            every = chain([first], series[main].items)
            self._items = ((i, p) for i in every for p in self._or_warn(recipe, i, main))
            self.count = series[main].count
        else:  # a sound may be of several windows
            runs = self._prepared(recipe, first, main)
            self._items = ((first, p) for p in runs)
            self.count = 1 if len(runs) == 1 else None
        self._is_whole = kind == "text"
        return takes | {kind}

    def _or_warn(self, recipe: Recipe, item: Item, position: int) -> list[PreparedInput]:
        try:
            return self._prepared(recipe, item, position)
        except InputError as error:
            self.failed += 1
            console.warn(str(error))
            return []

    def _prepared(self, recipe: Recipe, item: Item, position: int) -> list[PreparedInput]:
        if recipe.kind_of_source(item.source, position) != "array":
            found = list(recipe.prepare(item.source, position))
        else:
            detail: dict[str, Any] = dict(self.interpreter.get_input_details()[position])
            if self.batch > 1:
                detail["shape"] = np.array([1, *detail["shape"][1:]])
                detail["shape_signature"] = np.array([-1, *detail["shape_signature"][1:]])
            found = [PreparedInput({int(detail["index"]): load(item.source, detail)})]
        if self.batch > 1:
            found = [attrs.evolve(p, arrays=self._repeated(p.arrays, item.name)) for p in found]
        return found

    def _repeated(self, arrays: Mapping[int, Array], name: str) -> dict[int, Array]:
        """Arrays of all items, or of one, for all of them."""
        for array in arrays.values():
            if len(array) not in (1, self.batch):
                raise InputError(
                    f"{name} has {len(array)} items; with --batch {self.batch} it is 1 or "
                    f"{self.batch}"
                )
        return {i: np.repeat(a, self.batch // len(a), axis=0) for i, a in arrays.items()}

    def first(self) -> list[Array]:
        """Run the only input; its outputs."""
        ((_, outputs),) = self.each()
        return outputs

    def each(self) -> Iterator[tuple[Item, list[Array]]]:
        """Run all inputs; each with its outputs."""
        for item, prepared in self._items:
            self.name, self.prepared = item.name, prepared
            outputs = self._run({**self._fixed, **prepared.arrays})
            yield item, outputs

    def items(self, outputs: Sequence[Array]) -> tuple[list[dict[int, Array]], list[list[Array]]]:
        """Inputs and outputs of the last run, item by item where it was of several."""
        if self.batch == 1:
            return [self.arrays], [[*outputs]]
        inputs = zip(*(np.split(a, self.batch) for a in self.arrays.values()), strict=True)
        made = zip(*(np.split(a, self.batch) for a in outputs), strict=True)
        return [dict(zip(self.arrays, one, strict=True)) for one in inputs], [[*o] for o in made]

    def _run(self, arrays: dict[int, Array]) -> list[Array]:
        for detail in self.interpreter.get_input_details():
            array = arrays.get(int(detail["index"]))
            if array is not None and array.shape != tuple(detail["shape"]):
                self.interpreter.resize_tensor_input(int(detail["index"]), array.shape)
                self._is_allocated = False
        if not self._is_allocated:
            self._fill(arrays)
            allocate(self.interpreter)
            self._is_allocated = True
            if self.recipe is not None:
                self.recipe.refresh(self.interpreter)
        self.arrays = {**self._random, **arrays}
        start = time.perf_counter()
        outputs = run_once(self.interpreter, self.arrays)
        self.times = [1e3 * (time.perf_counter() - start)]
        _hint(self, outputs)
        return outputs

    def _fill(self, arrays: Mapping[int, Array]) -> None:
        """Random numbers for the inputs that nothing is given for."""
        rng = np.random.default_rng(self._seed or 0)
        before, self._random = set(self._random), {}
        self.said_random = []
        for detail in self.interpreter.get_input_details():
            index = int(detail["index"])
            if index not in arrays:
                self._random[index] = random_input(detail, rng)
                if index not in before:
                    self.said_random.append(
                        f"input {detail['name']}: random {np.dtype(detail['dtype'])}"
                        f"{[int(s) for s in detail['shape']]}, seed {self._seed or 0}"
                    )


def _hint(job: RunJob, outputs: Sequence[Array]) -> None:
    """Warn of outputs that are not finite, and say what may help."""
    for detail, array in zip(job.interpreter.get_output_details(), outputs, strict=True):
        odd = int((~np.isfinite(array)).sum()) if array.dtype.kind in "fc" else 0
        if not odd:
            continue
        floats = (a for a in job.arrays.values() if a.dtype.kind in "fc")
        if all(np.isfinite(a).all() for a in floats):
            why = "16-bit floats overflow at 65,504 (--precision f32 does not), or the input is "
            why += "in another range than the model takes (--mean, --std)"
        else:
            why = "the input has such numbers"
        console.warn(
            f"output {detail['name']}: {odd} of {array.size} numbers are not finite; {why}"
        )


def _metadata(model: Path) -> ModelMetadata | None:
    try:
        return metadata(model)
    except ModelError as error:
        console.warn(f"{error}; the model runs without them")
        return None
