"""Plugins: broken ones are reported by name and the rest goes on; clashes name both sides."""

from __future__ import annotations

import logging
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.errors import DeviceError, PluginError
from tflgpu.ir.graph import Graph
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import KernelRule, Site, Unsupported
from tflgpu.ops.base import NoAttrs, OpDef, no_attrs
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.passes.base import Pass
from tflgpu.plugins import registry as plugins
from tflgpu.plugins import sources as plugin_sources
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry
from tflgpu.plugins.sources import Plugin, installed_plugins

from tests.toy_device import ToyDevice

EMPTY_PLAN = Plan(0, 64, (), (), (), ())
SITE = Target.plain(DeviceCaps(), Precision.F32).site


class Hooks:
    """A plugin object of the given hooks, by their names without the prefix."""

    def __init__(self, **hooks: Any) -> None:
        for name, function in hooks.items():
            self.set(name, function)

    def set(self, name: str, function: Any) -> None:
        """Define a hook, or another one in its place."""
        setattr(self, f"tflgpu_{name}", hookimpl(function))


class ToyDevice(ToyDevice):
    """As much of a device as opening one looks at."""

    caps = DeviceCaps()

    def __init__(self, backend: str, index: int, options: DelegateOptions) -> None:
        self.info, self.options = DeviceInfo(backend, index, "a toy"), options


def backend(name: str = "toy", rank: int = 0, **fields: Any) -> Hooks:
    """A plugin with one backend that has one device."""
    info = BackendInfo(name, API_VERSION, rank=rank, **fields)
    device = DeviceInfo(name, 0, "a toy")

    def probe(backend: str) -> Probe | None:
        return Probe(True, "", (device,)) if backend == name else None

    def open_device(backend: str, index: int, options: DelegateOptions) -> Any:
        return ToyDevice(backend, index, options) if backend == name else None

    return Hooks(register_backends=lambda: [info], probe=probe, open_device=open_device)


def custom_op(name: str) -> OpDef:
    """An op that nothing uses."""
    return OpDef(name, no_attrs, lambda a, o: [], lambda a, o: [], list)


def some_node() -> Any:
    """A node without operands."""
    return Graph("g").add_node("NOTHING", NoAttrs(), [], [])


