"""Files of parameter stores, without an appliance; tests/e2e/test_store.py has one."""

import json

import pytest

from sluice import _store_command, _store_file, errors

np = pytest.importorskip("numpy")

ABOUT = {"layers": [[["a.weight", 6], ["a.bias", 2]], [["b", 3]]], "world_size": 2, "bound": 1,
         "iterations": 7}


def arrays():
    return {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "a.bias": np.full(2, -1, np.float32), "b": np.zeros(3, np.float32)}


def suffixes():
    try:
        import safetensors  # noqa: F401
    except ImportError:
        return [".npz"]
    return [".npz", ".safetensors"]


@pytest.mark.parametrize("suffix", suffixes())
def test_what_is_written_is_read_again(tmp_path, suffix):
    path = tmp_path / f"store{suffix}"
    _store_file.write(path, ABOUT, arrays())
    about, values = _store_file.read(path)
    assert about == ABOUT
    assert values["a.weight"].tolist() == [0, 1, 2, 3, 4, 5] and values["b"].shape == (3,)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_two_that_write_one_file_leave_a_whole_one(tmp_path, monkeypatch):
    """The second one writes while the first has half of its part."""
    path, savez, begun = tmp_path / "store.npz", np.savez, []

    def halting(file, **all_arrays):
        file.write(b"half")
        if not begun:
            begun.append(True)
            _store_file.write(path, ABOUT, {**arrays(), "b": np.ones(3, np.float32)})
        file.seek(0)
        savez(file, **all_arrays)

    monkeypatch.setattr(np, "savez", halting)
    _store_file.write(path, ABOUT, arrays())
    assert _store_file.read(path)[1]["b"].tolist() == [0, 0, 0], "the last that was whole"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_the_last_file_and_no_part(tmp_path, monkeypatch):
    path, synced = tmp_path / "store.npz", []
    monkeypatch.setattr(_store_file, "_sync", lambda what: synced.append(what.suffix))
    _store_file.write(path, ABOUT, arrays())
    assert synced == [".part", ""], "the file before its name, then the folder"

    def failing(file, **_arrays):
        file.write(b"half")
        raise OSError("no space")

    monkeypatch.setattr(np, "savez", failing)
    with pytest.raises(OSError, match="no space"):
        _store_file.write(path, ABOUT, arrays())
    assert _store_file.read(path)[0] == ABOUT
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_description_alone_says_which_store_it_is(tmp_path):
    path = tmp_path / "store.json"
    path.write_text(json.dumps(ABOUT))
    assert _store_file.read(path, with_values=False) == (ABOUT, None)
    with pytest.raises(errors.InvalidArgument, match=".safetensors or .npz"):
        _store_file.read(path)


def test_safetensors_are_refused_by_name_where_they_are_not_installed(tmp_path):
    if len(suffixes()) == 2:
        pytest.skip("safetensors is installed")
    with pytest.raises(errors.NotFound, match="pip install safetensors, or name the file .npz"):
        _store_file.write(tmp_path / "store.safetensors", ABOUT, arrays())


def damage(about=None, values=None, text=None):
    changed = {**ABOUT, **(about or {})}
    return text or json.dumps(changed), {**arrays(), **(values or {})}


@pytest.mark.parametrize("text, values, message", [
    (*damage(values={"b": np.zeros(4, np.float32)}), "tensor 'b' of 3 float32"),
    (*damage(values={"b": np.zeros(3, np.float64)}), "tensor 'b' of 3 float32"),
    (*damage(about={"layers": []}), "damaged"),
    (*damage(about={"layers": [[["b", -3]]]}), "elements"),
    (*damage(about={"world_size": 0}), "world_size 0"),
    (*damage(text="{"), "damaged"),
    (*damage(text="[1]"), "damaged")])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, text, values, message):
    path = tmp_path / "store.npz"
    np.savez(path, **values, sluice_store=np.frombuffer(text.encode(), np.uint8))
    with pytest.raises(errors.InvalidArgument, match=message) as refused:
        _store_file.read(path)
    assert str(path) in str(refused.value)


def test_files_of_something_else_are_refused(tmp_path):
    path = tmp_path / "store.npz"
    np.savez(path, b=np.zeros(3, np.float32))
    with pytest.raises(errors.InvalidArgument, match="does not say which store"):
        _store_file.read(path)
    path.write_bytes(b"no archive")
    with pytest.raises(errors.InvalidArgument, match="cannot be read"):
        _store_file.read(path)


def test_two_tensors_of_one_name_do_not_fit_into_a_file(tmp_path):
    about = {**ABOUT, "layers": [[["a.weight", 6]], [["a.weight", 6]]]}
    with pytest.raises(errors.InvalidArgument, match="the same name"):
        _store_file.write(tmp_path / "store.npz", about, {"a.weight": arrays()["a.weight"]})


@pytest.mark.parametrize("target", ["udp://10.0.0.1:7700", "udp://", "default", "udp://host/"])
def test_a_target_without_a_job_is_refused(target):
    with pytest.raises(errors.InvalidArgument, match="ADDRESS/JOB"):
        _store_command._split(target)


def test_the_job_is_what_stands_behind_the_last_slash():
    assert _store_command._split("vhost://h:7700//run/w0.sock/job") == (
        "vhost://h:7700//run/w0.sock", "job")
