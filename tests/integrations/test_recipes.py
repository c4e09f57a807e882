"""Programs of docs/recipes.md, each in a process of its own, where what it needs is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import Page, one_line
from tests.integrations.programs import run_program

PAGE = Page("docs/recipes.md")
#: Seconds after which a server that does not answer fails the test.
LONG = 120.0
#: What a program imports, by the module that has to be there.
PROGRAMS = {
    "torch": "from torch.utils.data",
    "datasets": "from datasets",
    "dask.array": "import dask.array",
    "pyspark": "from pyspark.sql",
    "pytriton": "from pytriton.triton",
}


def needs(module: str) -> None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_program(module: str, tmp_path: Path) -> None:
    needs(module)
    if module == "pyspark" and shutil.which("java") is None:
        pytest.skip("there is no Java for Spark")
    if module == "pytriton" and sys.version_info[:3] > (3, 11, 4):
        pytest.skip("the Python of PyTriton's server does not have this one's modules")
    run_program(PROGRAMS[module], tmp_path, PAGE)


@contextmanager
def serving(command: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    """A server in a process group of its own, from when it can be connected to."""
    environment = {**os.environ, "BENTOML_DO_NOT_TRACK": "1"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        end = time.monotonic() + LONG
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, (folder / "log").read_text()
                time.sleep(0.1)
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(LONG / 4)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


BENTOML = str(Path(sys.executable).with_name("bentoml"))


@pytest.mark.parametrize(
    ("module", "name", "port", "command"),
    [
        ("litserve", "server.py", 8000, (sys.executable, "server.py")),
        ("bentoml", "service.py", 3000, (BENTOML, "serve", "service:Digits", "--port", "PORT")),
    ],
)
def test_a_server_and_its_client(
    module: str, name: str, port: int, command: Sequence[str], tmp_path: Path
) -> None:
    needs(module)
    (number,) = [n for n, text in enumerate(PAGE.programs) if f"import {module}" in text]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        mine = free.getsockname()[1]
    server, client = (text.replace(str(port), str(mine)) for text in PAGE.programs[number:][:2])
    (tmp_path / name).write_text(server, encoding="utf-8")
    (tmp_path / "client.py").write_text(client, encoding="utf-8")
    command = [str(mine) if word == "PORT" else word for word in command]
    with serving(command, tmp_path, mine):
        end = time.monotonic() + LONG
        while True:  # workers may begin later than the server
            done = subprocess.run(
                [sys.executable, "client.py"],
                cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                break
            assert time.monotonic() < end, done.stderr + (tmp_path / "log").read_text()
            time.sleep(0.1)
    assert one_line(done.stdout) == PAGE.promised(number + 1)
