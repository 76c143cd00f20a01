"""`python3 -m sluice launch`: environment, output, failures, signals, nothing left running."""

import os
import signal
import subprocess
import sys
import time

import pytest

_LAUNCH = [sys.executable, "-B", "-m", "sluice", "launch"]


def launch(folder, code, *options, script_arguments=(), count=3):
    script = folder / "script.py"
    script.write_text(code)
    return subprocess.run([*_LAUNCH, "-n", str(count), *options, str(script), *script_arguments],
                          capture_output=True, text=True, timeout=300, check=False)


def gone(pid):
    """Whether a process has ended; a zombie has."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def all_gone(pids, timeout_s=300):
    deadline = time.monotonic() + timeout_s
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return all(map(gone, pids))


def test_each_rank_gets_torchruns_environment_and_ours(tmp_path):
    done = launch(tmp_path, "import os, sys\n"
                  "e = os.environ\n"
                  "print(e['RANK'], e['WORLD_SIZE'], e['LOCAL_RANK'], e['MASTER_ADDR'],\n"
                  "      int(e['MASTER_PORT']) > 0, e['SLUICE_ADDRESS'], len(e['SLUICE_RUN_ID']),\n"
                  "      sys.argv[1:], e['GLOO_SOCKET_IFNAME'])\n", "--address", "udp://h/{rank}",
                  script_arguments=("--lr", "1"))
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}] {rank} 3 {rank} 127.0.0.1 True udp://h/{{rank}} 16 ['--lr', '1'] lo"
                for rank in range(3)]
    assert sorted(done.stdout.splitlines()) == expected


def test_ranks_of_one_launch_share_the_run_id_and_the_port(tmp_path):
    code = "import os; print(os.environ['SLUICE_RUN_ID'], os.environ['MASTER_PORT'])"
    lines = [launch(tmp_path, code).stdout.splitlines() for _ in range(2)]
    assert all(len({line.split("] ")[1] for line in run}) == 1 for run in lines)
    assert lines[0][0].split()[1] != lines[1][0].split()[1]


def test_ranks_of_the_second_node_are_numbered_after_the_first(tmp_path):
    done = launch(tmp_path, "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])",
                  "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1",
                  "--master-port", "29500", count=2)
    assert sorted(done.stdout.splitlines()) == ["[2] 2 4", "[3] 3 4"]


def test_a_failing_rank_is_named_with_its_last_words_and_the_others_are_stopped(tmp_path):
    done = launch(tmp_path, "import os, time\n"  # within a time of its own
                  "print('pid', os.getpid())\n"
                  "if os.environ['RANK'] == '1':\n"
                  "    raise ValueError('no such data')\n"
                  "time.sleep(600)\n")
    assert done.returncode == 1
    assert "rank 1 (pid " in done.stderr
    assert "exited with status 1: ValueError: no such data; stopping ranks 0, 2" in done.stderr
    assert all_gone([int(line.split()[2]) for line in done.stdout.splitlines() if "pid" in line])


_ENDS_AFTER_RANK_0 = """
import os, pathlib, sys, time
from sluice import errors
told, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
if rank == "0":
    told.write_text(f"/proc/{os.getpid()}/stat of rank 0")
    raise errors.PeerLost("rank 1 ended in order")
while rank == "2" or not told.exists() or "rank 0" not in told.read_text():
    time.sleep(0.01)
try:
    while ") Z " not in pathlib.Path(told.read_text().split()[0]).read_text():
        time.sleep(0.01)
except OSError:
    pass  # the launcher knows already
