"""Steps over the process group while no box answers, with a stand-in box and a stand-in group.

One thread a rank. The box's averages are negative and the group's positive, so a step shows whose
result it has.
"""

import threading

import pytest

torch = pytest.importorskip("torch")

from ranks import run  # noqa: E402 - needs torch
from sluice import errors  # noqa: E402
from sluice._torch_fallback import LOOK_S, Fallback, Return, run_of  # noqa: E402

RANKS = 3


class Group:
    """What the ranks of a stand-in group share."""

    def __init__(self, size=RANKS):
        self.size, self.numbers, self.lock = size, {}, threading.Lock()
        self.barrier, self.given = threading.Barrier(size, timeout=60), {}

    def of(self, rank):
        return GroupOfRank(self, rank)


class GroupOfRank:
    def __init__(self, group, rank):
        self._all, self.rank, self.size = group, rank, group.size

    def add(self, key, number):
        with self._all.lock:
            self._all.numbers[key] = self._all.numbers.get(key, 0) + number
            return self._all.numbers[key]

    def sum(self, tensors):
        found = self._exchange(tensors)
        for index, tensor in enumerate(tensors):
            tensor.copy_(sum(found[rank][index] for rank in range(self.size)))
        self._all.barrier.wait()

    def give(self, tensors, rank):
        found = self._exchange(tensors)
        for mine, theirs in zip(tensors, found[rank]):
            mine.copy_(theirs)
        self._all.barrier.wait()

    def _exchange(self, tensors):
        self._all.barrier.wait()
        self._all.given[self.rank] = [tensor.clone() for tensor in tensors]
        self._all.barrier.wait()
        return self._all.given


class Box:
    """A stand-in box. `sees`: the ranks that it reaches; `tells`: those that get results, too."""

    def __init__(self):
        self.changed = threading.Condition()
        self.sees = self.tells = frozenset(range(RANKS))
        self.dead_from = {}  # step: what `sees` and `tells` are once all have contributed
        self.contributions = {}  # (run, step) -> {rank: value}
        self.joined = {}  # number of a run -> its ranks
        self.fails = set()  # (rank, number) whose join fails
        self.ended = set()  # runs

    def lose(self, sees=(), tells=()):
        with self.changed:
            self.sees, self.tells = frozenset(sees), frozenset(tells)
            self.changed.notify_all()

    def has_run(self):
        return any(len(ranks) == RANKS for ranks in self.joined.values())

    def wait_until_joined(self):
        """Until all ranks have their job of one run, or are about to be given it."""
        with self.changed:
            assert self.changed.wait_for(self.has_run, timeout=60)

    def join(self, rank, number):
        with self.changed:
            if (rank, number) in self.fails:
                raise errors.TimedOut("ranks are missing")
            if rank not in self.sees:
                raise errors.Unreachable("nothing answers")
            self.joined.setdefault(number, set()).add(rank)
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: len(self.joined[number]) == RANKS, timeout=60):
                raise errors.TimedOut("ranks are missing")
        return Job(self, rank, number)


class Job:
    address = "udp://stand-in"

    def __init__(self, box, rank, run):
        self._box, self._rank, self._run, self._step = box, rank, run, 0
        self._closed, self._packets = False, 0
        self.output = None

    def submit(self, value, output):
        box = self._box
        self._step += 1
        self.output = output
        with box.changed:
            told = box.contributions.setdefault((self._run, self._step), {})
            told[self._rank] = value.clone()
            if len(told) == RANKS and self._run == 0 and self._step in box.dead_from:
                box.sees, box.tells = map(frozenset, box.dead_from[self._step])
            box.changed.notify_all()

    def wait_step(self, timeout):
        box = self._box
        with box.changed:
            told = box.contributions[self._run, self._step]
            box.changed.wait_for(lambda: self._run in box.ended or (
                len(told) == RANKS and self._rank in box.tells), timeout)
            if len(told) == RANKS and self._rank in box.tells and self._run not in box.ended:
                self.output.copy_(-sum(told.values()) / RANKS)
            elif self._run in box.ended:
                raise errors.PeerLost("another rank has left")
            else:
                raise errors.TimedOut("not done in time")

    def check(self):
        with self._box.changed:
            if self._run in self._box.ended:
                raise errors.PeerLost("another rank has left")

    def stats(self):
        with self._box.changed:
            self._packets += self._rank in self._box.sees
            return {"packets_received": self._packets}

    def _reports(self):
        return lambda waited_s: None

    def close(self):
        with self._box.changed:
            self._closed = True
            if self._rank in self._box.sees:
                self._box.ended.add(self._run)  # a leave in the middle of a step
            self._box.changed.notify_all()


