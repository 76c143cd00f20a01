"""sluice.h in ctypes: constants, enumerations by their words, structs, functions.

Made by client/python/generate_abi.py: edit the header and run that.
"""

from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32,
                    c_size_t, c_uint32, c_uint64, c_void_p)

VERSION = "0.3.0"
STATUS = {"ok": 0, "invalid_argument": 1, "not_found": 2, "refused": 3, "unreachable": 4,
        "timed_out": 5, "peer_lost": 6, "exhausted": 7, "io_error": 8, "closed": 9, "busy": 10,
        "interrupted": 11, "forked": 12, "internal": 13, "behind": 14}
DTYPE = {"float32": 0, "float16": 1, "bfloat16": 2}
WIRE = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 4}
PRUNE_RULE = {"off": 0, "static": 1, "sampled": 2, "sigma": 3, "dynamic": 4, "dynamic_raw": 5}
MEMORY = {"host": 0, "device": 1, "pinned": 2, "pinned_zero_copy": 3, "gpudirect": 4}
AVERAGING = {"default": 0, "weight": 1, "world": 2, "sum": 3}
POLICY_KIND = {"default": -1, "sync": 0, "fixed": 1, "saina": 2, "ramp": 3, "goodput": 4}
LATE_MODE = {"drop": 0, "requeue": 1}
SCHEDULE_KIND = {"strict": 0, "credit": 1, "prophet": 2, "fifo": 3}
UPDATE = {"delta": 0, "sgd": 1, "adam": 2}
KEEP = {"keep": 0, "end": 1, "anew": 2, "take": 3}
REQUESTS = {"stalest": 0, "fifo": 1, "filo": 2}
NO_BOUND = 0xFFFFFFFF
RANK_BY_DIGITS = 0xFFFFFFFF
RANK_ANY = 0xFFFFFFFF
LOG_LEVEL = {"error": 0, "warn": 1, "info": 2, "debug": 3}
FOREVER = -1
LogFn = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
TensorDoneFn = CFUNCTYPE(None, c_void_p, c_uint32, c_int)
StallFn = CFUNCTYPE(None, c_void_p, c_char_p)
InterruptedFn = CFUNCTYPE(c_int, c_void_p)


class PolicyOptions(Structure):
    _fields_ = [("kind", c_int32), ("late", c_int32), ("k", c_uint32), ("sign_threshold_permille",
        c_uint32), ("count_threshold", c_uint32), ("sign_stride", c_uint32), ("round_steps",
        c_uint32), ("planned_steps", c_uint32), ("max_staleness", c_uint32)]


class ScheduleOptions(Structure):
    _fields_ = [("kind", c_int32), ("unit_bytes", c_uint64), ("credit_bytes", c_uint64)]


class PruneOptions(Structure):
    _fields_ = [("rule", c_int32), ("fraction", c_double), ("sigmas", c_double), ("min_elems",
        c_uint64), ("warmup", c_uint32), ("momentum", c_double)]


class StoreOptions(Structure):
    _fields_ = [("enabled", c_int32), ("staleness_bound", c_uint32), ("update", c_int32),
        ("nesterov", c_int32), ("momentum", c_double), ("dampening", c_double), ("weight_decay",
        c_double), ("beta1", c_double), ("beta2", c_double), ("epsilon", c_double), ("adam_lerp",
        c_int32), ("keep", c_int32), ("requests", c_int32)]


class DeviceOptions(Structure):
    _fields_ = [("memory", c_int32), ("index", c_int32)]


class TimeoutOptions(Structure):
    _fields_ = [("connect_ms", c_uint32), ("join_ms", c_uint32), ("silence_ms", c_uint32),
        ("stall_report_ms", c_uint32), ("restart_ms", c_uint32)]


class CallbackOptions(Structure):
    _fields_ = [("user", c_void_p), ("log", LogFn), ("on_tensor_done", TensorDoneFn), ("on_stall",
        StallFn), ("interrupted", InterruptedFn), ("log_level", c_int32)]


