"""What of a model costs time on a GPU without computing anything, and what to use in its place.

Source: TensorFlow Lite's pages on its GPU delegate ("Tips and tricks", "Supported ops").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tflgpu.profiles.table import rule_table
from tflgpu.tflite.model_file import ModelFile

_MOVES = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE")
_DELEGATE = "tflite-gpu"


def advice(file: ModelFile) -> Iterator[str]:
    """Sentences, each about one thing; none where there is nothing to say."""
    main = file.main
    counts = Counter(o.name for o in main.operators)
    moves = [f"{counts[op]} {op}" for op in _MOVES if counts[op]]
    if moves:
        yield (
            f"{', '.join(moves)}: on a GPU they may copy a whole tensor, since four channels lie "
            "together there; a model that stays in [batch, height, width, channels] needs none"
        )
    for index in main.inputs:
        tensor = main.tensors[index]
        if len(tensor.shape) == 4 and tensor.shape[3] == 3:
            yield (
                f"input {tensor.name} has 3 channels (RGB): a GPU stores 4, so that each image is "
                "copied; a model that takes RGBA spares that"
            )
        if -1 in tensor.shape_signature:
            yield (
                f"input {tensor.name} has sizes that change (dynamic tensors): phones' delegates "
                "take only fixed ones; fix them when the model is converted"
            )
    rules = rule_table(_DELEGATE).rules
    late = sorted(
        {
            f"{o.name} {o.version} (taken: up to {rules[o.name]['version']})"
            for o in main.operators
            if o.name in rules and o.version > rules[o.name].get("version", o.version)
        }
    )
    if late:
        yield (
            f"operators of later versions than TFLite's GPU delegate takes: {', '.join(late)}; "
            "a converter writes the lowest version that a model needs, so leave out what needs it "
            "(quantization, broadcasting, ...)"
        )
