"""An operator's options: values by the schema's names, from a file, a test or a plugin."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeVar

from tflgpu.errors import ModelError
from tflgpu.errors.blame import shown
from tflgpu.values import frozen

_E = TypeVar("_E", bound=enum.Enum)


class Activation(enum.Enum):
    """Fused activations; the values are TFLite's `ActivationFunctionType` codes."""

    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3
    TANH = 4
    SIGN_BIT = 5


class Padding(enum.Enum):
    """TFLite's `Padding` codes."""

    SAME = 0
    VALID = 1


@frozen
class Fields:
    """The values of an operator's options, by the schema's snake_case names.

    The names are TFLite's, not a flatbuffer's: a `.tflite` file, the C structs of a running
    LiteRT, or a test's dict all feed the same `OpDef.parse`. ``custom_options`` are the raw
    bytes of a custom op.
    """

    op: str
    values: Mapping[str, Any]
    custom_options: bytes = b""

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value of a field, ``default`` where it is absent."""
        return self.values.get(name, default)

    def integer(self, name: str, default: int = 0, *, minimum: int | None = None) -> int:
        """A whole-number field.

        Raises:
            ModelError: the value is not a number or lies below ``minimum``.
        """
        value = self.values.get(name, default)
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise ModelError(f"{self.op}: option {name} is {shown(value)}, not a number") from None
        if minimum is not None and number < minimum:
            raise ModelError(f"{self.op}: option {name} is {number}, must be >= {minimum}")
        return number

    def number(self, name: str, default: float = 0.0) -> float:
        """A float field."""
        value = self.values.get(name, default)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ModelError(f"{self.op}: option {name} is {shown(value)}, not a number") from None

    def flag(self, name: str, default: bool = False) -> bool:
        """A flag."""
        return bool(self.values.get(name, default))

    def integers(self, name: str) -> tuple[int, ...]:
        """A vector of whole numbers, empty where it is absent."""
        value = self.values.get(name)
        return () if value is None else tuple(int(v) for v in value)

    def member(self, name: str, kind: type[_E], what: str) -> _E:
        """A field that is a code of an enumeration's.

        Raises:
            ModelError: the code is not one of the schema's; ``what`` names it.
        """
        code = self.integer(name)
        try:
            return kind(code)
        except ValueError:
            raise ModelError(f"{self.op}: unknown {what} {code}") from None

    def activation(self) -> Activation:
        """The ``fused_activation_function`` field, as `member`."""
        return self.member("fused_activation_function", Activation, "fused activation code")

    def padding(self) -> Padding:
        """The ``padding`` field, as `member`."""
        return self.member("padding", Padding, "padding code")


def graph_attributes(fields: Fields) -> Any:
    """`OpDef.parse` of an op that no file has: what makes its nodes gives them their attributes,
    and a `Sample` has them as option ``attributes``.

    Raises:
        ModelError: a file has an operator of that name.
    """
    if "attributes" not in fields.values:
        raise ModelError(f"{fields.op} is made while a graph is compiled; no file can have it")
    return fields.get("attributes")
