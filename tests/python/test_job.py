"""sluice.Job over an appliance inside this process: one thread a rank."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import sluice

pytestmark = pytest.mark.usefixtures("library")
_names = itertools.count()
SPECS = [("weight", 1000, "float32"), ("bias", 7, "float32")]


@pytest.fixture
def address():
    return f"inproc://job-{next(_names)}"


def on_all_ranks(work, count, address, specs=SPECS, **options):
    """work(job) on a thread for each rank; returns the results, raises the first error."""
    results, failures = [None] * count, []

    def rank_main(rank):
        try:
            with sluice.Job(specs, address, rank=rank, world_size=count, run_id=1,
                            **options) as job:
                results[rank] = work(job)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]
    return results


def test_the_mean_of_integer_gradients_is_exact_and_in_place(address):
    def work(job):
        means = []
        for step in range(1, 6):
            weight = numpy.full(1000, (job.rank + 1) * step * 4, numpy.float32)
            bias = numpy.arange(7, dtype=numpy.float32) * (job.rank + 1) * 4
            job.submit("bias", bias)
            job.submit("weight", weight, priority=1)
            assert job.wait_step(timeout=30) == step
            means.append((weight, bias))
        return means

    for rank_means in on_all_ranks(work, 4, address):
        for step, (weight, bias) in enumerate(rank_means, start=1):
            assert (weight == 10 * step).all()
            assert (bias == numpy.arange(7) * 10).all()


@pytest.mark.parametrize("schedule", ["strict", "credit", "prophet", "fifo"])
def test_every_schedule_gives_the_same_sums_and_tells_its_plan(address, schedule):
    def work(job):
        for step in range(1, 11):  # long enough for prophet to have learnt
            weight = numpy.full(1000, job.rank + step, numpy.float32)
            bias = numpy.full(7, job.rank - step, numpy.float32)
            job.submit("bias", bias, priority=step % 3)
            job.submit("weight", weight, priority=1)
            job.wait_step(timeout=30)
            assert (weight == step + 0.5).all() and (bias == 0.5 - step).all()
        return job.schedule_plan()

    for plan in on_all_ranks(work, 2, address, schedule=schedule):
        assert plan.startswith(schedule), plan


def test_ranks_that_average_in_different_ways_are_told_both_values(address):
    ready = threading.Event()

    def first():
        ready.set()
        with pytest.raises(sluice.TimedOut):  # the other one is refused
            sluice.Job(SPECS, address, rank=0, world_size=2, run_id=1, join_timeout=2.0)

    thread = threading.Thread(target=first)
    thread.start()
    ready.wait()
    time.sleep(0.5)
    with pytest.raises(sluice.Refused, match=r"averages by 'sum'.*by 'default' \(set by rank 0"):
        sluice.Job(SPECS, address, rank=1, world_size=2, run_id=1, averaging="sum")
    thread.join(30)


def test_a_schedule_that_does_not_exist_is_refused_in_the_words_of_who_gave_it(
        address, monkeypatch):
    def join(**options):
        sluice.Job(SPECS, address, rank=0, world_size=1, run_id=1, **options).close()

    with pytest.raises(sluice.InvalidArgument,
                       match=r"schedule='prophit': must be one of strict, credit, prophet, fifo; "
                             r"did you mean 'prophet'"):
        join(schedule="prophit")
    monkeypatch.setenv("SLUICE_SCHEDULE", "lifo")
    with pytest.raises(sluice.InvalidArgument,
                       match="SLUICE_SCHEDULE='lifo' in the environment: must be one of"):
        join()
    join(schedule="fifo")  # an argument comes before the environment


def test_an_output_of_its_own_leaves_the_input_alone(address):
    def work(job):
        mine = numpy.full(7, float(job.rank), numpy.float32)
        mean = numpy.empty_like(mine)
        job.submit("bias", mine, mean)
        job.submit("weight", numpy.zeros(1000, numpy.float32))
        result = job.wait("bias", timeout=30)
        job.wait_step(timeout=30)
        return mine[0], mean[0], result.step, result.weight

    assert on_all_ranks(work, 2, address) == [(0, 0.5, 1, 2), (1, 0.5, 1, 2)]


def test_a_rank_without_data_still_gets_the_others_mean(address):
    def work(job):
        mean = numpy.full(7, -1.0, numpy.float32)
        job.submit("bias", None if job.rank == 0 else numpy.full(7, 8.0, numpy.float32), mean)
        job.end_step()
        result = job.wait("bias", timeout=30)
        job.wait_step(timeout=30)
        return mean.tolist(), result.absent

    values = on_all_ranks(work, 2, address)
    assert values[0] == values[1]
    assert values[0] == ([4.0] * 7, False)  # no data counts as zeros


def test_weights_count_samples(address):
    def work(job):
        samples = 1 + 2 * job.rank  # 1 and 3
        total = numpy.full(7, 8.0 * samples, numpy.float32)
        job.submit("bias", total, weight=samples)
        job.end_step()
        return total[0] if job.wait_step(timeout=30) else None

    assert on_all_ranks(work, 2, address) == [8.0, 8.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_comes_back_as_the_mean(address, dtype):
    def encode(values):
        if dtype == "float16":
            return values.astype(numpy.float16)
        return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)

    def work(job):
        data = encode(numpy.full(100, 40.0 * (job.rank + 1)))
        job.submit(0, data)
        job.wait_step(timeout=30)
        return (data == encode(numpy.full(100, 60.0))).all()

    assert all(on_all_ranks(work, 2, address, specs=[("h", 100, dtype)]))


def test_sum_and_world_averaging(address):
    def work(job):
        data = numpy.full(7, 6.0, numpy.float32)
        job.submit("bias", data, weight=2)
        job.end_step()
        job.wait_step(timeout=30)
        return float(data[0])

    assert on_all_ranks(work, 3, address + "-sum", averaging="sum") == [18.0] * 3
    assert on_all_ranks(work, 3, address + "-world", averaging="world") == [6.0] * 3


def test_broadcast_copies_any_bytes_from_the_root(address):
    def work(job):
        data = bytearray(f"rank {job.rank}".encode() * 5000)
        job.broadcast(data, root=1, timeout=30)
        job.barrier(timeout=30)
        return bytes(data)

    assert on_all_ranks(work, 3, address) == [b"rank 1" * 5000] * 3


def test_stats_count_steps_and_packets(address):
    def work(job):
        job.submit("weight", numpy.zeros(1000, numpy.float32))
        job.end_step()
        job.wait_step(timeout=30)
        return job.stats()

    for stats in on_all_ranks(work, 2, address):
        assert stats["steps_done"] == 1
        assert stats["packets_sent"] > 0 and stats["bytes_received"] > 4000


def test_stats_say_which_rank_sent_a_nan(address):
    def work(job):
        job.submit("bias", numpy.full(7, numpy.nan if job.rank == 1 else 1, numpy.float32))
        job.end_step()
        result = job.wait("bias", timeout=30)
        job.wait_step(timeout=30)  # whoever leaves in mid-step ends the job
        assert result.non_finite
        return job.stats()["non_finite_inputs"]

    assert on_all_ranks(work, 3, address) == [0, 1, 0]


def _train(job, steps):
    for _ in range(steps):
        job.submit("weight", numpy.ones(1000, numpy.float32))
        job.submit("bias", numpy.full(7, job.rank, numpy.float32))
        job.wait_step(timeout=30)
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
        assert "rank 1" in text and "after step 2" in text and "finish()" in text


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
            given_up.wait(30)
        job.submit("bias", numpy.zeros(7, numpy.float32))
        job.end_step()
        text = ""
        if job.rank == 0:
            with pytest.raises(sluice.TimedOut) as raised:
                job.wait("bias", timeout=0.3)
            text = str(raised.value)
            given_up.set()
        job.wait_step(timeout=30)
        return text

    text = on_all_ranks(work, 2, address)[0]
    for words in ("rank 0", address, "'bias' of step 1: not done after 0.3 s", "missing: rank 1"):
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
    assert time.monotonic() - start < 5


def test_an_error_inside_with_aborts_so_that_the_other_rank_hears_of_it(address):
    heard = []
    joined = threading.Barrier(2)

    def other():
        with sluice.Job(SPECS, address, rank=1, world_size=2, run_id=1) as job:
            joined.wait(30)
            with pytest.raises(sluice.PeerLost, match="rank 0") as caught:
                job.submit("bias", numpy.zeros(7, numpy.float32))
                job.wait_step(timeout=30)
            heard.append(caught.value)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(ZeroDivisionError):
        with sluice.Job(SPECS, address, rank=0, world_size=2, run_id=1):
            joined.wait(30)
            1 // 0
    thread.join(30)
    assert len(heard) == 1


def test_close_ends_a_wait_on_another_thread(address):
    jobs, heard = [], []
    ready = threading.Barrier(3)

    def rank_main(rank):
        job = sluice.Job(SPECS, address, rank=rank, world_size=2, run_id=1)
        jobs.append(job)
        if rank == 1:
            ready.wait(30)
            return
        job.submit("bias", numpy.zeros(7, numpy.float32))
        ready.wait(30)
        with pytest.raises(sluice.Error) as caught:
            job.wait_step()
        heard.append(type(caught.value))

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    time.sleep(0.2)
    next(job for job in jobs if job.rank == 0).close()
    for thread in threads:
        thread.join(10)
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
        assert time.monotonic() - start < 1
        assert process.wait(10) == 0
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
        assert job.wait_step(timeout=30) == 1


def test_a_stall_is_logged_with_who_is_missing(address, caplog):
    def work(job):
        if job.rank == 0:
            job.submit("bias", numpy.zeros(7, numpy.float32))
            job.end_step()
        else:
            time.sleep(1.5)
            job.submit("bias", numpy.zeros(7, numpy.float32))
            job.end_step()
        job.wait_step(timeout=30)

    with caplog.at_level("WARNING", logger="sluice"):
        on_all_ranks(work, 2, address, stall_report=0.3)
    # Between the slices of a wait: not before the step has stood still for stall_report seconds.
    assert not any("for 0.0 s" in record.getMessage() for record in caplog.records), caplog.text
    assert any("bias" in record.getMessage() and "1" in record.getMessage()
               for record in caplog.records), caplog.text
