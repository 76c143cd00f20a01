"""Training with bounded staleness through a real appliance, over UDP on links that lose packets."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import Lab, metric, missing
from workers import BUILD

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))
import stale_reference  # noqa: E402

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3
FAULT = {"rx_drop": 0.02, "tx_drop": 0.02, "duplicate": 0.02, "reorder": 0.05, "seed": 7}


class Training:
    """RANKS processes of store_worker.py."""

    script = Path(__file__).with_name("store_worker.py")

    def __init__(self, lab, name, *arguments, seconds=0.0, held_until=()):
        """`held_until`: of store_worker.py, at most one FILE."""
        self.lab, self.name = lab, name
        self.arguments = [str(argument) for argument in arguments]
        self.held_until = [str(file) for file in held_until]
        self.logs = [lab.directory / f"{name}{rank}.log" for rank in range(RANKS)]
        library = os.environ.get("SLUICE_LIBRARY", str(BUILD / "client" / "libsluice.so"))
        self.env = {
            "SLUICE_ADDRESS": lab.url, "SLUICE_JOB": name, "SLUICE_SECRET": "lab",
            "SLUICE_RUN_ID": f"{name}-{time.monotonic_ns()}", "WORLD_SIZE": str(RANKS),
            "SLUICE_LIBRARY": library, "PYTHONPATH": str(ROOT / "client" / "python"),
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.processes = [self.start(rank, seconds) for rank in range(RANKS)]

    def start(self, rank, seconds):
        with self.logs[rank].open("ab") as log:
            return self.lab.popen(
                rank, ["/usr/bin/python3", "-B", str(self.script), *self.arguments,
                       str(seconds * (1 + 2 * (rank == 2))), *self.held_until],
                env={**self.env, "RANK": str(rank)}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log)

    def wait_for(self, rank, text, timeout=1000):
        deadline = time.monotonic() + timeout
        while text not in self.logs[rank].read_text():
            assert time.monotonic() < deadline, self.logs[rank].read_text()
            time.sleep(0.05)

    def report(self, rank, timeout=1000):
        self.processes[rank].wait(timeout)
        text = self.logs[rank].read_text()
        assert self.processes[rank].returncode == 0, text
        return json.loads(text.splitlines()[-1])


class AgainstAReference(Training):
    script = ROOT / "tests" / "python" / "stale_reference.py"


def log_of(lab):
    return (lab.directory / "sluiced.log").read_text(errors="replace")


def test_bound_0_is_the_synchronous_training_over_links_that_lose_packets():
    with Lab(hosts=RANKS) as lab:
        config = lab.config(fault=FAULT).replace("[appliance]", "[appliance]\nshards = 2")
        lab.start_appliance(BUILD, config)
        training = AgainstAReference(lab, "reference", 100)
        reports = [training.report(rank) for rank in range(RANKS)]
    stale_reference.check(reports)
    for kind, found in reports[0].items():
        assert found["retransmissions"] > 0, kind


@pytest.mark.parametrize("bound, where", [
    (3, "worker"), pytest.param("none", "store", marks=pytest.mark.full)])
def test_training_over_links_that_lose_packets(bound, where):
    with Lab(hosts=RANKS) as lab:
        config = lab.config(fault=FAULT).replace("[appliance]", "[appliance]\nshards = 2")
        lab.start_appliance(BUILD, config)
        training = Training(lab, "train", bound, where, 40, seconds=0.002)
        reports = [training.report(rank) for rank in range(RANKS)]
    assert len({report["sha"] for report in reports}) == 1
    assert all(report["loss"] < 1.2 for report in reports), reports
    assert all(report["iterations"] == list(range(40)) for report in reports)
    assert sum(report["retransmissions"] for report in reports) > 0


def await_clock(lab, job, clock, standby=False):
    deadline = time.monotonic() + 300
    while metric(lab.scrape(standby=standby), "sluice_job_least_clock", job=job) <= clock:
        assert time.monotonic() < deadline, log_of(lab)
        time.sleep(0.05)


def kill_twice(lab, box, training):
    """With -9, in the middle. The last of the boxes."""
    for clock in (10, 30):
        await_clock(lab, training.name, clock)
        os.killpg(box.pid, signal.SIGKILL)
        box.wait()
        box = lab.start_appliance(BUILD)
    (lab.directory / "go on").touch()
    return [training.report(rank) for rank in range(RANKS)]


def test_a_training_goes_on_when_the_box_is_killed_with_the_same_bits_at_bound_0():
    with Lab(hosts=RANKS) as lab:
        box = lab.start_appliance(BUILD)
        undisturbed = Training(lab, "undisturbed", 0, "worker", 60)
        expected = [undisturbed.report(rank)["sha"] for rank in range(RANKS)]
        training = Training(lab, "killed", 0, "worker", 60, seconds=0.02,
                            held_until=[lab.directory / "go on"])
        reports = kill_twice(lab, box, training)
    assert [report["sha"] for report in reports] == expected
    assert all(report["restarts"] == 2 for report in reports), reports


@pytest.mark.full
def test_a_training_within_a_bound_goes_on_when_the_box_is_killed():
    with Lab(hosts=RANKS) as lab:
        box = lab.start_appliance(BUILD)
        training = Training(lab, "bound", 3, "worker", 60, seconds=0.02,
                            held_until=[lab.directory / "go on"])
        reports = kill_twice(lab, box, training)
        told = training.logs[0].read_text()
    assert len({report["sha"] for report in reports}) == 1
    assert all(report["loss"] < 1.2 and report["restarts"] == 2 for report in reports), reports
    assert all(report["iterations"] == list(range(60)) for report in reports)
    assert "the store goes on" in told, told


def test_a_worker_that_is_killed_holds_nobody_up_and_comes_back():
    with Lab(hosts=RANKS) as lab:
        lab.start_appliance(BUILD, lab.config(fault={"rx_drop": 0.01, "seed": 3}))
        training = Training(lab, "killed", 1, "worker", 200, seconds=0.03)
        for rank in range(RANKS):
            training.wait_for(rank, "joined")
        time.sleep(1)
        victim = training.processes[1]
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(300)
        training.logs[1].write_text("")
        training.processes[1] = training.start(1, 0.03)
        reports = [training.report(rank) for rank in range(RANKS)]
    assert len({report["sha"] for report in reports}) == 1
    assert reports[0]["iterations"] == list(range(200))
    assert 0 < reports[1]["iterations"][0] < 200


def test_a_store_outlives_all_of_its_workers_for_another_run():
    with Lab(hosts=RANKS) as lab:
        lab.start_appliance(BUILD, lab.config(fault={"rx_drop": 0.01, "seed": 4}))
        first = Training(lab, "outlived", 1, "worker", 100_000, seconds=0.01)
        for rank in range(RANKS):
            first.wait_for(rank, "joined")
        deadline = time.monotonic() + 300
        while metric(lab.scrape(), "sluice_job_least_clock") <= 20:
            assert time.monotonic() < deadline, log_of(lab)
            time.sleep(0.1)
        for process in first.processes:
            os.killpg(process.pid, signal.SIGKILL)
        for process in first.processes:
            process.wait(300)
        deadline = time.monotonic() + 300
        while "no worker is left; its parameters are kept for 300 s" not in log_of(lab):
            assert time.monotonic() < deadline, log_of(lab)
            time.sleep(0.1)
        kept = lab.scrape()
        assert metric(kept, "sluice_job_members") == 0 and metric(kept, "sluice_job_step") > 20
        second = Training(lab, "outlived", 1, "worker", 600, seconds=0.002)
        reports = [second.report(rank) for rank in range(RANKS)]
        log, told = log_of(lab), second.logs[0].read_text()
    assert f"runs with {RANKS} workers on the parameters that earlier ones have left" in log
    assert all(report["kept"] for report in reports)
    assert all(20 < report["iterations"][0] < 600 for report in reports), reports
    assert "kept the store's parameters since its last workers went" in told
    assert len({report["sha"] for report in reports}) == 1


class Commands:
    """Python on host 0 of a lab, with the client in its path."""

    def __init__(self, lab):
        self.lab = lab
        self.env = {"SLUICE_ADDRESS": lab.url, "SLUICE_SECRET": "lab", "SLUICE_JOB": "filed",
                    "SLUICE_LIBRARY": str(BUILD / "client" / "libsluice.so"),
                    "PYTHONPATH": str(ROOT / "client" / "python")}

    def python(self, *arguments):
        process = self.lab.popen(0, [sys.executable, *map(str, arguments)], env=self.env,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = process.communicate(timeout=1000)
        return process.returncode, output

    def store(self, what, *arguments):
        return self.python("-m", "sluice", "store", what, f"{self.lab.url}/filed", *arguments)


# Two workers in a process: each adds 1 to all, and the first one saves.
ADD_ONE = """
import sys, threading, numpy, sluice
def main(rank, path):
    layers = [[("a.weight", 30_000), ("a.bias", 7)], [("b", 500)]]
    with sluice.Store(layers, bound=1, rank=rank, world_size=2, run_id="adds") as store:
        kept.append(store.kept)
        store.barrier()
        for layer, tensors in enumerate(layers):
            copies = [numpy.zeros(count, "float32") for _, count in tensors]
            store.pull(layer, copies)
            store.wait_pull(layer)
            store.push(layer, [numpy.ones(count, "float32") for _, count in tensors])
            store.wait_push(layer)
        store.barrier()
        if rank == 0: store.save(path)
        store.barrier()
