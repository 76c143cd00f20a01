"""A flood of joins, noise, ARP or pings at full rate costs no member its job."""

import pytest
from floods import HOSTS, KINDS, Flood, run_job
from lab import BOX_ADDRESS, Lab, missing
from test_hostile import counters
from tiers import FULL
from workers import BUILD

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

SECONDS = 5
MEMBERS = ("host0", "host1")
LOST = ("handover", "control_members", "member_flood", "control_strangers")
REASONS = {"join": "control_strangers", "arp": "answer_budget", "echo": "answer_budget"}


def dropped(values: dict[str, float], port: str, reason: str) -> float:
    name = f'sluice_port_dropped_packets_total{{port="{port}",reason="{reason}"}}'
    return values.get(name, 0)


def throttled(values: dict[str, float], kind: str) -> float:
    """What of the flood was refused before it cost the control thread or the egress anything."""
    if kind in REASONS:
        return dropped(values, "host2", REASONS[kind])
    return values.get('sluice_packets_total{reason="bad_magic",use="malformed"}', 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_starts_and_runs_beside_a_flood_to_the_appliance(kind):
    with Lab(hosts=HOSTS) as lab:
        lab.start_appliance(BUILD)
        with Flood(lab, BUILD, kind, BOX_ADDRESS, 200) as flood:
            reports = run_job(lab, kind, SECONDS)
        for report in reports:
            assert report["exit"] == 0, report
        assert flood.sent > 20_000, flood.sent
        values = counters(lab.scrape())
        lost = [dropped(values, port, reason) for port in MEMBERS for reason in LOST]
        assert sum(lost) == 0 or not FULL, lost  # a box that is stopped has full queues
        assert throttled(values, kind) > 0, values
