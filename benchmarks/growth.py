"""How the time of a run grows with the number of images and with their size.

    python -m benchmarks.growth --model mobilenet_v2_1.0_224_f32 --backends vulkan --picture g.svg
        --batches 1 8 32 128 --sides 224 896 4096 --json g.json

Batches of 1 to 128, and one image of 224 to 4,096 pixels a side (the model has to take any size),
or those that are named. A step is good where twice the items cost at most twice the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter, TflgpuError

from benchmarks.run import find_model

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SIDES = (224, 448, 896, 1792, 3584, 4096)
_WIDTH, _HEIGHT, _MARGIN = 640, 360, 48
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


@attrs.frozen
class Growth:
    """The times of a model by one kind of size.

    Attributes:
        label: What ran.
        by_side: Whether sizes are pixels of a side; else images of a batch.
        sizes: The sizes.
        items: What each size counts for: images, or pixels relative to the smallest.
        milliseconds: Of a run of each size.
    """

    label: str
    by_side: bool
    sizes: Sequence[int]
    items: Sequence[float]
    milliseconds: Sequence[float]

    @property
    def worst(self) -> float:
        """The most that a step to the next size costs, over what its items say: 1 is linear, less
        is better."""
        points = zip(self.items, self.milliseconds, strict=True)
        steps = pairwise(points)
        return max(
            ((ms / less_ms) / (n / less_n) for (less_n, less_ms), (n, ms) in steps), default=1.0
        )


def run_time(interpreter: Interpreter, seconds: float) -> float:
    """Median milliseconds of a run, NumPy in to NumPy out, behind as many seconds of warm-up."""
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    inputs = [
        (d["index"], rng.uniform(-1, 1, d["shape"]).astype(d["dtype"]))
        for d in interpreter.get_input_details()
    ]
    results = [d["index"] for d in interpreter.get_output_details()]
    times: list[float] = []
    begun = time.perf_counter()
    while (now := time.perf_counter()) < begun + 2 * seconds or len(times) < 5:
        for index, x in inputs:
            interpreter.set_tensor(index, x)
        interpreter.invoke()
        for index in results:
            interpreter.get_tensor(index)
        if now >= begun + seconds:  # before, the clocks rise
            times.append(time.perf_counter() - now)
    return float(np.median(times)) * 1e3


def growth(
    model: Path,
    backend: str,
    precision: str,
    seconds: float,
    batches: Sequence[int] = BATCHES,
    sides: Sequence[int] = SIDES,
) -> Iterator[Growth]:
    """A model by its batch, then by the side of its image; what it refuses is left out."""
    label = f"{model.stem}, {backend} {precision}"
    with GpuDelegate(backend=backend, precision=precision) as delegate:  # type: ignore[arg-type]
        for sizes, by_side in ((batches, False), (sides, True)):
            if not sizes:
                continue
            times = []
            for size in sizes:
                batch = 1 if by_side else size
                with Interpreter(
                    str(model), experimental_delegates=[delegate], batch=batch
                ) as interpreter:
                    if by_side:
                        index = interpreter.get_input_details()[0]["index"]
                        interpreter.resize_tensor_input(index, [1, size, size, 3])
                    times.append(run_time(interpreter, seconds))
            items = [(size / sizes[0]) ** (2 if by_side else 1) for size in sizes]
            yield Growth(label, by_side, sizes, items, times)


def plot(lines: Sequence[Growth], axis: str) -> str:
    """An SVG of microseconds an item by size, both axes logarithmic: linear growth is flat."""
    points = [
        [
            (float(np.log2(size)), float(np.log10(1e3 * ms / n)))
            for size, n, ms in zip(line.sizes, line.items, line.milliseconds, strict=True)
        ]
        for line in lines
    ]
    xs = [x for line in points for x, _ in line]
    ys = [y for line in points for _, y in line]
    low, high = int(np.floor(min(ys))), int(np.ceil(max(ys)))

    def across(x: float) -> float:
        return _MARGIN + (x - min(xs)) / max(1.0, max(xs) - min(xs)) * (_WIDTH - 2 * _MARGIN)

    def up(y: float) -> float:
        return _HEIGHT - _MARGIN - (y - low) / max(1, high - low) * (_HEIGHT - 2 * _MARGIN)

    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12"'
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" {box}>']
    drawn.append(f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>')
    for power in range(low, high + 1):
        ends = f"M{_MARGIN} {up(power):.0f}H{_WIDTH - _MARGIN}"
        drawn.append(f'<path d="{ends}" stroke="#ddd"/>')
        drawn.append(f'<text x="4" y="{up(power) + 4:.0f}">{10.0**power:g} us</text>')
    for size in sorted({s for line in lines for s in line.sizes}):
        at = f'x="{across(float(np.log2(size))):.0f}" y="{_HEIGHT - _MARGIN + 18}"'
        drawn.append(f'<text {at} text-anchor="middle">{size}</text>')
    for i, (line, found) in enumerate(zip(lines, points, strict=True)):
        colour = _COLOURS[i % len(_COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in found)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn.append(f'<text x="{_MARGIN}" y="{16 + 14 * i}" fill="{colour}">{line.label}</text>')
    drawn.append(f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">{axis}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def measure(
    model: Path,
    backends: Sequence[str],
    precision: str,
    seconds: float,
    batches: Sequence[int] = BATCHES,
    sides: Sequence[int] = SIDES,
) -> tuple[list[Growth], list[Growth]]:
    """Of each backend that takes the model: by batch, and by side."""
    by_batch: list[Growth] = []
    by_side: list[Growth] = []
    for backend in backends:
        try:
            for found in growth(model, backend, precision, seconds, batches, sides):
                (by_side if found.by_side else by_batch).append(found)
                times = ", ".join(f"{ms:.3f}" for ms in found.milliseconds)
                print(f"{found.label}: {found.sizes} {times} ms, worst step {found.worst:.2f}",
                      flush=True)  # fmt: skip
        except TflgpuError as error:
            print(f"{backend}: {error}", flush=True)
    return by_batch, by_side


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--backends", nargs="+", required=True, metavar="BACKEND")
    parser.add_argument("--precision", default="f32_f16", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--seconds", type=float, default=0.5, help="of warm-up, and of measuring")
    parser.add_argument("--batches", nargs="*", type=int, default=BATCHES, metavar="N")
    parser.add_argument("--sides", nargs="*", type=int, default=SIDES, metavar="PIXELS")
    parser.add_argument("--picture", type=Path, help="an SVG of the batches")
    parser.add_argument("--json", type=Path, help="a file for all times")
    given = parser.parse_args()
    both = measure(find_model(given.model), given.backends, given.precision, given.seconds,
                   given.batches, given.sides)  # fmt: skip
    if given.picture and both[0]:
        given.picture.write_text(plot(both[0], "images of a batch"), encoding="utf-8")
    if given.json:
        listed = [attrs.asdict(line) | {"worst": line.worst} for lines in both for line in lines]
        given.json.write_text(json.dumps(listed, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
