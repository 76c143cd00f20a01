"""The C++ store (store.cc) as a Python object: one store, its workers' pools, no time."""
import ctypes

import numpy as np

import report

LIBRARY = "bench/papers/request_scheduling/libbench_request_scheduling_store.so"
NO_BOUND = 2**32 - 1


class StoreError(Exception):
    """The store refused a call: a bug of the trainer."""


def _load(path):
    library = ctypes.CDLL(path)
    handle, integer, rank = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint16
    floats = ctypes.POINTER(ctypes.c_float)
    signatures = {
        "new": (handle, [rank, integer, ctypes.POINTER(integer), integer, handle]),
        "free": (None, [handle]),
        "push": (ctypes.c_int, [handle, rank, ctypes.c_double, handle]),
        "next_ready": (ctypes.c_int, [handle]),
        "read": (floats, [handle, rank]),
        "staleness": (integer, [handle, rank]),
        "parameters": (None, [handle, handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"training_store_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Store:
    """`layers`: elements of each, in forward order; `bound`: None without one; values are float32
    arrays of the whole model."""

    def __init__(self, workers, bound, layers, initial):
        self._library = _load(report.program(LIBRARY))
        self._count = sum(layers)
        elements = (ctypes.c_uint32 * len(layers))(*layers)
        initial = np.ascontiguousarray(initial, dtype=np.float32)
        self._self = self._library.training_store_new(
            workers, NO_BOUND if bound is None else bound, elements, len(layers),
            initial.ctypes.data)

    def close(self):
        self._library.training_store_free(self._self)
        self._self = None

    def push(self, rank, rate, gradient):
        """The gradient of the worker's next iteration."""
        if self._library.training_store_push(self._self, rank, rate, gradient.ctypes.data) < 0:
            raise StoreError(f"push of rank {rank} refused")

    def ready(self):
        """The workers whose next iteration may begin, each once."""
        while (rank := self._library.training_store_next_ready(self._self)) >= 0:
            yield rank

    def read(self, rank):
        """A copy of what the worker's iteration computes with."""
        values = self._library.training_store_read(self._self, rank)
        return np.ctypeslib.as_array(values, (self._count,)).copy()

    def staleness(self, rank):
        return self._library.training_store_staleness(self._self, rank)

    def parameters(self):
        values = np.empty(self._count, dtype=np.float32)
        self._library.training_store_parameters(self._self, values.ctypes.data)
        return values
