"""UUIDs of devices: what APIs of one GPU have in common, and what tells two equal GPUs apart.

Indices do not: each API has its own order, and a process in which some GPUs are hidden another.
"""

from __future__ import annotations

import re

#: What an option ``device`` begins with that is a UUID.
UUID = "uuid:"
UUID_BYTES = 16

_GROUPS = (8, 4, 4, 4, 12)
_DIGITS = re.compile("".join(f"([0-9a-f]{{{count}}})-?" for count in _GROUPS)[:-2])


def uuid_text(raw: bytes) -> str | None:
    """`DeviceInfo.uuid` of the 16 bytes that an API gives, in the groups of RFC 9562; None of
    zeros, which drivers give that have no UUID."""
    return read_uuid(raw.hex()) if any(raw) else None


def read_uuid(text: str) -> str | None:
    """The same of a UUID as people and other programs write it: with or without dashes, in either
    case, and with the "GPU-" of CUDA and `nvidia-smi` before it. None of any other text."""
    found = _DIGITS.fullmatch(text.strip().lower().removeprefix("gpu-"))
    return None if found is None else "-".join(found.groups())
