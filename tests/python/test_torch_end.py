"""How the ranks of a solo_group() come to the same end."""

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
    import logging
    import ddp_worker as w
    import torch
    texts = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    logging.getLogger("sluice").addHandler(handler)
    net = torch.nn.Linear(3, 2)
    model, _, loop = w.start_solo(net, policy="fixed", k=2, scheduled=False)
    for step in loop.steps(20):
        model(torch.ones(1, 3)).sum().backward()
        if step == 3:
            break
    loop.finish()
    return [text for text in texts if "left steps" in text]


def test_a_loop_that_is_left_before_its_total_says_what_to_call(appliance, tmp_path):
    for rank, texts in enumerate(ranks.run(leaves_early, 2, tmp_path, box=appliance)):
        assert len(texts) == 1 and texts[0].startswith(f"rank {rank} left steps(20) in step 3: ")
        assert "finish()" in texts[0]
