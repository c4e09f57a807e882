"""One thread with one, two, three runs in flight: images a second, NumPy in to NumPy out.

    python -m benchmarks.inflight --models mobilenet_v2_1.0_224_f32 --backend vulkan --precision f16
    python -m benchmarks.inflight --models mobilenet_v2_1.0_224_f32 --backend vulkan --within 15
    python -m benchmarks.inflight --models mobilenet_v2_1.0_224_f32 --backend vulkan
        --batch 32 64 128 --input u8
    python -m benchmarks.inflight --models nets/vit_b.tflite --backend vulkan --batch 32
        --peer torch

For each number in flight the rounds are the same: `invoke_async` with images of its own, of which
there are several by turns, and the results of the oldest run once so many are under way. The first
line is `set_tensor`, `invoke`, `get_tensor`. What each run gives is held against that at the end:
the numbers must be the same.

With ``--batch 32`` a run is of so many images (``Interpreter(..., batch=32)``). With ``--input u8``
they are bytes: `tflgpu.converters` puts CAST, SUB and MUL before a float model, so that a quarter
as much is copied, and one kernel before the model's own computes (x - mean) * scale. In both cases
the first two images are also run one by one by the model as its file is, on floats that NumPy made
of them. Bytes that a run copies between host and device are counted (0 where they share memory).

The last line says where the time of a run goes: what `set_tensor`, `invoke` and `get_tensor` take,
and the kernels alone, by the device's clock. With several in flight the host's share of a run is
said, in processor time of all threads. ``--peer torch`` runs the network of the same name in
`benchmarks.torch_networks`, on floats, with the same batch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter
from tflgpu.tflite import converters
from tflgpu.tools.load import TimedCalls, in_flight
from tflgpu.tools.runs import random_inputs

from benchmarks.run import find_model
from benchmarks.torch_networks import NAMES, measure

_IMAGES = 4
_CHECKED = 2
#: Of the time for one measurement, what it is warmed up for.
_WARM = 1 / 6
#: Runs whose steps are timed, and seconds for that, at most.
_STEPS, _STEPS_WITHIN = 100, 0.3


@attrs.frozen
class Given:
    """What is measured, and how.

    Attributes:
        batch: Images in a run.
        u8: Whether they are bytes.
        mean, scale: What makes floats of these.
        within: Seconds for all measurements of a model, opening it included; None for `seconds`
            of each.
        seconds, repeats: Of each measurement, and how often; the best counts.
    """

    batch: int
    u8: bool
    mean: float
    scale: float
    within: float | None
    seconds: float
    repeats: int


def main() -> None:
    """Print a line for each model and number in flight."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device")
    parser.add_argument("--precision", default="f16", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 2, 3], metavar="N")
    parser.add_argument("--batch", nargs="+", type=int, default=[1], help="images in a run")
    parser.add_argument("--input", default="model", choices=["model", "u8"])
    parser.add_argument("--mean", type=float, default=127.5, help="of bytes, subtracted")
    parser.add_argument("--scale", type=float, default=1 / 127.5, help="of bytes, multiplied by")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements; the best is told")
    parser.add_argument("--within", type=float, help="seconds for a model, in place of --seconds")
    parser.add_argument("--peer", choices=["torch"], help="with a GPU: runs the same networks")
    asked = parser.parse_args()
    options = {"backend": asked.backend, "precision": asked.precision}
    if asked.device is not None:
        options["device"] = asked.device
    models = [find_model(name) for name in asked.models]
    with GpuDelegate(**options) as delegate:
        for path in models:
            for batch in asked.batch:
                given = Given(batch, asked.input == "u8", asked.mean, asked.scale, asked.within,
                              asked.seconds, asked.repeats)  # fmt: skip
                what = f"{path.stem} {asked.backend} {asked.precision} batch {batch}"
                _measure(path, what + " u8" * given.u8, delegate, asked.in_flight, given)
    if asked.peer:
        for path in models:
            for batch in asked.batch:
                _race(path.stem, batch, min(asked.seconds, asked.within or asked.seconds))


def _race(name: str, batch: int, seconds: float) -> None:
    if name not in NAMES:
        print(f"{name} torch: it has no such network; known are {', '.join(NAMES)}", flush=True)
        return
    ms, *_ = measure(name, batch, seconds)
    print(f"{name} torch f16 batch {batch} invoke     : {1e3 * batch / ms:8.0f} images/s, "
          f"{ms / batch:.3f} ms an image", flush=True)  # fmt: skip


def _measure(
    path: Path, what: str, delegate: GpuDelegate, in_flight: list[int], given: Given
) -> None:
    start = time.perf_counter()
    with Interpreter(
        model_content=_content(path, given), experimental_delegates=[delegate], batch=given.batch,
        max_in_flight=max(in_flight),
    ) as interpreter:  # fmt: skip
        interpreter.allocate_tensors()
        outputs = [d["index"] for d in interpreter.get_output_details()]
        images = _images(interpreter)
        wanted = [_invoked(interpreter, image, outputs) for image in images]
        interpreter.reset_copied()
        _invoked(interpreter, images[0], outputs)
        copied = interpreter.copied.total
        gap = _gap(path, delegate, given, images[0], wanted[0])
        size = sum(array.nbytes for array in images[0].values())
        told = (
            f"{what}: an image has {size // given.batch} bytes, {copied // given.batch} are copied "
            f"between host and device with its results{gap}"
        )
        print(f"{told}; opened in {time.perf_counter() - start:.1f} s", flush=True)
        runs = (0, *in_flight)
        for number, most in enumerate(runs):
            _round(interpreter, most, images, outputs, 0.0)  # opens what this number takes
            seconds = given.seconds
            if given.within is not None:
                left = given.within - (time.perf_counter() - start)
                seconds = max(0.05, left / (len(runs) - number) / (given.repeats + _WARM))
            _round(interpreter, most, images, outputs, seconds * _WARM)
            rounds = [
                _round(interpreter, most, images, outputs, seconds) for _ in range(given.repeats)
            ]
            best = max(rounds, key=lambda found: found.rate)
            rate, count = best.rate * given.batch, len(best.times)
            same = _same(interpreter, most, images, outputs, wanted)
            name = f"{most} in flight" if most else "invoke     "
            print(
                f"{what} {name}: {rate:8.0f} images/s, {1e3 / rate:.4f} ms an image; a run "
                f"{1e6 / best.rate:.0f} us, host {1e6 * best.host / count:.0f} us; {same}",
                flush=True,
            )
        print(f"{what} {_steps(interpreter, images, outputs)}", flush=True)


