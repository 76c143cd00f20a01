"""Files of a parameter store: its layers, and what a join must say to find it.

A file is a safetensors one where that package is installed (FILE.safetensors), else NumPy's
(FILE.npz); any reader of either finds the tensors under their names. What else a store is made of
stands, as JSON, in the metadata of the first and in an array of the second.
"""

import json
import os
import secrets
from pathlib import Path

from sluice import errors

_KEY = "sluice_store"  # of the metadata, and of the array
_SUFFIXES = (".safetensors", ".npz")
# Of sluice.Store and sluice.Options, that all workers of a store have in common.
OPTIONS = ("bound", "update", "momentum", "dampening", "weight_decay", "nesterov", "betas", "eps",
           "adam_lerp", "reproducible", "mtu", "chunk_bytes")


def numpy():
    try:
        import numpy as found
    except ImportError:
        raise errors.NotFound("a store's file needs NumPy: pip install numpy") from None
    return found


def _safetensors(path):
    try:
        import safetensors.numpy as found
    except ImportError:
        raise errors.NotFound(f"{path}: safetensors is not installed: pip install safetensors, "
                                 "or name the file .npz") from None
    return found


def _bad(path, text):
    return errors.InvalidArgument(f"{path}: {text}")


def check_name(path):
    """The file's form; refused before anybody has been asked for anything."""
    suffix = Path(path).suffix
    if suffix not in _SUFFIXES:
        raise _bad(path, "name it .safetensors or .npz")
    if suffix == ".safetensors":
        _safetensors(path)
    numpy()
    return suffix


def write(path, about, arrays):
    """`about`: a dict for JSON with `layers`, [[(name, count)]], ...; `arrays`: by name."""
    suffix, text = check_name(path), json.dumps(about)
    if len(arrays) != sum(map(len, about["layers"])):
        raise _bad(path, "two tensors of the store have the same name, and a file has room for one")
    # Nobody finds half a file, and ranks that write to the same one have a part each.
    partial = Path(f"{path}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        if suffix == ".safetensors":
            _safetensors(path).save_file(arrays, partial, metadata={_KEY: text})
        else:
            with open(partial, "xb") as file:
                numpy().savez(file, **arrays, **{_KEY: numpy().frombuffer(text.encode(), "uint8")})
        _sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(partial.parent)  # or the name may be the old file's after a crash


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checked(path, text):
    try:
        about = json.loads(text)
        for layer in about["layers"]:
            for name, count in layer:
                if not (isinstance(name, str) and isinstance(count, int) and count > 0):
                    raise ValueError(f"tensor {name!r} of {count!r} elements")
        if not about["layers"] or not 0 < int(about["world_size"]) <= 1024:
            raise ValueError(f"{len(about['layers'])} layers, world_size {about['world_size']}")
    except (ValueError, KeyError, TypeError) as error:
        raise _bad(path, f"what it says of the store is damaged ({error!r})") from None
    return about


def read(path, with_values=True):
    """(about, arrays by name, flat float32); without values of a description alone, too."""
    if not with_values and Path(path).suffix == ".json":
        return _checked(path, Path(path).read_text(encoding="utf-8")), None
    suffix = check_name(path)
    try:
        if suffix == ".safetensors":
            from safetensors import safe_open
            with safe_open(path, framework="numpy") as file:
                text = (file.metadata() or {}).get(_KEY)
                arrays = {name: file.get_tensor(name) for name in file.keys()}
        else:
            with numpy().load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            text = arrays.pop(_KEY).tobytes().decode() if _KEY in arrays else None
    except FileNotFoundError:
        raise
    except Exception as error:  # what a damaged file raises is the package's own
        raise _bad(path, f"cannot be read ({type(error).__name__}: {error})") from None
    if text is None:
        raise _bad(path, "does not say which store it is of: write files with `store save`, or "
                         "Store.save()")
    about = _checked(path, text)
    for name, count in (tensor for layer in about["layers"] for tensor in layer):
        if name not in arrays or arrays[name].size != count or arrays[name].dtype != "float32":
            raise _bad(path, f"tensor '{name}' of {count} float32 is not in it")
        arrays[name] = numpy().ascontiguousarray(arrays[name]).reshape(-1)
    return about, arrays
