"""The DDP hook over a real appliance: every gradient must be the exact mean, on every rank."""

import pytest
import ranks

pytest.importorskip("torch")


def several_buckets(rank, **ddp_options):
    import ddp_worker as w
    import sluice.torch
    buckets = []
    seen = sluice.torch.Attachment._on_bucket

    def record(self, bucket):
        buckets.append((bucket.index(), bucket.is_last()))
        return seen(self, bucket)

    sluice.torch.Attachment._on_bucket = record
    model = w.start(bucket_cap_mb=0.001, **ddp_options)
    attachment = sluice.torch.attach(model)
    exact, counts = [], []
    for step in range(1, 7):
        model.zero_grad(set_to_none=False)
        buckets.clear()
        model(w.gradients_of(rank, step)).backward()
        exact.append(w.equal(w.gradients(model), w.expected_mean(3, step)))
        counts.append(len(buckets))
        assert [last for _, last in buckets] == [False] * (len(buckets) - 1) + [True]
    return dict(exact=exact, counts=counts, steps=attachment.stats()["steps_done"])


@pytest.mark.parametrize("options", [
    {}, {"gradient_as_bucket_view": True}, {"static_graph": True}], ids=lambda o: str(o))
def test_gradients_are_the_exact_mean_before_and_after_the_bucket_rebuild(
        appliance, tmp_path, options):
    for value in ranks.run(several_buckets, 3, tmp_path, box=appliance, arguments=options):
        assert value["exact"] == [True] * 6
        assert value["steps"] == 6
        assert value["counts"][0] == 1 or options, "iteration 0 has one bucket"
        assert value["counts"][-1] > 1, "the buckets were not rebuilt"


def unused_parameters(rank):
    import ddp_worker as w
    import sluice.torch
    model = w.start(find_unused_parameters=True, bucket_cap_mb=0.001)
    sluice.torch.attach(model)
    exact = []
    for step in range(1, 6):
        mine = w.gradients_of(rank, step)
        mine[1] = None  # nobody uses p1
        if rank == 1 or step == 3:
            mine[3] = None  # p3: rank 1 never, rank 0 but in step 3
        model.zero_grad(set_to_none=True)
        model(mine).backward()
        found = w.gradients(model)
        wanted = w.expected_mean(2, step)
        wanted[1] = None
        wanted[3] = None if step == 3 else w.gradients_of(0, step)[3] / 2
        exact.append(w.equal(found, wanted))
    return exact


def test_parameters_that_a_rank_leaves_out_count_as_zero(appliance, tmp_path):
    assert ranks.run(unused_parameters, 2, tmp_path, box=appliance) == [[True] * 5] * 2


def accumulation(rank):
    import ddp_worker as w
    import sluice.torch
    model = w.start()
    attachment = sluice.torch.attach(model)
    exact = []
    for step in range(1, 4):
        model.zero_grad(set_to_none=True)
        with model.no_sync():
            model(w.gradients_of(rank, 10 * step)).backward()
            model(w.gradients_of(rank, 10 * step + 1)).backward()
        model(w.gradients_of(rank, 10 * step + 2)).backward()
        means = [w.expected_mean(2, 10 * step + part) for part in range(3)]
        exact.append(w.equal(w.gradients(model), [sum(column) for column in zip(*means)]))
    return exact, attachment.stats()["steps_done"]


def test_accumulated_gradients_are_summed_once(appliance, tmp_path):
    assert ranks.run(accumulation, 2, tmp_path, box=appliance) == [[[True] * 3, 3]] * 2


def half_precision(rank, dtype):
    import ddp_worker as w
    import sluice.torch
    import torch
    dtype = getattr(torch, dtype)
    if torch.__version__.startswith("1.") and dtype == torch.bfloat16:
        # Gloo of torch 1.13 cannot broadcast bfloat16; the parameters are equal (0) without it.
        torch.nn.parallel.distributed._sync_module_states = lambda *args, **kwargs: None
    model = w.start(w.Model(dtype=dtype))
    sluice.torch.attach(model)
    exact = []
    for step in range(1, 5):
        model.zero_grad(set_to_none=True)
        model(w.gradients_of(rank, step, dtype=dtype)).backward()
        exact.append(w.equal(w.gradients(model), w.expected_mean(2, step, dtype=dtype)))
        assert all(p.grad.dtype == dtype for p in model.parameters())
    return exact


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_gradients_are_the_exact_mean(appliance, tmp_path, dtype):
    values = ranks.run(half_precision, 2, tmp_path, box=appliance, arguments={"dtype": dtype})
    assert values == [[True] * 4] * 2


def mixed_types(rank):
    import ddp_worker as w
    import sluice.torch
    import torch
    model = w.Model()
    model.half_one = torch.nn.Parameter(torch.zeros(33, dtype=torch.float16))
    model = w.start(model)
    sluice.torch.attach(model)
    exact = []
    for step in range(1, 5):
        model.zero_grad(set_to_none=True)
        half = torch.full((33,), 4.0 * (rank + step), dtype=torch.float16)
        model([*w.gradients_of(rank, step), half]).backward()
        wanted = [*w.expected_mean(2, step), torch.full((33,), 4.0 * step + 2).half()]
        exact.append(w.equal(w.gradients(model), wanted))
    return exact


def test_a_model_may_mix_types(appliance, tmp_path):
    assert ranks.run(mixed_types, 2, tmp_path, box=appliance) == [[True] * 4] * 2


