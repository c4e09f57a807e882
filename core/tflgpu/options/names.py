"""Kinds of options that name something: devices, folders, operators; and sizes with a unit."""

from __future__ import annotations

import os
from typing import Any

from tflgpu.contract.device import UUID, read_uuid
from tflgpu.errors import OptionError
from tflgpu.errors.blame import shown
from tflgpu.options.kinds import DIGITS, OptionKind, is_count, whole
from tflgpu.values import frozen

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}


@frozen
class ByteSize(OptionKind):
    """Bytes: a number, or text with a unit."""

    takes = "bytes, or text such as 64MiB"

    def read(self, option: str, value: object) -> int:
        """The number of bytes."""
        nbytes = whole(value)
        if isinstance(value, str):
            text = value.strip().lower().replace(" ", "")
            number = text.rstrip("bikmgt")
            unit = _UNITS.get(text[len(number) :])
            if unit is not None and is_count(number):
                nbytes = int(number) * unit
        if nbytes is None:
            raise OptionError(
                f"{option} is a number of bytes, or text such as '64MiB' or '2GB', not "
                f"{shown(value)}"
            )
        if nbytes < 1:
            raise OptionError(f"{option} is {shown(nbytes)}; the least is 1 byte")
        return nbytes


@frozen
class Sizes(OptionKind):
    """Sizes in rising order."""

    takes = "sizes from 2, or auto"

    def read(self, option: str, value: object) -> tuple[int, ...]:
        """The sizes, each once; "auto" stands for powers of 4."""
        if isinstance(value, str):
            return self.parse(option, value)
        items = list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
        sizes = {size for item in items if (size := whole(item)) is not None and size > 1}
        if len(sizes) < len(items):
            raise OptionError(f"{option} is a list of different sizes from 2, not {shown(value)}")
        return tuple(sorted(sizes))

    def parse(self, option: str, text: str) -> tuple[int, ...]:
        """Sizes between commas, none, or auto."""
        word = text.strip().lower()
        if word == "auto":
            return (32, 128, 512, 2048, 8192)
        items = [part.strip() for part in word.split(",") if part.strip() not in ("", "none")]
        return self.read(option, [int(i) if is_count(i) else i for i in items])

    def shown(self, value: Any) -> str:
        """The sizes between commas."""
        return ",".join(map(str, value))


@frozen
class PlainName(OptionKind):
    """A name, as it is."""

    takes = "a name"

    def read(self, option: str, value: object) -> str:
        """The name itself."""
        if not isinstance(value, str) or not value.strip():
            raise OptionError(f"{option} is a name, not {shown(value)}")
        return value


@frozen
class DeviceName(OptionKind):
    """An index, a part of a name, or a UUID."""

    takes = "an index from 0, part of a name, or uuid:UUID"

    def read(self, option: str, value: object) -> int | str:
        """The index, the part of a name, or "uuid:" and a UUID as `DeviceInfo.uuid` has it."""
        if isinstance(value, str) and value.strip().lower().startswith(UUID):
            found = read_uuid(value.strip()[len(UUID) :])
            if found is None:
                raise OptionError(
                    f"{option} is {shown(value)}; behind {UUID} come 32 hexadecimal digits, as "
                    "`tflgpu devices` and `nvidia-smi -L` show them (a part of a GPU, MIG-..., is "
                    "chosen by its index or name)"
                )
            return UUID + found
        if isinstance(value, str) and value.strip():
            return value
        index = whole(value)
        if index is None or index < 0:
            raise OptionError(
                f"{option} is an index from 0, part of a name, or uuid:UUID, not {shown(value)}"
            )
        return index

    def parse(self, option: str, text: str) -> int | str:
        """An index where the text is digits, else a part of a name or a UUID."""
        return device_from_text(option, text)


@frozen
class Folder(OptionKind):
    """A folder, which need not be there yet."""

    takes = "a folder"

    def read(self, option: str, value: object) -> str:
        """The path, as text."""
        path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if not isinstance(path, str) or not path.strip() or "\0" in path:
            raise OptionError(f"{option} is the path of a folder, not {shown(value)}")
        return path


@frozen
class Token(OptionKind):
    """A name that is fit to be a folder's."""

    takes = "a name without / and \\"

    def read(self, option: str, value: object) -> str:
        """The name itself."""
        if (
            not isinstance(value, str)
            or value.strip() in ("", ".", "..")
            or set(value) & set("/\\:\0")
        ):
            raise OptionError(
                f"{option} names a folder, so it is text without / \\ : and not {shown(value)}"
            )
        return value


@frozen
class Nodes(OptionKind):
    """Operators of a model: by index in the file, by the op's name, or by a tensor that they
    make."""

    takes = "indices, ops and tensors' names"

    def read(self, option: str, value: object) -> tuple[int | str, ...]:
        """Indices and names, each once."""
        single = isinstance(value, str) or whole(value) is not None
        if not single and not isinstance(value, (list, tuple, set, frozenset)):
            raise OptionError(
                f"{option} is a list of operators' indices, ops' names and tensors' names, not "
                f"{shown(value)}"
            )
        items = [value] if single else list(value)  # type: ignore[call-overload]
        return tuple(dict.fromkeys(self._item(option, item) for item in items))

    def parse(self, option: str, text: str) -> tuple[int | str, ...]:
        """Items between commas; one that is all digits is an index."""
        items = [part.strip() for part in text.split(",") if part.strip()]
        return self.read(option, [int(i) if is_count(i) else i for i in items])

    def shown(self, value: Any) -> str:
        """The items between commas."""
        return ",".join(map(str, value))

    def _item(self, option: str, item: object) -> int | str:
        if isinstance(item, str) and item.strip():
            return item
        index = whole(item)
        if index is None or index < 0:
            raise OptionError(
                f"{option} has {shown(item)}, which is no operator's index from 0, no op's name "
                "and no tensor's name"
            )
        return index


def device_from_text(option: str, text: str) -> int | str:
    """A device as a command line or an environment variable names it: an index, a part of a
    name, or a UUID; ``option`` is what the error calls it.

    Raises:
        OptionError: it is none of them.
    """
    text = text.strip()
    if text.lstrip("+-").isascii() and text.lstrip("+-").isdecimal() and len(text) <= DIGITS:
        return DeviceName().read(option, int(text))
    return DeviceName().read(option, text)
