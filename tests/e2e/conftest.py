import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lab"))

from tiers import pytest_collection_modifyitems, pytest_configure  # noqa: E402, F401
