"""Say what is heard, second by second.

    python examples/tasks/speech.py
    python examples/tasks/speech.py yes.wav --model speech_commands.tflite --labels words.txt

The first listens to three tones, by a model made here.
"""

from __future__ import annotations

import argparse
import wave

import numpy as np
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

RATE, TONES = 8000, {"a": 440, "c": 523, "e": 659}
SECOND = 2 * np.pi * np.arange(RATE) / RATE


def tone_finder() -> bytes:
    """How much of each tone is in a second: sums with sines and cosines, squared; a softmax."""
    waves = [f(SECOND * hertz) for hertz in TONES.values() for f in (np.sin, np.cos)]
    sizes = {"sound": RATE, "sums": 6, "squares": 6, "powers": 3, "scores": 3}
    tensors = [
        *(TensorSpec(name, (1, size)) for name, size in sizes.items()),
        TensorSpec("waves", (6, RATE), data=np.array(waves, np.float32) / RATE),
        TensorSpec("pairs", (3, 6), data=np.repeat(400 * np.eye(3, dtype=np.float32), 2, 1)),
    ]
    steps = (("FULLY_CONNECTED", 0, 5, 1), ("MUL", 1, 1, 2), ("FULLY_CONNECTED", 2, 6, 3))
    operators = [OperatorSpec(name, {}, [a, b], [to]) for name, a, b, to in steps]
    softmax = OperatorSpec("SOFTMAX", {"beta": 1.0}, [3], [4])
    return write_model(ModelSpec(tensors, [*operators, softmax], [0], [4]))


def main() -> None:
    """Print the likeliest class of each window of the sound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sound", nargs="?", default="tones.wav", help="a WAV; none for tones")
    for name in ("--model", "--labels"):
        parser.add_argument(name, help="a file")
    parser.add_argument("--rate", type=int, help="samples a second that the model takes")
    given = parser.parse_args()
    model, options = given.model, {"labels": given.labels, "rate": given.rate}
    if model is None:
        model, options = tone_finder(), {"labels": list(TONES), "rate": RATE}
        with wave.open("tones.wav", "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            for hertz in (659, 440, 523):
                file.writeframes((9999 * np.sin(SECOND * hertz)).astype("<i2").tobytes())
    with tflgpu.Task(model, kind="classify", **options) as task:
        for at, answer in task.each(given.sound):
            print(f"{at or 0:7.2f} s  {answer.lines()[0]}")


if __name__ == "__main__":
    main()
