"""Steps of the fastest k under PyTorch: all replicas end bit-identical, whatever steps a rank
misses."""

import signal
import time

import pytest
import ranks

torch = pytest.importorskip("torch")

WINDOW = 4


def one_sleeps(rank, late, optimizer, total):
    import ddp_worker as w
    # About two steps late: further behind than the window, nothing would be left to requeue.
    return w.train(rank, 0.12 if rank == 3 else 0.05, total, policy="fixed", k=3, late=late,
                   optimizer=optimizer)


def check_identical(values, total):
    for rank, value in enumerate(values):
        assert value["applied"] == total, (rank, value)
        assert value["batches"] == total
    assert len({value["digest"] for value in values}) == 1, [v["digest"][:8] for v in values]


@pytest.mark.parametrize("late, optimizer", [
    ("drop", "sgd"), ("requeue", "momentum"), ("drop", "nesterov"), ("requeue", "adamw")])
def test_a_rank_that_sleeps_ends_with_the_parameters_of_those_that_never_missed_a_step(
        appliance, tmp_path, late, optimizer):
    arguments = dict(late=late, optimizer=optimizer, total=25)
    values = ranks.run(one_sleeps, 4, tmp_path, box=appliance, arguments=arguments, timeout_s=300)
    check_identical(values, 25)
    assert values[3]["missed"] + values[3]["resyncs"] > 0, values[3]
    replayed = [value["replayed"] for value in values if value["resyncs"] == 0]
    assert replayed and all(replayed), "not what the optimizer alone makes of the gradients"
    without = [m for m in values[0]["members"].values() if 3 not in m]
    assert without, "every step waited for the slow rank"
    assert values[0]["least_share"] <= 0.75
    assert values[0]["k"]["1"] == values[0]["k"]["2"] == 4, "the first two steps are k = n"
    stats = values[3]["stats"]
    assert stats["late_chunks"] > 0
    if late == "requeue":
        assert stats["requeued_chunks"] > 0
        waiting = stats["late_chunks"] - stats["requeued_chunks"] - stats["discarded_chunks"]
        assert 0 <= waiting <= 20, "more than the gradient of the last step waits to be requeued"
    else:
        assert stats["requeued_chunks"] == 0
        assert stats["late_chunks"] == stats["discarded_chunks"]


def paced(rank, seconds, **options):
    import ddp_worker as w
    return w.train(rank, seconds, **options)


def steps_done(running, rank):
    return running.output(rank).count("step ")


def wait_for_steps(running, rank, count, timeout_s=300):
    """Until the rank has computed so many steps; any of them may have been complete without it."""
    deadline = time.monotonic() + timeout_s
    while steps_done(running, rank) < count:
        assert time.monotonic() < deadline and running.children[rank].poll() is None, (
            f"rank {rank} never computed {count} steps:\n{running.output(rank)}")
        time.sleep(0.02)


def stops_itself(rank, steps, go_on, **options):
    """Rank 2, at its third step. The others take `steps` without it and wait for a file."""
    import os
    import signal
    import time

    import ddp_worker as w

    def at_step(step):
        if rank == 2 and step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        while rank != 2 and step == 3 + steps and not os.path.exists(go_on):
            time.sleep(0.02)

    return w.train(rank, 0, at_step=at_step, **options)


@pytest.mark.parametrize("steps, late", [(2, "requeue"), (2, "drop"), (3 * WINDOW, "drop")])
def test_a_frozen_rank_goes_on_with_the_others_parameters(appliance, tmp_path, steps, late):
    go_on, total = tmp_path / "go on", 4 + steps  # the rest is less than a window
    arguments = dict(steps=steps, go_on=str(go_on), total=total, policy="fixed", k=3, late=late)
    with ranks.Ranks(stops_itself, 4, tmp_path, box=appliance, arguments=arguments) as running:
        for rank in (0, 1, 3):
            running.wait_for(rank, f"step {3 + steps}.")
        running.children[2].send(signal.SIGCONT)
        go_on.touch()
        outcomes = running.finish(60)
    assert [o.status for o in outcomes] == [0] * 4, "\n".join(o.output for o in outcomes)
    values = [o.value for o in outcomes]
    check_identical(values, total)
    assert [value["resyncs"] for value in values] == [0, 0, int(steps > WINDOW), 0]
    assert steps > WINDOW or values[2]["missed"] > 0


def dies_before_it_gives_its_parameters(rank):
    import os

    import sluice
    from sluice import _torch_replica

    import ddp_worker as w
    if rank == 0:  # as by running out of memory while it starts
        _torch_replica.Replica.broadcast = lambda *_arguments, **_options: os._exit(9)
    return w.error_of(sluice.PeerLost, w.start_solo, w.net_with_statistics(), policy="fixed", k=2)


