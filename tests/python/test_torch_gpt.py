"""The usual training script in all its variants: the same bits on all ranks, and plain DDP's bits
where a sum of two has only one order."""

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


WAITING = ("scaler", "skipped", "clipping", "all")


def test_every_option_of_a_script_trains_as_with_plain_ddp(appliance, tmp_path):
    import torch
    scales = hasattr(torch.amp, "GradScaler")
    counts = {"thawed": [3, 6], "skipped": [6 - scales]}
    values = ranks.run(three_ways, 2, tmp_path, box=appliance, timeout_s=300)
    for name, ways in values[0].items():
        for value in (*ways, *values[1][name]):
            assert value["digest"] == ways[0]["digest"], name
            assert value["counts"] == counts.get(name, [6]), name
            assert value["rates"] == ways[0]["rates"], name
        for rank in range(2):
            plain, *others = values[rank][name]
            assert all(other["losses"] == plain["losses"] for other in others), name
        overlapped, reason = ways[2]["overlapped"], ways[2]["reason"]
        if name in WAITING and scales or name in ("clipping", "all"):
            assert overlapped == 0 and "reads gradients" in reason, name
        else:  # but for an attachment's first step
            assert (overlapped, reason) == (2 if name == "thawed" else 5, None), name


def compiled_in_three_orders(rank):
    import ddp_worker as w
    import gpt
    import sluice.torch
    import torch
    options = dict(gradient_as_bucket_view=True, bucket_cap_mb=0.001)

    def blocks(net):
        for index, block in enumerate(net.blocks):
            net.blocks[index] = torch.compile(block, backend="eager")

    def wrap(way, order, net, optimizer):
        if order == "before":
            blocks(net)
        model = w.start(net, **options)
        attachment = {"plain": lambda: None, "attach": lambda: sluice.torch.attach(model),
                      "overlap": lambda: sluice.torch.overlap(model, optimizer)}[way]()
        if order == "after":
            blocks(net)
        return (torch.compile(model, backend="eager") if order == "around" else model, model,
                attachment)

    def trained(way, order, **chosen):
        torch._dynamo.reset()
        return gpt.train(lambda *made: wrap(way, order, *made), 10 + rank, steps=3, **chosen)[0]

    chosen = {"before": dict(accumulate=2, ema=True), "after": dict(scaler=True, clip=0.5),
              "around": dict(autocast=True, frozen=True)}
    return {order: [trained(way, order, **more) for way in ("plain", "attach", "overlap")]
            for order, more in chosen.items()}


def test_what_is_compiled_in_any_order_trains_as_with_plain_ddp(appliance, tmp_path):
    import torch
    if not hasattr(torch, "compiler"):
        pytest.skip(f"torch.compile needs torch 2, this is {torch.__version__}: ./run test-torch2")
    values = ranks.run(compiled_in_three_orders, 2, tmp_path, box=appliance, timeout_s=300)
    for order, ways in values[0].items():
        for value in (*ways, *values[1][order]):
            assert value["digest"] == ways[0]["digest"] and value["counts"] == [3], order
        for rank in range(2):
            assert all(way["losses"] == values[rank][order][0]["losses"]
                       for way in values[rank][order]), order
        overlapped, reason = ways[2]["overlapped"], ways[2]["reason"]
        if order == "before":
            assert (overlapped, reason) == (2, None)
        else:
            assert overlapped == 0 and "compile the blocks" in reason


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

    def resumed(attach):
        def wrap(net, optimizer):
            model = w.start(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
            return model, model, attach(model, optimizer)
        return gpt.train(wrap, 20 + rank, steps=4, state=torch.load(path))[0]
    return [resumed(way) for way in (lambda *_: None, lambda model, _: sluice.torch.attach(model),
                                     sluice.torch.overlap)]


@pytest.mark.parametrize("before, after", [(2, 3), (3, 2)])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(appliance, tmp_path, before, after):
    path = str(tmp_path / "checkpoint.pt")
    first = ranks.run(saves, before, tmp_path, box=appliance, arguments=dict(path=path))
    second = ranks.run(resumes, after, tmp_path, box=appliance, arguments=dict(path=path))
    assert len({value["digest"] for value in first}) == 1 and first[0]["counts"] == [4]
    for way in range(3):
        values = [value[way] for value in second]
        assert len({value["digest"] for value in values}) == 1
        assert all(value["counts"] == [8] for value in values)
    assert all(value[2]["overlapped"] == 3 for value in second)
    plain, *others = (value["digest"] for value in second[0])
    assert plain != first[0]["digest"]
    if after == 2:  # of three the sums depend on the order
        assert others == [plain, plain]
