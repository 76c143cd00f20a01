"""PyTorch's own tests of backends, run by conformance.py over the backend 'sluice': each has the
outcome that conformance.json has. Of torch 2.15: ./run test-torch2.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from test_torch_backend import has_backends

if not has_backends:
    pytest.skip("needs torch 2.15", allow_module_level=True)
pytest.importorskip("expecttest")  # which torch's own tests import

TABLE = json.loads((Path(__file__).parent / "conformance.json").read_text())
EXPECTED = {name: f"{outcome}{why}" for outcome, why_names in (
    ("passed", {"": TABLE["passed"]}), ("skipped: ", TABLE["skipped"]),
    ("failed: ", TABLE["failed"])) for why, names in why_names.items() for name in names}


@pytest.fixture(scope="module")
def outcome(request, backend_appliance):
    """Of a test by its name, once it has run; of None all outcomes, once all have run."""
    names = {item.callspec.params["name"] for item in request.session.items
             if "name" in getattr(getattr(item, "callspec", None), "params", {})}
    wanted = "" if names >= set(EXPECTED) else f"^({'|'.join(map(re.escape, names))})$"
    environment = {**os.environ, "SLUICE_ADDRESS": backend_appliance.address, "BACKEND": "sluice",
                   "SLUICE_SECRET": backend_appliance.secret, "OMP_NUM_THREADS": "1",
                   "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join((environment["PYTHONPATH"], *sys.path[:2]))
    said = {}
    with subprocess.Popen([sys.executable, ROOT / "tests/python/conformance.py", wanted],
                          env=environment, stdout=subprocess.PIPE, text=True) as running:
        def find(name):
            while name not in said:
                line = running.stdout.readline()
                if not line:
                    break
                told, text = json.loads(line)
                said[told] = text
            return said if name is None else said.get(name, "it did not run")
        yield find
        running.kill()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_pytorchs_test_has_the_outcome_of_the_table(outcome, name):
    found = outcome(name)
    if EXPECTED[name].startswith("failed"):  # the table says why in its own words
        assert found.startswith("failed: "), f"{found}: move {name} in conformance.json"
    else:
        assert found == EXPECTED[name]


def test_torch_has_no_test_that_the_table_lacks(outcome):
    assert not outcome(None).keys() - EXPECTED.keys()
