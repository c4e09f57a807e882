"""Many checks of an op as one test, where a test each costs about as much as what it checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest


def all_of(checks: Mapping[str, Callable[[], object]]) -> None:
    """Make every check, and tell what is wrong by its name. Skips where all of them skip."""
    assert checks
    wrong, skipped = [], []
    for name, check in checks.items():
        try:
            check()
        except pytest.skip.Exception as error:
            skipped.append(str(error))
        except (AssertionError, RuntimeError) as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)
    if len(skipped) == len(checks):
        pytest.skip(skipped[0])
