"""Several kernels in one program, for a driver whose programs cost much whatever is in them.

PoCL's compiler reads the declarations of all of OpenCL C for each program, 0.2 s of a processor's
time, and has a lock on it, so that threads do not help. A kernel more in a program costs a tenth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

#: What the printer opens a kernel with.
_OPENING = re.compile(r"^(__kernel __attribute__\(\(.*\)\)\nvoid )(\w+)\($", re.MULTILINE)


@attrs.frozen
class Joined:
    """The text of a program of several kernels.

    Attributes:
        text: OpenCL C.
        entries: By the text of each kernel's own program, the kernel's name in this one.
    """

    text: str
    entries: dict[str, str]


def join(sources: Iterable[str]) -> tuple[list[Joined], list[str]]:
    """Programs of those texts that begin with the same functions, and the texts that stay alone:
    with functions that no other has, or not as the shipped printer writes them."""
    groups: dict[str, list[str]] = {}
    alone = []
    for source in dict.fromkeys(sources):
        found = _OPENING.findall(source)
        if len(found) == 1 and source.count("__kernel") == 1:
            groups.setdefault(source[: source.index("__kernel")], []).append(source)
        else:
            alone.append(source)
    programs = []
    for prelude, of_group in groups.items():
        if len(of_group) == 1:
            alone += of_group
            continue
        text, entries = [prelude], {}
        for number, source in enumerate(of_group):
            # No two of these are equal, and no helper ends so.
            entry = entries[source] = f"{_OPENING.findall(source)[0][1]}_k{number}"
            body = source[len(prelude) :]
            text.append(_OPENING.sub(rf"\g<1>{entry}(", body))
        programs.append(Joined("\n".join(text), entries))
    return programs, alone
