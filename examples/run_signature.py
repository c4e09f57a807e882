"""Call a model by its signature, inputs and outputs by name: a script for TensorFlow Lite.

    python examples/run_signature.py --model model.tflite --inputs inputs.npz --outputs outputs.npz

The arrays of the inputs' file have the names that the signature gives them; the results are saved
under theirs. `examples/label_image.py` says which one line brings a GPU; here it is the same.
"""

from __future__ import annotations

import argparse

import numpy as np
from ai_edge_litert.interpreter import Interpreter


def main() -> None:
    """Run the signature once and save what it gives."""
    parser = argparse.ArgumentParser(description="Call a model by its signature.")
    parser.add_argument("--model", required=True, help="a .tflite model with a signature")
    parser.add_argument("--signature", help="its key; may be left out where there is one")
    parser.add_argument("--inputs", required=True, help="an .npz file with an array an input")
    parser.add_argument("--outputs", required=True, help="the .npz file to write")
    arguments = parser.parse_args()

    interpreter = Interpreter(
        model_path=arguments.model,
    )
    signatures = interpreter.get_signature_list()
    if not signatures:
        raise SystemExit(f"{arguments.model} has no signature; give its inputs by index instead")
    key = arguments.signature or next(iter(signatures))
    if key not in signatures:
        raise SystemExit(f"no signature {key}; {arguments.model} has {', '.join(signatures)}")
    run = interpreter.get_signature_runner(key)

    for name, details in run.get_input_details().items():
        print(f"in   {name}: {np.dtype(details['dtype'])}{details['shape_signature'].tolist()}")
    with np.load(arguments.inputs) as file:
        if missing := set(signatures[key]["inputs"]) - set(file.files):
            raise SystemExit(f"{arguments.inputs} lacks {', '.join(sorted(missing))}")
        results = run(**{name: file[name] for name in signatures[key]["inputs"]})
    for name, array in results.items():
        print(f"out  {name}: {array.dtype}{list(array.shape)}")
    np.savez(arguments.outputs, **results)


if __name__ == "__main__":
    main()