class Run:
    """The ranks of a training, each on a thread."""

    def __init__(self, box, steps, on_step=lambda rank, step, fallback: None, patience_s=60.0,
                 ranks=range(RANKS)):
        self.box, self.steps, self.on_step = box, steps, on_step
        self.group, self.patience_s = Group(), patience_s
        self.found = {rank: [] for rank in range(RANKS)}  # (result, whether it is away afterwards)
        self.errors = {}
        self.fallbacks = {}
        threads = [threading.Thread(target=self._train, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()

    def _train(self, rank):
        results = torch.zeros(2)
        fallback = Fallback(self.group.of(rank), Job(self.box, rank, 0),
                            lambda number: self.box.join(rank, number), [results], 0.5,
                            self.patience_s)
        self.fallbacks[rank] = fallback
        try:
            for step in range(1, self.steps + 1):
                values = torch.full((2,), float((rank + 1) * step))
                if not fallback.is_away:
                    fallback.job.submit(values, results)
                fallback.end_step([values], 1, lambda: values.copy_(results))
                self.found[rank].append((values[0].item(), fallback.is_away))
                self.on_step(rank, step, fallback)
        except errors.Error as error:
            self.errors[rank] = error
            self.group.barrier.abort()
        finally:
            fallback.end()

    def values(self):
        """What every rank has found, the same on all."""
        assert not self.errors, self.errors
        found = [[value for value, _ in self.found[rank]] for rank in range(RANKS)]
        assert found[0] == found[1] == found[2]
        return found[0]


def means(steps):
    return [2.0 * step for step in steps]


def negative(values):
    return [-value for value in values]


def test_a_step_whose_result_nobody_has_is_summed_over_the_group():
    box = Box()
    box.dead_from = {3: ((), ())}
    assert Run(box, 6).values() == negative(means([1, 2])) + means([3, 4, 5, 6])


@pytest.mark.parametrize("holder", range(RANKS))
def test_a_step_whose_result_a_rank_has_is_given(holder):
    box = Box()
    box.dead_from = {3: ((), (holder,))}
    assert Run(box, 6).values() == negative(means([1, 2, 3])) + means([4, 5, 6])


def test_ranks_that_still_see_the_box_leave_it_with_those_that_do_not():
    box = Box()
    box.dead_from = {3: ((1,), (1,))}
    assert Run(box, 5).values() == negative(means([1, 2, 3])) + means([4, 5])


@pytest.mark.parametrize("holders", ((0, 2), (1,)))
def test_a_step_is_given_while_the_script_waits_for_the_rank_that_lacks_it(holders):
    box = Box()
    box.dead_from = {3: ((), holders)}
    together = threading.Barrier(RANKS, timeout=60)  # a collective call of the script
    run = Run(box, 6, lambda rank, step, fallback: together.wait())
    assert run.values() == negative(means([1, 2, 3])) + means([4, 5, 6])


def test_all_ranks_return_at_one_step():
    box = Box()
    box.dead_from = {2: ((), ())}

    def back(rank, step, fallback):
        if rank == 0 and step == 4:
            box.lose(range(RANKS), range(RANKS))
        if step >= 4:
            box.wait_until_joined()
        while step >= 4 and fallback.is_away and not fallback._returning.ready():
            threading.Event().wait(LOOK_S / 10)  # the thread that has joined has yet to say so

    steps = 10
    run = Run(box, steps, back)
    values = run.values()
    returned = [value > 0 for value in values].index(False, 1)  # steps before that
    assert values == (negative(means([1])) + means(range(2, returned + 1))
                      + negative(means(range(returned + 1, steps + 1))))
    assert returned >= 4
    for rank in range(RANKS):
        away = [is_away for _, is_away in run.found[rank]]
        assert away == [False] + [True] * (returned - 2) + [False] * (steps + 1 - returned)
        assert run.fallbacks[rank].group_steps == returned - 1


def test_a_run_that_one_rank_cannot_join_is_given_up_by_all():
    box = Box()
    box.dead_from = {2: ((), ())}
    box.fails = {(1, 1)}

    def back(rank, step, _fallback):
        if rank == 0 and step == 2:
            box.lose(range(RANKS), range(RANKS))
        if step >= 2 and not box.has_run():
            threading.Event().wait(LOOK_S / 4)

    values = Run(box, 2000, back).values()
    assert values[-1] < 0 < values[2], values
    assert max(box.joined) >= 2


def test_a_rank_that_does_not_come_is_named():
    box = Box()
    box.lose()
    run = Run(box, 3, patience_s=0.5, ranks=(0, 2))
    assert set(run.errors) == {0, 2}
    for error in run.errors.values():
        assert isinstance(error, errors.PeerLost) and "[1]" in str(error), error


def test_the_error_of_a_job_that_no_rank_wants_to_leave_is_raised():
    box = Box()

    def end(_rank, step, _fallback):
        if step == 2:
            with box.changed:
                box.ended.add(0)
                box.changed.notify_all()

    run = Run(box, 4, end)
    assert set(run.errors) == set(range(RANKS))
    assert all("another rank has left" in str(error) for error in run.errors.values())


def test_a_job_that_comes_after_the_end_is_closed():
    begun, go_on, closed = (threading.Event() for _ in range(3))

    class Late:
        def close(self):
            closed.set()

    def join():
        begun.set()
        go_on.wait(60)
        return Late()

    returning = Return(join)
    assert begun.wait(60)
    returning.stop()
    go_on.set()
    assert closed.wait(60)


def test_runs_have_ids_of_their_own():
    assert len({run_of(7, number) for number in range(100)} | {7}) == 101
    assert run_of(7, 1) == run_of(7, 1) != run_of(8, 1)


def other_orders(rank):
    import sluice.torch
    import torch
    from sluice import errors
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    address = ("udp://127.0.0.1:1,127.0.0.1:2", "udp://127.0.0.1:2,127.0.0.1:1")[rank]
    try:
        sluice.torch.attach(model, address)
    except errors.InvalidArgument as error:
        return str(error)


def test_lists_of_appliances_in_other_orders_are_refused_with_both(tmp_path):
    for text in run(other_orders, 2, tmp_path):
        assert "udp://127.0.0.1:1,127.0.0.1:2" in text and "udp://127.0.0.1:2,127.0.0.1:1" in text


def refused(rank):
    import sluice.torch
    import torch
    from sluice import errors
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    found = []

    def ask(call, group=None, **options):
        model = DistributedDataParallel(torch.nn.Linear(4, 2), process_group=group,
                                        gradient_as_bucket_view=True)
        try:
            call(model, "inproc://refused", run_id=len(found) + 1, **options)
            found.append("taken")
        except errors.InvalidArgument as error:
            found.append(str(error))

    attach, solo = sluice.torch.attach, sluice.torch.solo_group()

    def overlap(model, address, **options):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sluice.torch._attach(model, address, optimizer, job=None, weight=1, rank=None,
                             world_size=None, **options)

    ask(attach, fallback="grouped")
    ask(attach, fallback="group", fallback_after=0)
    ask(attach, fallback="group", group=solo, policy="fixed", k=1)
    ask(overlap, fallback="group")
    ask(attach, fallback="group", wire="bfloat16")
    ask(attach, fallback="group", averaging="sum")
    return found


def test_what_a_group_cannot_end_is_refused_with_its_name(tmp_path):
    found, = run(refused, 1, tmp_path)
    for text, named in zip(found, ("'grouped'", "fallback_after=0", "k < n", "overlap()",
                                   "wire='float32'", "averaging='sum'"), strict=True):
        assert named in text, found


def ends_while_it_joins(rank):
    import time

    import sluice
    from sluice._torch_fallback import Return

    def join():
        return sluice.Job([("weight", 4, "float32")], "inproc://alone", rank=0, world_size=2,
                          join_timeout=600.0)

    Return(join)
    time.sleep(1)  # it waits for the other rank, with the process's end before it


def test_a_join_that_is_under_way_does_not_hold_up_the_end_of_the_process(tmp_path):
    run(ends_while_it_joins, 1, tmp_path)
