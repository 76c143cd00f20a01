"""The wheel: built without a network, installed into a fresh venv, it brings its library along."""

import email
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import BUILD, ROOT

_SUM = """
import array, sluice, threading
from sluice import _library
def worker(rank, out):
    with sluice.Job([("a", 4, "float32")], "inproc://wheel", rank=rank, world_size=2,
                    run_id=1) as job:
        data = array.array("f", [rank, 2, 4, 6 * rank])
        address, _ = data.buffer_info()
        job.submit(0, address)
        job.wait_step(timeout=300)
        out[rank] = data.tolist()
out = [None, None]
threads = [threading.Thread(target=worker, args=(rank, out)) for rank in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join(60)
print(_library.load().path)
print(out)
with open("/proc/self/maps") as maps:
    print(*sorted({line.split()[-1] for line in maps if "libhwy" in line or "libtbb.so" in line}))
"""


def quiet(*arguments, **options):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=300,
                          check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment():
    """Without anything that would let the installed package find this source tree."""
    keep = {key: value for key, value in os.environ.items()
            if not key.startswith(("SLUICE", "PYTHON"))}
    return keep


@pytest.mark.usefixtures("library")
def test_the_wheel_has_a_name_of_its_own_and_says_to_users_what_it_is(tmp_path):
    wheel = Path(quiet(ROOT / "client" / "python" / "build_wheel.sh", BUILD, tmp_path,
                       sys.executable).strip())
    assert wheel.name.startswith("sluice_net-0.")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(about[0]))
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"sluice"}
    assert any(name.endswith("/LICENSE") for name in names)
    assert (metadata["Name"], metadata["License"]) == ("sluice-net", "Apache-2.0")
    assert metadata["Author"] == "The Sluice authors"
    assert "Operating System :: POSIX :: Linux" in metadata.get_all("Classifier")
    assert "sluice.torch.attach(model" in metadata.get_payload()
    assert "setup.py" not in metadata.get_payload(), "a page for users, not for contributors"


def test_no_text_tells_users_to_install_somebody_elses_distribution():
    files = [path for path in (ROOT / "client" / "python").rglob("*")
             if path.suffix in (".py", ".md", ".toml")]
    for path in [*files, ROOT / "README.md"]:
        wrong = re.search(r"pip install[^\n]*['\" ]sluice(\[|['\"\s]|$)", path.read_text())
        assert not wrong, f"{path}: {wrong.group(0)}"


@pytest.mark.usefixtures("library")
def test_an_installed_wheel_sums_with_its_own_library(tmp_path, environment):
    wheel = quiet(ROOT / "client" / "python" / "build_wheel.sh", BUILD, tmp_path / "dist",
                  sys.executable).strip()
    assert wheel.endswith(".whl") and "linux" in wheel
    try:
        import ensurepip  # noqa: F401 - only whether it is there
    except ImportError:
        pytest.skip("this Python cannot make a venv with pip (apt install python3-venv)")
    quiet(sys.executable, "-m", "venv", tmp_path / "venv", env=environment)
    python = tmp_path / "venv" / "bin" / "python"
    quiet(python, "-m", "pip", "install", "--no-index", "--quiet", wheel, env=environment)
    path, sums, others = quiet(python, "-c", _SUM, cwd=tmp_path, env=environment).splitlines()
    assert path.startswith(str(tmp_path / "venv"))
    assert [other.startswith(str(tmp_path / "venv")) for other in others.split()] == [True, True]
    assert sums == "[[0.5, 2.0, 4.0, 3.0], [0.5, 2.0, 4.0, 3.0]]"
    assert "sluice 0." in quiet(tmp_path / "venv" / "bin" / "sluice", "--version", env=environment)


def test_a_build_without_the_library_is_refused_with_the_remedy(tmp_path):
    done = subprocess.run([ROOT / "client" / "python" / "build_wheel.sh", tmp_path, tmp_path,
                           sys.executable], capture_output=True, text=True, check=False,
                          timeout=300)
    assert done.returncode != 0
    assert "./run build" in done.stderr
