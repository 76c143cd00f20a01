"""The package itself: imports, the library's place, the C interface field by field."""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from sluice import _abi, _header, errors

_HEADER = ROOT / "client" / "include" / "sluice" / "sluice.h"
_GENERATOR = ROOT / "client" / "python" / "generate_abi.py"
_STRUCTS = {f"sluice{re.sub('([A-Z])', lambda word: '_' + word[1].lower(), name)}": struct
            for name, struct in vars(_header).items()
            if isinstance(struct, type) and issubclass(struct, ctypes.Structure)
            and struct is not ctypes.Structure}


def python(code, **environment):
    return subprocess.run([sys.executable, "-B", "-c", code], env={**os.environ, **environment},
                          capture_output=True, text=True, timeout=300, check=False)


def test_importing_needs_no_torch_no_numpy_and_no_library():
    done = python("import sys; sys.modules.update(torch=None, numpy=None); import sluice;"
                  "print(sluice.__version__)", SLUICE_LIBRARY="/nonexistent/libsluice.so")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _abi.VERSION


def test_a_missing_library_is_an_error_that_names_every_place():
    done = python("import sluice\n"
                  "try: sluice.Job([('a', 1, 'float32')], 'inproc://x', rank=0, world_size=1)\n"
                  "except sluice.LibraryNotFound as error: print(error)",
                  SLUICE_LIBRARY="/nonexistent/libsluice.so")
    assert "/nonexistent/libsluice.so (SLUICE_LIBRARY): not there" in done.stdout, done.stderr
    assert "./run build" in done.stdout and done.stdout.count("\n") == 1


def test_a_library_that_is_there_and_does_not_load_is_named_first(tmp_path):
    (tmp_path / "libsluice.so").write_bytes(b"no ELF file")
    done = python("import sluice\n"
                  "try: sluice.Job([('a', 1, 'float32')], 'inproc://x', rank=0, world_size=1)\n"
                  "except sluice.LibraryNotFound as error: print(error)",
                  SLUICE_LIBRARY=str(tmp_path))
    assert done.stdout.startswith(f"{tmp_path}/libsluice.so is there and does not load: "), done
    assert "not found" not in done.stdout and "Install what it lacks" in done.stdout


def test_another_library_is_refused_by_name():
    done = python("import sluice\n"
                  "try: sluice.Job([('a', 1, 'float32')], 'inproc://x', rank=0, world_size=1)\n"
                  "except sluice.LibraryNotFound as error: print(error)",
                  SLUICE_LIBRARY="libc.so.6")
    assert "libc.so.6 is not a usable libsluice" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def c_facts(tmp_path_factory):
    """What the C compiler says about the header: 'name value' lines as a dict."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on the PATH")
    folder = tmp_path_factory.mktemp("abi")
    lines = ["#include <stdio.h>", "#include <stddef.h>", "#include <sluice/sluice.h>",
             "int main(void) {"]
    for name, struct in _STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));'
                  for field in struct._fields_]
    constants = {"float16": "SLUICE_FLOAT16", "average_sum": "SLUICE_AVERAGE_SUM",
                 "prune_dynamic_raw": "SLUICE_PRUNE_DYNAMIC_RAW", "last": "SLUICE_BEHIND",
                 "forever": "SLUICE_FOREVER", "rank_words": "SLUICE_RANK_WORDS",
                 "layer": "SLUICE_TENSOR_LAYER", "default": "SLUICE_POLICY_DEFAULT"}
    lines += [f'printf("{key} %d\\n", (int){name});' for key, name in constants.items()]
    lines += ["return 0; }"]
    (folder / "facts.c").write_text("\n".join(lines))
    subprocess.run([compiler, "-I", str(_HEADER.parents[1]), "-o", str(folder / "facts"),
                    str(folder / "facts.c")], check=True)
    output = subprocess.run([folder / "facts"], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in (line.split() for line in output.splitlines())}


def test_every_struct_has_the_size_and_the_offsets_of_the_header(c_facts):
    assert len(_STRUCTS) >= 21
    for name, struct in _STRUCTS.items():
        assert ctypes.sizeof(struct) == c_facts[name], name
        for field in struct._fields_:
            assert getattr(struct, field[0]).offset == c_facts[f"{name}.{field[0]}"], field[0]


def test_constants_of_each_kind_are_those_of_the_header(c_facts):
    assert _abi.DTYPE["float16"] == c_facts["float16"]
    assert _abi.AVERAGING["sum"] == c_facts["average_sum"]
    assert _abi.PRUNE_RULE["dynamic_raw"] == c_facts["prune_dynamic_raw"]
    assert _abi.POLICY_KIND["default"] == c_facts["default"]
    assert _abi.TENSOR_LAYER == c_facts["layer"]
    assert _abi.FOREVER == c_facts["forever"]
    assert _abi.RANK_WORDS == c_facts["rank_words"]


def generator():
    spec = importlib.util.spec_from_file_location("generate_abi", _GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_structs_are_those_that_the_header_makes():
    made = generator().generate(_HEADER.read_text())
    assert Path(_header.__file__).read_text() == made, f"run python3 {_GENERATOR}"


@pytest.mark.parametrize("line", [
    "typedef union sluice_x { int32_t a; } sluice_x;", "SLUICE_API long sluice_x(void);",
    "typedef struct sluice_x { int32_t a, b; } sluice_x;", "int sluice_x;", "#pragma once"])
def test_c_that_the_generator_does_not_know_is_an_error(line):
    with pytest.raises(SystemExit, match="not understood"):
        generator().generate(line + "\n")


def test_every_status_has_an_exception_of_its_own(c_facts):
    classes = [type(errors.make(status, "text")) for status in range(1, c_facts["last"] + 1)]
    assert len(set(classes)) == c_facts["last"]
    assert all(cls.status == status for status, cls in enumerate(classes, start=1))


def test_the_python_package_and_the_library_have_one_version(library):
    loaded = ctypes.CDLL(os.environ["SLUICE_LIBRARY"])
    loaded.sluice_version.restype = ctypes.c_char_p
    assert loaded.sluice_version().decode() == _abi.VERSION
