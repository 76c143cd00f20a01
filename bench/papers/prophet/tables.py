"""From records to the tables of the page and the figures of the RESULT line. Pure.

`records`: by simulation.key. Times are ms per iteration. A ratio is a policy's time over strict's:
above 1, strict is faster.
"""
import math

from papers.paper import markdown

from . import fluid, settings, simulation

BEST_CREDIT = "credit, best of sweep"
POLICIES = settings.SHOWN_POLICIES
NAMES = ("fifo", "stop-and-wait, 160 kB", "stop-and-wait, tensors", "credit, 4/16 MB", "prophet",
         "strict")
LAB_SCHEDULES = ("fifo", "credit", "prophet", "strict")
LEARNT = 0.001  # within this share of the last iteration's time
SETTLED = 0.01  # and the last one within this share of a run's that had the rate from the start


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

    def learning(self, setting, after_gbps):
        """(iterations after the change until Prophet's time stays what it is at the end, the
        longest of them over strict's time at that rate). The count is infinite where the end is
        not what a run at that rate comes to. None: no such runs."""
        entry = self.entry(setting, settings.PROPHET, simulation.change_to(after_gbps).name)
        after = settings.Setting(setting.model, after_gbps, setting.latency_ms)
        known_ms, strict_ms = (self.ms(after, policy)
                               for policy in (settings.PROPHET, settings.STRICT))
        if entry is None or known_ms is None or strict_ms is None:
            return None
        times = entry["iterations_ms"]
        if abs(times[-1] / known_ms - 1) > SETTLED:
            return math.inf, max(times) / strict_ms
        off = [place for place, ms in enumerate(times) if abs(ms / times[-1] - 1) > LEARNT]
        return off[-1] + 1 if off else 0, max(times) / strict_ms


def predicted_ms(setting, policy):
    return 1e3 * fluid.iteration_s(policy, settings.tensors(setting.model), setting.rate_gbps,
                                   setting.latency_ms)


def time_table(results):
    """A column a model, a row a policy: ms, GPU and network in percent."""
    shown = [setting for setting in settings.SETTINGS if
             (setting.rate_gbps, setting.latency_ms) ==
             (settings.SHOWN.rate_gbps, settings.SHOWN.latency_ms)]
    rows = []
    for name, policy in zip(NAMES, POLICIES):
        entries = [results.entry(setting, policy) for setting in shown]
        rows.append([name] + [f"{entry['iteration_ms']:.0f}, {entry['gpu_percent']:.0f}/"
                              f"{entry['network_percent']:.0f}" for entry in entries])
    rows.append(["prophet as published (fluid)"] +
                [f"{predicted_ms(setting, settings.PROPHET):.0f}" for setting in shown])
    return markdown([""] + [setting.model for setting in shown], rows)


def change_table(results):
    """A row a model, two columns a change."""
    changes = sorted({(setting.rate_gbps, after) for setting, after in simulation.CHANGES})
    rows = []
    for model in settings.MODELS:
        rows.append([model])
        for before_gbps, after_gbps in changes:
            count, worst = results.learning(
                settings.Setting(model, before_gbps, settings.SHOWN.latency_ms), after_gbps)
            rows[-1] += ["never" if count == math.inf else count, f"{worst:.2f}"]
    return markdown(["", *(text for before, after in changes
                           for text in (f"{before} to {after}: iterations", "longest"))], rows)


def variant_table(results):
    """In the setting that is shown, a row a variant: each policy's time over strict's, and that."""
    rows = []
    for variant in (*simulation.SIDE_VARIANTS, simulation.SESSION):
        policies = (simulation.SESSION_POLICIES if variant is simulation.SESSION
                    else settings.SIDE_POLICIES)
        rows.append([variant.name] +
                    [f"{results.against_strict(settings.SHOWN, policy, variant.name):.3f}"
                     for policy in policies[:-1]] +
                    [f"{results.ms(settings.SHOWN, settings.STRICT, variant.name):.1f}"])
    names = [NAMES[POLICIES.index(policy)] for policy in settings.SIDE_POLICIES[:-1]]
    return markdown(["", *names, "strict, ms"], rows)


def lab_table(results):
    """Real ranks; "" before there were any."""
    rows = []
    for workers in simulation.LAB_WORKERS:
        for setting in simulation.LAB_SETTINGS:
            entries = [results.entry(setting, name, simulation.lab_name(workers))
                       for name in LAB_SCHEDULES]
            if None in entries:
                continue
            strict_ms = entries[-1]["iteration_ms"]
            rows.append([f"{workers}, {setting.rate_gbps:g} Gb/s"] +
                        [f"{entry['iteration_ms'] / strict_ms:.2f}" for entry in entries[:-1]] +
                        [f"{strict_ms:.0f} [{entries[-1]['least_ms']:.0f} .. "
                         f"{entries[-1]['most_ms']:.0f}]",
                         f"{entries[-1]['gpu_percent']:.0f}/{entries[-1]['network_percent']:.0f}",
                         entries[-1]["most_waiting_packets"]])
    return markdown(["workers, rate", *LAB_SCHEDULES[:-1], "strict, ms", "GPU/network",
                     "waiting"], rows) if rows else ""


def figures(results):
    """What the RESULT line says: extremes over the network-bound settings. None: no runs."""
    bound = [setting for setting in settings.SETTINGS if setting.network_bound]

    def extreme(of, ratios):
        ratios = list(ratios)
        return None if None in ratios else of(ratios)

    def over_prophet(setting):
        ratios = [results.against_strict(setting, policy)
                  for policy in (settings.STOP_AND_WAIT_TENSOR, settings.PROPHET)]
        return None if None in ratios else ratios[0] / ratios[1]
    learnt = [results.learning(*change) for change in simulation.CHANGES]
    # Four places: where the link is busy all the time, the schedules differ by less than a percent.
    ratios = {
        "strict_vs_prophet_min": extreme(
            min, (results.against_strict(setting, settings.PROPHET) for setting in bound)),
        "strict_vs_credit_min": extreme(
            min, (results.against_strict(setting, BEST_CREDIT) for setting in bound)),
        "prophet_vs_stop_and_wait_max": extreme(
            max, map(over_prophet, [*bound, settings.SHOWN]))}
    return {**{name: None if ratio is None else f"{ratio:.4f}" for name, ratio in ratios.items()},
            "prophet_learns_in_max": extreme(
                max, (None if one is None else one[0] for one in learnt))}
