"""Cases that a backend is known to fail, in a file of its own.

    # kind     case ids                       reason
    notyet     2/POW/*/f16/*                  driver 535 loses the sign of a negative base
    never      0/round_trip_f16/1             the API has no buffers of two bytes

A kind is one of `KINDS`. Case ids may hold ``*`` and ``?``. A pattern that names no case of the
suite is an error, and so is a case that passes although it should fail, other than by ``version``:
the file says what is true, or it is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from tflgpu.errors import OptionError

#: Why a case fails: we could make it pass; a driver must first; nothing ever will; only some
#: versions of a driver fail (or on some machines), so that it may pass as well.
KINDS = ("notimpl", "notyet", "never", "version")


@attrs.frozen
class Expectation:
    """A line of the file."""

    kind: str
    pattern: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def read_expectations(path: Path | None) -> tuple[Expectation, ...]:
    """The lines of a file; none for None.

    Raises:
        OptionError: the file cannot be read, or a line is not one; names the line.
    """
    if path is None:
        return ()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"expectations {path}: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#", 1)[0].strip() if line.lstrip().startswith("#") else line.strip()
        if not content:
            continue
        parts = content.split(None, 2)
        if len(parts) < 3:
            raise OptionError(f"{path}, line {number}: it needs a kind, case ids and a reason")
        if parts[0] not in KINDS:
            raise OptionError(
                f"{path}, line {number}: {parts[0]!r} is no kind; there are {', '.join(KINDS)}"
            )
        found.append(Expectation(*parts))
    return tuple(found)


def match_expectations(
    expectations: Sequence[Expectation], ids: Iterable[str]
) -> dict[str, Expectation]:
    """The expectation of each case that has one.

    Raises:
        OptionError: a pattern names no case.
    """
    listed = list(ids)
    found: dict[str, Expectation] = {}
    for expectation in expectations:
        hit = [i for i in listed if fnmatchcase(i, expectation.pattern)]
        if not hit:
            raise OptionError(f"expectation {expectation.pattern!r} names no case of the suite")
        found.update(dict.fromkeys(hit, expectation))
    return found
