"""Finds and loads libsluice. Nothing is loaded before the first use, so importing cannot fail."""

import ctypes
import os
import threading
from pathlib import Path

from sluice import _abi, errors

SONAME = "libsluice.so." + _abi.VERSION.rpartition(".")[0]  # of one minor version
_lock = threading.Lock()
_loaded = None


def places():
    """Where the library is looked for, in order, as (folder or file, why).

    SLUICE_LIBRARY (a file, or a folder that holds it) is the only place when it is set.
    """
    asked = os.environ.get("SLUICE_LIBRARY")
    if asked:
        return [(asked, "SLUICE_LIBRARY")]
    package = Path(__file__).resolve().parent
    found = [(str(package), "this package")]
    source_tree = package.parent.parent.parent  # at the root too, where there are fewer folders
    if (source_tree / "CMakeLists.txt").exists():
        found += [(str(source_tree / folder / "client"), "build folder")
                  for folder in ("build", "build/release", "build/debug")]
    found.append((SONAME, "system"))
    return found


def _files(place):
    if os.path.isdir(place):
        return [os.path.join(place, name) for name in (SONAME, "libsluice.so")
                if os.path.exists(os.path.join(place, name))]
    return [place] if "/" not in place or os.path.exists(place) else []


def _open():
    tried, broken = [], ""
    for place, why in places():
        files = _files(place)
        if not files:
            tried.append(f"{place} ({why}): not there")
        for path in files:
            try:
                return ctypes.CDLL(path), path
            except OSError as error:
                # Of one that is on the linker's path or not, only the linker knows.
                if os.path.exists(path) or not str(error).startswith(path):
                    broken = broken or f"{path} is there and does not load: {error}. "
                tried.append(f"{path} ({why}): {error}")
    raise errors.LibraryNotFound(
        (f"{broken}Install what it lacks, or another build of it. " if broken else
         "libsluice was not found. Build it with './run build' or set SLUICE_LIBRARY to the file. ")
        + "Looked at: " + "; ".join(tried))


def _loaded_from(path):
    """The file of a library that the linker has found by its name; `path` where nobody says."""
    if os.sep not in path and os.path.exists("/proc/self/maps"):
        with open("/proc/self/maps") as maps:
            files = {line.split(None, 5)[5].strip() for line in maps if path in line}
        return next((file for file in files if os.path.basename(file).startswith(path)), path)
    return path


def load():
    """The loaded library with typed functions; loads it on the first call. Thread-safe.

    Raises LibraryNotFound with every place that was tried.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            library, path = _open()
            try:
                _abi.declare(library)
            except AttributeError as error:
                raise errors.LibraryNotFound(
                    f"{path} is not a usable libsluice: {error}") from None
            version = library.sluice_version().decode()
            if version.split(".")[:2] != _abi.VERSION.split(".")[:2]:
                raise errors.LibraryNotFound(
                    f"{path} is version {version}, but this Python package needs "
                    f"{_abi.VERSION}: install both from one build")
            library.path = _loaded_from(path)
            _loaded = library
        return _loaded
