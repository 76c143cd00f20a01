"""sluice.h in ctypes: structs, constants and function types. No logic.

Every struct starts with its size; fields are in the header's order. A test compiles the header and
compares sizes and offsets.
"""

from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint32,
                    c_uint64, c_void_p, sizeof)

VERSION = "0.1.0"
FOREVER = -1

OK = 0
TIMED_OUT = 5
INTERRUPTED = 11

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
AVERAGING = {"weight": 0, "world": 1, "sum": 2}

LogFn = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
TensorDoneFn = CFUNCTYPE(None, c_void_p, c_uint32, c_int)
StallFn = CFUNCTYPE(None, c_void_p, c_char_p)
InterruptedFn = CFUNCTYPE(c_int, c_void_p)


class Options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("address", c_char_p),
        ("job_name", c_char_p),
        ("secret", c_char_p),
        ("local_address", c_char_p),
        ("run_id", c_uint64),
        ("ordinal", c_uint32),
        ("rank", c_uint32),
        ("world_size", c_uint32),
        ("mtu", c_uint32),
        ("chunk_bytes", c_uint32),
        ("averaging", c_int32),
        ("allow_nil", c_int32),
        ("connect_timeout_ms", c_uint32),
        ("join_timeout_ms", c_uint32),
        ("silence_timeout_ms", c_uint32),
        ("stall_report_ms", c_uint32),
        ("log_level", c_int32),
        ("user", c_void_p),
        ("log", LogFn),
        ("on_tensor_done", TensorDoneFn),
        ("on_stall", StallFn),
        ("interrupted", InterruptedFn),
    ]


class Tensor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("elem_count", c_uint64),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class Result(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("weight", c_uint64),
        ("latency_ns", c_uint64),
        ("step", c_uint32),
        ("absent", c_int32),
        ("non_finite", c_int32),
        ("reserved", c_int32),
    ]


STATS_FIELDS = (
    "packets_sent", "packets_received", "bytes_sent", "bytes_received", "retransmissions", "probes",
    "results_pulled", "duplicate_results", "non_finite_results", "nil_contributions",
    "invalid_packets", "send_errors", "steps_done", "receive_credit_packets", "chunk_bytes",
    "shards", "non_finite_inputs")


class Stats(Structure):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_uint64) for name in STATS_FIELDS]


_FUNCTIONS = {
    "sluice_version": (c_char_p, []),
    "sluice_status_name": (c_char_p, [c_int]),
    "sluice_last_error": (c_char_p, [c_void_p]),
    "sluice_options_init": (c_int, [POINTER(Options)]),
    "sluice_join": (c_int, [POINTER(Options), POINTER(Tensor), c_size_t, POINTER(c_void_p)]),
    "sluice_submit": (c_int, [c_void_p, c_uint32, c_void_p, c_void_p, c_uint32, c_uint32]),
    "sluice_end_step": (c_int, [c_void_p]),
    "sluice_wait_tensor": (c_int, [c_void_p, c_uint32, c_int32, POINTER(Result)]),
    "sluice_wait_step": (c_int, [c_void_p, c_int32, POINTER(c_uint32)]),
    "sluice_broadcast": (c_int, [c_void_p, c_uint32, c_void_p, c_size_t, c_int32]),
    "sluice_barrier": (c_int, [c_void_p, c_int32]),
    "sluice_job_status": (c_int, [c_void_p]),
    "sluice_leave": (c_int, [c_void_p]),
    "sluice_abort": (c_int, [c_void_p]),
    "sluice_close": (c_int, [c_void_p]),
    "sluice_stats_get": (c_int, [c_void_p, POINTER(Stats)]),
    "sluice_describe_stall": (c_int, [c_void_p, c_char_p, c_size_t]),
}


def declare(library):
    """Gives the library's functions their types. AttributeError when one is missing."""
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


def sized(struct):
    """A zeroed struct with its size filled in."""
    value = struct()
    value.struct_size = sizeof(struct)
    return value
