"""The settings of `./run test full`: it sets SLUICE_FULL_TIER and runs one test at a time.

A conftest.py imports the two hooks; then tests marked `full` are left out of the other tiers.
"""

from __future__ import annotations

import os

FULL = "SLUICE_FULL_TIER" in os.environ


def within(took_s: float, limit_s: float, about: object = "") -> None:
    """Judges seconds in the full tier; elsewhere other work may take the processors, so too many
    are only printed."""
    late = f"took {took_s:.2f} s, not {limit_s:.2f}: {about}"
    if took_s >= limit_s:
        assert not FULL, late
        print(late)


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "full: takes long, or judges seconds: the full tier alone")


def pytest_collection_modifyitems(config, items) -> None:
    left_out = [] if FULL else [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