kept = []
threads = [threading.Thread(target=main, args=(rank, sys.argv[1])) for rank in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("kept", *kept)
"""


# safetensors comes from PyPI: `./run test-torch2` has it, and runs this.
SUFFIXES = [".npz", ".safetensors"] if importlib.util.find_spec("safetensors") else [".npz"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_is_loaded_from_a_file_and_saved_to_one(tmp_path, suffix):
    numpy = pytest.importorskip("numpy")
    files = importlib.import_module("safetensors.numpy") if suffix == ".safetensors" else None
    layers = [[["a.weight", 30_000], ["a.bias", 7]], [["b", 500]]]
    initial = {name: numpy.arange(count, dtype=numpy.float32) for layer in layers
               for name, count in layer}
    about = json.dumps({"layers": layers, "world_size": 2, "bound": 1})
    first, second, third = (tmp_path / f"{name}{suffix}" for name in ("first", "second", "third"))
    if files:
        files.save_file(initial, first, metadata={"sluice_store": about})
    else:
        numpy.savez(first, **initial, sluice_store=numpy.frombuffer(about.encode(), numpy.uint8))
    with Lab(hosts=1) as lab:
        lab.start_appliance(BUILD, lab.config(fault=FAULT))
        commands = Commands(lab)
        status, output = commands.store("save", third, "--like", first)
        assert status == 1 and "no store is kept under job 'filed'" in output, output
        status, output = commands.store("load", first)
        assert status == 0 and "2 layers" in output, output
        status, output = commands.store("load", first)
        assert status == 1 and "is kept there already" in output, output
        other = tmp_path / "other.json"
        other.write_text(json.dumps({"layers": [[["c", 9]]], "world_size": 2, "bound": 1}))
        status, output = commands.store("save", third, "--like", other)
        assert status == 1 and "differs from job 'filed'" in output, output
        status, output = commands.python("-c", ADD_ONE, second)
        assert status == 0 and "kept True True" in output, output
        status, output = commands.store("save", third, "--like", second)
        assert status == 0 and "up to iteration 1" in output, output
    for path in (second, third):
        saved = files.load_file(path) if files else numpy.load(path)
        for name, values in initial.items():
            assert (saved[name] == values + 1).all(), (path, name)


# Rank 0 dies between its join and its initial values; rank 1 waits for them.
DIES_EARLY = """
import os, signal, sys, numpy, sluice
rank = int(sys.argv[1])
with sluice.Store([[("w", 5000)]], bound=1, rank=rank, world_size=2, run_id="early") as store:
    if rank == 0: os.kill(os.getpid(), signal.SIGKILL)
    store.pull(0, [numpy.zeros(5000, "float32")])
    try: store.wait_pull(0, timeout=1000)
    except sluice.PeerLost as error: print("told:", error)
"""


def test_who_waits_for_initial_values_of_a_rank_that_died_is_told_so():
    with Lab(hosts=1) as lab:
        lab.start_appliance(BUILD, lab.config())
        commands = Commands(lab)
        first = lab.popen(0, ["/usr/bin/python3", "-c", DIES_EARLY, "0"], env=commands.env)
        status, output = commands.python("-c", DIES_EARLY, 1)
        assert first.wait(300) == -signal.SIGKILL
    assert status == 0 and "told:" in output, output
    assert "rank 0 at" in output and "0 of 1 blocks of the store have their initial" in output


def test_what_the_appliance_has_no_memory_for_is_refused_with_the_numbers():
    with Lab(hosts=1) as lab:
        lab.start_appliance(BUILD, lab.config(limits="job_memory_mib = 1"))
        code = ("import sluice\n"
                "try: sluice.Store([[('w', 1_000_000)]], rank=0, world_size=1)\n"
                "except sluice.Refused as error: print(error)")
        env = {"SLUICE_ADDRESS": lab.url, "SLUICE_SECRET": "lab",
               "SLUICE_LIBRARY": str(BUILD / "client" / "libsluice.so"),
               "PYTHONPATH": str(ROOT / "client" / "python")}
        process = lab.popen(0, ["/usr/bin/python3", "-c", code], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
        output, _ = process.communicate(timeout=1000)
    assert "MiB" in output and "job_memory_mib" in output, output
