"""Chromium without a window, driven by its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Seconds for which something may be waited for; what does not come is a failure.
PATIENCE = 90.0
#: Becomes a program that reads the protocol from descriptor 3 and writes it to 4.
_STREAMS = (
    "import os, sys; os.dup2(int(sys.argv[1]), 33); os.dup2(int(sys.argv[2]), 34); "
    "os.dup2(33, 3); os.dup2(34, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def chromium() -> str:
    """Its path; the test is skipped where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here (Debian: apt install chromium)")
    return found


class Browser:
    """One page."""

    def __init__(self, folder: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [
            chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--use-gl=angle",
            "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage",
            "--window-size=1400,1000", f"--user-data-dir={folder}", "--remote-debugging-pipe",
        ]  # fmt: skip

        descriptors = (to_read, to_write)
        begin = [sys.executable, "-c", _STREAMS, *map(str, descriptors), *command]
        self._process = subprocess.Popen(
            begin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=descriptors
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._read, 1 << 16)
                assert more, "the browser has ended"
                self._rest += more
            one, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of an expression, which the page can send, as soon as it is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self.evaluate(script)
            if found:
                return found
            time.sleep(0.1)
        text = self.evaluate("document.body.innerText")
        raise AssertionError(f"{script} does not come true; the page says: {text}")

    def click(self, text: str) -> None:
        """Click on the innermost thing that shows exactly this text, as soon as there is one."""
        self.wait_for(
            "(() => { const found = [...document.querySelectorAll('*')].filter(e => e.innerText &&"
            f" e.innerText.trim() === {json.dumps(text)} && e.offsetParent !== null);"
            " if (found.length) found[found.length - 1].click(); return found.length; })()"
        )

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._write)
        os.close(self._read)
