"""Answers: what a model's outputs mean, as values that are printed, drawn, and written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from attrs import field, frozen

from tflgpu.errors import InputError
from tflgpu.ir.dtypes import Array

_SHOWN = 8  # elements of an array, classes of a mask


def _drawing() -> ModuleType:
    """`tflgpu.tools.drawing`, which needs Pillow."""
    from tflgpu.tools import drawing

    return drawing


@frozen
class Label:
    """A class, and how much speaks for it.

    Attributes:
        index: Of the class.
        name: Of the labels; "class N" where there is none.
        score: As the answer says: a probability, or any number that is greater for the likelier.
    """

    index: int
    name: str
    score: float

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {"index": self.index, "name": self.name, "score": _json(self.score)}


@frozen(eq=False)
class Answer:
    """What a model says of one input; `str` of it is its lines.

    Attributes:
        picture: The PIL image that the model saw, or None.
        said: What was done to the input.
    """

    kind: ClassVar[str] = "values"
    picture: Any = field(default=None, kw_only=True, repr=False)
    said: str = field(default="", kw_only=True, repr=False)

    def lines(self) -> list[str]:
        """For people."""
        raise NotImplementedError

    def asdict(self) -> dict[str, Any]:
        """For JSON: plain values."""
        raise NotImplementedError

    def draw(self) -> Any:
        """A PIL image of it, on the picture that the model saw where there is one.

        Raises:
            InputError: there is nothing to draw, or no picture to draw it on.
        """
        raise InputError(f"an answer of kind {self.kind} is nothing that can be drawn")

    def _seen(self) -> Any:
        if self.picture is None:
            raise InputError(
                f"an answer of kind {self.kind} is drawn on a picture, and there was none"
            )
        return self.picture

    def __str__(self) -> str:
        return "\n".join(self.lines())


@frozen(eq=False)
class Scores(Answer):
    """Classes of the whole input.

    Attributes:
        labels: The likeliest, best first.
        scores: Of all classes, f32 [classes].
        are_probabilities: Whether scores are probabilities, or at least numbers from 0 to 1.
    """

    kind = "classify"
    labels: tuple[Label, ...]
    scores: Array = field(repr=False)
    are_probabilities: bool = True

    @property
    def best(self) -> Label:
        """The likeliest."""
        return self.labels[0]

    def lines(self) -> list[str]:
        """A score and a name a line, best first."""
        return [f"{self._shown(label.score):>8}  {label.name}" for label in self.labels] or [
            "nothing above the threshold"
        ]

    def _shown(self, score: float) -> str:
        return f"{100 * score:.1f} %" if self.are_probabilities else f"{score:.4g}"

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": self.kind, "labels": [label.asdict() for label in self.labels]}

    def draw(self) -> Any:
        """The labels, in a corner of the picture."""
        return _drawing().with_text(self._seen(), self.lines())


@frozen
class Detection:
    """One thing in a picture: ``box`` is left, top, right and bottom, in pixels of the picture."""

    box: tuple[float, float, float, float]
    label: Label


@frozen(eq=False)
class Detections(Answer):
    """Things in a picture, the surest first."""

    kind = "detect"
    found: tuple[Detection, ...]

    def lines(self) -> list[str]:
        """A score, a name and a box a line."""
        return [
            f"{100 * d.label.score:>6.1f} %  {d.label.name}  at "
            + "{:.0f},{:.0f} to {:.0f},{:.0f}".format(*d.box)
            for d in self.found
        ] or ["nothing above the threshold"]

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        found = [{**d.label.asdict(), "box": [_json(n) for n in d.box]} for d in self.found]
        return {"kind": self.kind, "found": found}

    def draw(self) -> Any:
        """The boxes, on the picture."""
        return _drawing().with_boxes(self._seen(), self.found)


@frozen(eq=False)
class Mask(Answer):
    """A class for each pixel.

    Attributes:
        classes: i32 [height, width], of the model's size.
        names: By class.
        confidence: f32 [height, width] from 0 to 1, where there is one class and the rest.
        region: Left, top, width and height of what the mask covers, in pixels of the picture;
            None where there is no picture.
    """

    kind = "segment"
    classes: Array = field(repr=False)
    names: Mapping[int, str]
    confidence: Array | None = field(default=None, repr=False)
    region: tuple[float, float, float, float] | None = None

    @property
    def shares(self) -> dict[str, float]:
        """How much of the picture is of each class, the largest first."""
        found, counts = np.unique(self.classes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {self.names[int(found[i])]: float(counts[i] / self.classes.size) for i in order}

    def lines(self) -> list[str]:
        """A share and a name a line, the largest first."""
        shares = list(self.shares.items())[:_SHOWN]
        return [f"{100 * share:>6.1f} %  {name}" for name, share in shares]

    def asdict(self) -> dict[str, Any]:
        """For JSON: shares, not the pixels."""
        return {"kind": self.kind, "size": list(self.classes.shape[::-1]), "shares": self.shares}

    def draw(self) -> Any:
        """Colours on the picture: a heat map of the confidence, or a colour for each class."""
        if self.confidence is not None:
            return _drawing().with_heat(self.picture, self.confidence, self.region)
        return _drawing().with_classes(self.picture, self.classes, self.names, self.region)


@frozen
class Keypoint:
    """A point of a body, in pixels of the picture."""

    name: str
    x: float
    y: float
    score: float


@frozen(eq=False)
class Keypoints(Answer):
    """Points of one body.

    Attributes:
        points: In the model's order.
        threshold: Points with a lower score are not drawn.
    """

    kind = "keypoints"
    points: tuple[Keypoint, ...]
    threshold: float = 0.3

    def lines(self) -> list[str]:
        """A score, a name and a place a line."""
        return [f"{100 * p.score:>6.1f} %  {p.name} at {p.x:.0f},{p.y:.0f}" for p in self.points]

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        points = [
            {"name": p.name, "x": _json(p.x), "y": _json(p.y), "score": _json(p.score)}
            for p in self.points
        ]
        return {"kind": self.kind, "points": points}

    def draw(self) -> Any:
        """The points, and lines between those of a body's 17, on the picture."""
        return _drawing().with_points(self._seen(), self.points, self.threshold)


