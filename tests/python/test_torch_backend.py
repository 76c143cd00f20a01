"""The backend 'sluice' of torch.distributed over a stand-in for the appliance: which operation
takes which way, c10d's semantics of works, groups, errors."""

import datetime
import os
import subprocess
import sys
import zipfile

import pytest
import ranks
import torch
from conftest import BUILD, ROOT
from sluice._torch_gloo import Inner
from stand_in_box import environment

has_backends = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
needs_backends = pytest.mark.skipif(not has_backends, reason="needs torch 2.15")


def run(function, count, folder, **arguments):
    return ranks.run(function, count, folder, environment=environment(folder),
                     arguments=arguments)


def kinds(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    found = {}

    def note(name, tensor):
        found[name] = tensor.tolist()

    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.float64):
        x = torch.arange(3).to(dtype) + rank
        dist.all_reduce(x)
        note(f"sum {dtype}", x)
    x = torch.arange(6.).view(2, 3).t() + rank
    dist.all_reduce(x)
    note("transposed", x)
    x = torch.arange(6.)
    dist.all_reduce(x[::2])
    note("strided", x)
    x = torch.full((2,), float(rank))
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    note("max", x)
    x = torch.empty(0)
    dist.all_reduce(x)
    note("empty", x)
    x = torch.tensor(float(rank))
    dist.all_reduce(x)
    note("scalar", x)
    x = torch.full((2,), float(rank + 1))
    dist.reduce(x, 1)
    if rank == 1:
        note("reduce", x)
    x = torch.full((3, 2), rank, dtype=torch.int32).t()
    dist.broadcast(x, 1)
    note("broadcast", x)
    parts = [torch.empty(2, 2).t() for _ in range(3)]
    dist.all_gather(parts, torch.tensor([[rank, 10.], [20., 30.]]))
    note("all_gather", torch.stack(parts))
    dist.barrier()
    objects = [None] * 3
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = [one["rank"] for one in objects]
    if rank == 0:
        dist.send(torch.ones(2), 1)
    if rank == 1:
        x = torch.zeros(2)
        dist.recv(x, 0)
        note("recv", x)
    with torch.inference_mode():
        x = torch.arange(4.).view(2, 2).t()
        dist.all_reduce(x)
        note("inference", x)
    leaf = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf)
    note("leaf", leaf)
    dist.destroy_process_group()
    found["closed"] = [session.closed for session in stand_in_box.joined]
    return found


def check_kinds(outcomes):
    expected = {
        **{f"sum {dtype}": [3, 6, 9] for dtype in (
            torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.float64)},
        "transposed": [[3, 12], [6, 15], [9, 18]], "strided": [0, 1, 6, 3, 12, 5],
        "max": [2, 2], "empty": [], "scalar": 3, "broadcast": [[1, 1, 1], [1, 1, 1]],
        "all_gather": [[[rank, 10], [20, 30]] for rank in range(3)], "objects": [0, 1, 2],
        "inference": [[0, 6], [3, 9]], "leaf": [3, 3], "closed": [True]}
    if not has_backends:
        expected["closed"] = [False]  # torch 1.13 tells nobody that a group was destroyed
    for rank, found in enumerate(outcomes):
        if rank == 1:
            assert (found.pop("reduce"), found.pop("recv")) == ([6, 6], [1, 1])
        assert found == expected


def test_every_kind_of_tensor_and_operation_has_the_right_values(tmp_path):
    check_kinds(run(kinds, 3, tmp_path))