class TestLoading:
    def test_values_of_all_plugins_are_merged_by_rank(self) -> None:
        registry = Registry.of({"a": backend("low", 1), "b": backend("high", 9)})
        assert list(registry.backends) == ["high", "low"]
        assert registry.failures == ()
        assert registry.distribution("high") == "explicit"
        assert registry.probe("low").devices[0].backend == "low"
        options = DelegateOptions()
        opened: Any = registry.open_device("low", 3, options)
        assert (opened.info.backend, opened.info.index) == ("low", 3)
        assert opened.options is options

    def test_a_failing_registration_drops_only_its_Hooks(self) -> None:
        def burn() -> list[BackendInfo]:
            raise RuntimeError("on fire")

        registry = Registry.of({"bad": Hooks(register_backends=burn), "good": backend()})
        assert list(registry.backends) == ["toy"]
        (failure,) = registry.failures
        assert (failure.name, failure.distribution) == ("bad", "explicit")
        assert "on fire" in failure.error

    def test_a_misspelt_hook_is_blamed_on_its_plugin(self) -> None:
        bad = Hooks(register_bakends=lambda: None)
        registry = Registry.of({"bad": bad, "good": backend()})
        assert list(registry.backends) == ["toy"]
        (failure,) = registry.failures
        assert failure.name == "bad"
        assert "tflgpu_register_bakends" in failure.error

    def test_a_hook_with_an_unknown_argument_is_refused(self) -> None:
        registry = Registry.of({"bad": Hooks(probe=lambda backend, colour: None), "ok": backend()})
        assert "colour" in registry.failures[0].error
        assert registry.probe("toy").available

    def test_a_wrong_value_is_refused(self) -> None:
        registry = Registry.of(
            {
                "a": Hooks(register_backends=lambda: ["opencl"]),
                "b": Hooks(register_ops=lambda: 3),
                "good": backend(),
            }
        )
        assert list(registry.backends) == ["toy"]
        assert {f.name: f.error for f in registry.failures} == {
            "a": "tflgpu_register_backends gave a str, not a BackendInfo",
            "b": "tflgpu_register_ops gave int, not a list of OpDef",
        }

    @pytest.mark.parametrize(
        ("version", "advice"),
        [
            (
                1,
                (
                    r": recordings have submit and bind, .*\. Upgrade the plugin, or install the "
                    r"tflgpu"
                ),
            ),
            (731, ": upgrade tflgpu$"),
            (0, "which there never was"),
        ],
    )
    def test_another_api_version_is_refused_with_what_to_do(
        self, version: int, advice: str
    ) -> None:
        other = Hooks(register_backends=lambda: [BackendInfo("other", version)])
        registry = Registry.of({"other": other, "good": backend()})
        assert list(registry.backends) == ["toy"]
        (failure,) = registry.failures
        assert f"backend other is written for API version {version}" in failure.error
        assert f"this tflgpu has {API_VERSION}" in failure.error
        assert re.search(advice, failure.error), failure.error

    def test_an_unhashable_plugin_is_refused(self) -> None:
        registry = Registry.of({"bad": SimpleNamespace(), "good": backend()})
        assert [f.name for f in registry.failures] == ["bad"]
        assert registry.probe("toy").available

    def test_a_clash_of_backends_names_both_distributions_and_the_rest_goes_on(self) -> None:
        plugins = [Plugin("a", "dist-one", backend()), Plugin("b", "dist-two", backend()),
                   Plugin("c", "dist-three", backend("other"))]  # fmt: skip
        registry = Registry(plugins)
        assert list(registry.backends) == ["other"]
        assert sorted(f.distribution for f in registry.failures) == ["dist-one", "dist-two"]
        for failure in registry.failures:
            assert re.search(r"backend toy .*dist-one.*dist-two", failure.error)
        with pytest.raises(DeviceError, match=r"no backend 'toy'.*dist-one.*dist-two"):
            registry.probe("toy")

    def test_nobody_takes_the_place_of_a_shipped_backend(self) -> None:
        registry = Registry([Plugin("a", "dist-one", backend()), Plugin("b", "tflgpu", backend())])
        assert registry.distribution("toy") == "tflgpu"
        assert [f.distribution for f in registry.failures] == ["dist-one"]

    def test_a_backend_that_one_plugin_registers_twice(self) -> None:
        toy, info = backend(), BackendInfo("toy", API_VERSION)
        toy.set("register_backends", lambda: [info, info])
        registry = Registry.of({"twice": toy, "good": backend("other")})
        assert list(registry.backends) == ["other"]
        assert "registered by plugin twice" in registry.failures[0].error

    def test_the_same_plugin_name_twice(self) -> None:
        both = [Plugin("a", "dist-one", backend()), Plugin("a", "dist-two", backend("other"))]
        registry = Registry(both)
        assert list(registry.backends) == ["toy"]
        assert registry.failures[0].distribution == "dist-two"

    def test_the_same_object_under_two_names(self) -> None:
        one = backend()
        registry = Registry.of({"a": one, "b": one})
        assert registry.probe("toy").available
        assert registry.failures[0].name == "b"

    def test_the_order_of_discovery_does_not_matter(self) -> None:
        passes = [
            Pass("b", lambda g, c: 0, 1),
            Pass("a", lambda g, c: 0, 1),
            Pass("z", lambda g, c: 0, 0),
        ]
        found = [Plugin(p.name, "d", Hooks(register_passes=lambda p=p: [p])) for p in passes]
        for order in (found, found[::-1]):
            assert [p.name for p in Registry(order).passes()] == ["z", "a", "b"]


