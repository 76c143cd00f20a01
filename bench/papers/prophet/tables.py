"""From records to the tables of the page and the figures of the RESULT line. Pure.

`records`: by simulation.key. Times are ms per iteration. A ratio is a policy's time over strict's:
above 1, strict is faster.
"""
from papers import paper
from papers.paper import markdown

from . import fluid, settings, simulation

BEST_CREDIT = "credit, best of sweep"
SIDE_POLICIES = (settings.FIFO, settings.STOP_AND_WAIT, settings.STOP_AND_WAIT_TENSOR,
                 settings.DEFAULT_CREDIT, settings.PROPHET, settings.STRICT)


class Results:
    def __init__(self, records):
        self._records = records

    def entry(self, setting, policy, variant=simulation.MAIN.name):
        name = policy if isinstance(policy, str) else policy.name
        return self._records.get(simulation.key(variant, setting, name))

    def ms(self, setting, policy, variant=simulation.MAIN.name):
        """None: no such run."""
        entry = self.entry(setting, policy, variant)
        return None if entry is None else entry["iteration_ms"]

    def best_credit(self, setting):
        """(policy, ms) of the sweep's fastest in this setting; None without runs."""
        times = [(self.ms(setting, policy), policy) for policy in settings.CREDITS]
        times = [pair for pair in times if pair[0] is not None]
        if not times:
            return None
        best_ms = min(ms for ms, _ in times)
        return next((policy, ms) for ms, policy in times if ms == best_ms)

    def against_strict(self, setting, policy, variant=simulation.MAIN.name):
        """The policy's time over strict's; `policy` may be BEST_CREDIT. None: no such run."""
        strict_ms = self.ms(setting, settings.STRICT, variant)
        if policy == BEST_CREDIT:
            best = self.best_credit(setting)
            ms = None if best is None else best[1]
        else:
            ms = self.ms(setting, policy, variant)
        return None if ms is None or strict_ms is None else ms / strict_ms


def predicted_ms(setting, policy, ready_steps=settings.READY_STEPS):
    return 1e3 * fluid.iteration_s(policy, settings.tensors(setting.model, ready_steps),
                                   setting.rate_gbps, setting.latency_ms)


def number(value, digits=1):
    return paper.number(value, digits, without="")


def _pair(measured_ms, predicted):
    return "" if measured_ms is None else f"{measured_ms:.1f} ({predicted:.1f})"


def published_table(results):
    """The one setting with published figures: theirs, the fluid model, ours."""
    setting = settings.Setting("resnet50", 3, 1.0)
    inferred = settings.Policy("", "credit", fluid.INFERRED_UNIT_BYTES, fluid.INFERRED_UNIT_BYTES)
    rows = []
    for name, model, ours in (
            ("FIFO", settings.FIFO, settings.FIFO),
            ("stop-and-wait priority, slices of 160 kB", settings.STOP_AND_WAIT,
             settings.STOP_AND_WAIT),
            ("Prophet", settings.PROPHET, settings.PROPHET),
            ("ByteScheduler: ours with its default sizes, 4/16 MB", inferred,
             settings.DEFAULT_CREDIT),
            ("per-packet strict priority", settings.STRICT, settings.STRICT)):
        published = fluid.PUBLISHED_MS[
            "credit" if ours is settings.DEFAULT_CREDIT else ours.name]
        rows.append([name, str(published), number(predicted_ms(setting, model)),
                     number(results.ms(setting, ours))])
    return markdown(["ms per iteration", "published (fluid)", "fluid model, rebuilt",
                     "packets, production scheduler"], rows)


def time_table(results, model):
    headers = ["link, latency", "bytes / rate", "fifo", "stop-and-wait 160 kB",
               "stop-and-wait tensors", "credit 4/16 MB", "credit, best", "prophet", "strict"]
    rows = []
    for setting in settings.SETTINGS:
        best = results.best_credit(setting)
        if setting.model != model or best is None:
            continue
        name = f"{setting.rate_gbps:g} Gb/s, {setting.latency_ms:g} ms"
        rows.append([f"**{name}**" if setting.network_bound else name,
                     number(1e3 * setting.communication_s)] +
                    [_pair(results.ms(setting, policy), predicted_ms(setting, policy))
                     for policy in SIDE_POLICIES[:4]] +
                    [f"{best[1]:.1f} ({best[0].name.removeprefix('credit ')})"] +
                    [_pair(results.ms(setting, policy), predicted_ms(setting, policy))
                     for policy in SIDE_POLICIES[4:]])
    return markdown(headers, rows)


