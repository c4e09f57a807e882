"""Model bytes from a path or from memory."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

from tflgpu.errors import ModelError
from tflgpu.tflite.sniff import not_tflite

Source = str | os.PathLike[str] | bytes | bytearray | memoryview


def name_of(source: Source) -> str:
    """The name of a source in messages."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return f"model of {memoryview(source).nbytes:,} bytes in memory"
    return os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else "model"


def open_source(source: Source) -> memoryview:
    """The bytes of a model, read-only. A file is memory-mapped, and stays so while they are in use.

    Raises:
        ModelError: there is no such file, it cannot be read, it is empty, or it is something else
            than a TFLite model. The message says which, without the source's name.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source)
        if not view.c_contiguous:
            raise ModelError("the memory given is not contiguous; pass bytes(...) of it")
        data = view.cast("B").toreadonly()
    elif isinstance(source, (str, os.PathLike)):
        data = map_file(os.fsdecode(source))
    else:
        raise ModelError(f"a model is a path or bytes, not {type(source).__name__}")
    if not data:
        raise ModelError("the file is empty; fetch or convert it again")
    problem = not_tflite(bytes(data[:64]))
    if problem is not None:
        raise ModelError(problem)
    return data


class _MappedFile(mmap.mmap):
    """A file's bytes, which knows what the file system said of it when it was mapped."""

    path: str
    status: os.stat_result

    def may_differ(self) -> bool:
        """Whether the file may have been written to since. A file that only took its name does not
        count."""
        try:
            now = Path(self.path).stat()
        except OSError:
            return False
        was = self.status
        return os.path.samestat(now, was) and (
            (now.st_size, now.st_mtime_ns) != (was.st_size, was.st_mtime_ns)
        )

    def is_cut(self) -> bool:
        """Whether its end is gone, so that reading it would end the process."""
        return Path(self.path).stat().st_size < len(self)


def check_unchanged(data: memoryview, same: Callable[[], bool] | None) -> None:
    """Check that a model's bytes have not changed since they were opened. Of a file the file system
    is asked, and ``same`` only where it reports a write; of writable memory, ``same``.

    Args:
        data: As `open_source` gave it.
        same: Whether the bytes are the same, which takes reading all of them; None where no earlier
            digest is known.

    Raises:
        ModelError: they have changed, and what was made of them may mix both versions.
    """
    owner = data.obj
    if isinstance(owner, _MappedFile):
        if owner.may_differ() and (same is None or owner.is_cut() or not same()):
            raise ModelError(
                f"{owner.path}: somebody wrote to the file while it was in use; put a new model "
                "in the place of an old one by renaming (mv, os.replace), and open it anew"
            )
    elif not isinstance(owner, bytes) and same is not None and not same():
        raise ModelError(
            "the memory that the model was given in has been changed while it was in use; give "
            "bytes"
        )


def map_file(path: str) -> memoryview:
    """The bytes of a file, mapped as long as they are in use.

    Raises:
        ModelError: there is no such file, or it cannot be mapped.
    """
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ModelError(_directory(path))
        # Opening a pipe or a device could wait for ever, and neither can be mapped.
        if not stat.S_ISREG(status.st_mode):
            raise ModelError("not a regular file; copy it to one, or pass its bytes")
        if status.st_size == 0:
            return memoryview(b"")
        with open(path, "rb") as file:
            mapped = _MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
            mapped.path, mapped.status = os.path.abspath(path), os.fstat(file.fileno())
            return memoryview(mapped)
    except FileNotFoundError:
        hint = "standard input is not read; give a path" if path == "-" else "check the path"
        raise ModelError(f"no such file; {hint}. Could not open '{path}'") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot be read: {reason}") from error


def _directory(path: str) -> str:
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        return (
            "it is a directory with a TensorFlow SavedModel; convert it with "
            "tf.lite.TFLiteConverter.from_saved_model, and load the .tflite file"
        )
    return "it is a directory; give the path of the .tflite file in it"
