"""The extension of Model Explorer, and node data in a file, used in a browser."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tflgpu
from tflgpu.tools.profile_json import to_node_data

from tests.cli.browser import Browser, chromium
from tests.running import allocated

pytestmark = pytest.mark.usefixtures("known_limits")
pytest.importorskip("model_explorer", reason="needs ai-edge-model-explorer")

#: The rows of the page's last table, which has the data of every node, as texts.
ROWS = (
    "JSON.stringify([...([...document.querySelectorAll('table')].pop()?.querySelectorAll('tr') ?? "
    "[])].map(row => [...row.querySelectorAll('td')].map(cell => cell.innerText.trim())))"
)
#: What Model Explorer calls the operators of the digits; other nodes have no data.
OPERATORS = frozenset(
    ["conv_2d", "depthwise_conv_2d", "max_pool_2d", "reshape", "fully_connected", "softmax"]
)


@pytest.fixture
def provider() -> Any:
    from tflgpu.tools.model_explorer.main import TflgpuProfile

    return TflgpuProfile()


def test_the_page_asks_for_a_backend_and_runs(provider: Any) -> None:
    backend, runs = provider.get_config_editors("tflgpu_milliseconds").configEditors
    assert backend.defaultValue == "best"
    assert {"best", "cpu_ref"} <= {option.value for option in backend.options}
    assert (runs.id, runs.number) == ("runs", True)
    assert provider.metadata.filter.modelFileExts == ["tflite"]


def test_what_goes_wrong_is_for_the_page(provider: Any, digits: Path, tmp_path: Path) -> None:
    def said(path: Path, graph: str = "main", **values: Any) -> str:
        made = provider.run("", str(path), graph, values)
        assert made.result is None
        return str(made.error)

    assert "no such file" in said(tmp_path / "none.tflite")
    assert "Runs is a whole number, not 'x'" in said(digits, runs="x")
    assert "nonesuch" in said(digits, backend="nonesuch")
    assert "no operator of this model has a time" in said(digits, backend="cpu_ref", runs=1)
    assert "the main graph, main, is what is profiled" in said(
        digits, "body", backend="cpu_ref", runs=1
    )


@contextmanager
def served(model: Path, data: Path) -> Iterator[str]:
    """The address of Model Explorer's page."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "model_explorer", str(model), "--no_open_in_browser",
        "--extensions=tflgpu.tools.model_explorer", f"--node_data_paths={data}", f"--port={port}",
    ]  # fmt: skip
    environment = {**os.environ, "TFLGPU_CACHE_DIR": str(model.parent / "cache")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            said = []
            for line in server.stdout:
                said.append(line)
                address = re.search(rf"http://localhost:{port}/\S*", line)
                if address:
                    break
            else:
                raise AssertionError("".join(said))
            assert any("tflgpu profile" in line for line in said), said
            yield address[0]
        finally:
            server.terminate()


def times(browser: Browser, columns: int) -> list[list[str]]:
    """By operator: the numbers of the page's columns, as soon as there are so many."""
    browser.wait_for(
        f"JSON.parse({ROWS}).some(r => r[1] === 'conv_2d' && r.length === {2 + columns})"
    )
    rows = json.loads(browser.evaluate(ROWS))
    return [row[2:] for row in rows if len(row) == 2 + columns and row[1] in OPERATORS]


@pytest.mark.needs("opencl")
def test_times_are_shown_by_a_browser(digits: Path, tmp_path: Path) -> None:
    chromium()
    with (
        tflgpu.GpuDelegate(backend="opencl") as delegate,
        allocated(
            tflgpu.Interpreter(str(digits), experimental_delegates=[delegate])
        ) as interpreter,
    ):
        made = to_node_data(interpreter.profile(1))
    data = tmp_path / "times.json"
    data.write_text(json.dumps(made))
    with served(digits, data) as address:
        browser = Browser(tmp_path / "chromium")
        try:
            browser.open(address)
            # From the file: the same numbers by operator, and none for the RESHAPE.
            shown = times(browser, 1)
            values = [made["main"]["results"].get(str(i)) for i in range(7)]
            assert values[4] is None
            assert [[str(v["value"]) if v else "-"] for v in values] == shown
            # By the extension, from inside of the page.
            browser.click("Add per-node data")
            browser.click("tflgpu profile")
            browser.wait_for("!!document.querySelector('run-ndp-extension-dialog select')")
            browser.evaluate(
                "(() => { const list = document.querySelector('run-ndp-extension-dialog select');"
                "list.value = 'opencl'; list.dispatchEvent(new Event('change', {bubbles: true}));"
                "document.querySelector('.btn-run').click(); })()"
            )
            both = times(browser, 2)
            assert [row[0] for row in both] == [row[0] for row in shown]
            assert [row[1] == "-" for row in both] == [i == 4 for i in range(7)]
            assert all(float(row[1]) > 0 for i, row in enumerate(both) if i != 4)
        finally:
            browser.close()
