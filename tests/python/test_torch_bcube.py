"""PyTorch over a BCube of four workers on loopback, who sum for each other."""

import pytest
import ranks

from sluice import bcube
from sluice.launch import free_port

pytest.importorskip("torch")


@pytest.fixture
def cube_address(library, tmp_path):
    """Of a BCube(2, 2): each worker has an address of loopback at each level."""
    port = free_port() & ~1
    bcube.write_plan(bcube.Cube(2, 2), "plain", f"udp://127.{{level}}.{{switch}}.{{host}}:{port}",
                     tmp_path / "cube")
    return f"bcube://2,2?file={tmp_path}/cube/cube.toml"


def two_ways(rank):
    """With attach() and with overlap(): a digest of parameters and optimizer after each third of
    the steps; and how many steps overlapped."""
    import hashlib
    import ddp_worker as w
    import sluice.torch
    import torch
    from sluice import _torch_state
    digests = {}
    for way in ("attach", "overlap"):
        net = w.net_with_statistics()
        model = w.start(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        if way == "attach":
            attachment = sluice.torch.attach(model)
        else:
            attachment = sluice.torch.overlap(model, optimizer)
        parts = attachment.job.part_stats()
        assert {(part["thread"], part["level"]) for part in parts} == {
            (thread, level) for thread in range(2) for level in range(2)}
        generator = torch.Generator().manual_seed(rank)
        digests[way] = []
        for step in range(1, 31):
            model(torch.randn(6, 3, 8, 8, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                state = [[p.detach() for p in net.parameters()], optimizer.state_dict()]
                digests[way].append(hashlib.sha256(_torch_state.encode(state)).hexdigest())
        overlapped = getattr(attachment, "overlapped_steps", 0)
        attachment.detach()
    return digests, overlapped


def test_overlap_over_a_bcube_trains_bit_for_bit_as_attach_and_all_replicas_are_the_same(
        cube_address, tmp_path):
    values = ranks.run(two_ways, 4, tmp_path, timeout_s=300, environment={
        "SLUICE_ADDRESS": cube_address, "SLUICE_SECRET": "cube"})
    digests, overlapped = values[0]
    assert len(set(digests["overlap"])) == 3 and digests["overlap"] == digests["attach"]
    assert overlapped == 29  # the order of the first step is not known
    assert all(value == values[0] for value in values)
