"""The marker of tests that build and install packages."""

from __future__ import annotations

import pytest

from tests.plugins.third_party_toys import KINDS


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: builds packages and runs other processes")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Of a third party's device: it runs nodes, or plans."""
    return str(request.param)
