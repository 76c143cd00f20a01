"""On a machine with a GPU: the kernels of the CUDA plug-in against the host's. Elsewhere skipped.

Needs no torch: the program is the one that runs over the fake device in every build.
"""

import os
import subprocess

import pytest

from conftest import BUILD


def test_kernels_give_the_hosts_results_bit_for_bit():
    plugin = BUILD / "client" / "libsluice_cuda.so"
    if not plugin.exists():
        pytest.skip(f"{plugin} is not built: no nvcc where it was configured")
    done = subprocess.run([BUILD / "tests" / "unit" / "device" / "test_device_kernels"],
                          env={**os.environ, "SLUICE_PLUGIN_DIR": str(plugin.parent)},
                          capture_output=True, text=True, timeout=600, check=False)
    missing = [line for line in done.stdout.splitlines() if line.startswith("no device: ")]
    if missing:
        pytest.skip(missing[0])
    assert done.returncode == 0, done.stdout + done.stderr