@frozen(eq=False)
class Embedding(Answer):
    """A vector that is near to those of similar inputs."""

    kind = "embed"
    vector: Array = field(repr=False)

    def similarity(self, other: Embedding) -> float:
        """The cosine of the angle to another's: 1 for the same direction."""
        lengths = float(np.linalg.norm(self.vector) * np.linalg.norm(other.vector))
        return float(self.vector @ other.vector) / lengths if lengths else 0.0

    def lines(self) -> list[str]:
        """Its size, its length and its first numbers."""
        first = ", ".join(f"{n:.4g}" for n in self.vector[:_SHOWN])
        length = float(np.linalg.norm(self.vector))
        return [f"{self.vector.size} numbers of length {length:.4g}: {first}, ..."]

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": self.kind, "vector": [_json(n) for n in self.vector.tolist()]}


@frozen(eq=False)
class Picture(Answer):
    """A picture that the model made: u8 ``pixels`` [height, width, 3]."""

    kind = "image"
    pixels: Array = field(repr=False)

    def lines(self) -> list[str]:
        """Its size."""
        return [f"a picture of {self.pixels.shape[1]}x{self.pixels.shape[0]}"]

    def asdict(self) -> dict[str, Any]:
        """For JSON: its size, not the pixels."""
        return {"kind": self.kind, "size": [self.pixels.shape[1], self.pixels.shape[0]]}

    def draw(self) -> Any:
        """The picture itself."""
        return _drawing().picture_of(self.pixels)


@frozen(eq=False)
class RawOutputs(Answer):
    """Outputs without a meaning that is known: real ``arrays`` by name."""

    kind = "values"
    arrays: Mapping[str, Array] = field(repr=False)

    def lines(self) -> list[str]:
        """A name, a type and the first elements a line."""
        return [f"{name}: {a.dtype}{list(a.shape)} {_first(a)}" for name, a in self.arrays.items()]

    def asdict(self) -> dict[str, Any]:
        """For JSON: nested lists."""
        values = {name: _nested(a.tolist()) for name, a in self.arrays.items()}
        return {"kind": self.kind, "outputs": values}


def _first(array: Array) -> str:
    first = ", ".join(
        f"{n:.4g}" if array.dtype.kind == "f" else str(n) for n in array.flat[:_SHOWN]
    )
    return f"{first}{', ...' * (array.size > _SHOWN)}"


def _json(number: float) -> float | None:
    """JSON has no NaN and no infinities: None."""
    return round(float(number), 6) if np.isfinite(number) else None


def _nested(value: Any) -> Any:
    if isinstance(value, list):
        return [_nested(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, complex):
        return _nested([value.real, value.imag])
    return value if not isinstance(value, float) or np.isfinite(value) else None
