"""Say what is in a picture, by an image classifier: a script as they are written for TensorFlow
Lite.

    python examples/label_image.py --model mobilenet.tflite --labels labels.txt --image cat.jpg

As it stands LiteRT runs it on the CPU. There are two ways to a GPU, and each is one change:

* LiteRT stays, and is given a delegate, by `import tflgpu` and one argument of `Interpreter`:

      experimental_delegates=[tflgpu.GpuDelegate()],

* or tflgpu's own interpreter takes its place, which uses the best GPU there is without being asked:

      from tflgpu.interpreter import Interpreter
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image


def main() -> None:
    """Print the likeliest labels, best first."""
    parser = argparse.ArgumentParser(description="Say what is in a picture.")
    parser.add_argument("--model", required=True, help="a .tflite image classifier")
    parser.add_argument("--image", required=True, help="a picture of any size")
    parser.add_argument("--labels", type=Path, help="names of the classes, one a line")
    parser.add_argument("--top", type=int, default=5, help="how many to print")
    parser.add_argument("--mean", type=float, default=127.5, help="subtracted from pixels")
    parser.add_argument("--std", type=float, default=127.5, help="divides pixels")
    parser.add_argument("--threads", type=int, help="of the CPU's kernels")
    arguments = parser.parse_args()

    interpreter = Interpreter(
        model_path=arguments.model,
        num_threads=arguments.threads,
    )
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]
    result = interpreter.get_output_details()[0]

    if len(source["shape"]) != 4:
        raise SystemExit(f"{arguments.model} takes no picture, but {source['shape'].tolist()}")
    _, height, width, _ = source["shape"]
    picture = Image.open(arguments.image).convert("RGB").resize((int(width), int(height)))
    pixels = np.expand_dims(np.asarray(picture), axis=0)
    if source["dtype"] == np.float32:  # a quantized model takes the pixels as they are
        pixels = ((pixels - arguments.mean) / arguments.std).astype(np.float32)
    elif source["dtype"] == np.int8:
        pixels = (pixels.astype(np.int16) - 128).astype(np.int8)

    interpreter.set_tensor(source["index"], pixels)
    interpreter.invoke()
    scores = np.squeeze(interpreter.get_tensor(result["index"]))

    scale, zero_point = result["quantization"]
    if scale:
        scores = scale * (scores.astype(np.float32) - zero_point)
    names = arguments.labels.read_text(encoding="utf-8").splitlines() if arguments.labels else []
    for index in np.argsort(-scores)[: arguments.top]:
        name = names[index] if index < len(names) else f"class {index}"
        print(f"{scores[index]:.4f}  {name}")


if __name__ == "__main__":
    main()
