"""torchft's manager over sluice.torchft.ProcessGroup: a replica is killed in mid-step and returns.
The other one meanwhile waits for it or goes on without it. Of PyPI's newest: ./run test-frameworks.
"""

import pytest
import ranks
from test_torch_backend import has_backends

if not has_backends:
    pytest.skip("needs torch 2.15: ./run test-frameworks", allow_module_level=True)
pytest.importorskip("torchft")
from torchft.coordination import LighthouseServer  # noqa: E402


def replica(rank, over, how, steps, at_least, killed):
    """Trains one replica until `steps` steps are done by all; kills itself once in step 3."""
    import datetime
    import gpt
    import hashlib
    import os
    import pathlib
    import signal
    import sluice.torchft
    import torch
    import torch.distributed as dist
    import torchft
    from torchft.local_sgd import DiLoCo
    limit = datetime.timedelta(seconds=120)
    kind = sluice.torchft.ProcessGroup if over == "sluice" else torchft.ProcessGroupGloo
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(1)
    net = gpt.GPT()
    inner = gpt.adamw(net)
    manager = torchft.Manager(
        pg=kind(timeout=limit), min_replica_size=at_least, timeout=limit, quorum_timeout=limit,
        connect_timeout=limit, use_async_quorum=False, init_sync=False,
        load_state_dict=lambda state: (net.load_state_dict(state["net"]),
                                       inner.load_state_dict(state["inner"])),
        state_dict=lambda: dict(net=net.state_dict(), inner=inner.state_dict()),
        replica_id=f"replica_{rank}", rank=0, world_size=1, store_addr="localhost",
        store_port=store.port, lighthouse_addr=os.environ["LIGHTHOUSE"])
    is_first_life = not (mark := pathlib.Path(f"{os.environ['TEST_RESULT']}.lived")).exists()
    mark.touch()
    sizes = []

    def train(model, optimizer, micro):
        """One step on the data of this replica's step and micro step, however often it is run."""
        optimizer.zero_grad()
        loss = model(*next(gpt.batches(1000 * rank + 10 * manager.current_step() + micro)))
        if is_first_life and killed and rank == 1 and manager.current_step() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()

    def over_now():
        sizes.append(manager.num_participants())
        return manager.current_step() >= steps and sizes[-1] == int(os.environ["WORLD_SIZE"])

    if how == "ddp":
        model = torchft.DistributedDataParallel(manager, net)
        optimizer = torchft.Optimizer(manager, inner)
        while True:
            train(model, optimizer, 0)
            if over_now():
                break
        values = list(net.state_dict().values())
    else:
        outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        fragments = [net.wpe, *net.blocks]
        outer = [torch.optim.SGD(one.parameters(), lr=0.7, momentum=0.9, nesterov=True)
                 for one in fragments]
        with DiLoCo(manager, fragments, inner, outer, sync_every=8,
                    fragment_sync_delay=1) as diloco:
            micro = 0
            while True:
                done = manager.current_step()
                train(net, inner, micro)
                micro = micro + 1 if manager.current_step() == done else 0
                if manager.current_step() > done and over_now():
                    break
            values = [value for one in diloco._fragments
                      for value in one.original_parameters.values()]
    text = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()
    manager.shutdown(wait=False)
    return [text, sorted(set(sizes))]


def trained(folder, box, over, how, count=2, steps=6, at_least=2, killed=False):
    """What the replicas return."""
    folder.mkdir()
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=at_least, join_timeout_ms=1000)
    arguments = dict(over=over, how=how, steps=steps, at_least=at_least, killed=killed)
    with ranks.Ranks(replica, count, folder, box=box, arguments=arguments,
                     environment={"LIGHTHOUSE": lighthouse.address(),
                                  "GLOO_SOCKET_IFNAME": "lo"}) as running:
        if killed:
            running.restart(1)
        outcomes = running.finish()
    lighthouse.shutdown()
    for outcome in outcomes:
        assert outcome.status == 0, outcome.output
    return [outcome.value for outcome in outcomes]


def test_a_replica_that_is_killed_and_returns_changes_no_bit(backend_appliance, tmp_path):
    found = [trained(tmp_path / name, backend_appliance, name, "ddp", killed=name == "sluice")
             for name in ("sluice", "gloo")]
    assert len({digest for run in found for digest, _ in run}) == 1, found
    assert all(sizes == [2] for run in found for _, sizes in run), found


def test_diloco_gives_the_values_of_gloo_and_a_replica_that_returns_has_the_others(
        backend_appliance, tmp_path):
    over, gloo, killed = (
        trained(tmp_path / name, backend_appliance, name.split("-")[0], "diloco",
                killed="killed" in name) for name in ("sluice", "gloo", "sluice-killed"))
    assert len({digest for run in (over, gloo) for digest, _ in run}) == 1, (over, gloo)
    # It takes the survivor's own parameters too, so later steps are others.
    assert len({digest for digest, _ in killed}) == 1, killed


def test_two_replicas_go_on_while_a_third_is_gone(backend_appliance, tmp_path):
    found = trained(tmp_path / "killed", backend_appliance, "sluice", "ddp", count=3, steps=8,
                    killed=True)
    assert len({digest for digest, _ in found}) == 1, found
    assert all(found[rank][1] == [2, 3] for rank in (0, 2)), found


def without_a_box(rank):
    import datetime
    import gpt
    import os
    import sluice.torchft
    import torch.distributed as dist
    import torchft
    limit = datetime.timedelta(seconds=120)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    net = gpt.GPT()
    manager = torchft.Manager(
        pg=sluice.torchft.ProcessGroup(timeout=limit), min_replica_size=1, timeout=limit,
        quorum_timeout=limit, connect_timeout=limit, use_async_quorum=False, init_sync=False,
        load_state_dict=net.load_state_dict, state_dict=net.state_dict, replica_id="replica",
        rank=0, world_size=1, store_addr="localhost", store_port=store.port,
        lighthouse_addr=os.environ["LIGHTHOUSE"])
    model = torchft.DistributedDataParallel(manager, net)
    optimizer = torchft.Optimizer(manager, gpt.adamw(net))
    right = os.environ["SLUICE_ADDRESS"]
    os.environ["SLUICE_ADDRESS"] = "udp://127.0.0.1:9"
    found = []
    for batch, _ in zip(gpt.batches(1), range(3)):
        optimizer.zero_grad()
        model(*batch).backward()
        found.append(f"{type(error).__name__}: {error}" if (error := manager._pg.errored())
                     else "works")
        optimizer.step()
        found.append(manager.current_step())
        os.environ["SLUICE_ADDRESS"] = right
    manager.shutdown(wait=False)
    return found


def test_a_step_without_an_appliance_is_not_committed_and_the_next_ones_are(
        backend_appliance, tmp_path):
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000)
    (first, *rest), = ranks.run(without_a_box, 1, tmp_path, box=backend_appliance,
                                environment={"LIGHTHOUSE": lighthouse.address(),
                                             "GLOO_SOCKET_IFNAME": "lo"}, timeout_s=240)
    lighthouse.shutdown()
    assert "127.0.0.1:9" in first, first
    assert rest == [0, "works", 1, "works", 2], rest
