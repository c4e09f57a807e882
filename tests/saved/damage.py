"""Damaged files of saved models: each is made anew with the right results, or read with them.

    python -m tests.saved.damage --count 5000 --seed 1

Each case starts a small model from a folder whose file was damaged: bytes flipped, cut, doubled,
spliced or swapped at random. A start from it must give the bits that the model gives, and leave a
file that is good. Nothing else may come out: no exception, no crash, no result of another model.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import logging
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tflgpu
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.saved.location import entries, fault

from tests.running import allocate_and_run
from tests.small_models import small_model, tensor_of

#: A case that takes longer hangs.
_LONGEST = 60.0

Change = Callable[[bytes, bytes, random.Random], bytes]


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


PLAIN: Sequence[Change] = (flipped, cut, doubled, spliced, noise, swapped)


def tiny_model(scale: float) -> bytes:
    """A product and a matrix product, so that cases are cheap."""
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((3, 5)).astype(np.float32)
    return small_model(
        {
            "x": (7, 5),
            "s": tensor_of((5,), data=np.full(5, scale, np.float32)),
            "t": (7, 5),
            "w": tensor_of((3, 5), data=weights),
            "y": (7, 3),
        },
        "t = MUL(x, s)",
        "y = FULLY_CONNECTED(t, w, -)",
    )


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
        try:
            found = start(self.model, delegate)
        finally:
            faulthandler.cancel_dump_traceback_later()
        assert time.monotonic() - begun < _LONGEST
        if self.path.read_bytes() != bad:
            assert found == self.right, "what was made anew is not right"
            assert not fault(self.path)
            self.said["made anew"] += 1
        else:
            assert found == self.right, "a damaged file was believed"
            assert bad == self.good, "a damaged file was not made anew"
            self.said["read, and not damaged"] += 1


def start(model: bytes, delegate: GpuDelegate) -> bytes:
    """What a run gives on numbers that are always the same."""
    with tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter:
        allocate_and_run(interpreter, {0: np.linspace(-1, 1, 35, dtype=np.float32).reshape(7, 5)})
        return interpreter.get_tensor(4).tobytes()


def run(
    folder: Path, count: int, seed: int, backend: str = "cpu_ref", device: int = 1,
    changes: Sequence[Change] = PLAIN,
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
