"""A digest of many bytes, taken by several threads: files of models have megabytes.

It is the SHA-256 of the SHA-256s of pieces of 1 MiB and of the number of bytes, so that it does not
depend on how many threads there were.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_PIECE = 1 << 20
_MOST_THREADS = 16
#: Pieces that a thread is given at a time, of many.
_RUN = 4
_NAME = b"tflgpu pieces of 1 MiB\n"


def digest_of(*parts: bytes | memoryview) -> bytes:
    """32 bytes that stand for ``parts``, one after another; each is of bytes."""
    views = [memoryview(part) for part in parts]
    pieces = _pieces(views)
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(pieces) // 2)
    size = max(1, min(_RUN, len(pieces) // (4 * _MOST_THREADS)))
    runs = [pieces[at : at + size] for at in range(0, len(pieces), size)]
    whole = hashlib.sha256(_NAME + sum(map(len, views)).to_bytes(8, "little"))
    if threads < 2:
        whole.update(_digests(pieces))
    else:
        with ThreadPoolExecutor(threads, "tflgpu-digest") as pool:
            for found in pool.map(_digests, runs):
                whole.update(found)
    return whole.digest()


def _digests(pieces: Sequence[Sequence[memoryview]]) -> bytes:
    found = []
    for piece in pieces:
        digest = hashlib.sha256()
        for part in piece:
            digest.update(part)
        found.append(digest.digest())
    return b"".join(found)


def _pieces(views: Sequence[memoryview]) -> list[list[memoryview]]:
    """The bytes of all views, cut at multiples of a piece's size."""
    found: list[list[memoryview]] = []
    room = 0
    for view in views:
        at = 0
        while at < len(view):
            if not room:
                found.append([])
                room = _PIECE
            taken = min(room, len(view) - at)
            found[-1].append(view[at : at + taken])
            at, room = at + taken, room - taken
    return found