def _content(path: Path, given: Given) -> bytes:
    """The model, with a converter of bytes before each input of floats where that is asked for."""
    if not given.u8:
        return path.read_bytes()
    with Interpreter(str(path), experimental_delegates=[]) as plain:
        names = [d["name"] for d in plain.get_input_details() if d["dtype"] is np.float32]
    from_bytes = converters.FromBytes(mean=given.mean, scale=given.scale)
    return converters.converted(str(path), inputs=dict.fromkeys(names, from_bytes))


def _images(interpreter: Interpreter) -> list[dict[int, Any]]:
    rng = np.random.default_rng(0)
    return [random_inputs(interpreter, rng) for _ in range(_IMAGES)]


def _gap(
    path: Path, delegate: GpuDelegate, given: Given, images: dict[int, Any], wanted: list[Any]
) -> str:
    """How far results of a batch, or of bytes, are from those of the file's model on floats."""
    if given.batch == 1 and not given.u8:
        return ""
    worst = 0.0
    with Interpreter(str(path), experimental_delegates=[delegate]) as plain:
        plain.allocate_tensors()
        details = plain.get_input_details()
        for n in range(min(_CHECKED, given.batch)):
            one = {}
            for detail, batch in zip(details, images.values(), strict=True):
                item = batch[n : n + 1]
                if item.dtype != detail["dtype"]:
                    item = ((item.astype(np.float32) - given.mean) * given.scale).astype(np.float32)
                one[detail["index"]] = item
            found = _invoked(plain, one, [d["index"] for d in plain.get_output_details()])
            for mine, theirs in zip(wanted, found, strict=True):
                scale = float(np.abs(theirs.astype(np.float64)).max()) or 1.0
                off = float(np.abs(mine[n : n + 1].astype(np.float64) - theirs).max())
                worst = max(worst, off / scale)
    return f", results are within {worst:.2g} of the largest of those of single images"


def _invoked(interpreter: Interpreter, image: dict[int, Any], outputs: list[int]) -> list[Any]:
    for index, array in image.items():
        interpreter.set_tensor(index, array)
    interpreter.invoke()
    return [interpreter.get_tensor(index) for index in outputs]


def _round(
    interpreter: Interpreter, most: int, images: list[Any], outputs: list[int], seconds: float
) -> TimedCalls:
    """Runs, at least as many as there are images."""
    if most:
        return in_flight(interpreter, most, images, least=_IMAGES, seconds=seconds)
    times: list[float] = []
    start, host = time.perf_counter(), time.process_time()
    while len(times) < _IMAGES or time.perf_counter() - start < seconds:
        begun = time.perf_counter()
        _invoked(interpreter, images[len(times) % _IMAGES], outputs)
        times.append(time.perf_counter() - begun)
    return TimedCalls(time.perf_counter() - start, times, time.process_time() - host)


def _steps(interpreter: Interpreter, images: list[Any], outputs: list[int]) -> str:
    """What the steps of a run take when there is one at a time: medians, in microseconds. It comes
    last, when the device's clocks have risen."""
    noted: list[list[float]] = []
    start = time.perf_counter()
    while not noted or (len(noted) < _STEPS and time.perf_counter() - start < _STEPS_WITHIN):
        stamps = [time.perf_counter()]
        for index, array in images[len(noted) % _IMAGES].items():
            interpreter.set_tensor(index, array)
        stamps.append(time.perf_counter())
        interpreter.invoke()
        stamps.append(time.perf_counter())
        results = [interpreter.get_tensor(index) for index in outputs]
        stamps.append(time.perf_counter())
        del results
        noted.append([1e6 * float(step) for step in np.diff(stamps)])
    upload, invoke, fetch = np.median(noted, axis=0)
    profile = interpreter.profile(_STEPS // 10)
    dispatches = profile.dispatches
    kernels = 1e6 * sum(each.seconds for each in dispatches)
    moved = sum(each.nbytes for each in dispatches) / 1e3
    flops = sum(each.flops for each in dispatches) / 1e6
    rates = f", {moved / kernels:.0f} GB/s, {flops / kernels:.1f} TFLOP/s" if kernels else ""
    return (
        f"by steps   : set {upload:.0f} us, invoke {invoke:.0f} us, of which {len(dispatches)} "
        f"kernels {kernels:.0f} us{rates}, get {fetch:.0f} us"
    )


def _same(
    interpreter: Interpreter, most: int, images: list[Any], outputs: list[int], wanted: list[Any]
) -> str:
    if most:
        runs = [interpreter.invoke_async(image) for image in images]
        got = [run.results() for run in runs]
    else:
        got = [_invoked(interpreter, image, outputs) for image in images]
    for mine, theirs in zip(got, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            if not np.array_equal(a, b):
                return f"results DIFFER by up to {np.abs(a.astype(float) - b).max():g}"
    return "results as by invoke"


if __name__ == "__main__":
    main()
