"""Copies between the host and memory that it does not see, through memory that it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tflgpu.contract.buffers import Bytes

from tflgpu_vulkan.api import lib, make
from tflgpu_vulkan.barriers import Between, barrier
from tflgpu_vulkan.blocks import HOST, Pool, Region
from tflgpu_vulkan.context import Commands, Context

_PIECE = 64 << 20
#: A region, where in it, where in the host's piece, how many bytes.
_Copy = tuple[Region, int, int, int]


def upload(context: Context, regions: Sequence[Region], arrays: Sequence[Bytes]) -> None:
    """Fill regions from their start.

    Raises:
        DeviceError: memory ran out, or the device failed.
    """
    total = sum(data.nbytes for data in arrays)
    if not total:
        return
    with _piece(context, total) as piece:
        filled = 0
        copies: list[_Copy] = []
        for region, data in zip(regions, arrays, strict=True):
            done = 0
            while done < data.nbytes:
                size = min(data.nbytes - done, piece.nbytes - filled)
                piece.bytes[filled : filled + size] = data[done : done + size]
                copies.append((region, done, filled, size))
                done, filled = done + size, filled + size
                if filled == piece.nbytes:
                    _copy(context, piece, copies, to_host=False)
                    filled, copies = 0, []
        if copies:
            _copy(context, piece, copies, to_host=False)


def download(context: Context, region: Region, nbytes: int) -> Bytes:
    """The first bytes of a region.

    Raises:
        DeviceError: memory ran out, or the device failed.
    """
    found = np.empty(nbytes, np.uint8)
    with _piece(context, nbytes) as piece:
        for start in range(0, nbytes, piece.nbytes):
            size = min(nbytes - start, piece.nbytes)
            _copy(context, piece, [(region, start, 0, size)], to_host=True)
            found[start : start + size] = piece.bytes[:size]
    return found


@contextmanager
def _piece(context: Context, total: int) -> Iterator[Region]:
    pool = Pool(context, HOST, context.details.alignment)
    piece = pool.region("the host's piece", min(total, _PIECE))
    try:
        pool.allocate()
        yield piece
    finally:
        pool.release()


def _copy(context: Context, piece: Region, copies: Sequence[_Copy], *, to_host: bool) -> None:
    commands = Commands(context)
    try:
        buffer = commands.begin()
        barrier(buffer, Between.SUBMISSIONS)
        for region, at, start, size in copies:
            ends: list[tuple[Any, int]] = [
                (region.block.buffer, region.offset + at),
                (piece.block.buffer, piece.offset + start),
            ]
            (source, source_at), (target, target_at) = ends if to_host else ends[::-1]
            copy = make("VkBufferCopy", srcOffset=source_at, dstOffset=target_at, size=size)
            lib.vkCmdCopyBuffer(buffer, source, target, 1, copy)
        barrier(buffer, Between.SUBMISSIONS)
        if to_host:
            barrier(buffer, Between.DOWNLOADS_AND_HOST)
        commands.submit(commands.end(buffer), "copying")
    finally:
        commands.release()
