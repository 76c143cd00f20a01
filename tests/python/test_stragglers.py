"""sluice.Job when a step can be complete without this rank: catching up, reports, states."""

import itertools
import threading
import time

import numpy
import pytest

import sluice

pytestmark = pytest.mark.usefixtures("library")
_names = itertools.count()
SIZE = 1000
SPECS = [("weight", SIZE, "float32"), ("bias", 7, "float32")]


@pytest.fixture
def address():
    return f"inproc://stragglers-{next(_names)}"


class Ranks:
    """All ranks of a job, joined from threads; the test then calls them in turn."""

    def __init__(self, count, address, specs=SPECS, **options):
        self.jobs = [None] * count
        failures = []

        def join(rank):
            try:
                self.jobs[rank] = sluice.Job(specs, address, rank=rank, world_size=count,
                                             run_id=1, **options)
            except BaseException as error:  # noqa: BLE001 - raised again below
                failures.append(error)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if failures:
            self.close()
            raise failures[0]

    def close(self):
        for job in self.jobs:
            if job is not None:
                job.close()

    def __enter__(self):
        return self.jobs

    def __exit__(self, *_exc):
        self.close()


def submit(job, step):
    arrays = [numpy.full(count, 4.0 * step * (job.rank + 1), numpy.float32)
              for _, count, _ in SPECS]
    for index, array in enumerate(arrays):
        job.submit(index, array)
    return arrays


def mean(ranks, step, world=None):
    """Over the ranks that are in the step, or what they are of a mean over `world`."""
    return sum(4.0 * step * (rank + 1) for rank in ranks) / (world or len(ranks))


def run_step(jobs, step, world=None):
    """The step on all of `jobs`; everybody must get the mean() over them."""
    outputs = [submit(job, step) for job in jobs]
    for job, arrays in zip(jobs, outputs):
        assert job.wait_step(timeout=300) == step
        assert all((array == mean([j.rank for j in jobs], step, world)).all() for array in arrays)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def catch_up(job, step):
    arrays = [numpy.empty(count, numpy.float32) for _, count, _ in SPECS]
    for index, array in enumerate(arrays):
        job.catch_up(index, array)
    assert job.wait_step(timeout=300) == step
    return arrays


def test_the_effective_policy_is_told(address):
    with Ranks(3, address, policy="saina", k=2, late="requeue", sign_threshold=0.6,
               count_threshold="k", signs="one-in-32", round_steps=9, max_staleness=3) as jobs:
        for job in jobs:
            policy = job.policy
            assert policy[:9] == ("saina", 2, "requeue", 0.6, "k", "one-in-32", 9, 0, 3)
            assert policy.tolerates_stragglers and policy.window_steps >= 2
            assert policy.resync_hold_s > 0


def test_without_a_policy_a_job_is_synchronous(address):
    with Ranks(2, address) as jobs:
        assert jobs[0].policy.policy == "sync" and not jobs[0].policy.tolerates_stragglers
        assert jobs[0].behind() == 0 and not jobs[0].must_resync
        with pytest.raises(sluice.InvalidArgument):
            jobs[0].catch_up("bias", numpy.empty(7, numpy.float32))


def test_ranks_that_ask_for_different_policies_are_refused_with_both(address):
    first = []

    def join():
        try:
            sluice.Job(SPECS, address, rank=0, world_size=2, run_id=1, policy="fixed", k=1,
                       join_timeout=5).close()
        except sluice.Error as error:
            first.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    time.sleep(0.5)
    with pytest.raises(sluice.Refused, match="(?s)sync.*fixed|fixed.*sync"):
        sluice.Job(SPECS, address, rank=1, world_size=2, run_id=1, policy="sync")
    thread.join(20)
    assert first


def test_a_k_that_makes_no_sense_is_refused(address):
    with pytest.raises(sluice.InvalidArgument, match="k"):
        sluice.Job(SPECS, address, rank=0, world_size=1, run_id=1, policy="fixed", k=9)


def test_a_late_rank_catches_up_and_gets_what_the_others_got(address):
    with Ranks(3, address, policy="fixed", k=2) as jobs:
        run_step(jobs, 1)
        run_step(jobs, 2)
        for step in (3, 4):
            run_step(jobs[:2], step)
        late = jobs[2]
        until(lambda: late.behind() == 2)
        arrays = submit(late, 3)  # it had been computing all the time
        assert late.wait_step(timeout=300) == 3
        assert (arrays[0] == mean([0, 1], 3)).all()
        report = late.report()
        assert report == late.report(3)
        assert report == (3, 2, (0, 1), (), 2, False, 2 / 3)
        assert late.behind() == 1
        assert (catch_up(late, 4)[0] == mean([0, 1], 4)).all()
        assert late.behind() == 0
        stats = late.stats()
        assert stats["late_chunks"] == stats["discarded_chunks"] > 0
        assert stats["cancelled_bytes"] == 4 * (SIZE + 7)
        assert jobs[0].report(1).members == (0, 1, 2) and jobs[0].report(1).k == 3
        with pytest.raises(sluice.NotFound):
            late.report(99)


