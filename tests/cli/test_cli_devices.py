"""`tflgpu devices`: what is there, what is not and how to get it, what would be chosen."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from typing import Any

import attrs
import pytest
from tflgpu.cli.install import packages_of, pip_install
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.errors import DeviceError
from tflgpu.language.caps import DeviceCaps
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry
from tflgpu.plugins.sources import Plugin, PluginFailure

from tests.cli.cli_helpers import Hooks, Tflgpu
from tests.toy_device import ToyDevice


@attrs.frozen
class Opened(ToyDevice):
    """As much of a device as the command looks at."""

    info: DeviceInfo
    caps: DeviceCaps


def toy(*, error: str = "", is_gpu: bool = True, uuid: str | None = None, **fields: Any) -> Hooks:
    """A backend with one GPU, that opens unless there is an error."""
    info = DeviceInfo("toy", 0, "Toy GPU [rev 2]", is_gpu=is_gpu, driver="toy 1.0", uuid=uuid)

    def open_device(backend: str, index: int, options: DelegateOptions) -> Any:
        if error:
            raise DeviceError(error)
        return Opened(info, DeviceCaps(f16_storage=True))

    return Hooks(
        register_backends=lambda: [BackendInfo("toy", API_VERSION, rank=30, **fields)],
        probe=lambda backend: Probe(True, devices=(info,)) if backend == "toy" else None,
        open_device=open_device,
    )


def missing(**fields: Any) -> Hooks:
    """A backend without devices."""
    return Hooks(
        register_backends=lambda: [BackendInfo("gone", API_VERSION, rank=5, **fields)],
        probe=lambda backend: Probe(False, "no loader found") if backend == "gone" else None,
    )


def test_lists_devices_and_the_choice(tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
    install(cpu_ref=cpu_ref, toy=toy())
    result = tflgpu("devices")
    assert result.exit_code == 0
    (line,) = [n for n in result.stdout.splitlines() if "toy 1.0" in n]
    assert line.split() == ["*", "toy", "0", "Toy", "GPU", "[rev", "2]", "toy", "1.0", "yes",
                            "storage", "ok"]  # fmt: skip
    assert "would choose: toy device 0, Toy GPU [rev 2]" in result.stdout
    assert "cpu_ref: only used when asked for" in result.stdout


def test_uuids_are_on_lines_of_their_own(tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
    uuid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
    install(cpu_ref=cpu_ref, toy=toy(uuid=uuid))
    assert f"toy device 0 is uuid:{uuid}\n" in tflgpu("devices").stdout
    found = json.loads(tflgpu("devices", "--json").stdout)["backends"]
    assert [d["uuid"] for each in found for d in each["devices"]] == [uuid, None, None]


def test_without_a_device_nothing_is_chosen(
    tflgpu: Tflgpu, install: Any, cpu_ref: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TFLGPU_BACKEND", raising=False)
    install(cpu_ref=cpu_ref)
    result = tflgpu("devices")
    assert result.exit_code == 0
    assert "would choose: none" in result.stdout
    assert "everything runs on the CPU" in result.stdout


def test_a_device_that_does_not_open_says_why(
    tflgpu: Tflgpu, install: Any, cpu_ref: object
) -> None:
    install(cpu_ref=cpu_ref, toy=toy(error="it is on fire"))
    result = tflgpu("devices")
    assert result.exit_code == 0
    assert "it is on fire" in result.stdout


def test_a_missing_driver_has_a_command_that_works(tflgpu: Tflgpu, install: Any) -> None:
    install(distribution="tflgpu", gone=missing(requires=("no_such_driver",), extra="opencl"))
    output = tflgpu("devices").stdout
    assert "no_such_driver is not installed" in output
    (wanted,) = packages_of("tflgpu", "opencl")
    assert wanted.startswith("pyopencl")
    assert pip_install([wanted]) in output
    assert "tflgpu[" not in output.partition("would choose")[0]  # one command, not two


def test_the_command_is_on_a_line_of_its_own(
    tflgpu: Tflgpu, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However narrow the terminal is, so that it can be pasted."""
    hint = "apt install " + " ".join(f"a-driver-{n}" for n in range(50))
    install(gone=missing(system_hint=hint))
    for command in ("devices", "demo"):
        assert f"  what enables it: {hint}\n" in tflgpu(command).stdout


def test_a_driver_without_an_extra_is_named_itself(tflgpu: Tflgpu, install: Any) -> None:
    install(gone=missing(requires=("no_such_driver",)))
    assert pip_install(["no_such_driver"]) in tflgpu("devices").stdout


def test_a_missing_system_driver_has_a_hint(tflgpu: Tflgpu, install: Any) -> None:
    install(gone=missing(system_hint="apt install gone-driver"))
    output = tflgpu("devices").stdout
    assert "no loader found" in output
    assert "apt install gone-driver" in output


