"""The agreement of ranks when they attach: on the model, its number, and its group."""

import pytest
import ranks

torch = pytest.importorskip("torch")


def crosswise(rank, swapped):
    """Two models of one layout, as an actor and a critic are, whose order differs on rank 1."""
    import ddp_worker as w
    import sluice.torch
    import torch
    torch.manual_seed(1)

    class Net(torch.nn.Sequential):
        pass
    models = [w.start(Net(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))) for _ in range(2)]
    if swapped and rank == 1:
        models.reverse()
    try:
        for model in models:
            sluice.torch.attach(model, join_timeout=20)
    except sluice.InvalidArgument as error:
        return str(error)
    models[0](torch.ones(2, 4)).sum().backward()
    return models[0].module[0].weight.grad.tolist()


def test_models_attached_in_another_order_are_refused_on_all_ranks(appliance, tmp_path):
    texts = ranks.run(crosswise, 2, tmp_path, box=appliance, arguments=dict(swapped=True))
    for text in texts:
        assert text == texts[0] and text.count("a Net of 4 parameters, the first '0.weight'") == 2
        assert "rank 0" in text and "rank 1" in text and "other values" in text
        assert "in the same order" in text
    same = ranks.run(crosswise, 2, tmp_path, box=appliance, arguments=dict(swapped=False))
    assert same[0] == same[1] and not isinstance(same[0], str)


def uneven_numbers(rank):
    import ddp_worker as w
    import sluice.torch
    if rank == 1:
        try:  # one more model of this rank alone, which does not come to be attached
            sluice.torch.attach(w.start(), "udp://127.0.0.1:9", rank=0, world_size=3,
                                connect_timeout=0.1)
        except sluice.Unreachable:
            pass
    else:
        w.start()
    model = w.start()
    sluice.torch.attach(model, join_timeout=10)
    model(w.gradients_of(rank, 1)).backward()
    return w.equal(w.gradients(model), w.expected_mean(2, 1))


def test_a_rank_that_has_attached_one_model_more_does_not_wait_for_ever(appliance, tmp_path):
    assert ranks.run(uneven_numbers, 2, tmp_path, box=appliance) == [True, True]


def in_groups(rank):
    """A model for the even ranks and another one for the odd ones, as beside tensor parallelism."""
    import ddp_worker as w
    import sluice.torch
    import torch.distributed as dist
    w.start()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    model = w.start(process_group=groups[rank % 2])
    attachment = sluice.torch.attach(model, join_timeout=20)
    exact = []
    for step in range(1, 4):
        model.zero_grad(set_to_none=True)
        model(w.gradients_of(rank, step)).backward()
        mine, other = (w.gradients_of(one, step) for one in (rank, (rank + 2) % 4))
        exact.append(w.equal(w.gradients(model), [(a + b) / 2 for a, b in zip(mine, other)]))
    whole = w.start()
    plain = sluice.torch.attach(whole)
    return exact, attachment.job.name, plain.job.name


def test_groups_of_some_of_the_ranks_are_jobs_of_their_own(appliance, tmp_path):
    values = ranks.run(in_groups, 4, tmp_path, box=appliance)
    assert [value[0] for value in values] == [[True] * 3] * 4
    names = [value[1] for value in values]
    assert names[0] == names[2] != names[1] == names[3]
    assert len({value[2] for value in values}) == 1
    assert all(name.startswith(values[0][2] + ".") for name in names)


def on_a_group_of_several_backends(rank, backend):
    import ddp_worker as w
    import sluice.torch
    import torch.distributed as dist
    dist.init_process_group(backend)
    model = w.start()
    sluice.torch.attach(model, join_timeout=20)
    model(w.gradients_of(rank, 1)).backward()
    return w.equal(w.gradients(model), w.expected_mean(2, 1))


@pytest.mark.parametrize("backend", ["cpu:gloo", None])
def test_ranks_whose_restart_counts_differ_agree_on_the_run(appliance, tmp_path, backend):
    if not hasattr(torch, "compiler"):
        pytest.skip("groups of several backends need torch 2, this is "
                    f"{torch.__version__}: ./run test-torch2")
    values = ranks.run(on_a_group_of_several_backends, 2, tmp_path, box=appliance,
                       arguments=dict(backend=backend),
                       own=lambda rank: {"TORCHELASTIC_RESTART_COUNT": str(rank)})
    assert values == [True, True]
