"""The ends of a sluice.Job, and its answers to mistakes: leaves, timeouts, arguments, Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import sluice
from inproc import SPECS, address, on_all_ranks, on_threads  # noqa: F401 - address is a fixture
from tiers import within

pytestmark = pytest.mark.usefixtures("library")


def _train(job, steps):
    for _ in range(steps):
        job.submit("weight", numpy.ones(1000, numpy.float32))
        job.submit("bias", numpy.full(7, job.rank, numpy.float32))
        job.wait_step(timeout=300)
    return job.wait("bias").weight


def test_a_rank_that_leaves_before_the_others_ends_a_synchronous_job_by_name(address):
    def work(job):
        if job.rank == 1:
            _train(job, 2)
            job.leave()
            return ""
        with pytest.raises(sluice.PeerLost) as raised:
            _train(job, 3)
        return str(raised.value)

    for text in on_all_ranks(work, 3, address)[::2]:
        for words in ("rank 1", "after step 2", "that rank's log", "finish()"):
            assert words in text, text


def test_a_rank_that_finishes_before_the_others_lets_them_go_on(address):
    def work(job):
        weight = _train(job, 2 if job.rank == 1 else 4)
        job.finish()
        return weight

    assert on_all_ranks(work, 3, address) == [2, 3, 2]


def test_a_wait_that_times_out_says_who_and_what_is_missing(address):
    given_up = threading.Event()

    def work(job):
        if job.rank == 1:
            given_up.wait(300)
        job.submit("bias", numpy.zeros(7, numpy.float32))
        job.end_step()
        text = ""
        if job.rank == 0:
            with pytest.raises(sluice.TimedOut) as raised:
                job.wait("bias", timeout=0.3)
            text = str(raised.value)
            given_up.set()
        job.wait_step(timeout=300)
        return text

    text = on_all_ranks(work, 2, address)[0]
    for words in ("rank 0", address, "'bias' of step 1: not done in time", "missing: rank 1",
                  "timeout 0.3 s"):
        assert words in text, text


class TestWrongArguments:
    @pytest.fixture
    def job(self, address):
        with sluice.Job(SPECS, address, rank=0, world_size=1, run_id=1) as job:
            yield job

    @pytest.mark.parametrize("array, words", [
        (numpy.zeros(8, numpy.float32), "'bias' has 8 elements.*registered with 7"),
        (numpy.zeros(7, numpy.float64), "'bias' has elements of type <f8.*float32"),
        (numpy.zeros(14, numpy.float32)[::2], "'bias' is not contiguous"),
        ([0.0] * 7, "'bias' is a list"),
    ])
    def test_an_array_that_does_not_fit_is_described(self, job, array, words):
        with pytest.raises(sluice.InvalidArgument, match=words):
            job.submit("bias", array)

    def test_a_read_only_output_is_refused(self, job):
        array = numpy.zeros(7, numpy.float32)
        array.flags.writeable = False
        with pytest.raises(sluice.InvalidArgument, match="read-only"):
            job.submit("bias", array)

    def test_an_unknown_tensor_is_named(self, job):
        with pytest.raises(sluice.InvalidArgument, match="'biass' was not registered"):
            job.submit("biass", numpy.zeros(7, numpy.float32))
        with pytest.raises(sluice.InvalidArgument, match="tensor 2 does not exist"):
            job.wait(2)

    def test_a_job_that_has_been_closed_says_so(self, job):
        job.close()
        with pytest.raises(sluice.Closed):
            job.end_step()
        job.close()

    def test_float64_is_refused_with_the_tensors_name(self, address):
        with pytest.raises(sluice.InvalidArgument, match="'a' has dtype float64.*float32, float16"):
            sluice.Job([("a", 1, "float64")], address, rank=0, world_size=1, run_id=1)


def test_waiting_for_the_others_times_out_and_names_them(address):
    with pytest.raises(sluice.TimedOut, match="1"):
        sluice.Job(SPECS, address, rank=0, world_size=2, run_id=1, join_timeout=0.3)


def test_nobody_at_the_address_is_an_error_within_five_seconds():
    start = time.monotonic()
    with pytest.raises(sluice.Unreachable, match="127.0.0.1:9.*"):
        sluice.Job(SPECS, "udp://127.0.0.1:9", rank=0, world_size=2, run_id=1)
    within(time.monotonic() - start, 5)


@pytest.mark.parametrize("end, kind", [
    (lambda: 1 // 0, ZeroDivisionError),
    (lambda: sys.exit(3), SystemExit),
])
def test_an_error_inside_with_aborts_so_that_the_other_rank_hears_of_it(address, end, kind):
    heard = []
    joined = threading.Barrier(2)

    def other():
        with sluice.Job(SPECS, address, rank=1, world_size=2, run_id=1) as job:
            joined.wait(300)
            with pytest.raises(sluice.PeerLost, match="rank 0 .*left with an error") as caught:
                job.submit("bias", numpy.zeros(7, numpy.float32))
                job.wait_step(timeout=300)
            heard.append(caught.value)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(kind):
        with sluice.Job(SPECS, address, rank=0, world_size=2, run_id=1):
            joined.wait(300)
            end()
    thread.join(30)
    assert len(heard) == 1


def test_close_ends_a_wait_on_another_thread(address):
    jobs, heard = [], []
    ready = threading.Barrier(3)

    def rank_main(rank):
        job = sluice.Job(SPECS, address, rank=rank, world_size=2, run_id=1)
        jobs.append(job)
        if rank == 1:
            ready.wait(300)
            return
        job.submit("bias", numpy.zeros(7, numpy.float32))
        ready.wait(300)
        with pytest.raises(sluice.Error) as caught:
            job.wait_step()
        heard.append(type(caught.value))

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(300)
    time.sleep(0.2)
    next(job for job in jobs if job.rank == 0).close()
    for thread in threads:
        thread.join(30)
    assert heard == [sluice.Closed]
    next(job for job in jobs if job.rank == 1).close()


_WAITS_FOREVER = """
import sys, numpy, sluice, threading
def peer():
    global other
    other = sluice.Job([("a", 1, "float32")], "inproc://ctrl-c", rank=1, world_size=2, run_id=1)
