"""Damaged models must be refused with a ModelError, or read as models that keep their promises.

Run it as ``python -m tests.tflite.fuzz --count 20000 --seed 0``. A case is made from its seed and
number alone, so any failure can be made again with ``--first N --count 1``. With ``--run`` models
of single operators are damaged, and what can be read is prepared and run, too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import math
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.encode import Record, finish
from tflgpu.tflite.layouts import Field, Kind
from tflgpu.tflite.model_file import ModelFile, SubgraphInfo, TensorInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.schema import layout
from tflgpu.tflite.spec import ModelSpec
from tflgpu.tflite.write import model_record, write_model

from tests.differential.seeds import families
from tests.running import allocated
from tests.tflite import samples

# What offsets, counts, indices and sizes go wrong at.
INTERESTING = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 31, 32, 33, 64, 127, 128, 255, 256),
    *(0x7FFF, 0x8000, 0xFFFE, 0xFFFF, 0x10000, 0xFFFFFF, 0x7FFFFFFF, 0x80000000),
    *(0xFFFFFFF0, 0xFFFFFFFC, 0xFFFFFFFE, 0xFFFFFFFF),
)


def flip_bits(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    for _i in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_bytes(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    for _i in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] = rng.randrange(256)


def truncate(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data)) :]


def overwrite_word(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """An aligned number, as offsets and counts are, becomes an interesting one or one nearby."""
    size = rng.choice((2, 4, 4, 4, 8))
    position = rng.randrange(max(1, len(data) // size)) * size
    old = int.from_bytes(data[position : position + size], "little")
    near = (old + rng.randint(-16, 16), len(data) - position + rng.randint(-4, 4))
    new = rng.choice((rng.choice(INTERESTING), *near))
    data[position : position + size] = (new % 256**size).to_bytes(size, "little")


def splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """A piece of this or another model, over or between what is there."""
    source = rng.choice((bytes(data), *others))
    start = rng.randrange(len(source))
    piece = source[start : start + rng.randint(1, 64)]
    position = rng.randrange(len(data))
    data[position : position + (len(piece) if rng.random() < 0.7 else 0)] = piece


def zero_range(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data))
    length = min(rng.randint(1, 64), len(data) - start)
    data[start : start + length] = bytes(length)


@define
class _Spot:
    """A number, or a vector of them, in a model that is not yet written."""

    values: dict[str, Any]
    field: Field


def _spots(record: Record) -> Iterator[_Spot]:
    for value in record.values.values():
        if isinstance(value, Record):
            yield from _spots(value)
        elif isinstance(value, list) and value and isinstance(value[0], Record):
            for child in value:
                yield from _spots(child)
    for f in layout(record.table).fields.values():
        # Without its number the union would not be written at all.
        if f.kind in (Kind.SCALAR, Kind.NUMBERS):
            assert isinstance(record.values, dict)
            yield _Spot(record.values, f)


def rewrite(rng: random.Random, specs: Sequence[ModelSpec]) -> bytes:
    """A well-formed flatbuffer that says something wrong: a sample with some numbers changed."""
    root, buffers = model_record(rng.choice(specs))
    root = copy.deepcopy(root)
    spots = list(_spots(root))
    for _ in range(rng.choice((1, 1, 2, 3))):
        spot = rng.choice(spots)
        name = spot.field.name
        if spot.field.kind is Kind.SCALAR:
            spot.values[name] = _number(spot.field, rng)
            continue
        stored = spot.values.get(name)
        old = [] if stored is None else list(stored)
        at = rng.randrange(len(old) + 1)
        old[at : at + rng.randint(0, 1)] = [_number(spot.field, rng)] * rng.choice((0, 1, 1, 2, 40))
        spot.values[name] = np.array(old, spot.field.number)
    if rng.random() < 0.2 and len(buffers) > 1:
        at = rng.randrange(1, len(buffers))
        buffers[at] = buffers[at][: rng.randint(0, len(buffers[at]))]
    return finish(root, buffers)


def _number(f: Field, rng: random.Random) -> Any:
    assert f.number is not None
    if f.number.kind == "b":
        return rng.random() < 0.5
    if f.number.kind == "f":
        return rng.choice((0.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, 3.5))
    limits = np.iinfo(f.number)
    values = (-2, -1, 0, 1, 2, 3, 5, 127, 32767, 2**31 - 1, -(2**31), 2**40)
    return rng.choice([v for v in values if limits.min <= v <= limits.max])


MUTATIONS: tuple[Callable[[bytearray, random.Random, Sequence[bytes]], None], ...] = (
    flip_bits,
    set_bytes,
    truncate,
    overwrite_word,
    overwrite_word,
    overwrite_word,
    splice,
    zero_range,
)


@define
class Bases:
    """The models that cases are made from: as they are written, and as files."""

    specs: list[ModelSpec]
    files: list[bytes]

    @classmethod
    def of(cls, specs: Sequence[ModelSpec], extra: Sequence[Path] = ()) -> Bases:
        return cls(list(specs), [write_model(s) for s in specs] + [p.read_bytes() for p in extra])


def bases(extra: Sequence[Path] = ()) -> Bases:
    """The written samples, and any files given."""
    return Bases.of([make() for make in samples.ALL.values()], extra)


def operators(extra: Sequence[Path] = ()) -> Bases:
    """A model of each sample of each operator, and any files given."""
    singles = next(found for name, _, found in families(real=False) if name == "op")
    return Bases.of(list(singles.values()), extra)


def make_case(seed: int, number: int, models: Bases, rewritten: float = 0.25) -> bytes:
    """One damaged model; ``rewritten`` is the share of those that are damaged before they are
    written."""
    rng = random.Random(f"{seed}:{number}")
    if rng.random() < rewritten:
        return rewrite(rng, models.specs)
    data = bytearray(rng.choice(models.files))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if data:
            rng.choice(MUTATIONS)(data, rng, models.files)
    # A case with a wrong identifier ends at the first check, so most keep theirs.
    if len(data) >= 8 and rng.random() < 0.9:
        data[4:8] = b"TFL3"
    return bytes(data)


class Broken(AssertionError):
    """A model was read, but breaks what its documentation promises."""


def check_promises(model: ModelFile) -> None:
    """That indices are in range and constants have the shape and type they say."""
    for subgraph in model.subgraphs:
        count = len(subgraph.tensors)
        for tensor in subgraph.tensors:
            _check_tensor(tensor, count)
        _check_indices(subgraph, count)
    for signature in model.signatures:
        count = len(model.subgraphs[signature.subgraph].tensors)
        indices = [*signature.inputs.values(), *signature.outputs.values()]
        if not all(0 <= i < count for i in indices):
            raise Broken(f"signature {signature.key!r} of {count} tensors: {indices}")


def _check_indices(subgraph: SubgraphInfo, count: int) -> None:
    for op in subgraph.operators:
        if not all(-1 <= i < count for i in (*op.inputs, *op.intermediates)):
            raise Broken(f"operator {op.index} reads {op.inputs} of {count}")
        if not all(0 <= i < count for i in op.outputs):
            raise Broken(f"operator {op.index} writes {op.outputs} of {count}")
        if not op.name:
            raise Broken(f"operator {op.index} has no name")
    if not all(0 <= i < count for i in (*subgraph.inputs, *subgraph.outputs)):
        raise Broken(f"inputs {subgraph.inputs}, outputs {subgraph.outputs} of {count}")


def _check_tensor(tensor: TensorInfo, count: int) -> None:
    if any(d < 0 for d in tensor.shape) or len(tensor.shape_signature) != len(tensor.shape):
        raise Broken(f"tensor {tensor.index}: {tensor.shape}, {tensor.shape_signature}")
    if tensor.quantization is not None and tensor.quantization.per_axis:
        tensor.quantization.broadcast(len(tensor.shape))
    if tensor.blockwise is not None and not 0 <= tensor.blockwise.scales < count:
        raise Broken(f"tensor {tensor.index}: scales in tensor {tensor.blockwise.scales}")
    if tensor.data is None:
        return
    if tensor.sparsity is not None:
        # Making it dense takes memory in proportion to the shape, so only where that is small.
        if math.prod(tensor.shape) <= 1 << 16:
            dense = tensor.sparsity.densify(tensor.data, tensor.shape)
            if dense.shape != tensor.shape:
                raise Broken(f"tensor {tensor.index}: dense shape {dense.shape}")
    elif tensor.data.shape != tensor.shape:
        raise Broken(f"tensor {tensor.index}: data of {tensor.data.shape} for {tensor.shape}")
    if tensor.dtype.has_numpy and tensor.data.dtype != tensor.dtype.numpy:
        raise Broken(f"tensor {tensor.index}: data of {tensor.data.dtype} for {tensor.dtype}")
    if tensor.data.flags.writeable:
        raise Broken(f"tensor {tensor.index}: data can be written")
    # Every element is there to be read.
    if tensor.dtype is not DType.STRING and tensor.data.size:
        tensor.data.reshape(-1)[[0, -1]].tolist()


class Hang(Exception):
    """A case took longer than its cap."""


@contextlib.contextmanager
def time_cap(seconds: float) -> Iterator[None]:
    """Raise Hang if the body takes longer; without effect where there are no interval timers."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_: int, __: object) -> None:
        raise Hang(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@define
class Result:
    """What came of a run."""

    accepted: int = 0
    refused: int = 0
    failures: list[str] = field(factory=list)
    slowest: float = 0.0
    messages: collections.Counter[str] = field(factory=collections.Counter)


def read(case: bytes) -> None:
    """Read a model."""
    check_promises(read_model(case))


def run_by(backend: str) -> Callable[[bytes], None]:
    """Reads a model, prepares it and runs it once, by a backend."""
    delegates = [GpuDelegate(backend=backend)] if backend != "cpu" else []

    def run_one(case: bytes) -> None:
        with allocated(
            Interpreter(model_content=case, experimental_delegates=delegates)
        ) as interpreter:
            interpreter.invoke()

    return run_one


def run(
    count: int, seed: int, models: Bases, first: int = 0, cap: float = 5.0,
    use: Callable[[bytes], None] = read, rewritten: float = 0.25, tell: bool = False,
) -> Result:  # fmt: skip
    """Use ``count`` damaged models; anything but success or a TflgpuError is a failure. With
    ``tell`` each case's number is printed before it, for a parent to know which ended the
    process."""
    result = Result()
    for number in range(first, first + count):
        case = make_case(seed, number, models, rewritten)
        if tell:
            print(number, flush=True)
        start = time.perf_counter()
        try:
            with time_cap(cap):
                use(case)
            result.accepted += 1
        except TflgpuError as error:
            result.refused += 1
            result.messages[_kind(str(error))] += 1
        except Exception:  # noqa: BLE001 (whatever it is, it is what the fuzzer is here to find)
            result.failures.append(f"case {number} of seed {seed}:\n{traceback.format_exc()}")
        result.slowest = max(result.slowest, time.perf_counter() - start)
    return result


def _kind(message: str) -> str:
    """A message without its numbers and names, to count kinds of refusal."""
    body = message.split(": ", 1)[-1]
    return re.sub(r"-?\d[\d,]*", "#", re.sub(r"\(.*?\)|'.*?'", "_", body.rsplit(": ", 1)[-1]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cap", type=float, default=5.0, help="seconds that a case may take")
    parser.add_argument("--messages", action="store_true", help="count the kinds of refusal")
    parser.add_argument("--run", metavar="BACKEND", help="prepare and run them, too; cpu is none")
    parser.add_argument("--tell", action="store_true", help="print each number before its case")
    parser.add_argument("models", nargs="*", type=Path, help="further models to damage")
    options = parser.parse_args(arguments)
    models = (operators if options.run else bases)(options.models)
    use, rewritten = (run_by(options.run), 0.8) if options.run else (read, 0.25)
    before = _peak_rss()
    start = time.perf_counter()
    result = run(
        options.count,
        options.seed,
        models,
        options.first,
        options.cap,
        use,
        rewritten,
        options.tell,
    )
    seconds = time.perf_counter() - start
    print(f"cases     {options.count} from {len(models.files)} models, seed {options.seed}")
    print(f"accepted  {result.accepted}")
    print(f"refused   {result.refused} with TflgpuError, {len(result.messages)} kinds of message")
    for message, times in result.messages.most_common() if options.messages else ():
        print(f"{times:9} {message}")
    print(f"failures  {len(result.failures)}")
    print(f"time      {seconds:.1f} s, slowest case {result.slowest * 1000:.1f} ms")
    print(f"peak RSS  {_peak_rss():.1f} MiB, {before:.1f} before the first case")
    for failure in result.failures[:10]:
        print(failure, file=sys.stderr)
    return 1 if result.failures else 0


def _peak_rss() -> float:
    """Peak resident memory of this process in MiB; NaN where the system does not say."""
    try:
        import resource
    except ImportError:
        return math.nan
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


if __name__ == "__main__":
    raise SystemExit(main())
