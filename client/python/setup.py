"""The part of the wheel that pyproject.toml cannot say: it holds libsluice, as CMake has built it.

Run by setuptools. The libraries come from the folder that CMake builds in: SLUICE_BUILD_DIR, or
build/ at the top of the source tree.
"""

import os
import platform
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

BUILD = Path(os.environ.get("SLUICE_BUILD_DIR") or Path(__file__).resolve().parents[2] / "build")


class PackageWithLibraries(build_py):
    def run(self):
        super().run()
        version = self.distribution.get_version().rpartition(".")[0]  # as the library's soname
        for name, required in ((f"libsluice.so.{version}", True), ("libsluice_dpdk.so", False)):
            path = BUILD / "client" / name
            if path.exists():
                shutil.copyfile(path, Path(self.build_lib) / "sluice" / name)
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