class TestEntryPoints:
    @pytest.fixture
    def entries(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        found: list[Any] = []
        monkeypatch.setattr(plugin_sources, "entry_points", lambda group: found)
        monkeypatch.setattr(plugins, "_registry", None)
        return found

    def entry(self, name: str, load: Any) -> Any:
        return SimpleNamespace(name=name, dist=SimpleNamespace(name=f"{name}-dist"), load=load)

    def test_one_that_fails_to_import_is_a_value(self, entries: list[Any]) -> None:
        def fail() -> None:
            raise ImportError("no module named sunshine")

        entries += [self.entry("bad", fail), self.entry("good", backend)]
        registry = plugins.registry()
        assert list(registry.backends) == ["toy"]
        assert registry.distribution("toy") == "good-dist"
        (failure,) = registry.failures
        assert str(failure) == ("plugin bad (from bad-dist): ImportError: no module named sunshine")
        with pytest.raises(DeviceError, match=r"sunny.*known: toy.*sunshine"):
            registry.probe("sunny")

    def test_threads_share_one_registry(self, entries: list[Any]) -> None:
        entries.append(self.entry("good", backend))
        seen: list[Registry] = []
        threads = [
            threading.Thread(target=lambda: seen.append(plugins.registry())) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 8
        assert len(set(map(id, seen))) == 1

    def test_the_installed_backends_are_found(self) -> None:
        assert "opencl" in Registry(*installed_plugins()).backends


class TestProbe:
    def test_a_probe_that_raises_is_a_reason(self) -> None:
        toy = backend()

        def explode(backend: str) -> Probe:
            raise OSError("driver fell over")

        toy.set("probe", explode)
        probe = Registry.of({"toy": toy}).probe("toy")
        assert not probe.available
        assert "driver fell over" in probe.reason

    def test_a_probe_that_answers_nonsense_is_a_reason(self) -> None:
        toy = backend()
        toy.set("probe", lambda backend: 7)
        assert "7" in Registry.of({"toy": toy}).probe("toy").reason

    def test_another_plugin_cannot_answer(self) -> None:
        liar = Hooks(probe=lambda backend: Probe(False, "mine now"))
        assert Registry.of({"liar": liar, "toy": backend()}).probe("toy").available

    def test_it_is_asked_once_unless_refreshed(self) -> None:
        calls = []
        toy = backend()

        def count(backend: str) -> Probe:
            calls.append(backend)
            return Probe(True)

        toy.set("probe", count)
        registry = Registry.of({"toy": toy})
        registry.probe("toy")
        registry.probe("toy")
        assert len(calls) == 1
        registry.probe("toy", refresh=True)
        assert len(calls) == 2

    def test_a_missing_driver_is_named_with_the_command(self) -> None:
        toy = backend(requires=("no_such_driver_package",), extra="opencl")
        registry = Registry.of({"toy": toy})
        command = r'no_such_driver_package is not installed; run: pip install "tflgpu\[opencl\]"'
        probe = registry.probe("toy")
        assert not probe.available
        assert probe.reason.endswith('pip install "tflgpu[opencl]"')
        with pytest.raises(DeviceError, match=command):
            registry.open_device("toy", 0, DelegateOptions())

    def test_a_missing_driver_of_another_distribution(self) -> None:
        registry = Registry.of({"toy": backend(requires=("no_such_a", "json", "no_such.b"))})
        assert registry.probe("toy").reason == (
            "no_such_a, no_such.b are not installed; run: pip install no_such_a no_such.b"
        )


class TestOpening:
    def test_an_unknown_backend_lists_the_known(self) -> None:
        registry = Registry.of({"toy": backend(), "b": backend("other")})
        with pytest.raises(DeviceError, match=r"'cuda'; known: other, toy"):
            registry.open_device("cuda", 0, DelegateOptions())
        with pytest.raises(DeviceError, match="'cuda'"):
            registry.rules("cuda")

    def test_a_driver_exception_becomes_a_device_error(self) -> None:
        toy = backend(system_hint="apt install toys")

        def explode(backend: str, index: int) -> Any:
            raise OSError("no such card")

        toy.set("open_device", explode)
        with pytest.raises(DeviceError, match=r"toy .*, device 2.*no such card.*apt install toys"):
            Registry.of({"toy": toy}).open_device("toy", 2, DelegateOptions())

    def test_a_backend_that_does_not_answer(self) -> None:
        bare = Hooks(register_backends=lambda: [BackendInfo("toy", API_VERSION)])
        with pytest.raises(PluginError, match="bare"):
            Registry.of({"bare": bare}).open_device("toy", 0, DelegateOptions())


class TestRegistrations:
    def test_ops_are_merged_with_the_shipped_ones(self) -> None:
        registry = Registry.of({"ops": Hooks(register_ops=lambda: [custom_op("MyOp")])})
        assert set(registry.ops()) == {*builtin_ops(), "MyOp"}
        assert registry.ops() is registry.ops()

    def test_a_clash_of_ops_names_both(self) -> None:
        both = {n: Hooks(register_ops=lambda: [custom_op("MyOp")]) for n in ("one", "two")}
        registry = Registry.of(both)
        assert "MyOp" not in registry.ops()
        for failure in registry.failures:
            assert re.search(r"MyOp.*one.*two", failure.error)
        assert len(registry.failures) == 2

    def test_rules_belong_to_a_backend(self) -> None:
        rule = KernelRule("ABS", "fast_abs", lambda low: None, rank=5)
        fast = Hooks(register_kernels=lambda backend: [rule] if backend == "toy" else [])
        registry = Registry.of({"fast": fast, "a": backend(), "b": backend("other")})
        assert registry.rules("toy") == (rule,)
        assert registry.rules("other") == ()


class TestLaterHooks:
    def test_the_first_objection_is_taken(self) -> None:
        seen = []

        def veto(backend: str, node: Any, site: Site) -> Unsupported | None:
            seen.append((backend, node.op, site.precision))
            return Unsupported("driver 1.2 miscompiles it") if backend == "toy" else None

        quiet = Hooks(node_support=lambda backend: None)
        registry = Registry.of({"a": quiet, "veto": Hooks(node_support=veto)})
        answer = registry.node_support("toy", some_node(), SITE)
        assert answer == Unsupported("driver 1.2 miscompiles it")
        assert registry.node_support("other", some_node(), SITE) is None
        assert seen[0] == ("toy", "NOTHING", Precision.F32)

    def test_a_failing_veto_is_an_objection_that_names_it(self) -> None:
        def veto(node: Any) -> None:
            raise KeyError("oops")

        registry = Registry.of({"shaky": Hooks(node_support=veto)})
        answer = registry.node_support("toy", some_node(), SITE)
        assert answer is not None
        assert "shaky" in answer.reason
        assert "oops" in answer.reason

    def test_a_failing_observer_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        seen = []

        def watch(plan: Plan) -> None:
            raise ValueError("cannot look")

        def look(plan: Plan) -> None:
            seen.append(plan)

        registry = Registry.of({"a": Hooks(plan_ready=watch), "b": Hooks(plan_ready=look)})
        with caplog.at_level(logging.WARNING):
            registry.plan_ready("toy", EMPTY_PLAN)
        assert seen == [EMPTY_PLAN]
        assert "cannot look" in caplog.text

    def test_commands(self) -> None:
        def fail(app: Any) -> None:
            raise ValueError("no command")

        added: list[str] = []
        registry = Registry.of(
            {
                "bad": Hooks(register_commands=fail),
                "good": Hooks(register_commands=lambda app: app.append("hello")),
            }
        )
        (failure,) = registry.register_commands(added)
        assert added == ["hello"]
        assert failure.name == "bad"