def test_a_rank_0_that_dies_while_it_starts_is_named_by_those_that_wait_in_attach(
        appliance, tmp_path):
    with ranks.Ranks(dies_before_it_gives_its_parameters, 3, tmp_path, box=appliance) as running:
        outcomes = running.finish(30)
    for outcome in outcomes[1:]:
        assert outcome.status == 0, outcome.output
        assert "first parameters" in outcome.value and "its root, rank 0" in outcome.value


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_killed_and_started_again_takes_a_peers_state(appliance, tmp_path, rank):
    until = tmp_path / "enough"
    arguments = dict(seconds=0.1, until=str(until), policy="fixed", k=3, optimizer="adamw")
    with ranks.Ranks(paced, 4, tmp_path, box=appliance, arguments=arguments) as running:
        wait_for_steps(running, 1, 6)
        running.children[rank].send(signal.SIGKILL)
        wait_for_steps(running, 1, steps_done(running, 1) + 3)
        before = steps_done(running, rank)
        running.restart(rank)
        deadline = time.monotonic() + 300
        while steps_done(running, rank) < before + 8:
            assert time.monotonic() < deadline and running.children[rank].poll() is None, (
                running.output(rank))
            time.sleep(0.05)
        # Without rank 3 no step is complete until the rank that came back has its part in it.
        running.children[3].send(signal.SIGSTOP)
        wait_for_steps(running, rank, steps_done(running, rank) + 3)
        running.children[3].send(signal.SIGCONT)
        until.touch()
        outcomes = running.finish(60)
    assert [o.status for o in outcomes] == [0] * 4, "\n".join(o.output for o in outcomes)
    values = [o.value for o in outcomes]
    assert len({value["applied"] for value in values}) == 1
    assert len({value["digest"] for value in values}) == 1
    assert values[rank]["resyncs"] >= 1
    assert any(rank in m for m in values[rank]["members"].values()), (
        "the rank that came back never contributed")


def stock_group(rank):
    import ddp_worker as w
    import sluice.torch
    return w.error_of(sluice.InvalidArgument, sluice.torch.attach, w.start(), policy="fixed", k=1)


def test_a_stock_group_is_refused_for_k_below_n_and_the_remedy_named(appliance, tmp_path):
    for text in ranks.run(stock_group, 2, tmp_path, box=appliance):
        assert "'fixed'" in text and "process_group=sluice.torch.solo_group()" in text
        assert "sluice.torch.Loop" in text


def test_a_loop_over_the_model_itself_is_refused_and_the_remedy_named():
    import sluice.torch
    import torch
    with pytest.raises(sluice.InvalidArgument, match="not a Linear.*attach\\(model\\)"):
        sluice.torch.Loop(torch.nn.Linear(1, 1), None)


def sub_group(rank):
    import torch.distributed as dist
    dist.init_process_group("gloo")
    import ddp_worker as w
    return w.train(rank, 0.0, 6, policy="fixed", k=1)


def test_a_script_with_its_own_default_group_gets_a_sub_group(appliance, tmp_path):
    check_identical(ranks.run(sub_group, 2, tmp_path, box=appliance), 6)


def unused(rank, policy):
    import time
    import ddp_worker as w
    model, attachment, loop = w.start_solo(
        w.Model(), ddp=dict(find_unused_parameters=True, bucket_cap_mb=0.001), scheduled=False,
        **policy)
    for step in loop.steps(20):
        mine = w.gradients_of(rank, step)
        mine[1] = None  # nobody uses p1
        if rank != 0:
            mine[3] = None  # p3: rank 0 only
        if rank == 1 and step > 2:
            time.sleep(0.02)
        model(mine).backward()
    net = model.module
    return dict(digest=w.digest(net, loop), untouched=net.p1.eq(0).all().item(),
                moved=net.p3.ne(0).any().item())


@pytest.mark.parametrize("policy", [{"policy": "sync"}, {"policy": "fixed", "k": 2}],
                         ids=lambda p: p["policy"])
def test_parameters_without_a_gradient_stay_equal_everywhere(appliance, tmp_path, policy):
    values = ranks.run(unused, 3, tmp_path, box=appliance, arguments={"policy": policy})
    assert len({value["digest"] for value in values}) == 1
    assert values[0]["untouched"] and values[0]["moved"]


def uneven(rank, policy):
    import ddp_worker as w
    net = w.net_with_statistics()
    model, attachment, loop = w.start_solo(net, **policy)
    import torch
    mine = 0
    for step in loop.steps():
        if mine == 4 + 3 * rank:
            break
        mine += 1
        model(torch.randn(6, 3, 8, 8)).square().mean().backward()
    loop.finish()
    loop.finish()
    return dict(digest=w.digest(net, loop), applied=loop.applied)


@pytest.mark.parametrize("policy", [{"policy": "sync"}, {"policy": "fixed", "k": 2}],
                         ids=lambda p: p["policy"])
def test_ranks_whose_data_ends_early_finish_with_the_others(appliance, tmp_path, policy):
    values = ranks.run(uneven, 3, tmp_path, box=appliance, arguments={"policy": policy})
    assert len({value["digest"] for value in values}) == 1
    assert len({value["applied"] for value in values}) == 1
    if policy["policy"] == "sync":
        assert values[0]["applied"] >= 10, "the rank with most data was not waited for"