sys.exit(3)
"""


def test_a_rank_that_another_one_has_lost_is_named_with_its_own_status(tmp_path):
    done = launch(tmp_path, _ENDS_AFTER_RANK_0, script_arguments=(tmp_path / "told",))
    assert done.returncode == 1
    first, second = [line for line in done.stderr.splitlines() if line.startswith("sluice launch")]
    assert "rank 0 (pid " in first and "rank 1 ended in order; stopping rank 2" in first
    assert "rank 1 (pid " in second and "exited with status 3; stopping rank 2" in second


def test_what_a_rank_prints_last_does_not_make_it_one_that_has_lost_another(tmp_path):
    done = launch(tmp_path, "import os, sys, time\n"
                  "if os.environ['RANK'] != '0': time.sleep(60)\n"
                  "print('sluice.errors.PeerLost: rank 1', file=sys.stderr); sys.exit(3)\n")
    assert done.returncode == 3 and "exited with status 3" in done.stderr
    assert done.stderr.count("sluice launch: ") == 1


def test_a_killed_rank_is_reported_with_the_signal(tmp_path):
    done = launch(tmp_path, "import os, time\n"
                  "if os.environ['RANK'] == '2': os.kill(os.getpid(), 9)\n"
                  "time.sleep(60)\n")
    assert done.returncode == 128 + 9
    assert "was killed by SIGKILL" in done.stderr


def test_keep_going_lets_the_other_ranks_finish(tmp_path):
    done = launch(tmp_path, "import os, sys, time\n"
                  "if os.environ['RANK'] == '0': open(sys.argv[1], 'w'); sys.exit(3)\n"
                  "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
                  "time.sleep(0.5); print('finished')\n", "--keep-going",
                  script_arguments=(tmp_path / "failing",))
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines()) == ["[1] finished", "[2] finished"]
    assert "exited with status 3; still running: ranks 1, 2" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "sluice launch: 2 of 3 ranks finished; failed: rank 0 (exited with status 3)")


def test_the_closing_line_names_who_failed_first_and_then_the_others(tmp_path):
    done = launch(tmp_path, "import os, sys, time\n"
                  "rank = int(os.environ['RANK'])\n"
                  "if rank == 2: open(sys.argv[1], 'w'); os.kill(os.getpid(), 9)\n"
                  "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
                  "time.sleep(1); sys.exit(4 if rank == 0 else 0)\n", "--keep-going",
                  script_arguments=(tmp_path / "failing",))
    assert done.returncode == 128 + 9
    assert done.stderr.splitlines()[-1] == (
        "sluice launch: 1 of 3 ranks finished; failed: rank 2 (was killed by SIGKILL), "
        "then rank 0 (exited with status 4)")


@pytest.mark.parametrize("options", [(), ("--keep-going",), ("--restart", "2")])
def test_a_run_in_which_no_rank_fails_has_no_closing_line(tmp_path, options):
    done = launch(tmp_path, "pass", *options)
    assert (done.returncode, done.stderr) == (0, "")


_FAILS_TWICE = """
import os, sys, time
tries = int(os.environ["SLUICE_RESTART_COUNT"])
print("try", tries, os.environ["RANK"], os.environ["SLUICE_RUN_ID"], flush=True)
if os.environ["RANK"] == "1" and tries < 2: raise ValueError("no luck")
time.sleep(1.5)
print("finished", flush=True)
"""


def test_a_rank_that_fails_is_started_again_with_its_rank_and_run(tmp_path):
    done = launch(tmp_path, _FAILS_TWICE, "--restart", "2", "--restart-delay", "0.1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("[1] try")] == ["0", "1", "2"]
    assert len({line.split()[4] for line in lines if " try " in line}) == 1, "one run id"
    assert sum("finished" in line for line in lines) == 3
    assert "ValueError: no luck; restarting it in 0.1 s (1 of 2)" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "sluice launch: 3 of 3 ranks finished; restarted: rank 1 (2 times)")


def test_a_rank_without_restarts_left_fails_the_run(tmp_path):
    done = launch(tmp_path, _FAILS_TWICE.replace("1.5", "60"), "--restart", "1",
                  "--restart-delay", "0.1")
    assert done.returncode == 1
    assert "no luck; stopping ranks 0, 2" in done.stderr
    assert "failed: rank 1 (exited with status 1 after 1 restart)" in done.stderr.splitlines()[-1]
    assert "finished" not in done.stdout


def test_with_keep_going_the_others_outlive_its_last_restart(tmp_path):
    done = launch(tmp_path, _FAILS_TWICE, "--keep-going", "--restart", "1", "--restart-delay",
                  "0.1")
    assert done.returncode == 1
    assert sum("finished" in line for line in done.stdout.splitlines()) == 2
    assert done.stderr.splitlines()[-1] == (
        "sluice launch: 2 of 3 ranks finished; failed: rank 1 (exited with status 1 after 1 "
        "restart)")


_DIES_ONCE = """
import itertools, os, pathlib, time
import numpy
import sluice
gradient = numpy.ones(2000, numpy.float32)
dies = os.environ["RANK"] == "2"
again = int(os.environ["SLUICE_RESTART_COUNT"])
here = pathlib.Path(__file__)
back = here.with_name("back")
with sluice.Job([("weight", 2000, "float32")], job="dies-once") as job:
    print("joined", again, flush=True)
    if again: back.touch()
    for step in itertools.count():
        if back.exists(): break
        if dies and step == 5: os.kill(os.getpid(), 9)
        at = here.with_name(f"rank-2-at-{step}")
        if dies: at.touch()
        # It is not left behind before, as it would have to take a state then.
        while step < 5 and not at.exists(): time.sleep(0.01)
        time.sleep(0.1)
        job.submit("weight", gradient)
        job.wait_step(timeout=300)
    print("finished", flush=True)
