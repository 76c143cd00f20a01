"""DDP's buckets, known again from step to step and made anew where DDP has made others."""

import pytest

torch = pytest.importorskip("torch")

import late_job  # noqa: E402
from late_job import images, plain_net  # noqa: E402
from sluice import _torch_buckets  # noqa: E402


@pytest.fixture
def made(monkeypatch):
    """The tensor indices of each Bucket that is made, in order."""
    indices = []

    class Counted(_torch_buckets.Bucket):
        def __init__(self, buffer, own, addresses, outputs):
            super().__init__(buffer, own, addresses, outputs)
            indices.append(own)
    monkeypatch.setattr(_torch_buckets, "Bucket", Counted)
    return indices


def test_a_bucket_is_looked_into_once_and_again_when_ddp_has_rebuilt_it(monkeypatch, made):
    model, attachment = late_job.attach(monkeypatch, plain_net())
    counts = []
    for _ in range(5):
        model(images()).sum().backward()
        counts.append(len(made))
    first = made[:counts[0]]
    rebuilt = made[counts[0]:]
    assert sorted(sum(first, [])) == sorted(sum(rebuilt, [])) == list(range(8))
    assert first != rebuilt, "DDP orders buckets by the first backward"
    assert counts[1:] == [len(made)] * 4
    attachment.detach()


def test_weight_and_priority_of_a_known_bucket_can_change(monkeypatch):
    model, attachment = late_job.attach(monkeypatch, plain_net())
    seen = []
    submit_many = attachment.job.submit_many

    def recorded(submissions):
        seen.extend((one.tensor, one.weight, one.priority) for one in submissions)
        submit_many(submissions)
    attachment.job.submit_many = recorded
    for weight, priority in ((1, 7), (1, 7), (3, 7), (3, 200)):
        seen.clear()
        attachment.weight = weight
        attachment.set_priority("0.bias", priority)
        model(images()).sum().backward()
        assert {one[1] for one in seen} == {weight} and len(seen) == 8
        assert dict((tensor, p) for tensor, _, p in seen)[1] == priority
    attachment.detach()


def test_two_models_in_one_process_keep_their_buckets_apart(monkeypatch, made):
    pairs = [late_job.attach(monkeypatch, plain_net()) for _ in range(2)]
    for _ in range(3):
        for model, _ in pairs:
            model(images()).sum().backward()
            assert all(p.grad.isfinite().all() for p in model.parameters())
    count = len(made)
    for model, attachment in pairs:
        model(images()).sum().backward()
        attachment.detach()
    assert len(made) == count