def accumulating(rank):
    import torch
    import ddp_worker as w
    model, attachment, loop = w.start_solo(
        w.Model(), scheduled=False, optimizer="sgd", policy="sync")
    wanted = [torch.zeros(shape) for shape in w.SHAPES]
    seen = []
    for step in loop.steps(3):
        with model.no_sync():
            model(w.gradients_of(rank, 10 * step)).backward()
        model(w.gradients_of(rank, 10 * step + 1)).backward()
        means = [w.expected_mean(2, 10 * step + part) for part in range(2)]
        wanted = [x.add(sum(column), alpha=-0.05) for x, *column in zip(wanted, *means)]
        loop.update()
        seen.append(w.equal(list(model.parameters()), wanted))
    return seen


def test_steps_of_the_loop_are_those_of_the_optimizer_on_the_exact_mean(appliance, tmp_path):
    assert ranks.run(accumulating, 2, tmp_path, box=appliance) == [[True] * 3] * 2


def disabled(rank):
    import sluice.torch
    import torch
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    model = torch.nn.parallel.DistributedDataParallel(
        net, process_group=sluice.torch.solo_group())
    attachment = sluice.torch.attach(model, policy="fixed", k=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loop = sluice.torch.Loop(attachment, optimizer)
    before = net[0].weight.detach().clone()
    for _ in loop.steps(5):
        model(torch.randn(6, 4)).square().mean().backward()
    loop.finish()
    return [p.tolist() for p in net.parameters()], loop.applied, torch.equal(before, net[0].weight)


def test_a_disabled_script_with_a_loop_trains_over_gloo(tmp_path):
    values = ranks.run(disabled, 2, tmp_path, environment={"SLUICE_DISABLE": "1"})
    assert values[0] == values[1] and values[0][1:] == [5, False]


def mistakes(rank):
    import ddp_worker as w
    import sluice
    import sluice.torch
    import torch
    texts = []

    def note(function):
        texts.append(w.error_of(sluice.InvalidArgument, function))

    group = sluice.torch.solo_group()
    wrap = lambda: torch.nn.parallel.DistributedDataParallel(w.Model(), process_group=group)
    options = dict(rank=0, world_size=1)
    model = wrap()
    attachment = sluice.torch.attach(model, "inproc://mistakes", **options)
    note(lambda: model(w.gradients_of(0, 1)))  # no loop
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    class Odd(torch.optim.lr_scheduler.LambdaLR):
        def state_dict(self):
            return {"odd": object()}

    note(lambda: sluice.torch.Loop(attachment, optimizer, Odd(optimizer, lambda step: 1.0)))
    loop = sluice.torch.Loop(attachment, optimizer)
    note(lambda: sluice.torch.Loop(attachment, optimizer))
    for _ in loop.steps(1):
        model(w.gradients_of(0, 1)).backward()
        note(optimizer.step)
    note(lambda: next(loop.steps(2)))
    note(lambda: sluice.torch.attach(wrap(), "inproc://mistakes", averaging="sum", **options))
    second = wrap()
    again = sluice.torch.attach(second, "inproc://mistakes2", **options)
    loop = sluice.torch.Loop(again, torch.optim.SGD(second.parameters(), lr=1.0))

    def twice():
        for _ in loop.steps(2):
            second(w.gradients_of(0, 1)).backward()
            second(w.gradients_of(0, 1)).backward()

    note(twice)
    return texts


@pytest.mark.usefixtures("library")
def test_mistakes_are_refused_with_the_remedy(tmp_path):
    texts = ranks.run(mistakes, 1, tmp_path)[0]
    assert len(texts) == 7, texts
    no_loop, odd, second_loop, own_step, over, averaging, twice = texts
    assert "sluice.torch.Loop(attachment, optimizer)" in no_loop
    assert "state['schedulers'][0]['odd'] is a object" in odd
    assert "Loop already" in second_loop
    assert "the loop runs it" in own_step and "update=" in own_step
    assert "finished after step 1" in over
    assert "averaging='sum'" in averaging
    assert "no_sync" in twice


def totals_differ(rank, totals):
    import ddp_worker as w
    import sluice
    import torch
    net = torch.nn.Linear(3, 2)
    model, _, loop = w.start_solo(net, policy="fixed", k=2, scheduled=False)
    before = w.digest(net)
    try:
        for _step in loop.steps(totals[rank]):
            model(torch.ones(1, 3)).sum().backward()
    except sluice.InvalidArgument as error:
        return loop.applied, before == w.digest(net), str(error)
    return loop.applied, False, "nobody noticed"


@pytest.mark.parametrize("totals", [(8, 9), (8, 8, 10), (300, None)])
def test_ranks_that_plan_different_numbers_of_steps_are_told_at_the_first(
        appliance, tmp_path, totals):
    arguments = dict(totals=totals)
    found = ranks.run(totals_differ, len(totals), tmp_path, box=appliance, arguments=arguments,
                      timeout_s=300)
    for rank, (applied, untouched, text) in enumerate(found):
        assert applied == 0 and untouched, (rank, applied, text)
        assert f"steps({totals[rank]})" in text, text
    assert f"steps({totals[0]})" in found[-1][2], found
    if len(totals) == 2:
        assert f"steps({totals[1]})" in found[0][2], found
