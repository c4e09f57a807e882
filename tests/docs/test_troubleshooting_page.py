"""The page of troubles quotes messages that there are, and options that there are."""

from __future__ import annotations

import logging
import re

import attrs
import pytest
from pages import ROOT
from tflgpu.options import DelegateOptions

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
#: Sources without the breaks that a long text has in them.
SOURCES = re.sub(
    r'"\s*f?"',
    "",
    "".join(
        path.read_text(encoding="utf-8")
        for room in ("core", "backends")
        for path in sorted((ROOT / room).rglob("*.py"))
    ),
)
#: What stands in the first column of a table and is said by tflgpu.
MESSAGES = [
    text
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| what")
    for text in re.findall(r"`([^`]+)`", line.split("|")[1])
    if not text.startswith("tflgpu ")
]


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 15


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_said_by_somebody(message: str) -> None:
    assert message in SOURCES


def test_options_are_options() -> None:
    named = set(re.findall(r"`(\w+)=", PAGE)) | set(re.findall(r"`(\w+(?:_\w+)+)`", PAGE))
    known = {field.name for field in attrs.fields(DelegateOptions)}
    others = {"batch", "resize_tensor_input", "cpu_ref", "NVIDIA_DRIVER_CAPABILITIES"}
    assert named - known == others


def test_the_log_is_named_as_it_is() -> None:
    assert 'getLogger("tflgpu")' in PAGE
    assert logging.getLogger("tflgpu").name in SOURCES
