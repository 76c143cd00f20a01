"""c10d's rules for the backend 'sluice' over a stand-in for the appliance: groups that are split or
made beside others, ends in mid-operation, torch's own tools."""

import pytest
from test_torch_backend import needs_backends, run

pytestmark = needs_backends


def split(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    mine = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    x = torch.full((2,), float(rank))
    dist.all_reduce(x, group=mine)
    alone = dist.split_group(mine, split_ranks=[[1, 0]])  # of that group's ranks, and turned
    y = torch.full((2,), float(rank))
    dist.broadcast(y, dist.get_global_rank(alone, 0), group=alone)
    dist.destroy_process_group(alone)
    dist.all_reduce(x)
    names = [name for session in stand_in_box.joined for name in session._groups]
    return [len(stand_in_box.joined), x.tolist(), y.tolist(), dist.get_process_group_ranks(mine),
            names]


def test_groups_are_split_in_the_session_of_their_parent(tmp_path):
    outcomes = run(split, 4, tmp_path)
    for rank, found in enumerate(outcomes):
        odd = rank % 2
        assert found[:4] == [1, [12, 12], [2 + odd] * 2, [odd, odd + 2]]
    # Torch names both pairs that are split from a pair alike; for the appliance they are two.
    assert len({name for found in outcomes for name in found[4]}) == 5


def made_beside(rank):
    import stand_in_box
    import threading
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    first = dist.new_group([0, 1, 2])
    x, made = torch.ones(3), []

    def use():
        for _ in range(20):
            x.fill_(rank)
            dist.all_reduce(x, group=first)
    thread = threading.Thread(target=use)
    thread.start()
    for members in ([0, 1], [1, 2], [0, 2]):  # torch numbers groups: all ranks make them in order
        group = dist.new_group(members)
        if rank in members:
            y = torch.full((2,), float(rank + 1))
            dist.all_reduce(y, group=group)
            made.append(y[0].item())
    thread.join()
    return [x.tolist(), made, len(stand_in_box.joined)]


def test_groups_that_overlap_are_made_while_another_thread_uses_one(tmp_path):
    for rank, found in enumerate(run(made_beside, 3, tmp_path)):
        assert found == [[3, 3, 3], [[3, 4], [3, 5], [5, 4]][rank], 1]


def ended(rank, how):
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group([0, 1])
    dist.barrier(group=group)
    found = []
    if rank == 0:  # the other rank never calls it
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        if how == "destroy":
            dist.destroy_process_group(group)
        else:
            getattr(group, how)()
        try:
            work.wait()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        if how != "destroy":
            try:
                dist.all_reduce(torch.ones(3), group=group)
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
        store.set("ended", "1")
    store.get("ended")
    x = torch.ones(2)
    dist.all_reduce(x)  # of the default group, which goes on
    return [found, x.tolist()]


@pytest.mark.parametrize("how", ["abort", "shutdown", "destroy"])
def test_a_group_ends_in_mid_operation_and_the_others_go_on(tmp_path, how):
    (found, x), other = run(ended, 2, tmp_path, how=how)
    assert (x, other) == ([2, 2], [[], [2, 2]])
    assert found[0].startswith("TimedOut: rank 0 of group '1', all_reduce of 3 float32: "), found
    if how != "destroy":
        word = {"abort": "aborted", "shutdown": "destroyed"}[how]
        assert found[1] == f"Closed: rank 0 of group '1': this group has been {word}"


def odd_tensors(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    found = []
    with torch.inference_mode():
        parts = [torch.ones(0, 3) for _ in range(2)]
        dist.all_gather(parts, torch.ones(0, 3))
        dist.broadcast(torch.ones(0), 1)
        empty = torch.ones(0)
        dist.reduce_scatter_tensor(empty, torch.ones(0))
        whole = torch.zeros(4, 2).t()
        dist.all_gather_into_tensor(whole, torch.full((4, 2), float(rank))[::2].t())
        found.append(whole.tolist())
        part = torch.zeros(4)[::2]
        dist.reduce_scatter_tensor(part, torch.arange(8.)[::2])
        found.append(part.tolist())
    return found


def test_tensors_of_no_element_and_in_several_pieces_have_the_right_values(tmp_path):
    for rank, found in enumerate(run(odd_tensors, 2, tmp_path)):
        assert found == [[[0, 0, 0, 0], [1, 1, 1, 1]], [[0, 4], [8, 12]][rank]]


def recorded(rank):
    import pickle
    import os
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d
    stand_in_box.start(TORCH_DIST_NAN_CHECK="1", TORCH_FR_BUFFER_SIZE="100")
    for size in (3, 4):
        dist.all_reduce(torch.ones(size))
    dist.broadcast(torch.ones(2, dtype=torch.int64), 0)
    try:
        dist.all_reduce(torch.tensor([float("nan")]))
        text = None
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    dump = c10d._dump_fr_trace(backend="sluice")
    with open(f"{os.path.dirname(os.environ['TEST_RESULT'])}/dump/trace_{rank}", "wb") as file:
        file.write(dump)
    return [text, [[one["profiling_name"], one["input_sizes"][0]]
                   for one in pickle.loads(dump)["entries"][:3]]]


def test_the_flight_recorder_has_each_call_and_a_nan_is_found(tmp_path):
    (tmp_path / "dump").mkdir()
    for text, entries in run(recorded, 2, tmp_path):
        assert "NaN" in text, text
        assert entries == [["sluice:all_reduce", [3]], ["sluice:all_reduce", [4]],
                           ["sluice:broadcast", [2]]]
    from torch.distributed.flight_recorder import fr_trace
    fr_trace.main([str(tmp_path / "dump"), "-o", str(tmp_path / "db")])
    assert (tmp_path / "db").stat().st_size


def compiled_step(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    stand_in_box.start()

    def trained(wrap):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        step = wrap(step)
        losses = [step(torch.arange(4.) + rank).item() for _ in range(3)]
        return losses, [one.detach().clone() for one in model.parameters()]

    plain, compiled = trained(lambda step: step), trained(
        lambda step: torch.compile(step, backend="aot_eager"))
    inside = [text for text in torch._dynamo.utils.counters["graph_break"] if "sluice" in text]
    dist.destroy_process_group()
    return [plain[0] == compiled[0], not inside,
            all(torch.equal(*pair) for pair in zip(plain[1], compiled[1]))]


def test_a_step_that_is_compiled_as_a_whole_trains_as_a_plain_one(tmp_path):
    assert run(compiled_step, 2, tmp_path) == [[True, True, True]] * 2


def monitored(rank):
    import datetime
    import stand_in_box
    import torch.distributed as dist
    stand_in_box.start()
    store = dist.distributed_c10d._get_default_store()
    found = []
    for name, late in (("all", ()), ("late", (1, 2)), ("again", ())):
        if rank in late:
            store.get(name)  # until rank 0 has given up
        limit = datetime.timedelta(seconds=0.2 if late else 60)
        try:
            dist.monitored_barrier(timeout=limit, wait_all_ranks=bool(late))
            found.append("passed")
        except RuntimeError as error:
            found.append(f"{type(error).__name__}: {error}")
        if rank == 0:
            store.set(name, "1")
    return found


def test_a_monitored_barrier_names_who_is_missing_and_the_next_one_passes(tmp_path):
    missing = "Ranks 1, 2 failed to pass monitoredBarrier in 200 ms"
    first, *others = run(monitored, 3, tmp_path)
    assert first == ["passed", f"TimedOut: {missing}", "passed"]
    for rank, found in enumerate(others, 1):
        text = f"TimedOut: Rank {rank} successfully reached monitoredBarrier, but received errors"
        assert found[1].startswith(text) and missing in found[1], found
        assert (found[0], found[2]) == ("passed", "passed")
