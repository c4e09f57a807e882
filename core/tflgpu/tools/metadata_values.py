"""The values of TFLite metadata, as `tflgpu.metadata` gives them."""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import field, frozen

from tflgpu.errors import ModelError


@frozen
class AssociatedFile:
    """A file behind the model.

    Attributes:
        name: In the archive.
        description: Free text.
        kind: "axis labels" (a name for each element of an output), "value labels" (a name for each
            value), "score calibration", "vocabulary", "descriptions", "scann index" or "unknown".
        locale: Language of the contents, as ISO 639-1 has it; mostly empty.
    """

    name: str
    description: str = ""
    kind: str = "unknown"
    locale: str = ""


@frozen
class Normalization:
    """How an input's values become the model's: ``(x - mean) / std``, by channel or for all.

    Pixels are numbers from 0 to 255 before it. A quantized input is quantized after it.

    Raises:
        ModelError: another number of means than of deviations, or one that is not finite, or a
            deviation of 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __attrs_post_init__(self) -> None:
        numbers = (*self.mean, *self.std)
        fits = len({len(self.mean), len(self.std)} - {1}) <= 1 and self.mean and self.std
        if not fits or not all(map(math.isfinite, numbers)) or 0 in self.std:
            raise ModelError(
                f"normalization by mean {list(self.mean)} and std {list(self.std)}: both have one "
                "finite number, or one for each channel, and std is not 0"
            )


@frozen
class ScoreCalibration:
    """How scores become comparable: ``scale / (1 + exp(-(slope * g(x) + offset)))`` by class.

    Attributes:
        transformation: g: "identity", "log" or "inverse logistic".
        default_score: Of classes without parameters, and of scores up to their least one.
        parameters: scale, slope, offset and least score by class; None for a class without any.
    """

    transformation: str
    default_score: float
    parameters: tuple[tuple[float, float, float, float] | None, ...] = ()


@frozen
class Tokenizer:
    """How texts become the numbers of a model.

    Attributes:
        kind: "regex" (words between matches of a pattern), "bert" (pieces of words) or
            "sentencepiece".
        pattern: Of "regex".
        vocabulary: Names of files with a word a line, or a word and its number.
        model: Names of sentencepiece models.
    """

    kind: str
    pattern: str = ""
    vocabulary: tuple[str, ...] = ()
    model: tuple[str, ...] = ()


@frozen
class TensorMetadata:
    """What is said of an input or an output.

    Attributes:
        name: For people; the file's own name of the tensor is another.
        description: Free text.
        dimension_names: A name for each dimension, or none.
        content: "image", "audio", "boxes", "feature" or "".
        colours: Of an image: "rgb", "grey" or "".
        size: Width and height of an image whose size the model leaves open; zeros where not said.
        box_type: Of boxes: "boundaries" (left, top, right, bottom), "upper left" (of it, width,
            height), "center" (of it, width, height) or "".
        box_order: Where each of these four is among a box's numbers; empty for that order.
        boxes_in_pixels: Whether boxes are in pixels, and not from 0 to 1.
        sample_rate: Of audio, samples a second; 0 where not said.
        channels: Of audio.
        normalization: Of an input, or None.
        calibration: Of scores, or None.
        threshold: The score below which results are left out, or None.
        tokenizer: Of an input of texts, or None.
        minimum, maximum: Least and greatest values, for all or by channel; often empty.
        files: Files that belong to the tensor.
        labels: The names in the first file of labels.
    """

    name: str = ""
    description: str = ""
    dimension_names: tuple[str, ...] = ()
    content: str = ""
    colours: str = ""
    size: tuple[int, int] = (0, 0)
    box_type: str = ""
    box_order: tuple[int, ...] = ()
    boxes_in_pixels: bool = False
    sample_rate: int = 0
    channels: int = 0
    normalization: Normalization | None = None
    calibration: ScoreCalibration | None = None
    threshold: float | None = None
    tokenizer: Tokenizer | None = None
    minimum: tuple[float, ...] = ()
    maximum: tuple[float, ...] = ()
    files: tuple[AssociatedFile, ...] = ()
    labels: tuple[str, ...] = field(default=(), repr=lambda names: f"<{len(names)} labels>")


@frozen
class ModelMetadata:
    """What a model's author says of it.

    Attributes:
        name, description, version, author, license: Free texts, any of them empty.
        inputs, outputs: Of the main subgraph, in its order.
        tokenizer: Of the whole model: one that fills several inputs.
        files: All that are named, those of tensors too.
        min_parser_version: The metadata's version that understands all of it.
        read: Contents of a file by its name. It raises ModelError for one that is not there, is
            damaged, or is longer than 16 MiB.
    """

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    tokenizer: Tokenizer | None = None
    files: tuple[AssociatedFile, ...] = ()
    min_parser_version: str = ""
    read: Callable[[str], bytes] = field(default=lambda name: b"", eq=False, repr=False)
