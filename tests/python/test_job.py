"""sluice.Job: sums, averages, collectives, counters."""

import threading
import time

import numpy
import pytest

import sluice
from inproc import SPECS, address, on_all_ranks  # noqa: F401 - address is a fixture

pytestmark = pytest.mark.usefixtures("library")


def test_the_mean_of_integer_gradients_is_exact_and_in_place(address):
    def work(job):
        means = []
        for step in range(1, 6):
            weight = numpy.full(1000, (job.rank + 1) * step * 4, numpy.float32)
            bias = numpy.arange(7, dtype=numpy.float32) * (job.rank + 1) * 4
            job.submit("bias", bias)
            job.submit("weight", weight, priority=1)
            assert job.wait_step(timeout=300) == step
            means.append((weight, bias))
        return means

    for rank_means in on_all_ranks(work, 4, address):
        for step, (weight, bias) in enumerate(rank_means, start=1):
            assert (weight == 10 * step).all()
            assert (bias == numpy.arange(7) * 10).all()


def test_a_tensor_without_a_type_is_float32(address):
    def work(job):
        values = numpy.full(7, job.rank, numpy.float32)
        job.submit("v", values)
        job.wait_step(timeout=300)
        return job.tensors[0].dtype, values.tolist()

    assert on_all_ranks(work, 2, address, [("v", 7)]) == [("float32", [0.5] * 7)] * 2


def test_a_weight_that_is_no_number_of_samples_is_refused(address):
    def work(job):
        bias = numpy.ones(7, numpy.float32)
        for weight in (-1, 1 << 32, 0.5, "2"):
            with pytest.raises(sluice.InvalidArgument, match=f"weight={weight!r}: must be a whole"):
                job.submit("bias", bias, weight=weight)
        job.submit("bias", bias, weight=numpy.int64(3))
        job.end_step()
        weight = job.wait("bias", timeout=300).weight
        job.wait_step(timeout=300)
        return weight

    assert on_all_ranks(work, 2, address) == [6, 6]


@pytest.mark.parametrize("schedule", ["strict", "credit", "prophet", "fifo"])
def test_every_schedule_gives_the_same_sums_and_tells_its_plan(address, schedule):
    def work(job):
        for step in range(1, 11):  # long enough for prophet to have learnt
            weight = numpy.full(1000, job.rank + step, numpy.float32)
            bias = numpy.full(7, job.rank - step, numpy.float32)
            job.submit("bias", bias, priority=step % 3)
            job.submit("weight", weight, priority=1)
            job.wait_step(timeout=300)
            assert (weight == step + 0.5).all() and (bias == 0.5 - step).all()
        (part,), stats = job.part_stats(), job.stats()
        assert (part["thread"], part["level"]) == (0, 0)
        assert part.keys() - stats.keys() == {"thread", "level"}
        assert part["steps_done"] == stats["steps_done"] == 10
        return job.schedule_plan()

    for plan in on_all_ranks(work, 2, address, schedule=schedule):
        assert plan.startswith(schedule), plan


def test_ranks_that_average_in_different_ways_are_told_both_values(address):
    ready = threading.Event()

    def first():
        ready.set()
        with pytest.raises(sluice.TimedOut):  # the other one is refused
            sluice.Job(SPECS, address, rank=0, world_size=2, run_id=1, join_timeout=5.0)

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


def test_the_sizes_of_credit_come_from_arguments_and_environment_and_need_that_schedule(
        address, monkeypatch):
    def plan(**options):
        with sluice.Job(SPECS, address, rank=0, world_size=1, run_id=1, chunk_bytes=1024,
                        **options) as job:
            return job.schedule_plan()

    assert "units of at most 1024 packets" in plan(schedule="credit")
    monkeypatch.setenv("SLUICE_UNIT_BYTES", "4096")
    assert "units of at most 4 packets" in plan(schedule="credit")
    sizes = dict(unit_bytes=2048, credit_bytes=8192)
    said = plan(schedule="credit", **sizes)
    assert "units of at most 2 packets" in said and "less than 8 packets" in said
    with pytest.raises(sluice.InvalidArgument, match="unit_bytes is 4096, which only the schedule"):
        plan()
    with pytest.raises(sluice.InvalidArgument, match="credit_bytes is 4095; must be at least"):
        plan(schedule="credit", credit_bytes=4095)
    with pytest.raises(sluice.InvalidArgument, match="unit_bytes=1.5: must be a whole number"):
        plan(schedule="credit", unit_bytes=1.5)


def test_the_mtu_comes_from_argument_and_environment(address, monkeypatch):
    def chunk_bytes(**options):
        with sluice.Job(SPECS, address, rank=0, world_size=1, run_id=1, **options) as job:
            return job.stats()["chunk_bytes"]

    default = chunk_bytes()
    assert default < chunk_bytes(mtu=9000) < 9000
    monkeypatch.setenv("SLUICE_MTU", "9000")
    assert chunk_bytes() == chunk_bytes(mtu=9000)
    assert chunk_bytes(mtu=1500) == default
    monkeypatch.setenv("SLUICE_MTU", "jumbo")
    with pytest.raises(sluice.InvalidArgument, match="SLUICE_MTU='jumbo' in the environment"):
        chunk_bytes()


