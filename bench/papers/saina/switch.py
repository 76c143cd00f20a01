"""The C++ switch (switch.cc) as a Python object: one job, one shard, virtual time."""
import ctypes

import numpy as np

import report

KINDS = {"sync": 0, "fixed": 1, "saina": 2, "ramp": 3, "goodput": 4, "clock": 100}
LIBRARY = "bench/papers/saina/libbench_saina_switch.so"
NS_PER_US = 1000


class _Options(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in (
        "workers", "elements", "kind", "requeue", "k", "sign_threshold_permille",
        "count_threshold", "sign_stride", "round_steps", "planned_steps", "clock_steps")]


class _Result(ctypes.Structure):
    _fields_ = [("step", ctypes.c_uint32), ("k", ctypes.c_uint32), ("mask", ctypes.c_uint64),
                ("may_count", ctypes.c_uint32)]


def _load(path):
    library = ctypes.CDLL(path)
    handle, integer = ctypes.c_void_p, ctypes.c_uint32
    signatures = {
        "new": (handle, [ctypes.POINTER(_Options)]),
        "free": (None, [handle]),
        "contribute": (ctypes.c_int, [handle, integer, integer, integer, ctypes.c_int64, handle]),
        "finished": (ctypes.c_int, [handle, integer, integer, ctypes.c_int64]),
        "result": (ctypes.c_int, [handle, ctypes.POINTER(_Result), handle]),
        "open_step": (integer, [handle]),
        "k": (integer, [handle]),
        "phi": (ctypes.c_double, [handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"saina_switch_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class SwitchError(Exception):
    """The switch refused a call: a bug in the trainer."""


class Switch:
    """Times are whole microseconds of virtual time; gradients are float32 arrays."""

    def __init__(self, workers, elements, policy):
        self._library = _load(report.program(LIBRARY))
        options = _Options(
            workers=workers, elements=elements, kind=KINDS[policy["kind"]],
            requeue=policy["late"] == "requeue", k=policy.get("k", 1),
            sign_threshold_permille=policy.get("s_th_permille", 500),
            count_threshold=policy.get("c_th", 5), sign_stride=policy.get("sign_stride", 1),
            round_steps=policy.get("round_steps", 5), planned_steps=policy.get("planned_steps", 0),
            clock_steps=policy.get("clock_steps", 50))
        self.share = 1.0  # of all workers that are in the last result, as its header has it
        self._mean = np.empty(elements, dtype=np.float32)
        self._self = self._library.saina_switch_new(ctypes.byref(options))

    def close(self):
        self._library.saina_switch_free(self._self)
        self._self = None

    def contribute(self, rank, base, step, now_us, gradient):
        """Whether this gradient completed the open step."""
        answer = self._library.saina_switch_contribute(
            self._self, rank, base, step, now_us * NS_PER_US, gradient.ctypes.data)
        if answer < 0:
            raise SwitchError(f"contribution of rank {rank}, base {base}, to step {step} refused")
        return answer == 1

    def finished(self, rank, base, now_us):
        """Reports a gradient that is finished and will not be sent."""
        if self._library.saina_switch_finished(self._self, rank, base, now_us * NS_PER_US) < 0:
            raise SwitchError(f"report of rank {rank}, base {base}, refused")

    def result(self):
        """(step, k, ranks, mean) of the step that was completed last."""
        result = _Result()
        if self._library.saina_switch_result(self._self, ctypes.byref(result),
                                             self._mean.ctypes.data) < 0:
            raise SwitchError("no step is complete")
        self.share = bin(result.mask).count("1") / result.may_count
        ranks = [rank for rank in range(64) if result.mask >> rank & 1]
        return result.step, result.k, ranks, self._mean

    @property
    def open_step(self):
        return self._library.saina_switch_open_step(self._self)

    @property
    def k(self):
        return self._library.saina_switch_k(self._self)

    @property
    def phi(self):
        return self._library.saina_switch_phi(self._self)