def test_a_late_gradient_is_requeued_into_the_open_step(address):
    with Ranks(3, address, policy="fixed", k=2, late="requeue") as jobs:
        run_step(jobs, 1)
        run_step(jobs, 2)
        assert jobs[0].policy.averaging == "world"
        run_step(jobs[:2], 3, world=3)
        late = jobs[2]
        arrays = submit(late, 3)
        assert late.wait_step(timeout=300) == 3
        assert (arrays[0] == mean([0, 1], 3, world=3)).all()
        assert late.behind() == 1
        outputs = [numpy.empty(count, numpy.float32) for _, count, _ in SPECS]
        for index, output in enumerate(outputs):
            late.catch_up(index, output)
        mine = submit(jobs[0], 4)
        # Step 3 of rank 2 and step 4 of rank 0, of three ranks.
        wanted = numpy.float32(12.0 * 3 + 16.0) / numpy.float32(3)
        for job, array in ((late, outputs[0]), (jobs[0], mine[0])):
            assert job.wait_step(timeout=300) == 4
            assert (array == wanted).all()
        assert jobs[0].report(4).members == (0, 2)
        assert late.stats()["requeued_chunks"] == late.stats()["late_chunks"] > 0


def test_a_chunk_that_every_rank_passes_is_absent_on_all_and_the_step_has_a_share(address):
    """Each rank is late with something, and waits for step 5 with that: nobody has any of 'a'."""
    def gradient(job, name, step):
        return job, name, numpy.full(7, 12.0 * step * (job.rank + 1), numpy.float32), job.submit

    def late(job, name, _step):
        return job, name, numpy.full(7, -1, numpy.float32), job.catch_up

    def take(step, *turns):
        """Those who bring a tensor's sum about, then those who come too late for it or pass."""
        outputs = {}
        for name, first, then in turns:
            for some in first, then:
                calls = [make(job, name, step) for job, make in some]
                for job, _, array, call in calls:
                    call(name, array)
                    outputs[job.rank, name] = array
                for job, *_ in calls:
                    job.wait(name, timeout=300)
        assert all(job.wait_step(timeout=300) == step for job in jobs)
        return outputs

    specs = [(name, 7, "float32") for name in "abcd"]
    with Ranks(3, address, specs, policy="fixed", k=2, late="requeue") as jobs:
        r0, r1, r2 = jobs
        for step in (1, 2):
            take(step, *((name, [(job, gradient) for job in jobs], []) for name in "abcd"))
        f0, f1, f2, l0, l1 = (r0, gradient), (r1, gradient), (r2, gradient), (r0, late), (r1, late)
        take(3, ("a", [f1, f2], [f0]), ("b", [f0, f2], [f1]), ("c", [f0, f2], [f1]),
             ("d", [f1, f2], [f0]))
        assert [job.behind() for job in jobs] == [1, 1, 0]
        take(4, ("a", [l0, f2], [l1]), ("b", [l0, l1], [f2]), ("c", [l0, f2], [l1]),
             ("d", [l1, f2], [l0]))
        assert [job.behind() for job in jobs] == [1, 1, 1]
        outputs = take(5, *((name, [(job, late) for job in jobs], []) for name in "abcd"))
        for job in jobs:
            assert [job.is_absent(index) for index in range(4)] == [True, False, False, False]
            assert [outputs[job.rank, name][0] for name in "abcd"] == [-1, 48, 24, 12]
            report = job.report(5)
            assert report[1:5] == (0, (), (0, 1, 2), 0) and report.share == 1 / 3
            assert job.behind() == 0
        run = take(6, *((name, [f0, f1], [f2]) for name in "abcd"))
        assert all((array == 72).all() for array in run.values())


def test_a_rank_that_fell_out_of_the_window_takes_a_peers_state(address):
    with Ranks(3, address, policy="fixed", k=2) as jobs:
        run_step(jobs, 1)
        run_step(jobs, 2)
        window = jobs[0].policy.window_steps
        last = 3 + window
        for step in range(3, last + 1):
            run_step(jobs[:2], step)
        lost = jobs[2]
        with pytest.raises(sluice.Behind):
            submit(lost, 3)
            for step in range(3, last + 1):  # the first results may have reached it in time
                lost.wait_step(timeout=300)
                catch_up(lost, step + 1)
        assert lost.must_resync
        states, data = [], bytes(range(256)) * 500
        thread = threading.Thread(target=lambda: states.append(lost.resync(timeout=300)))
        thread.start()
        until(lambda: any(job.state_wanted() == 2 for job in jobs[:2]))
        source = next(job for job in jobs[:2] if job.state_wanted() == 2)
        with pytest.raises(sluice.InvalidArgument):
            source.send_state(b"of another step", last - 1)
        with pytest.raises(sluice.InvalidArgument):
            source.send_state(b"", last)
        source.send_state(data, last)
        thread.join(30)
        assert states and states[0] == (last, data)
        assert source.state_wanted() is None
        assert not lost.must_resync and lost.behind() == 0
        outputs = [submit(job, last + 1) for job in (jobs[0], lost)]
        for job in (jobs[0], lost):
            assert job.wait_step(timeout=300) == last + 1
        assert (outputs[0][0] == outputs[1][0]).all()
        assert lost.stats()["resyncs"] == 1
