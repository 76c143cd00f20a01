"""Four processes call operations of every kind and check every element; who is late, differs or
aborts is named."""

import pytest
from lab import Lab, missing
from workers import BUILD

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

WORKER = BUILD / "tests" / "e2e" / "e2e_operations_worker"
COUNTS = ["0", "1", "7", "1000", "100003"]


@pytest.mark.parametrize("loss", [0.0, 0.01])
@pytest.mark.parametrize("shards", [1, 2])
def test_operations_of_every_kind(loss, shards):
    fault = {"rx_drop": loss, "tx_drop": loss, "duplicate": 0.01, "reorder": 0.01, "seed": 5}
    with Lab(hosts=4) as lab:
        config = lab.config(fault=fault if loss else None)
        lab.start_appliance(BUILD, config.replace("[appliance]", f"[appliance]\nshards = {shards}"))
        processes = [
            lab.popen(host, [str(WORKER), lab.url, str(host), "4", *COUNTS], text=True)
            for host in range(4)
        ]
        codes = [process.wait(timeout=300) for process in processes]
        assert codes == [0, 0, 0, 0]
