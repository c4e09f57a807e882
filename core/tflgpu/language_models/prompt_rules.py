"""What a bundle says of its model: how a prompt is written, where an answer ends, how to choose."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.language_models.wire import fields, real, texts, whole_numbers
from tflgpu.values import frozen

#: A token as a bundle names it: its numbers, or its text.
Token = tuple[int, ...] | str


@frozen
class PromptRules:
    """What a bundle says, in the form of LiteRT-LM's ``LlmMetadata`` and MediaPipe's
    ``LlmParameters``.

    Attributes:
        start: Tokens that a prompt begins with; none of ().
        stops: What ends an answer.
        prefix, suffix: Text around a user's prompt, up to where the answer begins.
        most: Tokens of prompt and answer together; 0 where it is not said.
        top_k, top_p, temperature: How tokens are chosen; 0 where it is not said.
        greedy: Whether the likeliest is chosen always.
    """

    start: Token = ()
    stops: Sequence[Token] = ()
    prefix: str = ""
    suffix: str = ""
    most: int = 0
    top_k: int = 0
    top_p: float = 0.0
    temperature: float = 0.0
    greedy: bool = True


def rules_of_litertlm(data: bytes) -> PromptRules:
    """Those of a section ``LlmMetadataProto``.

    Raises:
        ModelError: the section is no such message.
    """
    where = "LlmMetadataProto"
    start: Token = ()
    stops: list[Token] = []
    most, around = 0, ("", "")
    top_k, top_p, temperature, greedy = 0, 0.0, 0.0, True
    for number, value in fields(data, where):
        if isinstance(value, int):
            most = value if number == 5 else most
        elif number == 1:
            start = _token(value, where)
        elif number == 2:
            stops.append(_token(value, where))
        elif number == 3:
            around = _templates(value, where)
        elif number == 4:
            top_k, top_p, temperature, greedy = _sampler(value, where)
    return PromptRules(start, tuple(stops), *around, most, top_k, top_p, temperature, greedy)


def rules_of_task(data: bytes) -> PromptRules:
    """Those of a bundle's file ``METADATA``.

    Raises:
        ModelError: the file is no such message.
    """
    where = "METADATA"
    start: Token = ()
    stops: list[Token] = []
    around, template = ("", ""), ("", "")
    for number, value in fields(data, where):
        if isinstance(value, int):
            start = (value,) if number == 4 else start
        elif number == 6:
            start = value.decode("utf-8", "replace")
        elif number == 5:
            stops.append(value.decode("utf-8", "replace"))
        elif number == 8:
            parts = texts(value, where)
            template = ("".join(_last(parts, n) for n in (1, 2)), _last(parts, 3))
        elif number == 17:
            around = _templates(value, where)
    return PromptRules(start, tuple(stops), *(around if any(around) else template))


def _token(data: bytes, where: str) -> Token:
    for number, value in fields(data, where):
        if number == 1 and isinstance(value, bytes):
            ids = [
                n for key, v in fields(value, where) if key == 1 for n in whole_numbers(v, where)
            ]
            return tuple(ids)
        if number == 2 and isinstance(value, bytes):
            return value.decode("utf-8", "replace")
    return ()


def _templates(data: bytes, where: str) -> tuple[str, str]:
    """What is before a user's prompt, and what is between it and the model's answer."""
    roles: dict[int, tuple[str, str]] = {}
    for number, value in fields(data, where):
        if isinstance(value, bytes):
            parts = texts(value, where)
            roles[number] = (_last(parts, 1), _last(parts, 2))
    prefix, suffix = roles.get(1, ("", ""))
    return prefix, suffix + roles.get(2, ("", ""))[0]


def _sampler(data: bytes, where: str) -> tuple[int, float, float, bool]:
    kind = top_k = 0
    top_p = temperature = 0.0
    for number, value in fields(data, where):
        if isinstance(value, int):
            kind, top_k = (value, top_k) if number == 1 else (kind, value if number == 2 else top_k)
        elif number == 3:
            top_p = real(value)
        elif number == 4:
            temperature = real(value)
    return top_k, top_p, temperature, kind in (0, 3)


def _last(parts: dict[int, list[str]], number: int) -> str:
    return parts.get(number, [""])[-1]
