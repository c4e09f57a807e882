"""The files behind a model: a zip archive after the last byte of the flatbuffer."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from contextlib import closing

from tflgpu.errors import ModelError
from tflgpu.errors.blame import quoted
from tflgpu.tflite.flat import DAMAGED
from tflgpu.tflite.source import Source

#: The most bytes of a file behind a model, unpacked: vocabularies have a few hundred thousand.
MOST_BYTES = 16 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, LookupError),
    *(ValueError, RuntimeError, OverflowError),
)


class Archive:
    """The files behind a model, which is opened when the first is read."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._open: zipfile.ZipFile | None = None
        self._left = 4 * MOST_BYTES

    def close(self) -> None:
        """Close the archive."""
        if self._open is not None:
            self._open.close()

    def read(self, name: str) -> bytes:
        """The contents of a file.

        Raises:
            ModelError: it is not there, damaged, or too long.
        """
        try:
            if self._open is None:
                self._open = zipfile.ZipFile(_opened(self.source))
            info = self._open.getinfo(name)
            if info.compress_type not in _METHODS:
                raise ModelError(f"file {quoted(name)} is packed in a way that is not read")
            with self._open.open(info) as file:
                content = file.read(min(MOST_BYTES, self._left) + 1)
        except KeyError:
            raise ModelError(f"file {quoted(name)} is not behind the model; {DAMAGED}") from None
        except _ZIP_ERRORS as error:
            raise ModelError(
                f"file {quoted(name)} behind the model cannot be read: {error}; {DAMAGED}"
            ) from error
        if len(content) > min(MOST_BYTES, self._left):
            raise ModelError(f"file {quoted(name)} is longer than {MOST_BYTES:,} bytes")
        self._left -= len(content)
        return content


def _opened(source: Source) -> str | io.BytesIO:
    if isinstance(source, (str, os.PathLike)):
        return os.fsdecode(source)
    return io.BytesIO(source)


def file_of(source: Source, name: str) -> bytes:
    """The contents of one file, as `Archive.read`."""
    with closing(Archive(source)) as archive:
        return archive.read(name)
