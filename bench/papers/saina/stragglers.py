"""The duration of a worker's gradient: the settings, fixed before the first result.

Times are drawn for each worker from its own generator, so the n-th gradient of a worker takes the
same time under every policy of one seed. Settings without jitter get up to 1 % of it, because ties
would otherwise be won by the lowest ranks.
"""
import math

import numpy as np

SLOW_RANKS = (0, 1)
SLOW_FACTOR = 3.0
NORMAL_P99 = 2.3263478740408408  # quantile of the standard normal distribution
BLOCK = 256
US = 1e6

# name -> (what it is, whether the shards are label-skewed)
SETTINGS = {
    "jitter": ("1 + Exp(0.5)", False),
    "persistent": ("two of 16 at 3 x", False),
    "lognormal": ("lognormal, p99/p50 = 3", False),
    "none": ("none", False),
    "skewed": ("two at 3 x, label-skewed", True),
}
STALL_SHARE, STALL_FACTOR = 0.01, 10.0


def describe(setting):
    if setting in SETTINGS:
        return SETTINGS[setting][0]
    if setting == "stalls":
        return "1 % stalls of 10 x"
    return f"lognormal, p99/p50 = {setting.split(':')[1]}"


def is_skewed(setting):
    return setting in SETTINGS and SETTINGS[setting][1]


class Durations:
    """`setting` is a name of SETTINGS, "stalls", or "lognormal:RATIO" for another p99/p50."""

    def __init__(self, setting, workers, seed):
        name, _, ratio = setting.partition(":")
        self._name = name
        self._sigma = math.log(float(ratio or 3)) / NORMAL_P99
        self._random = [np.random.default_rng([seed, 3, rank]) for rank in range(workers)]
        self._drawn = [[] for _ in range(workers)]

    def _draw(self, rank):
        random = self._random[rank]
        if self._name == "jitter":
            return 1 + random.exponential(0.5, BLOCK)
        if self._name == "lognormal":
            return np.exp(self._sigma * random.standard_normal(BLOCK))
        if self._name == "stalls":
            stalled = random.random(BLOCK) < STALL_SHARE
            return np.where(stalled, STALL_FACTOR, 1.0) * (1 + 0.01 * random.random(BLOCK))
        slow = self._name in ("persistent", "skewed") and rank in SLOW_RANKS
        return (SLOW_FACTOR if slow else 1.0) * (1 + 0.01 * random.random(BLOCK))

    def next_us(self, rank):
        """Whole microseconds of the worker's next gradient."""
        if not self._drawn[rank]:
            self._drawn[rank] = [int(value * US) for value in self._draw(rank)[::-1]]
        return self._drawn[rank].pop()
