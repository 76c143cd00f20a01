"""`Session` and `Group` over an appliance inside this process: one thread a rank."""

import array
import threading

import pytest
from inproc import address, on_threads  # noqa: F401 - a fixture

import sluice

numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("library")


def on_all_ranks(work, count, address):  # noqa: F811
    def rank_main(rank):
        with sluice.Session(address, rank=rank, world_size=count, run_id=1) as session:
            return work(session)
    return on_threads(rank_main, count)


def everybody(session):
    return session.group("all", range(session.world_size))


@pytest.mark.parametrize("count", [0, 1, 1000, 100_000])
def test_sums_and_means_of_any_length_are_exact(address, count):  # noqa: F811
    def work(session):
        group = everybody(session)
        data = numpy.arange(count, dtype="float32") + session.rank
        mean = numpy.zeros_like(data)
        tickets = [group.all_reduce(data, mean, average=True), group.all_reduce(data)]
        for ticket in reversed(tickets):
            ticket.wait(60)
        base = numpy.arange(count, dtype="float32")
        return (mean == base + 1).all() and (data == 3 * base + 3).all() and group.open() == []
    assert on_all_ranks(work, 3, address) == [True] * 3


def test_every_kind_of_operation_has_the_right_values(address):  # noqa: F811
    def work(session):
        group, rank = everybody(session), session.rank
        part, whole = numpy.zeros(5, "float32"), numpy.arange(15, dtype="float32") + rank
        total = numpy.full(4, rank, "float16")
        gathered = bytearray(3 * 8)
        word = bytearray(b"rank %d" % rank)
        for ticket in (group.reduce_scatter(whole, part), group.reduce(1, total),
                       group.all_gather(array.array("d", [rank]), gathered),
                       group.broadcast(2, word), group.barrier()):
            ticket.wait(60)
            assert ticket.done() and ticket.error is None
        base = numpy.arange(5 * rank, 5 * rank + 5, dtype="float32")
        return ((part == 3 * base + 3).all() and (rank != 1 or (total == 3).all())
                and list(array.array("d", bytes(gathered))) == [0, 1, 2] and word == b"rank 2")
    assert on_all_ranks(work, 3, address) == [True] * 3


def test_groups_of_some_ranks_are_used_in_any_order(address):  # noqa: F811
    pairs = [(0, 1), (1, 2), (0, 2)]

    def work(session):
        mine = [pair for pair in pairs if session.rank in pair]
        mine = mine[::-1] if session.rank == 1 else mine
        groups = [session.group(str(pair), pair) for pair in mine]
        data = [numpy.full(5000, session.rank, "float32") for _ in mine]
        for ticket in [group.all_reduce(one) for group, one in zip(groups, data)]:
            ticket.wait(60)
        return all((one == sum(pair)).all() for one, pair in zip(data, mine))
    assert on_all_ranks(work, 3, address) == [True] * 3


def rounded_sums(address, order, **options):  # noqa: F811
    """The bytes of sums of values that are rounded, whose ranks call them in `order`."""
    turn = {rank: threading.Event() for rank in order}
    turn[order[0]].set()

    def rank_main(rank):
        with sluice.Session(address, rank=rank, world_size=len(order), run_id=1,
                            **options) as session:
            group = everybody(session)
            group.barrier().wait(60)
            turn[rank].wait(60)
            random = numpy.random.default_rng(rank)
            data = [random.standard_normal(7).astype("float32") for _ in range(3)]
            part = numpy.zeros(7, "float32")
            tickets = [group.all_reduce(data[0]), group.all_reduce(data[1], average=True),
                       group.reduce(1, data[2]),
                       group.reduce_scatter(random.standard_normal(28).astype("float32"), part)]
            following = order.index(rank) + 1
            if following < len(order):
                turn[order[following]].set()
            for ticket in tickets:
                ticket.wait(60)
            return data[0].tobytes() + data[1].tobytes(), part.tobytes() + data[2].tobytes()
    found = on_threads(rank_main, len(order))
    assert len({whole for whole, _ in found}) == 1
    return found[0][0] + b"".join(own for _, own in found)


