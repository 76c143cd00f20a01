"""A process's membership of a job, of whatever kind: joining, collectives, questions, leaving."""

import ctypes
import logging

from sluice import _abi, _library, _memory, _page, _settings, errors
from sluice._handle import Handle
from sluice._values import ranks_of

_log = logging.getLogger("sluice")
_PLAN_TEXT_BYTES = 1 << 20


class Member:
    """What Job and Store have in common."""

    def __init__(self, tensors, address, options, *, any_rank=False, **store):
        """Joins. `tensors`: _values.Tensor, None for a job of operations; `options`:
        sluice.Options; `any_rank`: the job, which is elastic, gives the rank; `store`: the fields
        of sluice_store_options."""
        self._library = library = _library.load()
        place = (_settings.integer("RANK", None, default=0) if any_rank else
                 _settings.rank(options.rank, address))  # in addresses and names of files
        self.rank = place
        self.world_size = _settings.world_size(options.world_size, address)
        self.address = _settings.address(address, place)
        if options.rank is None and not any_rank:
            _settings.check_inproc(self.address, self.world_size, "the environment (WORLD_SIZE)")
        self.name = _settings.job_name(options.job)
        self.label = _settings.job_label(self.name, options.ordinal)
        page = _settings.metrics()
        self.tensors = tensors
        self._stall_report_s = options.stall_report
        self._held = {}  # what must stay alive while it is in flight
        self._asked = options.struct(library, rank=self.rank, world_size=self.world_size,
                                     address=self.address.encode(), job_name=self.name.encode(),
                                     **{f"store.{name}": value for name, value in store.items()})
        self.run_id = self._asked.run_id
        on_host = self._asked.device.memory == _abi.MEMORY["host"]
        self.device = None if on_host else self._asked.device.index
        if any_rank:
            self._asked.rank = _abi.RANK_ANY
        self._handle = Handle(library, self._asked, self._structs(), self._held,
                              _settings.stats_file(self.rank))
        if any_rank:
            given = ctypes.c_uint32()
            self._handle.call("sluice_get_rank", ctypes.byref(given))
            self.rank = given.value
        _page.show(self, page)

    def _structs(self):
        if self.tensors is None:
            return None
        structs = (_abi.Tensor * len(self.tensors))()
        for struct, spec in zip(structs, self.tensors):
            struct.struct_size = ctypes.sizeof(_abi.Tensor)
            struct.name = spec.name.encode()
            struct.elem_count = spec.elem_count
            struct.dtype = _abi.DTYPE[spec.dtype]
            struct.flags = ((_abi.TENSOR_EXACT if spec.exact else 0)
                            | (_abi.TENSOR_DENSE if spec.dense else 0)
                            | (_abi.TENSOR_LAYER if spec.begins_layer else 0))
        return structs

    def _reports(self):
        """A function of the seconds waited so far that says from time to time what is missing."""
        next_report_s = self._stall_report_s

        def on_slice(waited_s):
            nonlocal next_report_s
            if waited_s < next_report_s:
                return
            still_s, text, _ = self._stall()
            next_report_s = waited_s + self._stall_report_s
            if still_s >= self._stall_report_s:
                _log.warning("rank %d: %s", self.rank, text)
            else:  # it moves; look again when it could have stood still for long enough
                next_report_s -= still_s
        return on_slice

    def _wait(self, call_for_ms, timeout):
        self._handle.wait(call_for_ms, timeout, self._reports())

    # ---- small collectives ----

    def broadcast(self, buffer, root=0, timeout=None):
        """Copies `buffer` (bytearray, NumPy array or torch tensor, any type, contiguous) from rank
        `root` to all ranks, in place. All ranks call broadcast and barrier in the same order with
        the same root and size. Blocks."""
        address, size, anchor = _memory.byte_range(buffer, "buffer")
        try:
            self._handle.collective("sluice_broadcast", root, address, size, timeout=timeout,
                                    on_slice=self._reports())
        finally:
            del anchor

    def barrier(self, timeout=None):
        """Blocks until all ranks have called it."""
        self._handle.collective("sluice_barrier", timeout=timeout,
                                on_slice=self._reports())

    # ---- state ----

    def check(self):
        """Raises the job's error when it has failed, Closed after leave(). Never blocks."""
        self._handle.call("sluice_get_status")

    def stats(self):
        """Counters since the join, as a dict; the names are those of sluice_counters."""
        return self._handle.counters()

    def part_stats(self):
        """Likewise by part of the job's traffic, as a list of dicts that have a thread and a level
        too: over bcube://n,k each thread at each level, else one."""
        return self._handle.part_counters()

    def describe_stall(self):
        """Why the current step waits: tensors, ranks, when each was last heard. '' if it does not.
        """
        return self._stall()[1]

    def schedule_plan(self):
        """What the schedule does and knows, in several lines: for 'prophet' the steps that it has
        found, when it expects each tensor, and its blocks; of a store how requests are ordered."""
        text = ctypes.create_string_buffer(_PLAN_TEXT_BYTES)
        self._handle.call("sluice_get_schedule_plan", text, len(text))
        return text.value.decode("utf-8", "replace")

    def _stall(self):
        """For how many seconds nothing has come of what the step waits for, why, in words, and the
        ranks that are missing."""
        stall = _abi.sized(_abi.Stall)
        self._handle.call("sluice_get_stall", ctypes.byref(stall))
        return (stall.stalled_ns / 1e9, stall.text.decode("utf-8", "replace"),
                ranks_of(stall.missing))

    # ---- the end ----

    def leave(self):
        """Leaves in an orderly way: all ranks have contributed to the same steps (else see
        finish()). In the middle of a step or of a collective it is abort(). Waits at most 1 s;
        submissions in flight are abandoned. Later calls raise Closed. Call close() afterwards."""
        self._handle.call("sluice_leave")

    def finish(self):
        """As leave(), where ranks are meant to end at different steps: the others go on with the
        mean of those that remain. After a mere leave() a synchronous job fails as soon as another
        rank contributes to a step that this one has not contributed to. Waits for at most the
        silence timeout and 1 s."""
        self._handle.call("sluice_finish")

    def abort(self):
        """Leaves because of an error on this side: the other ranks fail at once with this rank's
        name. Waits at most 1 s."""
        self._handle.call("sluice_abort")

    def close(self):
        """Ends the membership (orderly when nothing is in flight) and frees it; blocks at most
        about 1 s. May be called more than once; happens by itself at exit."""
        self._handle.close()
        self._held.clear()

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _traceback):
        if kind is not None and not self._handle.closed:
            try:
                self.abort()
            except errors.Error:
                pass  # it has failed already
        self.close()

    def __repr__(self):
        return (f"<sluice.{type(self).__name__} '{self.name}' rank {self.rank} of "
                f"{self.world_size} at {self.address}>")