def test_failed_plugins_are_named(
    tflgpu: Tflgpu, cpu_ref: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = PluginFailure("broken", "acme", "ImportError: no module named acme")
    made = Registry([Plugin("cpu_ref", "tflgpu", cpu_ref)], [failure])
    monkeypatch.setattr("tflgpu.plugins.registry._registry", made)
    assert "plugin broken (from acme): ImportError" in tflgpu("devices").stderr
    assert json.loads(tflgpu("devices", "--json").stdout)["failed_plugins"] == [
        {"name": "broken", "distribution": "acme", "error": "ImportError: no module named acme"}
    ]


def test_a_backend_in_the_environment_that_is_not_there(
    tflgpu: Tflgpu, install: Any, cpu_ref: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(cpu_ref=cpu_ref)
    monkeypatch.setenv("TFLGPU_BACKEND", "abacus")
    result = tflgpu("devices")
    assert result.exit_code == 0
    assert "there is no backend 'abacus'" in result.stdout


def test_json(tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
    install(cpu_ref=cpu_ref, toy=toy(), gone=missing(system_hint="a driver"))
    found = json.loads(tflgpu("devices", "--json").stdout)
    assert [b["name"] for b in found["backends"]] == ["toy", "gone", "cpu_ref"]
    first, second, _ = found["backends"]
    assert first["available"]
    assert first["devices"][0]["caps"]["f16_storage"] is True
    assert second == {"name": "gone", "distribution": "explicit", "rank": 5, "available": False,
                      "devices": [], "reason": "no loader found", "fix": "a driver"}  # fmt: skip
    assert found["chosen"]["name"] == "Toy GPU [rev 2]"


def test_opencl_is_listed(tflgpu: Tflgpu, require_backend: Any) -> None:
    names = [d.name for d in require_backend("opencl").devices]
    found = {b["name"]: b for b in json.loads(tflgpu("devices", "--json").stdout)["backends"]}
    listed = found["opencl"]["devices"]
    assert [d["name"] for d in listed] == names
    assert all(d["caps"]["max_workgroup"] >= 1 for d in listed)


def test_without_pyopencl_the_command_works() -> None:
    """A machine without the driver's package: the import of pyopencl is blocked."""
    code = (
        "import sys\n"
        "sys.modules['pyopencl'] = None\n"
        "from tflgpu.cli.app import main\n"
        "sys.argv = ['tflgpu', 'devices', '--json']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {b["name"]: b for b in json.loads(done.stdout)["backends"]}
    assert not found["opencl"]["available"]
    assert "pyopencl is not installed" in found["opencl"]["reason"]
    assert "pyopencl" in found["opencl"]["fix"].split(" install ")[1]


class TestCpuSide:
    """What runs what a device leaves, and whether a device is used without being asked for."""

    @pytest.fixture(autouse=True)
    def clean(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("BACKEND", "DEVICE", "CPU_BACKEND", "DEFAULT_DELEGATE"):
            monkeypatch.delenv(f"TFLGPU_{name}", raising=False)

    @pytest.mark.needs("litert")
    def test_litert_and_its_version(self, tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
        from tflgpu_litert import plugin as litert

        install(cpu_ref=cpu_ref, litert=litert)
        version = importlib.metadata.version("ai-edge-litert")
        name = f"LiteRT CPU kernels (ai-edge-litert {version})"
        last = tflgpu("devices").stdout.splitlines()[-1]
        assert last == f"what a device leaves runs on the CPU by: {name}"
        found = json.loads(tflgpu("devices", "--json").stdout)["cpu_side"]
        assert found == {"backend": "litert", "name": name, "reasons": []}

    def test_numpy_and_what_to_install(self, tflgpu: Tflgpu, install: Any, cpu_ref: object) -> None:
        kernels = Hooks(
            register_backends=lambda: [BackendInfo("quick", API_VERSION, rank=-1, cpu_rank=9)],
            probe=lambda backend: Probe(False, "pip install quick") if backend == "quick" else None,
        )
        install(cpu_ref=cpu_ref, quick=kernels)
        lines = tflgpu("devices").stdout.splitlines()
        assert "on the CPU by: the NumPy references, which are slow" in lines[-2]
        assert lines[-1] == "  backend quick: pip install quick"

    def test_one_that_is_none(
        self, tflgpu: Tflgpu, install: Any, cpu_ref: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(cpu_ref=cpu_ref)
        monkeypatch.setenv("TFLGPU_CPU_BACKEND", "toy")
        lines = tflgpu("devices").stdout.splitlines()
        assert lines[-2].endswith("on the CPU by: nothing")
        assert "TFLGPU_CPU_BACKEND is one of cpu_ref, not 'toy'" in lines[-1]

    def test_the_default_delegate(
        self, tflgpu: Tflgpu, install: Any, cpu_ref: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def default() -> Any:
            text = tflgpu("devices").stdout
            (line,) = [n for n in text.splitlines() if n.startswith("Interpreter()")]
            found = json.loads(tflgpu("devices", "--json").stdout)["default"]
            assert ("that one" in line) == found["uses_device"]
            assert found["because"] in line
            return found["uses_device"], found["because"]

        install(cpu_ref=cpu_ref, toy=toy())
        assert default() == (True, "")
        monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "off")
        assert default() == (False, "TFLGPU_DEFAULT_DELEGATE switches it off")
        monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "perhaps")
        assert "TFLGPU_DEFAULT_DELEGATE is True or False" in default()[1]
        monkeypatch.delenv("TFLGPU_DEFAULT_DELEGATE")
        install(cpu_ref=cpu_ref, toy=toy(is_gpu=False))
        assert default() == (
            False, "it is no GPU, and would compute in the place of the CPU side",
        )  # fmt: skip
        monkeypatch.setenv("TFLGPU_BACKEND", "toy")
        assert default() == (True, "")
        install(cpu_ref=cpu_ref)
        assert default() == (False, "")
