"""The errors that a training engineer reads, and how soon they come."""

import signal
import time

import pytest
import ranks
from tiers import within

torch = pytest.importorskip("torch")


def attach_to_nobody(rank):
    import time
    import ddp_worker as w
    import sluice.torch
    model = w.start()
    start = time.monotonic()
    text = w.error_of(sluice.Unreachable, sluice.torch.attach, model, "udp://127.0.0.1:9",
                      job="lonely")
    return time.monotonic() - start, text


@pytest.mark.usefixtures("library")
def test_no_appliance_is_an_error_within_five_seconds(tmp_path):
    for seconds, text in ranks.run(attach_to_nobody, 2, tmp_path):
        assert "127.0.0.1:9" in text and "lonely" in text
        within(seconds, 5)


def attach_inside(rank):
    import ddp_worker as w
    import sluice.torch
    return w.error_of(sluice.InvalidArgument, sluice.torch.attach, w.start(), "inproc://inside")


@pytest.mark.usefixtures("library")
def test_an_appliance_inside_one_process_is_refused_to_a_group_of_processes(tmp_path):
    for text in ranks.run(attach_inside, 2, tmp_path):
        assert "the process group says that there are 2 processes, which cannot reach it" in text


def attach_with_wrong_secret(rank):
    import ddp_worker as w
    import sluice.torch
    return w.error_of(sluice.Refused, sluice.torch.attach, w.start(), secret="wrong")


def test_a_wrong_secret_is_refused(appliance, tmp_path):
    assert "secret" in ranks.run(attach_with_wrong_secret, 1, tmp_path, box=appliance)[0]


def forgets_to_attach(rank):
    import ddp_worker as w
    import sluice.torch
    model = w.start()
    if rank == 0:
        sluice.torch.attach(model, "udp://127.0.0.1:9", join_timeout=1.0)
    model(w.gradients_of(rank, 1)).backward()


@pytest.mark.usefixtures("library")
def test_a_rank_that_forgot_to_attach_keeps_no_other_from_ending(tmp_path):
    with ranks.Ranks(forgets_to_attach, 2, tmp_path) as group:
        outcomes = group.finish(timeout_s=300)
    assert [outcome.status for outcome in outcomes] == [1, 1]
    assert "did not all call attach() within 1 s" in outcomes[0].output


def bad_models(rank):
    import copy
    import pickle
    import ddp_worker as w
    import sluice.torch
    import torch
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def refusal(*arguments, **options):
        return w.error_of(sluice.InvalidArgument, sluice.torch.attach, *arguments, **options)

    alone = dict(rank=0, world_size=1)
    double = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    embedding = nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 2))
    texts = [refusal(model, "inproc://unused")
             for model in (nn.Linear(2, 2), w.start(double), w.start(embedding))]
    good = w.start(nn.Linear(2, 2))
    sluice.torch.attach(good, "inproc://once", **alone)
    texts.append(refusal(good, "inproc://once", **alone))
    for copied in (pickle.loads(pickle.dumps(good)), copy.deepcopy(good)):
        copied(torch.ones(1, 2)).sum().backward()  # by DDP's own all-reduce, and can be attached
    texts.append(refusal(copied, "inproc://copy", weight=-1, **alone))
    texts.append(refusal(copied, "inproc://copy", join_timeout="5"))
    sluice.torch.attach(copied, "inproc://copy", **alone)
    hooked = w.start(nn.Linear(2, 2))
    hooked.register_comm_hook(None, allreduce_hook)
    texts.append(refusal(hooked, "inproc://hooked", **alone))

    def joined():
        with good.join():
            good(torch.ones(1, 2))
    return [*texts, w.error_of(sluice.InvalidArgument, joined)]


@pytest.mark.usefixtures("library")
def test_models_that_cannot_be_attached_are_refused_by_parameter(tmp_path):
    texts = ranks.run(bad_models, 1, tmp_path)[0]
    plain, double, sparse, twice, weight, timeout, hooked, join = texts
    assert "DistributedDataParallel" in plain and "Linear" in plain
    assert "'1.weight' has type float64" in double
    assert "'0.weight' has sparse gradients" in sparse
    assert "attached already" in twice
    assert "weight=-1: must be a whole number" in weight
    assert "join_timeout='5': must be seconds" in timeout
    assert "this model has one" in hooked and "anew" in hooked
    assert "join()" in join and "drop_last" in join


def test_parameters_elsewhere_and_in_several_places_are_named():
    from types import SimpleNamespace

    import sluice
    from sluice.torch import device_of

    def at(place):
        return SimpleNamespace(device=torch.device(place))
    assert device_of([("a", at("cpu")), ("b", at("cpu"))]) is None
    assert device_of([("a", at("cuda:1")), ("b", at("cuda:1"))]).index == 1
    with pytest.raises(sluice.InvalidArgument, match="'bias' is on meta.*CUDA"):
        device_of([("bias", at("meta"))])
    with pytest.raises(sluice.InvalidArgument, match="'a' is on cuda:0 and 'c' on cuda:1"):
        device_of([("a", at("cuda:0")), ("b", at("cuda:0")), ("c", at("cuda:1"))])


