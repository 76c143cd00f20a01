"""The table of docs/combinations.md against the library: each pair of options is joined with."""

import ctypes
import itertools
import re

import pytest
from conftest import BUILD, ROOT

import sluice
from inproc import address, on_threads  # noqa: F401 - a fixture

RANKS = 4
# Options of one word of the table; each of several must do as the table says.
OPTIONS = {
    "`fixed`": [dict(policy="fixed", k=2)],
    "`saina`, `ramp`, `goodput`": [dict(policy="saina"), dict(policy="ramp", planned_steps=100),
                                   dict(policy="goodput")],
    "`wire`": [dict(wire="bfloat16"), dict(wire="int8")],
    "`prune`": [dict(prune="static")],
    "`credit`, `prophet`": [dict(schedule="credit"), dict(schedule="prophet")],
    "`reproducible`": [dict(reproducible=True)],
    "store": [dict(store=True)],
    "BCube": [dict(cube=True)],
    "CUDA memory": [dict(memory="device")],
}
_FIXED, _ADAPTIVE, _WIRE, _PRUNE, _SCHEDULES, _REPRODUCIBLE, _STORE, _CUBE, _CUDA = OPTIONS
REFUSALS = {
    (_PRUNE, _ADAPTIVE): "of whole gradients, and this rank's are pruned",
    (_REPRODUCIBLE, _FIXED): "a matter of time who is in a sum",
    (_REPRODUCIBLE, _ADAPTIVE): "a matter of time who is in a sum",
    (_STORE, _FIXED): "a bound on staleness instead of policy",
    (_STORE, _ADAPTIVE): "a bound on staleness instead of policy",
    (_STORE, _WIRE): "travel as float32",
    (_STORE, _PRUNE): "are sent whole",
    (_CUBE, _FIXED): "ask for policy sync",
    (_CUBE, _ADAPTIVE): "ask for policy sync",
    (_CUBE, _SCHEDULES): "schedule strict or fifo",
    (_CUBE, _STORE): "a BCube has no store",
    (_CUDA, _STORE): "layers of a store are in the host's memory",
}


def table():
    """(row, column) -> word."""
    lines = (ROOT / "docs" / "combinations.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in lines if line.startswith("|")]
    columns = rows[0][1:]
    return {(row[0], column): word
            for row in rows[2:] for column, word in zip(columns, row[1:]) if word}


def join(where, options):
    """A job of RANKS with these options is joined, takes a step over ones, and is left."""
    options = dict(options)
    tensors = [("weight", 5000), ("bias", 7)]
    is_store, is_cube = options.pop("store", False), options.pop("cube", False)

    def rank_main(rank):
        url = where
        if is_cube:  # two ranks at each switch, which differ in one binary digit
            url = f"bcube://2,2?levels={where}-0-{rank // 2},{where}-1-{rank % 2}"
        common = dict(rank=rank, world_size=RANKS, run_id=1, join_timeout=60, **options)
        if is_store:
            with sluice.Store([tensors], url, **common) as store:
                return store.barrier(60)
        with sluice.Job([(*tensor, "float32") for tensor in tensors], url, **common) as job:
            memory = [(ctypes.c_float * count)(*[1.0] * count) for _, count in tensors]
            for index, values in enumerate(memory):
                job.submit(index, ctypes.addressof(values),
                           stream=0 if "memory" in options else None)
            job.wait_step(60)
            means = {round(value, 1) for values in memory for value in values}
            assert means == {1.0} or "prune" in options and means <= {0.0, 1.0}
            job.barrier(60)

    on_threads(rank_main, RANKS, seconds=90)


@pytest.fixture
def fake_device(library, monkeypatch):
    plugin = BUILD / "tests" / "fake_device" / "libsluice_cuda.so"
    if not plugin.exists():
        pytest.skip(f"{plugin} is not built")
    monkeypatch.setenv("SLUICE_PLUGIN_DIR", str(plugin.parent))


def test_the_table_has_every_pair_once_and_says_no_where_the_library_does():
    words = table()
    ones = {_FIXED, _ADAPTIVE}  # a job has one policy
    pairs = {frozenset(pair) for pair in itertools.combinations(OPTIONS, 2)} - {frozenset(ones)}
    assert {frozenset(pair) for pair in words} == pairs and len(words) == len(pairs)
    assert {pair for pair, word in words.items() if word in ("no", "not yet")} == set(REFUSALS)
    assert {pair for pair, word in words.items() if word == "ignored"} == {(_STORE, _SCHEDULES)}


@pytest.mark.parametrize("pair", table(), ids=lambda pair: re.sub(r"\W+", "-", " ".join(pair)))
def test_a_pair_does_as_the_table_says(pair, address, request):  # noqa: F811
    request.getfixturevalue("fake_device" if _CUDA in pair else "library")
    for number, (one, other) in enumerate(itertools.product(*(OPTIONS[word] for word in pair))):
        options = {**one, **other}
        if pair not in REFUSALS:
            join(f"{address}-{number}", options)
            continue
        with pytest.raises((sluice.InvalidArgument, sluice.Refused), match=REFUSALS[pair]):
            join(f"{address}-{number}", options)


@pytest.mark.parametrize("other", [dict(cube=True), dict(policy="saina"), dict(prune="static")])
def test_fifo_works_over_a_bcube_too(other, address, library):  # noqa: F811
    join(address, {"schedule": "fifo", **other})
