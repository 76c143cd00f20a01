"""Makes sluice/_header.py, the C interface in ctypes, from the header sluice.h.

    python3 client/python/generate_abi.py

Reads the C of that one header and no other: whatever it does not know is an error, with its text.
"""

import os
import re
import sys
import textwrap
from pathlib import Path

_HERE = Path(__file__).resolve().parent
HEADER = _HERE.parent / "include" / "sluice" / "sluice.h"
OUTPUT = _HERE / "sluice" / "_header.py"

_SCALARS = {"char": "c_char", "double": "c_double", "int": "c_int", "int32_t": "c_int32",
            "size_t": "c_size_t", "uint32_t": "c_uint32", "uint64_t": "c_uint64"}
_TOP = '''"""sluice.h in ctypes: constants, enumerations by their words, structs, functions.

Made by client/python/generate_abi.py: edit the header and run that.
"""

from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32,
                    c_size_t, c_uint32, c_uint64, c_void_p)

'''


def _without_prefix(name):
    return name[len("sluice_"):]


def _class_name(name):
    return "".join(word.capitalize() for word in _without_prefix(name).split("_"))


def _filled(line):
    return textwrap.fill(line, 100, subsequent_indent="        ") + "\n"


def _arguments(text):
    """The types of "void* user, uint32_t tensor"; of "void" none."""
    if text == "void":
        return []
    return [re.fullmatch(r"(.*?[ *])\w+", argument)[1] for argument in text.split(", ")]


class _Translation:
    """The Python for the declarations that it is given, in their order."""

    def __init__(self):
        self.parts = [_TOP]
        self.functions = []
        self._constants = {}
        self._types = {"void": "None", **_SCALARS}
        self._opaque = {"void", "float"}

    def _type(self, text):
        text = text.replace("const ", "").replace(" const", "").strip()
        base = text.rstrip("*")
        stars = len(text) - len(base)
        if not stars:
            return self._types[base]
        if base == "char":
            found = "c_char_p"
        else:
            found = "c_void_p" if base in self._opaque else f"POINTER({self._types[base]})"
        return "POINTER(" * (stars - 1) + found + ")" * (stars - 1)

    def define(self, name, value):
        number = {"UINT32_MAX": "0xFFFFFFFF"}.get(value, value.strip("()").removesuffix("u"))
        self._constants[name] = number
        int(number, 0)
        if not name.startswith("SLUICE_VERSION_"):
            self.parts.append(f"{_without_prefix(name)} = {number}\n")
        elif name == "SLUICE_VERSION_PATCH":
            parts = [self._constants[f"SLUICE_VERSION_{part}"]
                     for part in ("MAJOR", "MINOR", "PATCH")]
            self.parts.append(f'VERSION = "{".".join(parts)}"\n')

    def enumeration(self, name, body):
        entries = [re.fullmatch(r"(\w+) = (-?\d+)", entry).groups()
                   for entry in body.strip().split(", ")]
        prefix = os.path.commonprefix([entry[0] for entry in entries]).rpartition("_")[0] + "_"
        self._types[name] = "c_int"
        words = ", ".join(f'"{entry.removeprefix(prefix).lower()}": {number}'
                          for entry, number in entries)
        self.parts.append(_filled(f"{_without_prefix(name).upper()} = {{{words}}}"))

    def opaque(self, name):
        self._opaque.add(name)

    def struct(self, name, body):
        fields = []
        for field in body.strip().removesuffix(";").split("; "):
            kind, field_name, count = re.fullmatch(r"(.*?[ *])(\w+)(?:\[(\w+)\])?", field).groups()
            count = f" * {self._constants.get(count, count)}" if count else ""
            fields.append(f'("{field_name}", {self._type(kind)}{count})')
        self._types[name] = _class_name(name)
        rows = _filled(f"    _fields_ = [{', '.join(fields)}]")
        self.parts.append(f"\n\nclass {_class_name(name)}(Structure):\n{rows}\n\n")

    def function_type(self, result, name, arguments):
        self._types[name] = _class_name(name)
        types = [self._type(kind) for kind in [result, *_arguments(arguments)]]
        self.parts.append(f"{_class_name(name)} = CFUNCTYPE({', '.join(types)})\n")

    def function(self, result, name, arguments):
        types = ", ".join(self._type(kind) for kind in _arguments(arguments))
        self.functions.append(_filled(f'    "{name}": ({self._type(result)}, [{types}]),'))


_DECLARATIONS = (
    (r"#define (SLUICE_\w+) (\(?-?\w+\)?);", _Translation.define),
    (r"typedef enum (\w+) \{([^}]*)\} \1;", _Translation.enumeration),
    (r"typedef struct (\w+) \1;", _Translation.opaque),
    (r"typedef struct (\w+) \{([^}]*)\} \1;", _Translation.struct),
    (r"typedef ([\w *]+[ *])\(\*(\w+)\)\(([^)]*)\);", _Translation.function_type),
    (r"SLUICE_API ([\w *]+[ *])(\w+)\(([^)]*)\);", _Translation.function))


def generate(header):
    """The text of _header.py for that of a header."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)
    text = re.sub(r"^#(ifdef __cplusplus|if defined\(__GNUC__\))\n.*?^#endif\n", "", text,
                  flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(#include .*|#\w+ SLUICE_SLUICE_H_ *|#endif *)\n", "", text,
                  flags=re.MULTILINE)
    text = re.sub(r"^(#define .*\S)", r"\1;", text, flags=re.MULTILINE)  # ends as the others do
    text = " ".join(text.split())
    made = _Translation()
    while text:
        try:
            add, found = next((add, found) for pattern, add in _DECLARATIONS
                              if (found := re.match(pattern, text)))
            add(made, *found.groups())
        except (StopIteration, KeyError, AttributeError, ValueError):
            raise SystemExit(f"{HEADER}: not understood: {text[:100]!r}") from None
        text = text[found.end():].lstrip()
    made.parts.append("\nFUNCTIONS = {\n" + "".join(made.functions) + "}\n")
    return re.sub(r"\n{3,}", "\n\n\n", "".join(made.parts))


if __name__ == "__main__":
    if len(sys.argv) != 1:
        raise SystemExit(__doc__)
    OUTPUT.write_text(generate(HEADER.read_text()))
