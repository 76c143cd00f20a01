"""The backend 'sluice' of torch.distributed through a real appliance."""

import pytest
import ranks
import test_torch_backend as alone
import test_torch_backend_training as training
from test_torch_backend import needs_backends


@pytest.mark.parametrize("training_script", [training.ddp, training.zero])
def test_models_get_the_parameters_of_gloo(appliance, tmp_path, training_script):
    for found in ranks.run(training_script, 2, tmp_path, box=appliance):
        assert found == [True] * len(found) and found, found


@needs_backends
@pytest.mark.parametrize("how", ["fsdp", "bfloat16", "hsdp"])
def test_sharded_models_get_the_parameters_of_gloo(appliance, tmp_path, how):
    for found in ranks.run(training.sharded, 4 if how == "hsdp" else 2, tmp_path, box=appliance,
                           arguments={"how": how}):
        assert found == [True] * len(found) and found, found


def test_every_kind_of_tensor_and_operation_has_the_right_values(appliance, tmp_path):
    alone.check_kinds(ranks.run(alone.kinds, 3, tmp_path, box=appliance))


def test_groups_overlap_in_any_order_and_on_several_threads(appliance, tmp_path):
    alone.check_overlapping(ranks.run(alone.overlapping, 3, tmp_path, box=appliance))


def test_works_end_in_any_order_and_give_their_tensors(appliance, tmp_path):
    alone.check_works(ranks.run(alone.works, 2, tmp_path, box=appliance))


def disagreeing(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(4096))
        else:
            dist.broadcast(torch.ones(4096), 0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_different_operations_are_described_with_their_ranks(appliance, tmp_path):
    for rank, text in enumerate(ranks.run(disagreeing, 2, tmp_path, box=appliance)):
        assert text.startswith(f"InvalidArgument: rank {rank} of group '0', "), text
        assert all(word in text for word in ("all_reduce of 4096 float32", "rank 0", "rank 1",
                                             "broadcast of 16384 bytes from rank 0")), text


def lost(rank):
    import os
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), 9)
    try:
        dist.all_reduce(torch.ones(10))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_a_rank_that_dies_is_named(appliance, tmp_path):
    with ranks.Ranks(lost, 2, tmp_path, box=appliance) as running:
        outcomes = running.finish()
    assert outcomes[1].status != 0
    assert outcomes[0].value.startswith("PeerLost: rank 0 of group '0', all_reduce of 10 float32")
    assert "rank 1" in outcomes[0].value


def forked(rank):
    import os
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    dist.all_reduce(torch.ones(3))
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except Exception as error:
            os._exit(7 if type(error).__name__ == "Forked" else 1)
        os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    x = torch.ones(3)
    dist.all_reduce(x)
    return [status, x.tolist()]  # and no destroy_process_group()


def test_a_fork_is_told_so_and_the_parent_goes_on(appliance, tmp_path):
    assert ranks.run(forked, 2, tmp_path, box=appliance) == [[7, [2, 2, 2]]] * 2


def given_up(rank):
    import datetime
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    # The last operation has this timeout too, and a rank may be held up.
    group = dist.new_group(timeout=datetime.timedelta(seconds=10))
    text = None
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
    dist.barrier()  # of the default group
    if rank == 1:  # comes to the operation that was given up
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    return [text, x.tolist()]


def test_a_timeout_names_who_is_missing_and_the_group_goes_on(appliance, tmp_path):
    for rank, (text, x) in enumerate(ranks.run(given_up, 2, tmp_path, box=appliance)):
        assert text.startswith(f"TimedOut: rank {rank} of group '1', all_reduce of 3 float32"), text
        assert "rank 1" in text and x == [2, 2, 2]
