"""The part of the wheel that pyproject.toml cannot say: it holds libsluice, as CMake has built it.

Run by setuptools. The libraries come from the folder that CMake builds in: SLUICE_BUILD_DIR, or
build/ at the top of the source tree.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

BROUGHT_ALONG = ("libhwy.so.", "libtbb.so.")  # workers' machines lack these; the rest they have
BUILD = Path(os.environ.get("SLUICE_BUILD_DIR") or Path(__file__).resolve().parents[2] / "build")


def needed_by(library):
    """Where the dynamic linker finds what it brings along: `libtbb.so.12 => /lib/... (0x...)`."""
    lines = subprocess.run(["ldd", library], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return [Path(line.split()[2]) for line in lines if line.strip().startswith(BROUGHT_ALONG)]


class PackageWithLibraries(build_py):
    def run(self):
        super().run()
        version = self.distribution.get_version().rpartition(".")[0]  # as the library's soname
        package = Path(self.build_lib) / "sluice"
        for name, required in ((f"libsluice.so.{version}", True), ("libsluice_dpdk.so", False),
                               ("libsluice_cuda.so", False)):
            path = BUILD / "client" / name
            if path.exists():
                for each in (path, *needed_by(path)):
                    shutil.copyfile(each, package / each.name)
            elif required:
                raise SystemExit(f"{path.parent} has no {name}: run './run build' first, or set "
                                 "SLUICE_BUILD_DIR to the folder that CMake builds in")


class WheelForThisMachine(bdist_wheel):
    def get_tag(self):
        return "py3", "none", f"linux_{platform.machine()}"


class CompiledElsewhere(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=CompiledElsewhere,
      cmdclass={"build_py": PackageWithLibraries, "bdist_wheel": WheelForThisMachine})