def ratio_table(results):
    """Everything against strict, and Prophet's own claim: priority schedulers against prophet."""
    policies = (settings.FIFO, settings.STOP_AND_WAIT, settings.STOP_AND_WAIT_TENSOR,
                settings.DEFAULT_CREDIT, BEST_CREDIT, settings.PROPHET)
    rows = []
    for setting in settings.SETTINGS:
        prophet = results.against_strict(setting, settings.PROPHET)
        if prophet is None:
            continue
        ratios = {policy: results.against_strict(setting, policy) for policy in policies}
        name = str(setting)
        rows.append([f"**{name}**" if setting.network_bound else name] +
                    [number(ratios[policy], 3) for policy in policies] +
                    [number(ratios[policy] / prophet, 2) for policy in policies[1:4]])
    return markdown(["setting", "fifo", "stop-and-wait 160 kB", "stop-and-wait tensors",
                     "credit 4/16 MB", "credit, best", "prophet",
                     "stop-and-wait 160 kB / prophet", "stop-and-wait tensors / prophet",
                     "credit 4/16 MB / prophet"], rows)


def variant_table(results, variants, policies=SIDE_POLICIES):
    """Side runs: ms of every policy, one row a setting and variant."""
    rows = []
    for setting in settings.SETTINGS:
        for variant in variants:
            strict_ms = results.ms(setting, settings.STRICT, variant.name)
            if strict_ms is None:
                continue
            rows.append([str(setting), variant.name] + [
                f"{results.ms(setting, policy, variant.name):.1f} "
                f"({results.against_strict(setting, policy, variant.name):.3f})"
                for policy in policies])
    return markdown(["setting", "variant"] + [policy.name for policy in policies], rows)


def session_table(results, settings_run, policies):
    """The whole production session in the simulator beside the light replay."""
    rows = []
    for setting in settings_run:
        for policy in policies:
            whole = results.entry(setting, policy, simulation.SESSION.name)
            light_ms = results.ms(setting, settings.FIFO if policy.equal_priorities else policy)
            if whole is None or light_ms is None:
                continue
            ms = whole["iteration_ms"]
            rows.append([str(setting), policy.name, number(light_ms), number(ms),
                         f"{whole['least_ms']:.1f} .. {whole['most_ms']:.1f}",
                         f"{100 * (ms / light_ms - 1):+.1f} %"])
    return markdown(["setting", "policy", "light replay", "whole session", "least .. most",
                     "difference"], rows)


def lab_table(results):
    """Real ranks beside the replay of the same setting; "" before there were any."""
    rows = []
    for setting in settings.SETTINGS:
        for name, policy in (("fifo", settings.FIFO), ("credit", settings.DEFAULT_CREDIT),
                             ("prophet", settings.PROPHET), ("strict", settings.STRICT)):
            entry = results.entry(setting, name, "lab")
            if entry is None:
                continue
            strict_ms = results.ms(setting, "strict", "lab")
            rows.append([f"{setting.model}, {setting.rate_gbps:g} Gb/s / {settings.LAB_SCALE}",
                         name,
                         f"{entry['iteration_ms']:.0f} [{entry['least_ms']:.0f} .. "
                         f"{entry['most_ms']:.0f}]",
                         f"{entry['iteration_ms'] / strict_ms:.3f}",
                         number(results.against_strict(setting, policy), 3),
                         str(entry["retransmissions"]), f"{entry['busy_percent']} %"])
    headers = ["setting", "schedule", "ms, median [least .. most]", "over strict's",
               "the same in the replay, 1 ms", "retransmissions", "cores busy"]
    return markdown(headers, rows) if rows else ""


def figures(results):
    """What the RESULT line says: least ratio over the network-bound settings. None: no runs."""
    def least(policy):
        ratios = [results.against_strict(setting, policy) for setting in settings.SETTINGS
                  if setting.network_bound]
        return None if None in ratios else min(ratios)
    # Four places: where the link is busy all the time, the schedules differ by less than a percent.
    return {name: None if ratio is None else f"{ratio:.4f}" for name, ratio in (
        ("strict_vs_prophet_min", least(settings.PROPHET)),
        ("strict_vs_credit_min", least(BEST_CREDIT)))}