def test_reproducible_sums_have_the_same_bits_in_every_order(address, monkeypatch):  # noqa: F811
    orders = [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]
    asked = {rounded_sums(f"{address}-{index}", order, reproducible=True)
             for index, order in enumerate(orders)}
    monkeypatch.setenv("SLUICE_REPRODUCIBLE", "1")
    asked.add(rounded_sums(f"{address}-environment", (1, 3, 2, 0)))
    assert len(asked) == 1


def test_a_function_is_called_when_an_operation_is_over(address):  # noqa: F811
    def work(session):
        group, over = everybody(session), [threading.Event() for _ in range(20)]
        for event in over:
            group.all_reduce(numpy.ones(100, "float32")).on_done(event.set)
        return all(event.wait(60) for event in over)
    assert on_all_ranks(work, 2, address) == [True] * 2


def test_a_wait_names_the_operation_which_goes_on(address):  # noqa: F811
    called = threading.Event()

    def work(session):
        group = everybody(session)
        data = numpy.ones(10, "float32")
        if session.rank == 1:
            called.wait(60)
            group.all_reduce(data).wait(60)
            return ""
        ticket = group.all_reduce(data)
        with pytest.raises(sluice.TimedOut) as caught:
            ticket.wait(0.05)
        assert not ticket.done()
        called.set()
        ticket.wait(60)
        return str(caught.value)
    assert "all_reduce of 10 float32" in on_all_ranks(work, 2, address)[0]


def test_a_timeout_of_the_operation_ends_it_and_the_group_goes_on(address):  # noqa: F811
    tried = threading.Event()

    def work(session):
        group = everybody(session)
        if session.rank == 0:
            with pytest.raises(sluice.TimedOut, match="rank 1"):
                group.all_reduce(numpy.ones(3, "float32"), timeout=0.05).wait(60)
            tried.set()
        else:
            tried.wait(60)
            with pytest.raises(sluice.TimedOut):
                group.all_reduce(numpy.ones(3, "float32")).wait(60)
        data = numpy.ones(3, "float32")
        group.all_reduce(data).wait(60)
        return data.tolist()
    assert on_all_ranks(work, 2, address) == [[2, 2, 2]] * 2


def test_different_operations_are_described_with_their_ranks(address):  # noqa: F811
    def work(session):
        group = everybody(session)
        data = numpy.ones(8, "float32")
        # Neither is over without the other rank.
        ticket = group.all_reduce(data) if session.rank else group.broadcast(1, data)
        with pytest.raises(sluice.InvalidArgument) as caught:
            ticket.wait(60)
        return str(caught.value)
    for text in on_all_ranks(work, 2, address):
        assert all(word in text for word in ("all_reduce", "broadcast", "rank 0", "rank 1")), text


def test_closing_ends_what_is_under_way(address):  # noqa: F811
    ended, closed = [], threading.Event()

    def work(session):
        if session.rank == 1:
            return closed.wait(60)
        group = everybody(session)
        ticket = group.all_reduce(numpy.ones(3, "float32"))
        ticket.on_done(lambda: ended.append(type(ticket.error)))
        session.close()
        closed.set()
        with pytest.raises(sluice.Closed):
            group.barrier()
        return True
    on_all_ranks(work, 2, address)
    assert ended == [sluice.Closed]


def test_an_abort_tells_every_rank_the_reason(address):  # noqa: F811
    def work(session):
        group = everybody(session)
        group.barrier().wait(60)  # a rank that is told before it makes its group makes none
        if session.rank == 0:
            session.abort("out of coffee")
            return "out of coffee"
        with pytest.raises(sluice.PeerLost) as caught:
            group.all_reduce(numpy.ones(3, "float32")).wait(60)
        return str(caught.value)
    for text in on_all_ranks(work, 2, address):
        assert "out of coffee" in text


def test_arrays_that_do_not_fit_are_refused_by_name(address):  # noqa: F811
    over = threading.Barrier(2)

    def work(session):
        group = everybody(session)
        with pytest.raises(sluice.InvalidArgument, match="dtype"):
            group.all_reduce(1234)
        with pytest.raises(sluice.InvalidArgument, match="elements"):
            group.reduce_scatter(numpy.ones(3, "float32"), numpy.ones(2, "float32"))
        with pytest.raises(sluice.InvalidArgument, match="bytes"):
            group.all_gather(bytearray(2), bytearray(3))
        group.leave()
        with pytest.raises(sluice.Closed):
            group.barrier()
        over.wait(60)  # a rank that leaves the job before the other one asks has no group
        return True
    assert on_all_ranks(work, 2, address) == [True] * 2


