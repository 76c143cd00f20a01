"""Builds the wheel: the Python files, and the libraries that CMake has built, in one zip file.

A PEP 517 backend of its own because the usual ones either want to run a compiler or cannot take a
library that exists already, and must be downloaded first. The libraries come from the package's
folder if somebody has put them there, else from the build folder (SLUICE_BUILD_DIR, default
../../build).
"""

import base64
import hashlib
import os
import platform
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = {  # name in the wheel -> names in the build folder, newest link first
    "libsluice.so.0": ("client/libsluice.so.0", "client/libsluice.so"),
    "libsluice_dpdk.so": ("client/libsluice_dpdk.so",),
}
REQUIRED = {"libsluice.so.0"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal inputs, equal wheels


def _project():
    """The [project] table. Read by hand on Python 3.9 and 3.10, which have no tomllib."""
    text = (HERE / "pyproject.toml").read_text()
    try:
        import tomllib
    except ImportError:
        wanted = ("name", "version", "description", "requires-python")
        table = {}
        for line in text.splitlines():
            key, _, value = line.partition(" = ")
            if key in wanted:
                table[key] = value.strip('"')
        return table
    return tomllib.loads(text)["project"]


def _build_dir():
    return Path(os.environ.get("SLUICE_BUILD_DIR") or HERE.parents[1] / "build").resolve()


def _libraries():
    """(name in the wheel, path) of what has been built."""
    build = _build_dir()
    for name, places in LIBRARIES.items():
        found = [path for path in (HERE / "sluice" / name, *(build / place for place in places))
                 if path.exists()]
        if found:
            yield name, found[0].resolve()
        elif name in REQUIRED:
            raise SystemExit(f"{build}/client has no {name}: run './run build' first, or set "
                             "SLUICE_BUILD_DIR to the folder that CMake builds in")


def _tag():
    return f"py3-none-linux_{platform.machine()}"


def _metadata(project):
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}",
             f"Summary: {project['description']}",
             f"Requires-Python: {project['requires-python']}"]
    for extra, wanted in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {what}; extra == "{extra}"' for what in wanted]
    readme = HERE / "README.md"
    lines += ["Description-Content-Type: text/markdown", "", readme.read_text()]
    return "\n".join(lines)


class _Wheel:
    def __init__(self, path):
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._record = []

    def add(self, name, data, mode=0o644):
        entry = zipfile.ZipInfo(name, _EPOCH)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, record_name):
        self._zip.writestr(zipfile.ZipInfo(record_name, _EPOCH),
                           "\n".join([*self._record, f"{record_name},,"]) + "\n")
        self._zip.close()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517: writes the wheel and returns its file name."""
    project = _project()
    base = f"{project['name']}-{project['version']}"
    info = f"{base}.dist-info"
    file_name = f"{base}-{_tag()}.whl"
    libraries = list(_libraries())
    Path(wheel_directory).mkdir(parents=True, exist_ok=True)
    wheel = _Wheel(Path(wheel_directory) / file_name)
    for path in sorted((HERE / "sluice").rglob("*.py")):
        wheel.add(str(path.relative_to(HERE)), path.read_bytes())
    for name, path in libraries:
        wheel.add(f"sluice/{name}", path.read_bytes(), mode=0o755)
    wheel.add(f"{info}/METADATA", _metadata(project).encode())
    wheel.add(f"{info}/WHEEL", (f"Wheel-Version: 1.0\nGenerator: sluice\nRoot-Is-Purelib: false\n"
                                f"Tag: {_tag()}\n").encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nsluice = sluice.__main__:main\n")
    wheel.close(f"{info}/RECORD")
    return file_name


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("there is no source distribution: the wheel holds compiled libraries")


if __name__ == "__main__":
    import sys
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
