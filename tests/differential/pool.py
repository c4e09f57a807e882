"""The parent's end of a child process: asks, watches time and memory, starts it anew."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.differential.case import Outcome, Script

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Child:
    """One server process.

    Attributes:
        starts: how often it was started.
        recycled: how often it was ended between two cases, since its memory had grown.
    """

    def __init__(
        self, arguments: list[str], *, seconds: float = 30.0, megabytes: float = 1500.0
    ) -> None:
        self._arguments = arguments
        self._seconds, self._megabytes = seconds, megabytes
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: Any = None
        self._base = self._used = 0.0
        self.starts = self.recycled = 0

    def ask(self, content: bytes, script: Script, kernels: str = "builtin") -> Any:
        """What the server answers, or the `Outcome` of a process that did not."""
        if self._process is not None and self._rss() > self._base + self._megabytes / 2:
            # What drivers keep from a thousand models is not the next one's doing.
            self.close()
            self.recycled += 1
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._stderr.seek(0)
        self._stderr.truncate()
        data = pickle.dumps((content, script, kernels), protocol=pickle.HIGHEST_PROTOCOL)
        start, self._used = time.perf_counter(), self._cpu()
        try:
            self._process.stdin.write(struct.pack("<q", len(data)) + data)
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._ended("crash", start)
        answer, state = self._receive(self._seconds)
        return self._ended(state, start) if state else answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _start(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command = [sys.executable, "-m", "tests.differential.server", *self._arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            cwd=_ROOT, bufsize=0, env=environment,
            start_new_session=True,  # a Ctrl-C is for the parent, which ends what has begun
        )  # fmt: skip
        self.starts += 1
        answer, state = self._receive(300.0)
        if state or answer != "ready":
            self._stderr.seek(0)
            said = self._stderr.read().decode(errors="replace")
            self.close()
            raise RuntimeError(f"{' '.join(command)} did not start: {said[-2000:]}")
        self._base = self._rss()

    def _receive(self, seconds: float) -> tuple[Any, str]:
        """A message and "", or None and how the process ended."""
        deadline = time.perf_counter() + seconds
        head, state = self._read(8, deadline)
        if state:
            return None, state
        body, state = self._read(struct.unpack("<q", head)[0], deadline)
        return (None, state) if state else (pickle.loads(body), "")

    def _read(self, count: int, deadline: float) -> tuple[bytes, str]:
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        found = bytearray()
        while len(found) < count:
            if select.select([descriptor], [], [], 0.1)[0]:
                piece = os.read(descriptor, min(count - len(found), 1 << 20))
                if not piece:
                    return b"", "crash"
                found += piece
            elif time.perf_counter() > deadline and self._hangs(time.perf_counter() - deadline):
                return b"", "hang"
            elif self._rss() > self._base + self._megabytes:
                return b"", "memory"
        return bytes(found), ""

    def _hangs(self, late: float) -> bool:
        """Whether a process that is ``late`` by so many seconds is to blame, and not the load of
        the machine: it has used its time, or waits for what does not come."""
        used = self._cpu()
        return used - self._used > self._seconds or late > 9 * self._seconds

    def _cpu(self) -> float:
        """Seconds of processors that the process has used; infinite where nobody says."""
        assert self._process is not None
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return math.inf
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _rss(self) -> float:
        """Resident memory in MiB; 0 where the system does not say."""
        assert self._process is not None
        try:
            words = Path(f"/proc/{self._process.pid}/statm").read_text().split()
        except OSError:
            return 0.0
        return int(words[1]) * _PAGE / 2**20

    def _ended(self, state: str, start: float) -> Outcome:
        assert self._process is not None
        if state != "crash":
            self._process.kill()
        code = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.close()
        return Outcome(
            state=state, stage="?", error=name if state == "crash" else state,
            message=said[-600:], seconds=time.perf_counter() - start,
        )  # fmt: skip