thread = threading.Thread(target=peer)
if sys.argv[1] != "join":
    thread.start()
job = sluice.Job([("a", 1, "float32")], "inproc://ctrl-c", rank=0, world_size=2, run_id=1) \\
    if sys.argv[1] != "join" else None
print("waiting", flush=True)
try:
    if sys.argv[1] == "join":
        sluice.Job([("a", 1, "float32")], "inproc://ctrl-c", rank=0, world_size=2, run_id=1)
    elif sys.argv[1] == "wait":
        job.submit(0, numpy.zeros(1, numpy.float32))
        job.wait_step()
    else:
        job.barrier()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("where", ["join", "wait", "barrier"])
def test_ctrl_c_ends_a_blocking_call_at_once(where):
    process = subprocess.Popen([sys.executable, "-B", "-c", _WAITS_FOREVER, where],
                               stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        took_s = time.monotonic() - start
        assert process.wait(300) == 0
        within(took_s, 1)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_forked_child_is_told_to_join_again(address):
    with sluice.Job(SPECS, address, rank=0, world_size=1, run_id=1) as job:
        child = os.fork()
        if child == 0:
            try:
                job.end_step()
            except sluice.Forked:
                os._exit(17)
            except BaseException:  # noqa: BLE001 - the child must not return into pytest
                os._exit(18)
            os._exit(19)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
        job.submit("bias", numpy.zeros(7, numpy.float32))
        job.end_step()
        assert job.wait_step(timeout=300) == 1


def test_a_rank_that_waits_for_others_to_join_says_for_whom(address, caplog):
    text = "1 of 2 ranks here; waiting for rank 1"

    def work(rank):
        deadline = time.monotonic() + 300
        while rank == 1 and text not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
        with sluice.Job(SPECS, address, rank=rank, world_size=2, run_id=1, stall_report=0.1):
            pass

    with caplog.at_level("WARNING", logger="sluice"):
        on_threads(work, 2)
    assert text in caplog.text


def test_a_stall_is_logged_with_who_is_missing(address, caplog):
    def told():
        return any("bias" in record.getMessage() and "1" in record.getMessage()
                   for record in caplog.records)

    def work(job):
        deadline = time.monotonic() + 300
        while job.rank == 1 and not told() and time.monotonic() < deadline:
            time.sleep(0.1)
        job.submit("bias", numpy.zeros(7, numpy.float32))
        job.end_step()
        job.wait_step(timeout=300)

    with caplog.at_level("WARNING", logger="sluice"):
        on_all_ranks(work, 2, address, stall_report=0.3)
    # Between the slices of a wait: not before the step has stood still for stall_report seconds.
    assert not any("for 0.0 s" in record.getMessage() for record in caplog.records), caplog.text
    assert told(), caplog.text
