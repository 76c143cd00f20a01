"""The training script that everybody writes, in all its variants: the same bits on all ranks, and
those of plain DDP where sums of two have only one order."""

import pytest
import ranks

pytest.importorskip("torch")


def three_ways(rank):
    import ddp_worker as w
    import gpt
    import sluice.torch
    options = dict(gradient_as_bucket_view=True, bucket_cap_mb=0.001)

    def plain(net, optimizer):
        model = w.start(net, **options)
        return model, model, None

    def attached(net, optimizer):
        model = w.start(net, **options)
        return model, model, sluice.torch.attach(model)

    def overlapping(net, optimizer):
        model = w.start(net, **options)
        return model, model, sluice.torch.overlap(model, optimizer)

    return {name: [gpt.train(way, 10 + rank, **chosen)[0] for way in (plain, attached, overlapping)]
            for name, chosen in gpt.OPTIONS.items()}


WAITING = {"scaler": "unscale_", "clipping": "clip_grad_norm_", "all": "unscale_"}


def test_every_option_of_a_script_trains_as_with_plain_ddp(appliance, tmp_path):
    import torch
    values = ranks.run(three_ways, 2, tmp_path, box=appliance, timeout_s=200)
    for name, ways in values[0].items():
        for value in (*ways, *values[1][name]):
            assert value["digest"] == ways[0]["digest"], name
            assert value["counts"] == [6] and value["rates"] == ways[0]["rates"], name
        for rank in range(2):
            plain, *others = values[rank][name]
            assert all(other["losses"] == plain["losses"] for other in others), name
        overlapped, reason = ways[2]["overlapped"], ways[2]["reason"]
        if name in WAITING and hasattr(torch.amp, "GradScaler") or name in ("clipping", "all"):
            assert overlapped == 0 and "reads gradients" in reason, name
        else:
            assert (overlapped, reason) == (5, None), name


def saves(rank, path):
    import ddp_worker as w
    import gpt
    import sluice.torch
    import torch

    def wrap(net, optimizer):
        model = w.start(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
        return model, model, sluice.torch.overlap(model, optimizer)
    found, state = gpt.train(wrap, 10 + rank, steps=4)
    if rank == 0:
        torch.save(state, path)
    return found


def resumes(rank, path):
    import ddp_worker as w
    import gpt
    import sluice.torch
    import torch

    def wrap(net, optimizer):
        model = w.start(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
        return model, model, sluice.torch.overlap(model, optimizer)
    return gpt.train(wrap, 20 + rank, steps=4, state=torch.load(path))[0]


def test_a_checkpoint_goes_on_with_another_number_of_ranks(appliance, tmp_path):
    path = str(tmp_path / "checkpoint.pt")
    first = ranks.run(saves, 2, tmp_path, box=appliance, arguments=dict(path=path))
    second = ranks.run(resumes, 3, tmp_path, box=appliance, arguments=dict(path=path))
    for values, steps in ((first, [4]), (second, [8])):
        assert len({value["digest"] for value in values}) == 1
        assert all(value["counts"] == steps and value["overlapped"] == 3 for value in values)
    assert first[0]["digest"] != second[0]["digest"]
