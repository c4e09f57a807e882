"""What `tflgpu run` prints and saves: answers, times, and what ran where."""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tflgpu.cli import console
from tflgpu.cli.job import RunJob
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import numbers
from tflgpu.errors import InputError, OptionError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.tools.answer import Answer, RawOutputs

_TOP = 5
_REASONS = 8
_IN_A_LINE = 3
_DRAWN = frozenset({"classify", "detect", "segment", "keypoints", "image"})


@attrs.frozen
class ResultPrinter:
    """How results are shown.

    Attributes:
        json, quiet, verbose: As the user asked.
        save: A .png file or a folder for drawn answers.
        output: A folder for arrays.
    """

    json: bool
    quiet: bool
    verbose: bool
    save: Path | None
    output: Path | None

    @property
    def is_redirected(self) -> bool:
        """Whether results go elsewhere than to the terminal, so that progress may be shown."""
        return not sys.stdout.isatty()

    def make_folders(self) -> None:
        """Make the folders for what is saved.

        Raises:
            InputError: they cannot be.
        """
        save = self.save
        if save is not None and save.suffix.lower() in (".png", ".jpg", ".jpeg"):
            save = save.parent
        for folder, what in ((self.output, "outputs"), (save, "pictures")):
            try:
                if folder is not None:
                    folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot save {what} in {folder}: {error}") from error

    def show_one(self, job: RunJob, outputs: Sequence[Array], times: Sequence[float]) -> None:
        """The answer to one input, its time and its device."""
        answer = self._answer(job, outputs)
        self._draw(job, answer)
        if self.json:
            self._show_json(job, answer, times)
            return
        if not self.quiet:
            self._say_random(job)
            if job.prepared.said:
                console.say(f"{job.name}: {job.prepared.said}")
        if answer.kind == "values" or self.verbose:
            _show_outputs(job.interpreter, outputs)
        if answer.kind != "values":
            console.say(str(answer))
        if not self.quiet:
            median, count = float(np.median(times)), len(times)
            said = f"{median:.3f} ms, median of {count} runs ({min(times):.3f} to {max(times):.3f})"
            item = f", {median / job.batch:.3f} ms an item" if job.batch > 1 else ""
            console.say(f"{said}, NumPy to NumPy{item}")
            self._show_device(job.interpreter.report)

    def _say_random(self, job: RunJob) -> None:
        for line in job.said_random:
            console.say(line)
        job.said_random = []

    def show_line(self, job: RunJob, outputs: Sequence[Array]) -> None:
        """The answer to one of several inputs."""
        answer = self._answer(job, outputs)
        self._draw(job, answer)
        if self.json:
            self._show_json(job, answer, job.times)
            return
        if not self.quiet:
            self._say_random(job)
        at = "" if job.prepared.at is None else f" at {job.prepared.at:.2f} s"
        lines = answer.lines()
        shown = "; ".join(" ".join(line.split()) for line in lines[:_IN_A_LINE])
        more = f"; and {len(lines) - _IN_A_LINE} more" if len(lines) > _IN_A_LINE else ""
        console.say(f"{job.name}{at}: {shown}{more if answer.kind != 'classify' else ''}")
        if self.verbose:
            console.say(f"  {job.prepared.said}; {job.times[0]:.3f} ms")

    def end_series(self, job: RunJob, times: Sequence[float]) -> None:
        """How many inputs there were, and where they ran.

        Raises:
            InputError: none of them could be read.
        """
        if not times:
            raise InputError(f"none of {job.failed} inputs could be read")
        if self.json or self.quiet:
            return
        failed = f", {job.failed} could not be read" if job.failed else ""
        console.say(f"{len(times)} runs{failed}; {float(np.median(times)):.3f} ms, median of a run")
        self._show_device(job.interpreter.report)

    def save_arrays(self, details: Sequence[Any], outputs: Sequence[Array]) -> None:
        """Save outputs as .npy files, as the model stores them."""
        assert self.output is not None
        try:
            for i, (detail, array) in enumerate(zip(details, outputs, strict=True)):
                name = str(detail["name"])
                path = self.output / f"{i}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:80]}.npy"
                np.save(path, plain(name, array), allow_pickle=False)
                self._say_saved(path)
        except OSError as error:
            raise InputError(f"cannot save outputs in {self.output}: {error}") from error

    def _say_saved(self, path: Path) -> None:
        if not self.json and not self.quiet:
            console.say(f"saved {path}")

    def _answer(self, job: RunJob, outputs: Sequence[Array]) -> Answer:
        details = job.interpreter.get_output_details()
        bare = RawOutputs({str(d["name"]): a for d, a in zip(details, outputs, strict=True)})
        if job.recipe is None or job.batch > 1:
            return bare
        try:
            return job.recipe.answer(outputs, job.prepared)
        except OptionError as error:
            if job.recipe.options.kind is not None:
                raise
            console.warn(f"{error}; the outputs as they are:")
            return bare

    def _draw(self, job: RunJob, answer: Answer) -> None:
        if self.save is None:
            return
        if answer.kind not in _DRAWN or (answer.picture is None and answer.kind != "image"):
            raise OptionError(
                f"--save: without effect on answers of kind {answer.kind!r}, or without a picture; "
                "leave it out, or save arrays by --output"
            )
        is_file = self.save.suffix.lower() in (".png", ".jpg", ".jpeg")
        if is_file and job.count != 1:
            raise OptionError(f"--save {self.save}: give a folder, since there are several inputs")
        path = self.save if is_file else _free(self.save, Path(job.name).name)
        try:
            answer.draw().save(path)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot save {path}: {error}") from error
        self._say_saved(path)

    def _show_json(self, job: RunJob, answer: Answer, times: Sequence[float]) -> None:
        said: dict[str, Any] = {"input": job.name or None, "answer": answer.asdict()}
        if job.prepared.at is not None:
            said["at"] = job.prepared.at
        if not self.quiet:
            said["prepared"] = job.prepared.said
            said["random"] = job.said_random
            said["milliseconds"] = round(float(np.median(times)), 3)
            said["device"] = job.interpreter.report.summary
        console.plain(json_module.dumps(said, allow_nan=False))

    def _show_device(self, report: DelegationReport) -> None:
        summary = report.summary
        if report.backend:
            parts = "one part" if report.partitions == 1 else f"{report.partitions} parts"
            summary += f", in {parts} and {report.dispatches} dispatches"
            if report.refusals and not self.verbose:
                summary += " (-v says why not all)"
        elif report.choice and report.common_reason == "; ".join(report.choice):
            summary += f": {report.choice[-1]}"
        elif report.common_reason is not None:
            summary += f": {report.common_reason}"
        console.say(summary)
        if self.verbose:
            _show_reasons(report)


