"""The C++ workers and appliance (group.cc) as a Python object: one step is one call."""
import ctypes

import numpy as np

import report

RULES = {"off": 0, "static": 1, "sampled": 2, "sigma": 3, "dynamic": 4, "dynamic_raw": 5}
LIBRARY = "bench/papers/prune/libbench_prune_group.so"


class _Options(ctypes.Structure):
    _fields_ = [("workers", ctypes.c_uint32), ("rule", ctypes.c_uint32),
                ("warmup_steps", ctypes.c_uint32), ("feedback", ctypes.c_uint32),
                ("fraction", ctypes.c_double), ("sigmas", ctypes.c_double)]


class _Tensor(ctypes.Structure):
    _fields_ = [("elem_count", ctypes.c_uint64), ("dense", ctypes.c_uint64)]


class Step(ctypes.Structure):
    """What a step took; see group.cc."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "up_bytes", "down_bytes", "left", "threshold_ns", "pack_ns")]


class Group:
    """`tensors`: (elements, stays dense) of each; gradients are float32 rows, one a worker."""

    def __init__(self, workers, tensors, rule):
        self._library = ctypes.CDLL(report.program(LIBRARY))
        self._library.prune_group_new.restype = ctypes.c_void_p
        self._library.prune_group_pruned_elems.restype = ctypes.c_uint64
        options = _Options(workers, RULES[rule.name], rule.warmup_steps, rule.feedback,
                           rule.fraction, rule.sigmas)
        rows = (_Tensor * len(tensors))(*((count, dense) for count, dense in tensors))
        self._self = ctypes.c_void_p(
            self._library.prune_group_new(ctypes.byref(options), rows, len(tensors)))
        self._shape = (workers, sum(count for count, _dense in tensors))
        self.pruned_elems = self._library.prune_group_pruned_elems(self._self)

    def step(self, gradients):
        """(the mean of what was delivered, a Step)."""
        gradients = np.ascontiguousarray(gradients, dtype=np.float32)
        assert gradients.shape == self._shape
        mean, done = np.empty(self._shape[1], dtype=np.float32), Step()
        self._library.prune_group_step(self._self, ctypes.c_void_p(gradients.ctypes.data),
                                       ctypes.c_void_p(mean.ctypes.data), ctypes.byref(done))
        return mean, done

    def close(self):
        self._library.prune_group_free(self._self)
        self._self = None
