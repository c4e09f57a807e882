"""`tflgpu demo`: classify handwritten digits on every device there is, and check the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import attrs
import numpy as np
import typer

from tflgpu.cli import console
from tflgpu.cli.install import what_is_missing
from tflgpu.cli.models import opened
from tflgpu.demo import Digits, load_digits
from tflgpu.devices.cpu_side import REFERENCES
from tflgpu.errors import InputError, TflgpuError
from tflgpu.ir.dtypes import Array
from tflgpu.options import CPU
from tflgpu.plugins.registry import registry
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu.tools.check_outputs import gap_of
from tflgpu.tools.picture import read_picture

WRONG = 1
_LEAST_ACCURACY = 0.95
#: Of a probability, in 32-bit floats, through a softmax of sums of 256 products.
_TOLERANCE = 1e-4
#: A device that only emulates a GPU gets fewer digits once it has had this long.
_SECONDS = 5.0


@attrs.frozen
class _Result:
    """One device's answers.

    Attributes:
        title: Backend and device.
        probabilities: [N,10], of the first N digits.
        milliseconds: Median per image.
        delegated: How many of the model's operators the device took.
        problem: Why there are no answers.
    """

    title: tuple[str, str]
    probabilities: Array
    milliseconds: float = 0.0
    delegated: str = ""
    problem: str = ""


def demo(
    images: Annotated[int, typer.Option(min=1, help="Digits to classify, 360 at most.")] = 360,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the models and images of the documents' examples, and end.",
        ),
    ] = None,
) -> None:
    """Classify handwritten digits on every device there is and check the answers.

    Exit code 0 if all that is there agrees, 1 if something is wrong.
    """
    digits = load_digits()
    if save is not None:
        _save(digits, save)
        return
    count = min(images, len(digits.labels))
    reference = _classify(digits, count, (CPU, "NumPy references"), CPU, None)
    results = [reference, *_on_devices(digits, count)]
    table = console.table(
        f"{count} handwritten digits, 32-bit floats",
        "backend",
        "device",
        "on it",
        "digits",
        "accuracy",
        "ms per image",
        "max difference",
        "",
        right=("digits", "accuracy", "ms per image", "max difference"),
        whole=("backend",),
    )
    verdicts = [_judge(r, reference, digits) for r in results]
    for result, verdict in zip(results, verdicts, strict=True):
        table.add_row(*_cells(result, reference, digits), verdict or "ok")
    console.show(table)
    _show_missing()
    if any(verdicts):
        console.fail("some answers are wrong; see the table")
        raise typer.Exit(WRONG)


def _save(digits: Digits, folder: Path) -> None:
    """The files that the documents name: `model.tflite`, an image of each digit in `images/`, ready
    to be its input, and one as a picture; two models that add 1, for one after the other."""
    images = folder / "images"
    try:
        images.mkdir(parents=True, exist_ok=True)
        (folder / "model.tflite").write_bytes(digits.model)
        for digit in range(10):
            image = digits.images[np.flatnonzero(digits.labels == digit)[0]]
            np.save(images / f"digit_{digit}.npy", image)
        for name, ends in (("first", ("image", "features")), ("second", ("features", "result"))):
            (folder / f"{name}.tflite").write_bytes(_adding(*ends))
        _picture(digits, folder / "digit.png")
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error}") from error
    console.say(
        f"{folder / 'model.tflite'}, {images}: 10 images of 1 x 8 x 8 x 1, 0 to 1; digit.png takes "
        "--mean 0 --std 255"
    )


def _adding(source: str, result: str) -> bytes:
    """A model of one ADD of 1, f32 [1,16,16,3]."""
    x, y = (TensorSpec(name, (1, 16, 16, 3)) for name in (source, result))
    tensors = [x, TensorSpec("one", (), data=np.float32(1)), y]
    return write_model(ModelSpec(tensors, [OperatorSpec("ADD", {}, (0, 1), (2,))], (0,), (2,)))


def _picture(digits: Digits, path: Path) -> None:
    pixels = np.rint(digits.images[0, 0, :, :, 0] * 255).astype(np.uint8)
    try:
        picture = read_picture(pixels.repeat(20, 0).repeat(20, 1))
    except InputError:
        console.note(f"{path} is not written: it takes Pillow, `pip install tflgpu[image]`")
    else:
        picture.save(path)


def _on_devices(digits: Digits, count: int) -> Iterator[_Result]:
    known = registry()
    for name in known.backends:
        for info in known.probe(name, refresh=True).devices:
            title = (name, f"{info.index}: {info.name}")
            yield _classify(digits, count, title, name, str(info.index))


def _classify(
    digits: Digits, count: int, title: tuple[str, str], backend: str, device: str | None
) -> _Result:
    """Run the digits one by one; an error becomes part of the result."""
    answers: list[Array] = []
    times: list[float] = []
    try:
        # What the table compares is arithmetic in f32; the environment must not choose another.
        precision, rest = (None, REFERENCES) if backend == CPU else ("f32", None)
        with opened(digits.model, backend, device, precision, cpu_backend=rest) as interpreter:
            with console.working(f"{title[0]}: preparing the model"):
                interpreter.allocate_tensors()
            source = int(interpreter.get_input_details()[0]["index"])
            result = int(interpreter.get_output_details()[0]["index"])
            report = interpreter.report
            delegated = f"{report.delegated_nodes} of {report.total_nodes} ops"
            begin = time.perf_counter()
            with console.counting() as progress:
                for image in progress.track(digits.images[:count], description=title[0]):
                    start = time.perf_counter()
                    interpreter.set_tensor(source, image)
                    interpreter.invoke()
                    answers.append(interpreter.get_tensor(result))
                    times.append(time.perf_counter() - start)
                    if time.perf_counter() - begin > _SECONDS:
                        break
    except TflgpuError as error:
        return _Result(title, np.zeros((0, 10), np.float32), problem=str(error))
    probabilities = np.concatenate(answers)
    return _Result(title, probabilities, 1e3 * float(np.median(times)), delegated)


def _accuracy(result: _Result, digits: Digits) -> float:
    answers = result.probabilities.argmax(axis=1)
    return float((answers == digits.labels[: len(answers)]).mean())


def _gap(result: _Result, reference: _Result) -> float:
    count = min(len(result.probabilities), len(reference.probabilities))
    gap = gap_of(result.probabilities[:count], reference.probabilities[:count])
    return float("inf") if gap.lost else gap.max_abs


def _judge(result: _Result, reference: _Result, digits: Digits) -> str:
    """What is wrong with the answers, "" where they are right."""
    if result.problem:
        return f"failed: {result.problem}"
    if _gap(result, reference) > _TOLERANCE:
        return f"WRONG: differs from the references by more than {_TOLERANCE:g}"
    # A handful of digits says little about accuracy.
    if len(result.probabilities) >= 100 and _accuracy(result, digits) < _LEAST_ACCURACY:
        return f"WRONG: accuracy is below {100 * _LEAST_ACCURACY:g} %"
    return ""


def _cells(result: _Result, reference: _Result, digits: Digits) -> Sequence[str]:
    if result.problem:
        return (*result.title, "", "", "", "", "")
    is_reference = result is reference
    return (
        *result.title,
        "" if is_reference else result.delegated,
        str(len(result.probabilities)),
        f"{100 * _accuracy(result, digits):.1f} %",
        f"{result.milliseconds:.3f}",
        "" if is_reference else f"{_gap(result, reference):.1e}",
    )


def _show_missing() -> None:
    known = registry()
    for line in what_is_missing(known):
        console.say(line)
    for failure in known.failures:
        console.warn(str(failure))
