"""PyTorch ranks train with every wire format, all awaited and the fastest three of four."""

import pytest
import wire_training
from lab import Lab, missing
from workers import BUILD

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_every_format_learns_with_all_ranks_and_with_the_fastest():
    with Lab(hosts=4) as lab:
        lab.start_appliance(BUILD)
        reports = wire_training.run(lab, BUILD, steps=60, seeds=1, formats=wire_training.FORMATS,
                                    timeout=300)
    assert wire_training.identical(reports), reports
    dense = {one["policy"]: one["accuracy"] for one in reports[0] if one["wire"] == "float32"}
    for trainings in zip(*reports):
        first = trainings[0]
        what = (first["policy"], first["wire"])
        # A seed alone may differ by some points: how good formats are is what the bench says.
        assert first["accuracy"] > max(70, dense[first["policy"]] - 10), (what, first["accuracy"])
        requeued = sum(one["requeued"] for one in trainings)
        assert (requeued > 0) == (first["policy"] == "fastest"), (what, requeued)