def elastic(address):  # noqa: F811
    return sluice.Session(address, elastic=True, world_size=8, job="elastic")


def total(members, name):
    """The sum of 1, 2, 4, ... over sessions of this process, in a new group of all of them."""
    ranks = [session.rank for session in members]
    values = [numpy.full(3, 1 << place, "float32") for place in range(len(members))]
    made = [session.group(name, ranks) for session in members]
    for ticket in [group.all_reduce(value) for group, value in zip(made, values)]:
        ticket.wait(60)
    assert all((value == values[0]).all() for value in values)
    return values[0][0], made


def test_an_elastic_job_grows_shrinks_splits_and_merges(address):  # noqa: F811
    with elastic(address) as first, elastic(address) as second:
        assert total([first], "alone")[0] == 1
        assert total([second, first], "two")[0] == 3
        with elastic(address) as third, elastic(address) as fourth:
            assert len({one.rank for one in (first, second, third, fourth)}) == 4
            assert total([first, third], "left")[0] == total([fourth, second], "right")[0] == 3
            all_of, made = total([first, second, third, fourth], "merged")
            assert all_of == 15
        late = made[0].barrier()
        with pytest.raises(sluice.PeerLost, match="has left or was lost"):
            late.wait(60)
        assert total([first, second], "two again")[0] == 3


def test_an_aborted_group_fails_for_all_and_its_ranks_make_another(address):  # noqa: F811
    with elastic(address) as first, elastic(address) as second:
        _, (here, there) = total([first, second], "pair")
        ended = there.all_reduce(numpy.zeros(3, "float32"))
        there.abort()
        with pytest.raises(sluice.Closed, match="has aborted group 'pair'"):
            ended.wait(60)
        with pytest.raises(sluice.PeerLost):
            for _ in range(2):  # the first may have its sum, if it overtakes the abort
                here.all_reduce(numpy.zeros(3, "float32")).wait(60)
        with pytest.raises(sluice.Closed, match="has left group"):
            there.barrier()
        assert total([first, second], "anew")[0] == 3


def test_an_elastic_job_has_no_collectives_of_all_ranks(address):  # noqa: F811
    with elastic(address) as session:
        for call in (session.barrier, lambda: session.broadcast(bytearray(1))):
            with pytest.raises(sluice.InvalidArgument, match="make a group of those"):
                call()


def test_a_member_that_leaves_is_named_to_whoever_needs_it(address):  # noqa: F811
    counted, left = threading.Barrier(2), threading.Barrier(2)

    def work(session):
        group, value = everybody(session), numpy.ones(3, "float32")
        if session.rank == 1:
            group.reduce(0, value).wait(60)
            counted.wait(60)
            group.leave()
        else:
            counted.wait(60)
            group.reduce(0, value).wait(60)  # which rank 1 has called before it left
            assert value.tolist() == [2, 2, 2]
            with pytest.raises(sluice.PeerLost, match="lacks rank 1, which has left"):
                group.barrier().wait(60)
        left.wait(60)
        return True
    assert on_all_ranks(work, 2, address) == [True] * 2


def test_a_member_that_leaves_a_group_at_once_is_named_too(address):  # noqa: F811
    left = threading.Barrier(2)

    def work(session):
        for number in range(20):
            group = session.group(f"short {number}", range(2))
            if session.rank == 1:
                group.leave()
            else:
                with pytest.raises(sluice.PeerLost, match="lacks rank 1, which has left"):
                    group.barrier().wait(60)
        left.wait(60)
        return True
    assert on_all_ranks(work, 2, address) == [True] * 2


def test_an_elastic_job_gives_the_rank(address):  # noqa: F811
    with pytest.raises(sluice.InvalidArgument, match="gives the rank"):
        sluice.Session(address, elastic=True, world_size=8, rank=1)
