"""The part of `Job` for jobs in which a step can be complete without this rank."""

import ctypes

from sluice import _abi, _memory
from sluice._values import State, StepReport, Turn, copied, ranks_of


class Stragglers:
    """What a rank does that may be late. A part of Job, which has the handle and the tensors."""

    def next_turn(self, timeout=None):
        """What this rank has to do next, as a Turn, in a job in which steps can be complete without
        it. So all replicas apply every step once and in order:

            compute   submit() every tensor for `step`; Behind may be ignored: the next turn knows
            catch_up  catch_up() every tensor: this rank computes no gradient for `step`
            apply     the outputs of all tensors hold the averages of `step`
            save      a rank wants this replica, in which `step` was applied last: send_state()
            load      replace this replica by another rank's, `data`, after `step`

        Blocks while a submitted step is not complete or a state not here. Use from one thread.
        Raises TimedOut after `timeout` seconds, InvalidArgument when a step that was given out
        was not submitted in full, and the errors of wait_step() and resync() but for Behind."""
        turn = _abi.sized(_abi.Turn)
        self._wait(lambda ms: ("sluice_next_turn", ms, ctypes.byref(turn)), timeout)
        kind = _abi.word(_abi.TURN_KIND, turn.kind)
        if kind in ("apply", "load"):  # nothing is in flight
            self._held.clear()
        return Turn(kind, turn.step, copied(turn) if kind == "load" else None)

    def behind(self):
        """How many steps this rank has to catch up with before it computes its next gradient:
        finished steps that it has not applied, and one more when a late gradient of its own goes
        into the open step. 0 in a synchronous job. Exact when no submission is in flight, as far
        as packets have told. Never blocks."""
        return self._position().behind

    def catch_up(self, tensor, output):
        """As submit() for the tensor's next step without a gradient of this rank: `output` (array,
        torch tensor or address) receives the step's average. Returns at once; wait as usual.

        To be called for every tensor of a step. Raises InvalidArgument in a synchronous job, where
        it would stop all others; Behind when this rank must resync; else as submit()."""
        index = self._index(tensor)
        spec = self.tensors[index]
        address = _memory.element_pointer(output, spec.elem_count, spec.dtype,
                                          f"output of tensor '{spec.name}'", writable=True,
                                          device=self.device)
        self.catch_up_address(index, address, _memory.stream_of(f"tensor '{spec.name}'", output))
        self._held[index] = output

    def catch_up_address(self, index, output_address, stream=None):
        """catch_up() without checks and without keeping anything alive, as submit_address()."""
        if stream is None:
            self._handle.call("sluice_catch_up", index, output_address)
        else:
            self._submit_device(index, None, output_address, 0, 0, stream, catch_up=True)

    def is_absent(self, index):
        """Whether no rank had data for the tensor in its last step, whose output is untouched then.
        For tensors that are done."""
        result = _abi.sized(_abi.Result)
        self._handle.call("sluice_wait_tensor", index, 0, ctypes.byref(result))
        return bool(result.absent)

    def report(self, step=0):
        """A StepReport of `step`, one of the last 16 that this rank has applied itself; 0: of the
        newest of these. Steps that came as another rank's state have none. Raises NotFound for
        others. Never blocks."""
        report = _abi.sized(_abi.Report)
        self._handle.call("sluice_get_report", step, ctypes.byref(report))
        every, some = ranks_of(report.in_every), ranks_of(report.in_any)
        return StepReport(report.step, report.k, tuple(sorted(every)), tuple(sorted(some - every)),
                          report.weight, bool(report.counted),
                          report.first_members / max(report.first_may_count, 1))

    @property
    def must_resync(self):
        """Whether this rank cannot take part before it has another rank's state: it fell further
        behind than the window, or has joined a job that was running. Until resync() has succeeded,
        calls for tensors and steps raise Behind; collectives work, but one that has returned must
        not repeat those that the others made before."""
        return bool(self._position().must_resync)

    def resync(self, timeout=None):
        """Gets the state of another rank, which the appliance chooses; returns a State. Blocks
        until that rank has given it by send_state(). Meanwhile the others go on for a few steps
        and then wait, for `policy.resync_hold_s` seconds at most: so load the state and catch up
        without delay. The next step is State.step + 1.

        The state comes from whoever holds the job's secret: read it in a format that runs no code
        (not pickle). Raises TimedOut after `timeout` seconds (a further call goes on with the same
        transfer), Busy when submissions are in flight, Exhausted, InvalidArgument in a synchronous
        job, and Refused, which is this rank's end, when no rank has a state or it took too long."""
        state = _abi.sized(_abi.State)
        self._handle.wait(lambda ms: ("sluice_resync", ms, ctypes.byref(state)), timeout,
                          lambda _waited_s: None)
        return State(state.step, copied(state))

    def state_wanted(self):
        """The rank that waits for this one's state, None when nobody does. Ask between steps.
        Never blocks."""
        rank = self._position().state_wanted_by
        return None if rank < 0 else rank

    def _position(self):
        position = _abi.sized(_abi.Position)
        self._handle.call("sluice_get_position", ctypes.byref(position))
        return position

    def send_state(self, data, step):
        """Gives `data` (bytes or bytearray), all that a replica needs after `step` and before the
        next one, to the rank that wants it. `step` is the last finished one, and all tensors are
        done. Copies `data` and returns at once; does nothing when nobody wants it any more. Raises
        InvalidArgument for another step or no data, Exhausted without memory for the copy."""
        size = len(data)
        if isinstance(data, bytes):
            address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)
        else:
            address = ctypes.byref((ctypes.c_char * max(size, 1)).from_buffer(data)) if size else 0
        self._handle.call("sluice_send_state", address, size, step)