def two_models(rank):
    import ddp_worker as w
    import sluice.torch
    models = [w.start(), w.start(w.Model(shapes=((5,), (6, 7))))]
    attached = [sluice.torch.attach(model) for model in models]  # at one vhost-user socket
    shapes = [w.SHAPES, ((5,), (6, 7))]
    exact = []
    for step in range(1, 4):
        for model, shape in zip(models, shapes):
            model.zero_grad(set_to_none=True)
            model(w.gradients_of(rank, step, shapes=shape)).backward()
            exact.append(w.equal(w.gradients(model), w.expected_mean(2, step, shapes=shape)))
    return exact, [a.job.stats()["steps_done"] for a in attached]


def launched(rank, names, ending, first_port=0):
    import os
    import signal
    import time
    import ddp_worker as w
    import sluice.torch
    address = os.environ["SLUICE_ADDRESS"].replace("{rank}", str(first_port + rank))
    os.environ.update(names, SLUICE_ADDRESS=address)
    model = w.start()
    with sluice.torch.attach(model):
        model(w.gradients_of(rank, 1)).backward()
        print("trains", flush=True)
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        while ending and not os.path.exists(ending):
            time.sleep(0.05)


NAMES = dict(SLUICE_RUN_ID="same", SLUICE_JOB="launched")


def test_a_launch_under_the_names_of_an_earlier_one_is_accepted_at_once(appliance, tmp_path):
    for ending in ("", "killed", ""):
        with ranks.Ranks(launched, 2, tmp_path, box=appliance,
                         arguments=dict(names=NAMES, ending=ending)) as running:
            outcomes = running.finish()
        for outcome in outcomes:
            assert (outcome.status != 0) == (ending == "killed"), outcome.output


def test_a_launch_under_the_names_of_one_that_runs_is_another_run(appliance, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with ranks.Ranks(launched, 2, first, box=appliance,
                     arguments=dict(names=NAMES, ending=str(tmp_path / "end"))) as running:
        running.wait_for(0, "trains")
        with ranks.Ranks(launched, 2, second, box=appliance,
                         arguments=dict(names=NAMES, ending="", first_port=2)) as others:
            for outcome in others.finish():  # rank 0 has drawn its run id, whatever the names say
                assert outcome.status == 1 and "is in use by run" in outcome.output, (
                    outcome.output)
        (tmp_path / "end").touch()
        assert [outcome.status for outcome in running.finish()] == [0, 0]


def test_two_models_of_one_process_are_two_jobs(appliance, tmp_path):
    assert ranks.run(two_models, 2, tmp_path, box=appliance) == [[[True] * 6, [3, 3]]] * 2


def weighted(rank):
    import ddp_worker as w
    import sluice.torch
    import torch
    model = w.start(w.Model(shapes=((9,),)))
    attachment = sluice.torch.attach(model, weight=1 + 2 * rank)  # 1 and 3 samples
    model([torch.full((9,), 8.0 * rank)]).backward()
    first = model.module.p0.grad.tolist()
    attachment.weight = 4 - 4 * rank  # 4 and 0
    model.zero_grad(set_to_none=True)
    model([torch.full((9,), 8.0 * (rank + 1))]).backward()
    return first, model.module.p0.grad.tolist()


def test_weights_make_the_mean_over_samples(appliance, tmp_path):
    wanted = [[6.0] * 9, [8.0] * 9]
    assert ranks.run(weighted, 2, tmp_path, box=appliance) == [wanted] * 2


def ordinary_training(rank, detach_at):
    import sluice.torch
    import torch
    from torch import nn
    import ddp_worker as w
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                        nn.Linear(8 * 36, 10)).to(memory_format=torch.channels_last)
    model = w.start(net)
    attachment = sluice.torch.attach(model)
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(8):
        if step == detach_at:
            attachment.detach()
        images = torch.randn(4, 3, 8, 8, generator=generator)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, 8, 8))
    return [t.double().sum().item() for t in model.module.state_dict().values()]


def test_replicas_stay_equal_and_train_as_over_gloo(appliance, tmp_path):
    results = {}
    for name, options in {"sluice": {"box": appliance},
                          "gloo": {"environment": {"SLUICE_DISABLE": "1"}}}.items():
        (tmp_path / name).mkdir()
        results[name] = ranks.run(ordinary_training, 2, tmp_path / name,
                                  arguments={"detach_at": 99}, **options)
        assert results[name][0] == results[name][1], f"replicas differ over {name}"
    assert results["sluice"][0] == pytest.approx(results["gloo"][0], rel=1e-3, abs=1e-3)


def test_after_detach_the_model_goes_on_over_its_process_group(appliance, tmp_path):
    values = ranks.run(ordinary_training, 2, tmp_path, box=appliance, arguments={"detach_at": 4})
    assert values[0] == values[1]


def forward_order(rank):
    import sluice.torch
    from torch import nn
    import ddp_worker as w

    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(2, 2)
            self.first = nn.Linear(2, 2)

        def forward(self, x):
            return self.last(self.first(x)).sum()

    import torch
    model = w.start(Backwards())
    attachment = sluice.torch.attach(model)
    before = list(attachment._priorities)
    model(torch.ones(1, 2)).backward()
    return before, list(attachment._priorities)


def test_priorities_follow_the_order_of_the_first_forward(appliance, tmp_path):
    assert ranks.run(forward_order, 1, tmp_path, box=appliance) == [[[0, 1, 2, 3], [2, 3, 0, 1]]]


def test_priorities_of_many_tensors_fill_the_range():
    from sluice._torch_order import priorities_of
    table = priorities_of(range(1000), 1000)
    assert table[0] == 0 and table[-1] == 255 and table == sorted(table)