class Options(Structure):
    _fields_ = [("struct_size", c_size_t), ("address", c_char_p), ("local_address", c_char_p),
        ("job_name", c_char_p), ("secret", c_char_p), ("run_id", c_uint64), ("ordinal", c_uint32),
        ("rank", c_uint32), ("world_size", c_uint32), ("mtu", c_uint32), ("chunk_bytes", c_uint32),
        ("averaging", c_int32), ("wire", c_int32), ("allow_nil", c_int32), ("reproducible",
        c_int32), ("trace_dir", c_char_p), ("policy", PolicyOptions), ("schedule", ScheduleOptions),
        ("prune", PruneOptions), ("store", StoreOptions), ("device", DeviceOptions), ("timeouts",
        TimeoutOptions), ("callbacks", CallbackOptions)]


class PolicyInfo(Structure):
    _fields_ = [("struct_size", c_size_t), ("policy", PolicyOptions), ("window_steps", c_uint32),
        ("resync_hold_ms", c_uint32), ("tolerates_stragglers", c_int32), ("averaging", c_int32)]


RANK_WORDS = 16


class Report(Structure):
    _fields_ = [("struct_size", c_size_t), ("step", c_uint32), ("k", c_uint32), ("weight",
        c_uint64), ("counted", c_int32), ("rank_words", c_uint32), ("in_every", c_uint64 * 16),
        ("in_any", c_uint64 * 16), ("first_members", c_uint32), ("first_may_count", c_uint32)]


class State(Structure):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("bytes", c_uint64), ("step",
        c_uint32)]


class Tensor(Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("elem_count", c_uint64), ("dtype",
        c_int32), ("flags", c_uint64)]


TENSOR_EXACT = 1
TENSOR_DENSE = 2
TENSOR_LAYER = 4


class Result(Structure):
    _fields_ = [("struct_size", c_size_t), ("weight", c_uint64), ("latency_ns", c_uint64), ("step",
        c_uint32), ("absent", c_int32), ("non_finite", c_int32)]


class Position(Structure):
    _fields_ = [("struct_size", c_size_t), ("next_step", c_uint32), ("behind", c_uint32),
        ("must_resync", c_int32), ("state_wanted_by", c_int32)]


class Clocks(Structure):
    _fields_ = [("struct_size", c_size_t), ("pushed", c_uint32), ("held", c_uint32), ("clock",
        c_uint32), ("laggards", c_uint32), ("parked", c_uint32), ("kept", c_int32)]


class LeftBehind(Structure):
    _fields_ = [("struct_size", c_size_t), ("elem_count", c_uint64), ("norm", c_double)]


class Stall(Structure):
    _fields_ = [("struct_size", c_size_t), ("stalled_ns", c_uint64), ("text", c_char * 4096),
        ("missing", c_uint64 * 16)]


class Part(Structure):
    _fields_ = [("struct_size", c_size_t), ("thread", c_uint32), ("level", c_uint32)]


class Counters(Structure):
    _fields_ = [("struct_size", c_size_t), ("packets_sent", c_uint64), ("packets_received",
        c_uint64), ("bytes_sent", c_uint64), ("bytes_received", c_uint64), ("retransmissions",
        c_uint64), ("probes", c_uint64), ("results_pulled", c_uint64), ("duplicate_results",
        c_uint64), ("non_finite_results", c_uint64), ("nil_contributions", c_uint64),
        ("invalid_packets", c_uint64), ("send_errors", c_uint64), ("steps_done", c_uint64),
        ("non_finite_inputs", c_uint64), ("delivered_chunks", c_uint64), ("late_chunks", c_uint64),
        ("requeued_chunks", c_uint64), ("discarded_chunks", c_uint64), ("cancelled_bytes",
        c_uint64), ("resyncs", c_uint64), ("receive_credit_packets", c_uint64), ("chunk_bytes",
        c_uint64), ("shards", c_uint64), ("segmented_packets", c_uint64), ("coalesced_packets",
        c_uint64), ("kept_chunks", c_uint64), ("suspended_ns", c_uint64),
        ("oldest_request_iterations", c_uint64), ("detours", c_uint64), ("detoured_lanes",
        c_uint64), ("receive_drops", c_uint64), ("appliance_restarts", c_uint64)]