def trains_until_a_peer_is_lost(rank):
    import time
    import ddp_worker as w
    import sluice.torch
    model = w.start()
    sluice.torch.attach(model)
    for step in range(1, 1000000):
        if step == 5:
            print("step 5", flush=True)
        try:
            model.zero_grad()
            if rank == 1:
                time.sleep(0.1)
            model(w.gradients_of(rank, step)).backward()
        except sluice.PeerLost as error:
            when = time.time()
            try:
                model(w.gradients_of(rank, step))
            except sluice.PeerLost as again:
                return when, str(error), str(again)
    return None


def test_a_killed_rank_is_named_to_the_others_within_five_seconds(appliance, tmp_path):
    with ranks.Ranks(trains_until_a_peer_is_lost, 3, tmp_path, box=appliance) as running:
        for rank in range(3):
            running.wait_for(rank, "step 5")
        killed = time.time()
        running.children[2].send(signal.SIGKILL)
        outcomes = running.finish(timeout_s=300)
    assert outcomes[2].status == -signal.SIGKILL
    for outcome in outcomes[:2]:
        assert outcome.status == 0, outcome.output
        when, text, again = outcome.value
        assert "rank 2" in text and again == text
        within(when - killed, 5)


def one_rank_raises(rank):
    import ddp_worker as w
    import sluice.torch
    model = w.start()
    sluice.torch.attach(model)

    def train():
        for step in (1, 2, 3):  # DDP rebuilds its buckets over the process group at the second
            if (rank, step) == (1, 3):
                raise ValueError("no such file: shard 17")
            model(w.gradients_of(rank, step)).backward()
    # Rank 0 may hear of it before it has the result of step 2.
    return w.error_of(sluice.PeerLost, train)


def test_a_rank_that_ends_with_an_exception_fails_the_others_with_its_name(appliance, tmp_path):
    with ranks.Ranks(one_rank_raises, 2, tmp_path, box=appliance) as running:
        outcomes = running.finish(timeout_s=300)
    assert outcomes[1].status == 1 and "shard 17" in outcomes[1].output
    assert outcomes[0].status == 0, outcomes[0].output
    assert "rank 1" in outcomes[0].value


def static_graph_loses_a_peer(rank):
    import ddp_worker as w
    import sluice.torch
    model = w.start(static_graph=True)
    attachment = sluice.torch.attach(model)
    loss = model(w.gradients_of(rank, 1))
    attachment.job.barrier()
    if rank == 1:
        attachment.job.abort()
        return None
    return (w.error_of(RuntimeError, loss.backward),
            w.error_of(sluice.PeerLost, model, w.gradients_of(rank, 1)))


def test_a_peer_lost_in_the_first_backward_of_a_static_graph_is_named(appliance, tmp_path):
    first, second = ranks.run(static_graph_loses_a_peer, 2, tmp_path, box=appliance)[0]
    assert "PeerLost" in first and "rank 1" in first
    assert "rank 1" in second


def waits_for_ever(rank):
    import time
    import ddp_worker as w
    import sluice.torch
    model = w.start()
    sluice.torch.attach(model)
    print("attached", flush=True)
    if rank == 1:
        time.sleep(600)  # it is killed before
        return None
    try:
        model(w.gradients_of(rank, 1)).backward()
    except KeyboardInterrupt:
        return time.time()
    return None


def test_ctrl_c_ends_a_backward_that_waits_for_another_rank(appliance, tmp_path):
    with ranks.Ranks(waits_for_ever, 2, tmp_path, box=appliance) as running:
        running.wait_for(0, "attached")
        running.wait_for(1, "attached")
        pressed = running.interrupt(0)
        running.children[1].send(signal.SIGKILL)
        outcomes = running.finish(timeout_s=300)
    assert outcomes[0].status == 0, outcomes[0].output
    within(outcomes[0].value - pressed, 1)


def unfreezes(rank, solo, added):
    import ddp_worker as w
    import sluice.torch
    import torch
    from torch import nn
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    net[0].requires_grad_(False)
    if solo:
        model, attachment, loop = w.start_solo(net, optimizer="sgd")
        steps = loop.steps(4)
    else:
        model = w.start(net)
        sluice.torch.attach(model)
        steps = range(1, 5)
    for step in steps:
        if step == 3:
            if added:
                net[1].register_parameter("extra", nn.Parameter(torch.ones(2)))
            else:
                net[0].requires_grad_(True)
        try:
            loss = model(torch.full((1, 4), float(rank + step))).sum()
        except sluice.InvalidArgument as error:
            return step, str(error)
        loss.backward()
    return 0, "nobody noticed"


@pytest.mark.parametrize("solo", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_a_parameter_that_came_or_was_unfrozen_after_attach_is_named_at_the_next_step(
        appliance, tmp_path, solo, added):
    arguments = dict(solo=solo, added=added)
    for step, text in ranks.run(unfreezes, 2, tmp_path, box=appliance, arguments=arguments):
        assert step == 3, text
        if added:
            assert "'1.extra' needs a gradient" in text, text
        else:
            assert "'0.weight' and 1 more need a gradient" in text, text
        assert "attach()" in text and "requires_grad_(False)" in text
