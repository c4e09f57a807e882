"""Damaged files of saved models: each is made anew with the right results, or read with them.

    python tests/saved/damage.py --count 5000 --seed 1

Each case starts a small model from a folder whose file was damaged: bytes flipped, cut, doubled or
swapped at random, and, under a digest that is right again, numbers of its header, words of its
index, its tables, two files spliced. A start from it must give the bits that the model gives, and
leave a file that is good. Nothing else may come out: no other exception, no crash, no result of
another model.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import logging
import random
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import numpy as np
import tflgpu
from tflgpu.cache.digest import digest_of
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.saved.container import HEADER, packed, unpacked
from tflgpu.saved.store import entries, fault
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

#: A case that takes longer hangs.
_LONGEST = 60.0

Change = Callable[[bytes, bytes, random.Random], bytes]


def sealed(data: bytes) -> bytes:
    """With a digest that is right."""
    return data[:16] + digest_of(data[48:]) + data[48:]


# Without a right digest


def flipped(good: bytes, other: bytes, rng: random.Random) -> bytes:
    bad = bytearray(good)
    for _ in range(rng.choice((1, 1, 3, 100))):
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    return bytes(bad)


def cut(good: bytes, other: bytes, rng: random.Random) -> bytes:
    return good[: rng.choice((0, 1, 15, 47, 63, 64, 65, rng.randrange(len(good))))]


def doubled(good: bytes, other: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(good))
    return good[:at] + good[max(0, at - rng.randrange(1, 4096)) :]


def spliced(good: bytes, other: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(min(len(good), len(other)))
    return good[:at] + other[at:]


def noise(good: bytes, other: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 4096))


def swapped(good: bytes, other: bytes, rng: random.Random) -> bytes:
    return other


# With one


def resealed(change: Change) -> Change:
    """The same under a right digest, so that what comes after it is asked."""

    def made(good: bytes, other: bytes, rng: random.Random) -> bytes:
        bad = change(good, other, rng)
        return sealed(bad) if len(bad) > HEADER else bad

    return made


def index_flipped(good: bytes, other: bytes, rng: random.Random) -> bytes:
    (size,) = struct.unpack_from("<Q", good, 56)
    bad = bytearray(good)
    for _ in range(rng.choice((1, 1, 2, 8))):
        bad[HEADER + rng.randrange(size)] ^= 1 << rng.randrange(8)
    return sealed(bytes(bad))


def sizes_changed(good: bytes, other: bytes, rng: random.Random) -> bytes:
    bad = bytearray(good)
    value = rng.choice((0, 1, 63, len(good) - 1, len(good) + 1, 2**31, 2**63, rng.getrandbits(64)))
    struct.pack_into("<Q", bad, rng.choice((48, 56)), value)
    return sealed(bytes(bad))


def table_changed(good: bytes, other: bytes, rng: random.Random) -> bytes:
    """Entries of one of the index's vectors changed, exchanged, left out or repeated."""
    content = unpacked(memoryview(good))
    names = ("words", "words", "words", "integers", "floats", "blobs", "classes", "key", "bodies")
    name = rng.choice(names)
    numbers = np.asarray(getattr(content.index, name)).tolist()
    if not numbers:
        return flipped(good, other, rng)
    a, b = rng.randrange(len(numbers)), rng.randrange(len(numbers))
    how = rng.randrange(5)
    if how == 0:
        numbers[a], numbers[b] = numbers[b], numbers[a]
    elif how == 1:
        numbers[a] = rng.choice((0, 1, 7, 20, 21, 31, 32, 33, 2**31, 2**32 - 1))
    elif how == 2:
        del numbers[min(a, b) : max(a, b)]
    elif how == 3:
        numbers[a:a] = numbers[b : b + 50]
    else:
        numbers[a] += rng.choice((-1, 1))
    try:
        index = attrs.evolve(content.index, **{name: numbers})
        return b"".join(bytes(piece) for piece in packed(index, content.blobs))
    except (OverflowError, ValueError, struct.error):  # of a number that has no place there
        return flipped(good, other, rng)


def arrays_exchanged(good: bytes, other: bytes, rng: random.Random) -> bytes:
    """An array or a kernel's code in the place of another, or of another file's."""
    mine, theirs = unpacked(memoryview(good)), unpacked(memoryview(other))
    blobs = list(mine.blobs)
    pool = blobs if rng.random() < 0.5 else list(theirs.blobs)
    blobs[rng.randrange(len(blobs))] = rng.choice(pool)
    return b"".join(bytes(piece) for piece in packed(mine.index, blobs))


def keys_exchanged(good: bytes, other: bytes, rng: random.Random) -> bytes:
    """The content of another model under this one's key would be believed: it is for malice, which
    a digest does not find. Here the key is another's, and the content is not."""
    mine, theirs = unpacked(memoryview(good)), unpacked(memoryview(other))
    texts = [*mine.index.texts, *(theirs.index.texts[place] for place in theirs.index.key)]
    places = range(len(mine.index.texts), len(texts))
    index = attrs.evolve(mine.index, texts=tuple(texts), key=list(places))
    return b"".join(bytes(piece) for piece in packed(index, mine.blobs))


