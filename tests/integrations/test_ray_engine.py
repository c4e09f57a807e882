"""`tflgpu.integrations.ray` and `.ray_serve` in a local Ray: programs in processes of their own,
which end within a time that is set, with all that they have started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tflgpu.plugins.registry import registry

from tests.docs.pages import Page, one_line
from tests.integrations import twins

pytest.importorskip("ray.serve", reason='needs pip install "tflgpu[ray]"')

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes that are left are found in /proc"
)

FOLDER = Path(__file__).parent
IDS = list(range(70))
#: Seconds for a program, and for what it has started to end after it.
LONG, END = 280, 30


def run(folder: Path, *args: str) -> str:
    """What a program prints, in a session of processes of its own."""
    # Ray's sockets have paths that must be short.
    own = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    path = folder / "plugin"
    path.mkdir()
    environ = {
        **os.environ, "RAY_TMPDIR": own, "PYTHONPATH": twins.on_path(path),
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    written = folder / "printed"
    try:
        with written.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, *args], cwd=folder, env=environ, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(LONG)
            finally:
                left = ended(process.pid)
        text = written.read_text()
        assert code == 0, text[-4000:]
        assert left == [], f"it left processes: {left}"
        return text
    finally:
        shutil.rmtree(own, ignore_errors=True)


def ended(session: int) -> list[str]:
    """Names of the processes of a session that do not end by themselves; they are killed."""
    end = time.monotonic() + END
    while (left := members(session)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return list(left.values())


def members(session: int) -> dict[int, str]:
    """The processes of a session, by number."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, fields = rest.split()[0], rest.split()
        if int(fields[3]) == session and state != "Z":
            found[int(stat.parent.name)] = head.partition("(")[2]
    return found


def uuids_of(backend: str) -> list[str]:
    """Those of two devices."""
    if backend == twins.NAME:
        return list(twins.UUIDS)
    if backend not in registry().backends:
        pytest.skip(f"there is no backend {backend}")
    found = sorted({d.uuid for d in registry().probe(backend).devices if d.uuid is not None})
    if len(found) < 2:
        pytest.skip(
            f"{backend} has {len(found)} devices with UUIDs of their own; VK_DRIVER_FILES with "
            "llvmpipe and SwiftShader gives two"
        )
    return found[:2]


@pytest.fixture(scope="module", params=[twins.NAME, "vulkan"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What `ray_data_program` wrote, on two devices."""
    backend, folder = request.param, tmp_path_factory.mktemp("data")
    out = folder / "out.json"
    program = str(FOLDER / "ray_data_program.py")
    run(folder, program, str(out), str(folder), backend, *uuids_of(backend))
    yield json.loads(out.read_text())


def test_two_devices_get_half_of_the_work_each(data: Any) -> None:
    assert data["halves"]["ids"] == IDS
    assert data["halves"]["gap"] < 1e-5
    assert list(data["halves"]["devices"].values()) == [35, 35]


def test_a_row_that_does_not_fit_fails_alone(data: Any) -> None:
    assert data["spoiled"]["ids"] == IDS
    assert list(data["spoiled"]["why"]) == ["5", "41"]
    assert all("[1, 8, 4, 1]" in why for why in data["spoiled"]["why"].values())
    assert data["spoiled"]["blank"]
    assert data["spoiled"]["gap"] < 1e-5


def test_a_row_that_does_not_fit_is_named(data: Any) -> None:
    assert "row 5 of a batch of 16" in data["refused"]


def test_a_gpu_that_cannot_be_told_is_not_replaced(data: Any) -> None:
    """Where there is NVML, its GPU is none of these backends' devices."""
    assert "assigns GPU 0" in data["unassigned"] or "has no device" in data["unassigned"]


def test_nothing_is_lost_with_a_worker_that_is_killed(data: Any) -> None:
    assert data["killed"]["was_killed"]
    assert data["killed"]["ids"] == IDS
    assert data["killed"]["gap"] < 1e-5


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `ray_serve_program` wrote."""
    folder = tmp_path_factory.mktemp("serve")
    out = folder / "out.json"
    run(folder, str(FOLDER / "ray_serve_program.py"), str(out), twins.NAME, *twins.UUIDS)
    return json.loads(out.read_text())


def test_requests_are_gathered(served: Any) -> None:
    assert 1 < served["largest"] <= 8
    assert served["gap"] < 1e-5
    assert served["device"] == "Twin 0"


def test_one_that_does_not_fit_is_refused_alone(served: Any) -> None:
    assert served["bad"].startswith("InputError")
    assert "[1, 4, 8, 1] for input 'image'" in served["bad"]


def test_models_give_way_to_one_another(served: Any) -> None:
    assert served["many"] < 1e-5
    assert served["open"] == 2
    assert "there is no model 'z'; there are [a, b, c]" in served["unknown"]


def test_requests_by_http(served: Any) -> None:
    status, gap = served["http"]
    assert (status, served["http_errors"]) == (200, [404, 404, 400, 400, 400, 400])
    assert gap < 1e-5


def test_metrics_are_exported(served: Any) -> None:
    assert served["metrics"]["seconds_count"] > 0
    assert served["metrics"]["errors"] > 0


def test_a_replica_that_is_not_healthy_is_replaced(served: Any) -> None:
    assert served["replaced"]
    assert served["after"] < 1e-5


def test_a_replica_that_is_killed_is_replaced(served: Any) -> None:
    """What it had is answered right, or is an error of Ray's that says that it died."""
    assert len(served["killed"]) == 5
    for found in served["killed"]:
        assert ("Actor" in found and "died" in found) if isinstance(found, str) else found < 1e-5
    assert served["after_kill"] < 1e-5


def test_a_deployment_that_ends_answers_first(served: Any) -> None:
    assert served["late"] < 1e-5


@pytest.mark.parametrize("number", range(2))
def test_the_programs_of_the_page(number: int, tmp_path: Path) -> None:
    page = Page("docs/integrations-ray.md")
    assert len(page.programs) == 2
    (tmp_path / "program.py").write_text(page.programs[number], encoding="utf-8")
    promised = page.promised(number)
    assert promised
    assert promised in one_line(run(tmp_path, "program.py"))