"""


def test_with_k_below_n_a_killed_rank_comes_back_while_the_others_run_on(
        tmp_path, fastest_appliance, monkeypatch):
    pytest.importorskip("numpy")
    monkeypatch.setenv("SLUICE_ADDRESS", fastest_appliance.address)
    monkeypatch.setenv("SLUICE_SECRET", fastest_appliance.secret)
    done = launch(tmp_path, _DIES_ONCE, "--keep-going", "--restart", "1", "--restart-delay", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was killed by SIGKILL: joined 0; restarting it in 1 s (1 of 1)" in done.stderr
    assert {"[0] finished", "[1] finished", "[2] joined 1"} <= set(done.stdout.splitlines())
    assert done.stderr.splitlines()[-1] == (
        "sluice launch: 3 of 3 ranks finished; restarted: rank 2 (1 time)")


def test_a_rank_that_waits_for_its_restart_is_not_started_once_the_run_is_stopped(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(7)")
    process = subprocess.Popen([*_LAUNCH, "-n", "1", "--restart", "1", "--restart-delay", "60",
                                str(script)], stderr=subprocess.PIPE, text=True)
    try:
        assert "restarting it in 60 s" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_progress_bar_leaves_one_line_in_a_file(tmp_path):
    done = launch(tmp_path, "import sys\n"
                  "for i in range(5): sys.stdout.write(f'\\rstep {i}'); sys.stdout.flush()\n"
                  "print()\n", count=1)
    assert done.stdout == "[0] step 4\n"


@pytest.mark.parametrize("arguments, words", [
    (["-n", "0", "x.py"], "at least one rank"),
    (["-n", "2", "/nonexistent/x.py"], "no such file"),
    (["-n", "2", "--nnodes", "2", "x.py"], "--master-port"),
    (["-n", "2", "--restart", "-1", "x.py"], "--restart -1"),
    (["-n", "2", "--restart-delay", "-1", "x.py"], "--restart-delay -1"),
    (["-n", "2", "--nnodes", "2", "--node-rank", "2", "x.py"], "--node-rank 2"),
])
def test_a_wrong_command_line_is_explained(arguments, words):
    done = subprocess.run([*_LAUNCH, *arguments], capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 2
    assert words in done.stderr


_STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("pid", os.getpid(), child.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("number, expected", [
    (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_is_left_running_even_of_ranks_that_ignore_signals(tmp_path, number, expected):
    script = tmp_path / "stubborn.py"
    script.write_text(_STUBBORN)
    process = subprocess.Popen([*_LAUNCH, "-n", "2", "--grace", "0.5", str(script)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids = []
    try:
        for _ in range(2):
            pids += [int(word) for word in process.stdout.readline().split()[2:]]
        process.send_signal(number)
        assert process.wait(300) == expected
        # A launcher that is itself killed can stop its ranks (the kernel does), not theirs.
        assert all_gone(pids[::2] if number == signal.SIGKILL else pids)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        for pid in pids:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