def _show_reasons(report: DelegationReport) -> None:
    if report.refusals and (report.backend or report.common_reason is None):
        table = report.table()
        table.title = None  # it is said above
        console.show(table)
    in_floats: dict[tuple[str, str], list[int]] = {}
    for left in report.in_floats:
        in_floats.setdefault((left.op, left.reason), []).append(left.node)
    for (op, reason), nodes in list(in_floats.items())[:_REASONS]:
        console.say(f"  in floats: {op} ({numbers(nodes)}): {reason}")
    for line in report.told_composites[:_REASONS]:
        console.say(line)
    for reason in report.choice:
        console.say(f"  {reason}")


def plain(name: str, array: Array) -> Array:
    """An output as a file has it: texts without Python's objects.

    Raises:
        InputError: NumPy's texts end where their zeros begin, and one of these has some there.
    """
    if array.dtype.kind != "O":
        return array
    texts = array.astype(np.bytes_)
    if not np.array_equal(texts.astype(object), array):
        raise InputError(f"output {name} has texts that end in zeros, which no .npy file can hold")
    return texts


def _free(folder: Path, name: str) -> Path:
    """A file for a picture, which is not there yet."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name.rsplit(".", 1)[0])[:80] or "picture"
    found, number = folder / f"{stem}.png", 1
    while found.exists():
        number += 1
        found = folder / f"{stem}_{number}.png"
    return found


def _show_outputs(interpreter: Interpreter, outputs: Sequence[Array]) -> None:
    table = console.table(
        "Outputs",
        "name",
        "type",
        "least",
        "mean",
        "greatest",
        "greatest values (at: value)",
        whole=("least", "mean", "greatest"),
    )
    for detail, array in zip(interpreter.get_output_details(), outputs, strict=True):
        kind = f"{array.dtype}{list(array.shape)}"
        scale, zero_point = detail["quantization"]
        real = array
        if scale and array.dtype.kind in "iu":
            real = (array.astype(np.float64) - zero_point) * scale
            kind += f" as real numbers (scale {scale:.4g}, zero point {zero_point})"
        table.add_row(str(detail["name"]), kind, *_summary(real))
    console.show(table)


def _summary(array: Array) -> tuple[str, str, str, str]:
    if not array.size:
        return "", "", "", "empty"
    if array.dtype.kind not in "fiub":
        return "", "", "", str(array.ravel()[:_TOP])
    values = array.astype(np.float64).ravel()
    finite = np.isfinite(values)
    notes = "" if finite.all() else f"{int((~finite).sum())} not finite; "
    if not finite.any():
        return "", "", "", notes + "nothing else"
    seen = values[finite]
    order = np.argsort(-np.where(finite, values, -np.inf), kind="stable")[:_TOP]
    top = ", ".join(f"{_position(int(i), array.shape)}: {values[i]:.5g}" for i in order)
    return f"{seen.min():.5g}", f"{seen.mean():.5g}", f"{seen.max():.5g}", notes + top


def _position(flat: int, shape: tuple[int, ...]) -> str:
    """Where an element is, without the leading axes of size 1."""
    where = list(np.unravel_index(flat, shape))
    while len(where) > 1 and shape[len(shape) - len(where)] == 1:
        where.pop(0)
    return ",".join(str(int(i)) for i in where)
