"""The ranks of a solo_group() come to the same end."""

import pytest
import ranks

pytest.importorskip("torch")

from sluice import _torch_end  # noqa: E402 - needs torch


def test_a_total_that_is_the_others_mean_differs_from_theirs():
    for totals in ((20, 22, 21), (255, 257, 256), (10 ** 6, 10 ** 6, 10 ** 6)):
        told = []
        for total in totals:
            told.append(_torch_end.End(len(told)))
            told[-1].tell(total)
            told[-1].fill(False)
        mean = sum(end.values for end in told[:2]) / 2  # of a step with the first two
        told[2].values.copy_(mean)
        text = told[2].disagreement()
        if totals[0] == totals[1]:
            assert text is None
        else:
            assert f"steps({totals[0]}) on rank 0" in text and f"steps({totals[2]})" in text


def leaves_early(rank):
    import ddp_worker as w
    import torch
    net = torch.nn.Linear(3, 2)
    model, _, loop = w.start_solo(net, policy="fixed", k=2, scheduled=False)
    for step in loop.steps(20):
        model(torch.ones(1, 3)).sum().backward()
        if step == 3:
            break
    if rank == 1:
        loop.finish()


def test_a_rank_that_leaves_its_loop_without_finish_says_so_at_its_end(appliance, tmp_path):
    with ranks.Ranks(leaves_early, 2, tmp_path, box=appliance) as group:
        first, second = group.finish(timeout_s=300)
    assert first.status == second.status == 0
    assert "rank 0 ends, and left its Loop in step 3 without finish()" in first.output
    assert "finish()" not in second.output
