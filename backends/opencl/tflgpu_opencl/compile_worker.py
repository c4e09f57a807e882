"""A process that compiles programs for another and returns their binaries.

It is started by the path of this file, without site-packages, and imports the standard library
alone: it is ready when the driver has made a context, not later. Its arguments are a library that
has OpenCL's functions, the positions of a platform and of its device, the device's name and driver
version, the seconds after which it ends where nothing comes, and those that it may take to start
or for a program. It ends with its input, too.

Messages are as long as their first four bytes say (little endian): the text of a program comes in
by stdin; its binary goes out by stdout behind `MADE`, or why there is none behind `REFUSED`, and
behind `ENDS` why the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

_ALL_DEVICES = 0xFFFFFFFF
_NAME, _DRIVER = 0x102B, 0x102D  # CL_DEVICE_NAME, CL_DRIVER_VERSION
_BINARY_SIZES, _BINARIES = 0x1165, 0x1166
_TEXT_BYTES = 1024
#: What a message to stdout begins with.
MADE, REFUSED, ENDS = b"+", b"-", b"!"


class OpenCLError(Exception):
    """A function gave a status that is no success."""


def receive(stream: IO[bytes]) -> bytes | None:
    """A message; None at the end of a stream, or of the process that writes it."""
    head = stream.read(4)
    size = int.from_bytes(head, "little")
    content = stream.read(size) if len(head) == 4 else b""
    return content if len(head) == 4 and len(content) == size else None


def send(stream: IO[bytes], content: bytes) -> None:
    """Write a message."""
    stream.write(len(content).to_bytes(4, "little") + content)
    stream.flush()


class Compiler:
    """A context of one device.

    Raises:
        OpenCLError: there is no such device, or it cannot be used.
    """

    def __init__(self, library: str, platform: int, device: int) -> None:
        self._library = ctypes.CDLL(library)
        for making in ("clCreateContext", "clCreateProgramWithSource"):
            getattr(self._library, making).restype = ctypes.c_void_p
        platforms = self._listed("clGetPlatformIDs")
        kind = ctypes.c_uint64(_ALL_DEVICES)
        devices = self._listed("clGetDeviceIDs", ctypes.c_void_p(platforms[platform]), kind)
        self._device = (ctypes.c_void_p * 1)(devices[device])
        self._context = self._made("clCreateContext", None, 1, self._device, None, None)

    def text(self, what: int) -> str:
        """What the device says of itself."""
        found = ctypes.create_string_buffer(_TEXT_BYTES)
        size = ctypes.c_size_t(_TEXT_BYTES)
        device = ctypes.c_void_p(self._device[0])
        self._call("clGetDeviceInfo", device, ctypes.c_uint(what), size, found, None)
        return found.value.decode(errors="replace").strip()

    def binary(self, source: bytes) -> bytes:
        """The binary of a program.

        Raises:
            OpenCLError: the driver refused it.
        """
        text = (ctypes.c_char_p * 1)(source)
        program = self._made("clCreateProgramWithSource", self._context, 1, text, None)
        try:
            self._call("clBuildProgram", program, 1, self._device, b"", None, None)
            size = (ctypes.c_size_t * 1)()
            self._about(program, _BINARY_SIZES, size)
            content = ctypes.create_string_buffer(size[0])
            self._about(program, _BINARIES, (ctypes.c_void_p * 1)(ctypes.addressof(content)))
            return content.raw
        finally:
            self._library.clReleaseProgram(program)

    def _about(self, program: ctypes.c_void_p, what: int, found: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(found))
        self._call("clGetProgramInfo", program, ctypes.c_uint(what), size, found, None)

    def _listed(self, name: str, *about: Any) -> Any:
        count = ctypes.c_uint()
        self._call(name, *about, 0, None, ctypes.byref(count))
        found = (ctypes.c_void_p * count.value)()
        self._call(name, *about, count, found, None)
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OpenCLError(f"{name}: {status}")

    def _made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        status = (ctypes.c_int * 1)()
        made = getattr(self._library, name)(*arguments, status)
        if status[0]:
            raise OpenCLError(f"{name}: {status[0]}")
        return ctypes.c_void_p(made)


def main(library: str, platform: str, device: str, name: str, driver: str, *limits: str) -> int:
    """Compile what comes until nothing more does; the exit code."""
    # What the driver prints must not get between the messages.
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    patience, longest = map(float, limits)

    def ends(why: str) -> NoReturn:
        send(stdout, ENDS + why.encode())
        os._exit(1)

    late = f"it took more than {longest:g} s to"
    try:
        with _within(longest, ends, f"{late} start"):
            compiler = Compiler(library, int(platform), int(device))
            if (compiler.text(_NAME), compiler.text(_DRIVER)) != (name, driver):
                ends(f"device {device} of platform {platform} is another one")
    except (OpenCLError, OSError, AttributeError, IndexError) as error:
        ends(str(error))
    while True:
        with _within(patience, os._exit, 0):
            source = receive(stdin)
        if source is None:
            return 0
        try:
            with _within(longest, ends, f"{late} compile a program"):
                answer = MADE + compiler.binary(source)
        except OpenCLError as error:  # the other process compiles it as well, and has the log
            answer = REFUSED + str(error).encode()
        send(stdout, answer)


@contextlib.contextmanager
def _within(seconds: float, late: Callable[..., object], *arguments: object) -> Iterator[None]:
    """Call ``late``, which ends the process, where what is inside takes longer."""
    limit = threading.Timer(seconds, late, arguments)
    limit.start()
    try:
        yield
    finally:
        limit.cancel()


if __name__ == "__main__":
    # At once: the driver has nothing to write, and takes its time to end.
    os._exit(main(*sys.argv[1:]))
