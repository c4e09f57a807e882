"""Makes `tests.passes` importable whichever way pytest was started."""

from __future__ import annotations