class Submission(Structure):
    _fields_ = [("struct_size", c_size_t), ("tensor", c_uint32), ("weight", c_uint32), ("priority",
        c_uint32), ("catch_up", c_int32), ("input", c_void_p), ("output", c_void_p), ("stream",
        c_void_p)]


TURN_KIND = {"compute": 1, "catch_up": 2, "apply": 3, "save": 4, "load": 5}


class Turn(Structure):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("step", c_uint32), ("data",
        c_void_p), ("bytes", c_uint64)]


REDUCTION = {"sum": 0, "mean": 1}
DoneFn = CFUNCTYPE(None, c_void_p, c_uint64, c_int)


class Operation(Structure):
    _fields_ = [("struct_size", c_size_t), ("dtype", c_int32), ("wire", c_int32), ("reduction",
        c_int32), ("priority", c_uint32), ("timeout_ms", c_int32), ("done", DoneFn), ("user",
        c_void_p), ("on_device", c_int32), ("stream", c_void_p)]


FUNCTIONS = {
    "sluice_version": (c_char_p, []),
    "sluice_status_name": (c_char_p, [c_int]),
    "sluice_last_error": (c_char_p, [c_void_p]),
    "sluice_options_init": (c_int, [POINTER(Options)]),
    "sluice_policy_option_name": (c_char_p, [c_size_t]),
    "sluice_set_policy": (c_int, [POINTER(Options), POINTER(c_char_p), c_size_t,
        POINTER(c_size_t)]),
    "sluice_get_policy_text": (c_int, [POINTER(PolicyInfo), c_size_t, c_char_p, c_size_t]),
    "sluice_set_log": (c_int, [LogFn, c_void_p, c_int]),
    "sluice_join": (c_int, [POINTER(Options), POINTER(Tensor), c_size_t, POINTER(c_void_p)]),
    "sluice_submit": (c_int, [c_void_p, c_uint32, c_void_p, c_void_p, c_uint32, c_uint32]),
    "sluice_submit_device": (c_int, [c_void_p, POINTER(Submission)]),
    "sluice_submit_many": (c_int, [c_void_p, POINTER(Submission), c_size_t]),
    "sluice_describe_memory": (c_int, [c_int32, c_char_p, c_size_t]),
    "sluice_end_step": (c_int, [c_void_p]),
    "sluice_next_turn": (c_int, [c_void_p, c_int32, POINTER(Turn)]),
    "sluice_get_position": (c_int, [c_void_p, POINTER(Position)]),
    "sluice_get_policy": (c_int, [c_void_p, POINTER(PolicyInfo)]),
    "sluice_catch_up": (c_int, [c_void_p, c_uint32, c_void_p]),
    "sluice_get_report": (c_int, [c_void_p, c_uint32, POINTER(Report)]),
    "sluice_resync": (c_int, [c_void_p, c_int32, POINTER(State)]),
    "sluice_send_state": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32]),
    "sluice_initialise": (c_int, [c_void_p, c_uint32, POINTER(c_void_p), c_size_t]),
    "sluice_push": (c_int, [c_void_p, c_uint32, POINTER(c_void_p), c_size_t, c_double]),
    "sluice_pull": (c_int, [c_void_p, c_uint32, POINTER(c_void_p), c_size_t]),
    "sluice_wait_push": (c_int, [c_void_p, c_uint32, c_int32]),
    "sluice_wait_pull": (c_int, [c_void_p, c_uint32, c_int32]),
    "sluice_get_clocks": (c_int, [c_void_p, c_uint32, POINTER(Clocks)]),
    "sluice_operation_init": (c_int, [POINTER(Operation)]),
    "sluice_join_operations": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "sluice_get_rank": (c_int, [c_void_p, POINTER(c_uint32)]),
    "sluice_make_group": (c_int, [c_void_p, c_char_p, POINTER(c_uint32), c_size_t,
        POINTER(c_void_p)]),
    "sluice_leave_group": (c_int, [c_void_p]),
    "sluice_abort_group": (c_int, [c_void_p]),
    "sluice_all_reduce": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, POINTER(Operation),
        POINTER(c_uint64)]),
    "sluice_reduce": (c_int, [c_void_p, c_uint32, c_void_p, c_void_p, c_uint64, POINTER(Operation),
        POINTER(c_uint64)]),
    "sluice_reduce_scatter": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, POINTER(Operation),
        POINTER(c_uint64)]),
    "sluice_all_gather": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, POINTER(Operation),
        POINTER(c_uint64)]),
    "sluice_group_broadcast": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64, POINTER(Operation),
        POINTER(c_uint64)]),
    "sluice_group_barrier": (c_int, [c_void_p, POINTER(Operation), POINTER(c_uint64)]),
    "sluice_wait": (c_int, [c_void_p, c_uint64, c_int32, POINTER(c_int32)]),
    "sluice_test": (c_int, [c_void_p, c_uint64, POINTER(c_int32)]),
    "sluice_cancel": (c_int, [c_void_p, c_uint64]),
    "sluice_wait_tensor": (c_int, [c_void_p, c_uint32, c_int32, POINTER(Result)]),
    "sluice_wait_tensors": (c_int, [c_void_p, POINTER(c_uint32), c_size_t, c_size_t, c_int32,
        POINTER(c_size_t)]),
    "sluice_wait_step": (c_int, [c_void_p, c_int32, POINTER(c_uint32)]),
    "sluice_set_averaging": (c_int, [c_void_p, c_uint32, c_int32]),
    "sluice_get_residual": (c_int, [c_void_p, c_uint32, c_void_p]),
    "sluice_set_residual": (c_int, [c_void_p, c_uint32, c_void_p]),
    "sluice_get_pruning": (c_int, [c_void_p, c_uint32, POINTER(c_uint64)]),
    "sluice_set_pruning": (c_int, [c_void_p, c_uint32, c_uint64]),
    "sluice_scale_residuals": (c_int, [c_void_p, c_double]),
    "sluice_flush_residuals": (c_int, [c_void_p]),
    "sluice_get_left_behind": (c_int, [c_void_p, POINTER(LeftBehind)]),
    "sluice_mark_applied": (c_int, [c_void_p, c_uint32]),
    "sluice_broadcast": (c_int, [c_void_p, c_uint32, c_void_p, c_size_t, c_int32]),
    "sluice_barrier": (c_int, [c_void_p, c_int32]),
    "sluice_get_status": (c_int, [c_void_p]),
    "sluice_leave": (c_int, [c_void_p]),
    "sluice_finish": (c_int, [c_void_p]),
    "sluice_abort": (c_int, [c_void_p]),
    "sluice_abort_with": (c_int, [c_void_p, c_char_p]),
    "sluice_close": (c_int, [c_void_p]),
    "sluice_get_counters": (c_int, [c_void_p, POINTER(Counters)]),
    "sluice_get_part_counters": (c_int, [c_void_p, c_uint32, POINTER(Part), POINTER(Counters)]),
    "sluice_counter_name": (c_char_p, [c_size_t]),
    "sluice_counter_help": (c_char_p, [c_size_t]),
    "sluice_get_stall": (c_int, [c_void_p, POINTER(Stall)]),
    "sluice_get_schedule_plan": (c_int, [c_void_p, c_char_p, c_size_t]),
}