def into_tensors(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    stand_in_box.start()
    whole = torch.empty(3, 2)
    dist.all_gather_into_tensor(whole, torch.tensor([rank, 5.]))
    part = torch.empty(2, dtype=torch.bfloat16)
    dist.reduce_scatter_tensor(part, torch.arange(6, dtype=torch.bfloat16) + rank)
    mean = torch.empty(2)
    dist.reduce_scatter(mean, [torch.full((2,), float(rank + i)) for i in range(3)],
                        op=dist.ReduceOp.AVG)
    average = torch.tensor([float(rank)])
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    out = torch.empty(3, dtype=torch.int64)
    dist.all_to_all_single(out, torch.arange(3) + 10 * rank)
    both = [torch.ones(2), torch.full((1,), float(rank))]
    with dist._coalescing_manager(async_ops=True) as manager:
        for one in both:
            dist.all_reduce(one)
    manager.wait()
    gathered = functional.all_gather_tensor(torch.tensor([float(rank)]), 0, dist.group.WORLD)
    summed = functional.reduce_scatter_tensor(torch.arange(3.), "sum", 0, dist.group.WORLD)
    return [one.tolist() for one in (whole, part, mean, average, out, *both, gathered, summed)] + [
        stand_in_box.through_box(f"{kind}, coalesced")
        for kind in ("all_gather_into_tensor", "reduce_scatter_tensor")]


@needs_backends
def test_into_tensor_forms_averages_and_coalesced_calls_have_the_right_values(tmp_path):
    for rank, found in enumerate(run(into_tensors, 3, tmp_path)):
        assert found == [[[0, 5], [1, 5], [2, 5]], [6 * rank + 3, 6 * rank + 6],
                         [rank + 1, rank + 1], [1], [rank, 10 + rank, 20 + rank], [3, 3], [3],
                         [0, 1, 2], [3 * rank], True, True]


@needs_backends
def test_what_goes_over_gloo_uses_the_interface_of_the_environment(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nowhere")
    made = Inner(torch.distributed.HashStore(), 0, 1, datetime.timedelta(seconds=60))
    with pytest.raises(RuntimeError, match="nowhere"):
        made.get()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made.get()
    made.end("shutdown")


def ways(rank, forced):
    import io
    import logging
    import stand_in_box
    import torch
    import torch.distributed as dist
    text = io.StringIO()
    logging.getLogger("sluice").addHandler(logging.StreamHandler(text))
    logging.getLogger("sluice").setLevel(logging.INFO)
    stand_in_box.start(SLUICE_COLLECTIVES=forced)
    error = None
    for _ in range(2):
        dist.all_reduce(torch.ones(2))
        try:
            dist.all_reduce(torch.ones(2, dtype=torch.int32))
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
    # Gloo's thread may still have to free a tensor, and torch 1.13 aborts where Python has ended.
    dist.destroy_process_group()
    return [text.getvalue().splitlines(), error, len(stand_in_box.joined)]


@pytest.mark.parametrize("forced, first, second", [
    ("auto", "through the appliance at udp://box", "over Gloo (int32)"),
    ("gloo", "over Gloo (SLUICE_COLLECTIVES=gloo)", None),
    ("box", "through the appliance at udp://box", "InvalidArgument: rank {} of group '0'")])
def test_one_line_a_kind_says_which_way_it_takes_and_a_variable_forces_either(
        tmp_path, forced, first, second):
    for rank, (lines, error, sessions) in enumerate(run(ways, 2, tmp_path, forced=forced)):
        assert lines[0] == f"all_reduce: {first}"
        assert lines[1:] == ([f"all_reduce: {second}"] if forced == "auto" else [])
        assert sessions == (0 if forced == "gloo" else 1)
        if forced == "box":
            assert error.startswith(second.format(rank)) and "all_reduce" in error, error
            assert "over Gloo (int32)" in error
        else:
            assert error is None


def works(rank):
    import datetime
    import stand_in_box
    import time
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    sizes = (100_000, 3, 0, 50_000, 1)
    tensors = [torch.ones(size) for size in sizes]
    begun = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in begun]
    seen = []
    for index, future in enumerate(futures):
        future.add_done_callback(lambda _future, index=index: seen.append(index))
    for work in reversed(begun):
        assert work.wait()
    values = [future.wait() for future in futures]
    assert all(value[0].data_ptr() == tensor.data_ptr()
               for value, tensor in zip(values, tensors))
    while len(seen) < len(sizes):
        time.sleep(0.01)
    late = None
    x = torch.ones(3)
    if rank == 0:  # the other rank is late, and the operation goes on
        work = dist.all_reduce(x, async_op=True)
        try:
            work.wait(datetime.timedelta(milliseconds=50))
        except Exception as error:
            late = f"{type(error).__name__}: {error}"
        dist.distributed_c10d._get_default_store().set("tried", "1")
        work.wait()
    else:
        dist.distributed_c10d._get_default_store().get("tried")
        dist.all_reduce(x)
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    return [[tensor.sum().item() for tensor in tensors], sorted(seen), late, x.tolist(),
            barrier.get_future().wait()]


def check_works(outcomes):
    for rank, (sums, seen, late, x, barrier) in enumerate(outcomes):
        assert sums == [200_000, 6, 0, 100_000, 2]
        assert seen == [0, 1, 2, 3, 4]
        assert (x, barrier) == ([2, 2, 2], [])
        assert (late is None) == (rank == 1)
        if rank == 0:
            assert late.startswith("TimedOut: rank 0 of group '0', all_reduce of 3 float32: ")


def test_works_end_in_any_order_and_give_their_tensors(tmp_path):
    check_works(run(works, 2, tmp_path))


def polled(rank):
    import stand_in_box
    import time
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    backend = dist.group.WORLD
    if hasattr(backend, "_get_backend"):
        backend = backend._get_backend(torch.device("cpu"))
    x = torch.arange(6.).view(2, 3).t()
    from torch._C._distributed_c10d import AllreduceOptions
    work = backend.allreduce([x], AllreduceOptions())
    while not work.is_completed():
        time.sleep(0.001)
    return [work.is_success(), work.exception() is None, x.tolist(), len(work.result())]


def test_a_work_that_is_polled_ends_with_its_values_in_place(tmp_path):
    for found in run(polled, 2, tmp_path):
        assert found == [True, True, [[0, 6], [2, 8], [4, 10]], 1]


def disagreeing(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    stand_in_box.start()
    found = []
    try:
        dist.all_reduce(torch.ones(2 + rank))
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    try:
        dist.all_reduce(torch.ones(2 + rank), async_op=True).get_future().wait()
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    loss = model(torch.ones(1, 3)).sum()
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(7))  # while the other rank's is of a bucket
        else:
            loss.backward()
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


def test_errors_keep_their_type_and_name_rank_and_operation(tmp_path):
    for rank, found in enumerate(run(disagreeing, 2, tmp_path)):
        what = f"rank {rank} of group '0', all_reduce of {2 + rank} float32: ranks called different"
        assert found[0].startswith(f"InvalidArgument: {what}")
        assert found[1].startswith("RuntimeError") and f"InvalidArgument: {what}" in found[1]
        text = f"InvalidArgument: rank {rank} of group '0', all_reduce of {7 - 3 * rank} float32"
        assert text in found[2] and found[2].startswith(("InvalidArgument", "RuntimeError")[rank])


def overlapping(rank):
    import stand_in_box
    import threading
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    groups = [dist.new_group(members) for members in ([0, 1], [1, 2], [0, 2], [0, 1, 2])]
    mine = [group for group in groups if dist.get_rank(group) >= 0]
    values = {group: torch.full((40_000,), float(rank + 1)) for group in mine}
    turned = mine[rank:] + mine[:rank]  # another order on each rank
    for work in [dist.all_reduce(values[group], group=group, async_op=True) for group in turned]:
        work.wait()

    def again(group):
        for _ in range(10):
            dist.all_reduce(values[group], group=group)
    threads = [threading.Thread(target=again, args=(group,)) for group in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [len(stand_in_box.joined), [[values[group].min().item(), values[group].max().item()]
                                       for group in mine]]


def check_overlapping(outcomes):
    sums = {(0, 1): 3, (1, 2): 5, (0, 2): 4, (0, 1, 2): 6}
    for rank, (sessions, found) in enumerate(outcomes):
        members = [group for group in sums if rank in group]
        expected = [sums[group] * len(group) ** 10 for group in members]
        assert sessions == 1
        assert found == [[value, value] for value in expected]


def test_groups_overlap_in_one_session_in_any_order_and_on_several_threads(tmp_path):
    check_overlapping(run(overlapping, 3, tmp_path))


def beside_gloo(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start(backend="gloo")
    for _ in range(2):
        for members in ([0, 2], [1, 3]):
            group = dist.new_group(members, backend="sluice")
            if rank in members:
                x = torch.full((2,), float(rank))
                dist.all_reduce(x, group=group)
                parts = [torch.empty(1) for _ in members]
                dist.all_gather(parts, torch.tensor([float(rank)]), group=group)
                dist.broadcast(x, members[1], group=group)
    return [[(one.rank, one.world_size) for one in stand_in_box.joined], x.tolist(),
            [part.item() for part in parts]]


def test_groups_beside_another_default_have_a_session_a_set_of_ranks(tmp_path):
    for rank, found in enumerate(run(beside_gloo, 4, tmp_path)):
        pair = [rank % 2, rank % 2 + 2]
        assert found == [[[rank // 2, 2]], [sum(pair)] * 2, pair]


def test_the_backend_needs_an_address():
    code = ("import torch.distributed as dist, sluice.torch\n"
            "try: dist.init_process_group('sluice', store=dist.HashStore(), rank=0, world_size=1)\n"
            "except Exception as error: print(type(error).__name__, error)")
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True,
                          text=True, timeout=300, check=False)
    assert "InvalidArgument the appliance's address is not known" in done.stdout, done.stderr


@needs_backends
@pytest.mark.usefixtures("library")
def test_an_installed_wheel_is_found_by_the_name_alone(tmp_path):
    wheel = subprocess.run([ROOT / "client" / "python" / "build_wheel.sh", BUILD, tmp_path,
                            sys.executable], capture_output=True, text=True, check=True,
                           timeout=300).stdout.strip()
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = ("import torch, torch.distributed as dist\n"
            "dist.init_process_group('sluice', store=dist.HashStore(), rank=0, world_size=1)\n"
            "x = torch.ones(2); dist.all_reduce(x); print(dist.get_backend(), x.tolist())")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, timeout=300, check=False,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"),
                               "SLUICE_COLLECTIVES": "gloo"})
    assert done.stdout.strip() == "sluice [1.0, 1.0]", done.stderr