def test_an_output_of_its_own_leaves_the_input_alone(address):
    def work(job):
        mine = numpy.full(7, float(job.rank), numpy.float32)
        mean = numpy.empty_like(mine)
        job.submit("bias", mine, mean)
        job.submit("weight", numpy.zeros(1000, numpy.float32))
        result = job.wait("bias", timeout=300)
        job.wait_step(timeout=300)
        return mine[0], mean[0], result.step, result.weight

    assert on_all_ranks(work, 2, address) == [(0, 0.5, 1, 2), (1, 0.5, 1, 2)]


def test_a_rank_without_data_still_gets_the_others_mean(address):
    def work(job):
        mean = numpy.full(7, -1.0, numpy.float32)
        job.submit("bias", None if job.rank == 0 else numpy.full(7, 8.0, numpy.float32), mean)
        job.end_step()
        result = job.wait("bias", timeout=300)
        job.wait_step(timeout=300)
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
        return total[0] if job.wait_step(timeout=300) else None

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
        job.wait_step(timeout=300)
        return (data == encode(numpy.full(100, 60.0))).all()

    assert all(on_all_ranks(work, 2, address, specs=[("h", 100, dtype)]))


def test_sum_and_world_averaging(address):
    def work(job):
        data = numpy.full(7, 6.0, numpy.float32)
        job.submit("bias", data, weight=2)
        job.end_step()
        job.wait_step(timeout=300)
        return float(data[0])

    assert on_all_ranks(work, 3, address + "-sum", averaging="sum") == [18.0] * 3
    assert on_all_ranks(work, 3, address + "-world", averaging="world") == [3.0] * 3


def test_broadcast_copies_any_bytes_from_the_root(address):
    def work(job):
        data = bytearray(f"rank {job.rank}".encode() * 5000)
        job.broadcast(data, root=1, timeout=300)
        job.barrier(timeout=300)
        return bytes(data)

    assert on_all_ranks(work, 3, address) == [b"rank 1" * 5000] * 3


def test_stats_count_steps_and_packets(address):
    def work(job):
        job.submit("weight", numpy.zeros(1000, numpy.float32))
        job.end_step()
        job.wait_step(timeout=300)
        return job.stats()

    for stats in on_all_ranks(work, 2, address):
        assert stats["steps_done"] == 1
        assert stats["packets_sent"] > 0 and stats["bytes_received"] > 4000


def test_stats_say_which_rank_sent_a_nan(address):
    def work(job):
        job.submit("bias", numpy.full(7, numpy.nan if job.rank == 1 else 1, numpy.float32))
        job.end_step()
        result = job.wait("bias", timeout=300)
        job.wait_step(timeout=300)  # whoever leaves in mid-step ends the job
        assert result.non_finite
        return job.stats()["non_finite_inputs"]

    assert on_all_ranks(work, 3, address) == [0, 1, 0]


def rounded_sums(address, order, **options):
    """The bytes of a sum of values that are rounded, whose ranks submit in `order`."""
    turn = {rank: threading.Event() for rank in order}
    turn[order[0]].set()

    def work(job):
        turn[job.rank].wait(300)
        data = numpy.random.default_rng(job.rank).standard_normal(7).astype(numpy.float32)
        job.submit("bias", data)
        job.end_step()
        time.sleep(0.1)
        following = order.index(job.rank) + 1
        if following < len(order):
            turn[order[following]].set()
        job.wait_step(timeout=300)
        return data.tobytes()

    found = set(on_all_ranks(work, len(order), address, **options))
    assert len(found) == 1
    return found.pop()


def test_reproducible_sums_have_the_same_bits_in_every_order(address, monkeypatch):
    orders = [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]
    monkeypatch.setenv("SLUICE_REPRODUCIBLE", "1")
    asked = {rounded_sums(f"{address}-{index}", order)
             for index, order in enumerate(orders)}
    assert len(asked) == 1
    with pytest.raises(sluice.Refused, match="fixed and the rank asks for repro.*k < n = 1"):
        sluice.Job(SPECS, address + "-k", rank=0, world_size=1, run_id=1, policy="fixed", k=1)
    monkeypatch.setenv("SLUICE_REPRODUCIBLE", "0")
    assert {rounded_sums(f"{address}-option", (1, 3, 2, 0), reproducible=True)} == asked
    monkeypatch.setenv("SLUICE_REPRODUCIBLE", "1")  # the argument goes before it
    assert any(  # what was submitted in that order may come in another
        rounded_sums(f"{address}-as-they-come{index}", (3, 2, 1, 0), reproducible=False)
        not in asked for index in range(3))