PLAIN: Sequence[Change] = (flipped, cut, doubled, spliced, noise, swapped)
#: What a right digest hides may have been made on purpose: numbers of it may be wrong and still be
#: such as tflgpu writes. It must be made anew, give an array of the right size, or be an error of
#: tflgpu's when the kernels run that it has.
FORGED: Sequence[Change] = (
    resealed(cut), resealed(doubled), resealed(spliced), index_flipped, sizes_changed,
    table_changed,
    table_changed, arrays_exchanged, keys_exchanged,
)  # fmt: skip


def tiny_model(scale: float) -> bytes:
    """A product and a matrix product, so that cases are cheap."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((3, 5)).astype(np.float32)
    tensors = [
        TensorSpec("x", (7, 5)), TensorSpec("s", (5,), data=np.full(5, scale, np.float32)),
        TensorSpec("t", (7, 5)), TensorSpec("w", (3, 5), data=weights), TensorSpec("y", (7, 3)),
    ]  # fmt: skip
    operators = [
        OperatorSpec("MUL", {}, (0, 1), (2,)),
        OperatorSpec("FULLY_CONNECTED", {}, (2, 3, -1), (4,)),
    ]
    return write_model(ModelSpec(tensors, operators, (0,), (4,)))


class Damage:
    """A folder with a saved model, and what a start from it gives."""

    def __init__(self, folder: Path, backend: str, device: int) -> None:
        self.options = {
            "backend": backend, "device": device, "serialization_dir": str(folder),
            "model_token": "damage",
        }  # fmt: skip
        self.folder = folder / "damage" / "models"
        self.model = tiny_model(0.5)
        with GpuDelegate(**self.options) as delegate:
            start(tiny_model(0.25), delegate)
            self.other = entries(self.folder)[0].path.read_bytes()
            self.right = start(self.model, delegate)
        (self.path,) = (e.path for e in entries(self.folder) if e.path.read_bytes() != self.other)
        self.good = self.path.read_bytes()
        self.said: collections.Counter[str] = collections.Counter()

    def case(self, change: Change, rng: random.Random, delegate: GpuDelegate) -> None:
        """Damage the file and start."""
        bad = change(self.good, self.other, rng)
        self.path.write_bytes(bad)
        self.path.chmod(0o600)
        begun = time.monotonic()
        # A hang is told with where it is.
        faulthandler.dump_traceback_later(_LONGEST, exit=True)
        is_forged = change in FORGED and not fault(self.path)
        try:
            found = start(self.model, delegate)
        except tflgpu.TflgpuError as error:
            assert is_forged, f"a damaged file led to {type(error).__name__}: {error}"
            self.said[f"an error of a run, forged: {type(error).__name__}"] += 1
            return
        finally:
            faulthandler.cancel_dump_traceback_later()
        assert time.monotonic() - begun < _LONGEST
        if self.path.read_bytes() != bad:
            assert found == self.right, "what was made anew is not right"
            assert not fault(self.path)
            self.said["made anew"] += 1
        elif is_forged:
            assert len(found) == len(self.right), "a forged file led to an array of another size"
            self.said["read, forged"] += 1
        else:
            assert found == self.right, "a damaged file was believed"
            assert bad == self.good, "a damaged file was not made anew"
            self.said["read, and not damaged"] += 1


def start(model: bytes, delegate: GpuDelegate) -> bytes:
    """What a run gives on numbers that are always the same."""
    with tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.linspace(-1, 1, 35, dtype=np.float32).reshape(7, 5))
        interpreter.invoke()
        found: bytes = interpreter.get_tensor(4).tobytes()
        return found


def run(
    folder: Path, count: int, seed: int, backend: str = "cpu_ref", device: int = 1,
    changes: Sequence[Change] = (*PLAIN, *FORGED),
) -> collections.Counter[str]:  # fmt: skip
    """So many cases; gives what became of them.

    Raises:
        AssertionError: of one that something else became of; the message has its number.
    """
    damage = Damage(folder, backend, device)
    with GpuDelegate(**damage.options) as delegate:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            change = changes[number % len(changes)]
            try:
                damage.case(change, rng, delegate)
            except Exception as error:
                raise AssertionError(
                    f"case {number} of seed {seed}, {change.__qualname__}: {error!r}"
                ) from error
    return damage.said


def main() -> None:
    """Print what became of the cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="cpu_ref")
    parser.add_argument("--device", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        said = run(Path(folder), given.count, given.seed, given.backend, given.device)
    for what, count in said.most_common():
        print(f"{count:6} {what}")
    print(f"{sum(said.values())} files in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
