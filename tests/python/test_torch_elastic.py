"""`reconfigure()` of the backend sluice, as torch 2.15 defines it: members come, go and come back
without a new connection. Groups with sessions of their own, over an appliance in this process."""

import datetime

import pytest
import torch
from inproc import address  # noqa: F401 - a fixture

import sluice

has_reconfigure = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
pytestmark = [pytest.mark.usefixtures("library"),
              pytest.mark.skipif(not has_reconfigure, reason="needs torch 2.15")]

if has_reconfigure:
    from torch._C import _distributed_c10d as c10d

    from sluice import _torch_session
    from sluice._torch_elastic import SluiceElasticGroup

    def options(uuid, handles, seconds=60):
        made = c10d.ReconfigureOptions()
        made.uuid, made.handles = uuid, handles
        made.timeout = datetime.timedelta(seconds=seconds)
        return made


class Processes:
    """`count` groups, each with a session of its own, as processes have."""

    def __init__(self, count, monkeypatch, address):  # noqa: F811
        self.address = address
        monkeypatch.setattr(_torch_session, "joined_elastic", lambda: _torch_session.Shared(
            sluice.Session(self.address, elastic=True, world_size=16, job="elastic"), None))
        self.store = c10d.HashStore()
        self.groups = [SluiceElasticGroup(self.store, "group", place, count,
                                          datetime.timedelta(seconds=60)) for place in range(count)]
        self.handles = [group.get_reconfigure_handle() for group in self.groups]

    def become(self, uuid, members, unordered=False):
        """These are the members, in this order; [(rank, size)]."""
        handles = [self.handles[member] for member in members]
        works = [self.groups[member].reconfigure(options(uuid, set(handles) if unordered
                                                         else handles)) for member in members]
        for work in works:
            work.wait()
        return [(self.groups[member].rank(), self.groups[member].size()) for member in members]

    def total(self, members):
        """The sum of the members' numbers + 1."""
        tensors = [torch.full((100,), float(member + 1)) for member in members]
        for work in [self.groups[member].allreduce([tensor])
                     for member, tensor in zip(members, tensors)]:
            work.wait()
        assert all((tensor == tensors[0][0]).all() for tensor in tensors)
        return tensors[0][0].item()

    def close(self):
        for group in self.groups:
            group.shutdown()
            group._shared.session.close()


@pytest.fixture
def eight(monkeypatch, address):  # noqa: F811
    made = Processes(8, monkeypatch, address)
    yield made
    made.close()


def test_members_shrink_grow_merge_and_split(eight):
    with pytest.raises(sluice.Closed, match="it has no members yet"):
        eight.groups[0].allreduce([torch.ones(1)])
    everybody = list(range(8))
    assert eight.become(1, everybody) == [(place, 8) for place in range(8)]
    assert eight.total(everybody) == 36
    assert eight.become(2, [0, 1, 2]) == [(0, 3), (1, 3), (2, 3)]  # shrink
    assert eight.total([0, 1, 2]) == 6
    assert eight.become(2, [6, 4, 5]) == [(0, 3), (1, 3), (2, 3)]  # split, under the same uuid
    assert eight.total([6, 4, 5]) == 18
    assert eight.become(3, [5, 0, 6, 1]) == [(place, 4) for place in range(4)]  # merge
    assert eight.total([5, 0, 6, 1]) == 16
    assert sorted(eight.become(4, everybody, unordered=True)) == [(place, 8) for place in range(8)]
    assert eight.total(everybody) == 36


def test_a_root_is_a_place_in_the_order_of_the_handles(eight):
    order = [3, 0, 2]
    eight.become(1, order)
    tensors = [torch.full((3,), float(member)) for member in order]
    opts = c10d.BroadcastOptions()
    opts.rootRank = 0
    for work in [eight.groups[member].broadcast([tensor], opts)
                 for member, tensor in zip(order, tensors)]:
        work.wait()
    assert all((tensor == 3).all() for tensor in tensors)


def test_what_cannot_be_is_refused_before_anything_changes(eight):
    eight.become(5, [0, 1])
    for handles, why in [([eight.handles[1]], "is not among"), (["gloo:0"], "no handle of this"),
                         ([eight.handles[0]] * 2, "two handles name one")]:
        with pytest.raises(sluice.InvalidArgument, match=why):
            eight.groups[0].reconfigure(options(6, handles))
    with pytest.raises(sluice.InvalidArgument, match="this group has used it before"):
        eight.groups[0].reconfigure(options(5, eight.handles[:2]))
    assert eight.total([0, 1]) == 3


def test_a_member_that_does_not_come_is_named(eight):
    work = eight.groups[0].reconfigure(options(1, eight.handles[:2], seconds=0.3))
    absent = eight.groups[1]._shared.session.rank
    with pytest.raises(sluice.TimedOut, match=f"rank {absent} has not called it"):
        work.wait()
    assert eight.become(2, [0, 1]) == [(0, 2), (1, 2)]


def test_after_an_abort_and_after_a_death_the_rest_go_on(eight):
    eight.become(1, [0, 1, 2])
    under_way = eight.groups[0].allreduce([torch.ones(3)])
    eight.groups[1].abort()
    with pytest.raises(sluice.PeerLost):
        under_way.wait()
    with pytest.raises(sluice.Closed, match="has been aborted"):
        eight.groups[1].allreduce([torch.ones(3)])
    eight.become(2, [0, 1, 2])
    assert eight.total([0, 1, 2]) == 6
    under_way = eight.groups[0].allreduce([torch.ones(3)])
    eight.groups[2]._shared.session.close()
    with pytest.raises(sluice.PeerLost, match="has left or was lost"):
        under_way.wait()
    eight.become(3, [0, 1])
    assert eight.total([0, 1]) == 3


def test_after_the_appliance_was_lost_all_join_again_for_new_handles(eight):
    eight.become(1, [0, 1, 2])
    under_way = eight.groups[0].allreduce([torch.ones(3)])
    eight.groups[1]._shared.session.abort("to end the job for all")
    with pytest.raises(sluice.PeerLost, match="to end the job for all"):
        under_way.wait()
    with pytest.raises(sluice.Closed, match=r"get_reconfigure_handle\(\) joins again"):
        eight.groups[0].reconfigure(options(2, eight.handles[:3]))
    eight.address += "-restarted"
    fresh = [group.get_reconfigure_handle() for group in eight.groups]
    assert not set(fresh) & set(eight.handles)
    assert fresh == [group.get_reconfigure_handle() for group in eight.groups]
    with pytest.raises(sluice.Closed, match="the appliance was lost"):
        eight.groups[2].allreduce([torch.ones(3)])
    eight.handles = fresh
    assert eight.become(3, [2, 0, 1]) == [(0, 3), (1, 3), (2, 3)]
    assert eight.total([2, 0, 1]) == 6


def test_one_set_of_members_follows_another_fifty_times(eight):
    for uuid in range(50):
        members = list(range(8 - uuid % 2))
        eight.become(uuid, members)
        assert eight.total(members) == sum(1 + rank for rank in members)
