"""`Job`: one worker's membership of one job, over the C interface of libsluice.

    specs = [("weight", 1000, "float32"), ("bias", 10, "float32")]
    with sluice.Job(specs, "udp://10.77.0.1", job="resnet", rank=0, world_size=4) as job:
        job.submit("weight", gradient)          # in place: gradient becomes the mean
        job.submit("bias", bias_gradient)
        job.wait_step()

A step is one round in which each tensor is submitted once; steps are counted from 1. Any thread may
call any method at any time. Blocking calls give way to Ctrl-C within 100 ms and take `timeout` in
seconds (None: no limit). After fork() a job is inert in the child: its methods raise `Forked`.
"""

import ctypes
import logging
import os

from sluice import _abi, _library, _memory, _policy, _settings, errors
from sluice._handle import Handle
from sluice._values import (Result, State, StepReport, Tensor, Turn, copied, dtype_name,
                            ranks_of)

_PLAN_TEXT_BYTES = 1 << 20
_log = logging.getLogger("sluice")


class Job:
    """One worker of one job. Constructing it joins and waits until all ranks have joined.

    tensors      list of (name, element count, dtype) in registration order, equal on all ranks.
                 dtype: 'float32', 'float16', 'bfloat16', or NumPy's or torch's name for one.
    address      'udp://HOST[:PORT]', 'vhost://HOST[:PORT]/SOCKET', 'inproc://NAME';
                 default SLUICE_ADDRESS. '{rank}' is replaced by the rank.
    job          name of the job, default SLUICE_JOB or 'default'.
    rank, world_size
                 default RANK and WORLD_SIZE.
    secret       of the appliance, default SLUICE_SECRET.
    run_id       number or name of this launch, equal on all ranks, new for each launch; default
                 SLUICE_RUN_ID, or what torchrun's variables say.
    ordinal      0 for the first job of this process, 1 for a second model, ...
    averaging    'weight': sum of the inputs / sum of the weights, an input being a sum over
                 `weight` samples (with weight 1 everywhere: the mean); 'world': sum / world_size;
                 'sum'; 'default': what suits the policy, today always 'weight'. Equal on all ranks,
                 or the join is refused.
    allow_nil    end_step() may leave tensors out.
    policy       how the appliance chooses k, the number of ranks whose contributions complete a
                 step: 'sync' (all), 'fixed' (`k`), 'saina' (starts at `k`, grows when the signs of
                 the summed gradient keep flipping), 'ramp' (grows over `planned_steps`), 'goodput'
                 (of the most progress per second). Default SLUICE_POLICY, else what the appliance's
                 configuration says. The effective policy is equal on all ranks, or the join is
                 refused; `policy` of the job tells it. The options below need it, and have
                 variables too: SLUICE_K, SLUICE_LATE, ...
    k            1 to world_size; for 'fixed', which needs it, and 'saina' (default 1).
    late         what becomes of a gradient that is ready after its step is complete: 'drop' (it is
                 lost, default) or 'requeue' (it goes, once, into the step that is open then).
    sign_threshold, count_threshold, signs, round_steps
                 for 'saina': the share of signs that must have flipped, 0 to 1; how often, a number
                 or "k"; 'all' signs or 'one-in-32'; steps of a detection round.
    planned_steps
                 for 'ramp', which needs it: length of the training in steps.
    max_staleness
                 for 'requeue': a gradient that is more steps late is discarded; 0: no bound.
    schedule     which of the waiting packets leaves next: 'strict' (default: of the most urgent
                 tensor, decided for every packet), 'credit' (pieces of a tensor are sent as a
                 whole), 'prophet' (blocks of tensors that fit before the next one is expected to
                 be ready), 'fifo' (as submitted). Default SLUICE_SCHEDULE. Ranks may differ in it.
    trace        folder for a Chrome trace of this rank, made when it is missing; '' for none.
                 Default SLUICE_TRACE, else none. `python3 -m sluice trace FOLDER` joins the ranks'
                 files into one.
    mtu          of the path to the appliance, bytes of an IP packet.
    chunk_bytes  gradient bytes per packet, a multiple of 64; 0: the most that mtu carries.
    connect_timeout, join_timeout, silence_timeout, stall_report
                 seconds: until the appliance must have answered; until all ranks must have
                 joined; until a silent appliance is given up; until a step without progress is
                 reported (a warning of the logger 'sluice').

    Blocks for at most connect_timeout + join_timeout + 1 s, and while the appliance says that it
    prepares the job's memory (about 1 s a GiB; logged). Raises LibraryNotFound, Unreachable
    (nothing answers), Refused (wrong secret, another layout or world size, a rank that is taken),
    TimedOut (ranks are missing; named), NotFound, InvalidArgument, IoError.

    A job that has failed stays failed: each later call raises the same error at once.
    """

    def __init__(self, tensors, address=None, *, job=None, rank=None, world_size=None, secret=None,
                 run_id=None, ordinal=0, averaging="default", allow_nil=True, local_address=None,
                 mtu=1500, chunk_bytes=0, connect_timeout=4.0, join_timeout=60.0,
                 silence_timeout=4.0, stall_report=5.0, policy=None, k=None, late=None,
                 sign_threshold=None, count_threshold=None, signs=None, round_steps=None,
                 planned_steps=None, max_staleness=None, schedule=None, trace=None):
        library = _library.load()
        self.rank = _settings.integer("RANK", rank)
        self.world_size = _settings.integer("WORLD_SIZE", world_size)
        self.address = _settings.address(address, self.rank)
        self.name = _settings.job_name(job)
        self.tensors = self._registered(tensors)
        self._indices = {tensor.name: index for index, tensor in enumerate(self.tensors)}
        self._stall_report_s = stall_report
        self._held = {}  # tensor index -> what must stay alive while it is in flight
        if averaging not in _abi.AVERAGING:
            raise errors.InvalidArgument(
                f"averaging={averaging!r}: must be one of {', '.join(_abi.AVERAGING)}")
        options = _abi.sized(_abi.Options)
        library.sluice_options_init(ctypes.byref(options))
        local = _settings.local_address(local_address, self.rank)
        values = dict(
            address=self.address.encode(), job_name=self.name.encode(),
            secret=(_settings.secret(secret) or "").encode(),
            local_address=local.encode() if local else None, run_id=_settings.run_id(run_id),
            ordinal=ordinal, rank=self.rank, world_size=self.world_size, mtu=mtu,
            chunk_bytes=chunk_bytes, averaging=_abi.AVERAGING[averaging],
            allow_nil=int(allow_nil), connect_timeout_ms=int(connect_timeout * 1000),
            join_timeout_ms=int(join_timeout * 1000),
            silence_timeout_ms=int(silence_timeout * 1000),
            stall_report_ms=int(stall_report * 1000), schedule=_policy.schedule(schedule),
            trace_dir=None if trace is None else os.fsencode(trace))
        values.update(_policy.fields(policy, dict(
            k=k, late=late, sign_threshold=sign_threshold, count_threshold=count_threshold,
            signs=signs, round_steps=round_steps, planned_steps=planned_steps,
            max_staleness=max_staleness), world_size=self.world_size))
        for field, value in values.items():
            setattr(options, field, value)
        self._handle = Handle(library, options, self._structs(), self._held,
                              _settings.stats_file(self.rank))
        info = _abi.sized(_abi.PolicyInfo)
        self._handle.call("sluice_get_policy", ctypes.byref(info))
        self.policy = _policy.from_info(info)

    @staticmethod
    def _registered(tensors):
        specs = []
        for index, entry in enumerate(tensors):
            name, elem_count, dtype = entry
            name = str(index) if name is None else str(name)
            specs.append(Tensor(name, int(elem_count), dtype_name(dtype, name)))
        if not specs:
            raise errors.InvalidArgument("tensors is empty: a job needs at least one")
        if len({spec.name for spec in specs}) != len(specs):
            raise errors.InvalidArgument("two tensors have the same name")
        return tuple(specs)

    def _structs(self):
        structs = (_abi.Tensor * len(self.tensors))()
        for struct, spec in zip(structs, self.tensors):
            struct.struct_size = ctypes.sizeof(_abi.Tensor)
            struct.name = spec.name.encode()
            struct.elem_count = spec.elem_count
            struct.dtype = _abi.DTYPES[spec.dtype]
        return structs

    def _wait(self, call_for_ms, timeout):
        next_report_s = self._stall_report_s

        def on_slice(waited_s):
            nonlocal next_report_s
            if waited_s < next_report_s:
                return
            still_s, text = self._stall()
            next_report_s = waited_s + self._stall_report_s
            if still_s >= self._stall_report_s:
                _log.warning("rank %d: %s", self.rank, text)
            else:  # it moves; look again when it could have stood still for long enough
                next_report_s -= still_s

        self._handle.wait(call_for_ms, timeout, on_slice)

    def _index(self, tensor):
        if isinstance(tensor, int):
            if not 0 <= tensor < len(self.tensors):
                raise errors.InvalidArgument(
                    f"tensor {tensor} does not exist: the job has {len(self.tensors)}, from 0")
            return tensor
        try:
            return self._indices[tensor]
        except KeyError:
            raise errors.InvalidArgument(f"tensor '{tensor}' was not registered") from None

    # ---- gradients ----

    def submit(self, tensor, input, output=None, *, weight=1, priority=0):
        """Contributes a tensor to its next step. Returns at once.

        tensor    index, or name as registered.
        input     the tensor's elements: NumPy array, torch CPU tensor, or an address (int). None:
                  no data from this rank, which counts as zeros; `output` is needed.
        output    likewise, receives the average; None: in place, over `input`.
        weight    samples that the input sums over, 0 to 2^32 - 1.
        priority  0 most urgent .. 255 least, on the wire and in the switch.

        Arrays belong to the library, which keeps them alive, until the tensor is done (wait() or
        wait_step() has returned); memory given by address must be kept alive by the caller.
        Raises Busy when the tensor's previous submission is not done, InvalidArgument for arrays
        of another size, type or device, and the job's error when it has failed.
        """
        index = self._index(tensor)
        spec = self.tensors[index]
        in_place = output is None
        if input is None and in_place:
            raise errors.InvalidArgument(
                f"tensor '{spec.name}' was given neither input nor output: leave it out and call "
                "end_step(), or give an output")
        source = None if input is None else _memory.element_pointer(
            input, spec.elem_count, spec.dtype, f"input of tensor '{spec.name}'",
            writable=in_place)
        target = source if in_place else _memory.element_pointer(
            output, spec.elem_count, spec.dtype, f"output of tensor '{spec.name}'", writable=True)
        before = self._held.get(index)
        self._held[index] = (before, input, output)
        try:
            self.submit_address(index, source, target, weight, priority)
        except BaseException:
            self._held[index] = before
            raise
        self._held[index] = (input, output)

    def submit_address(self, index, input_address, output_address, weight=1, priority=0):
        """submit() without checks and without keeping anything alive: addresses of elem_count
        elements. For callers, such as the PyTorch hook, that know their memory."""
        self._handle.call("sluice_submit", index, input_address, output_address, weight, priority)

    def keep(self, name, objects):
        """Keeps `objects` alive until the step is done: the library may still write to them. For
        callers of submit_address()."""
        self._held[name] = objects

    def end_step(self):
        """Declares that this rank submits nothing more in the current step: tensors left out count
        as zero data. Returns at once; does nothing when all have been submitted. Raises
        InvalidArgument when tensors were left out and the job was joined with allow_nil=False."""
        self._handle.call("sluice_end_step")

    def wait(self, tensor, timeout=None):
        """Blocks until the last submission of `tensor` is done; returns a Result.

        Raises TimedOut after `timeout` seconds (the submission goes on); Behind when the result is
        lost to this rank (the output is unspecified then); or the job's error."""
        index = self._index(tensor)
        result = _abi.sized(_abi.Result)
        self._wait(lambda ms: ("sluice_wait_tensor", index, ms, ctypes.byref(result)), timeout)
        self._held.pop(index, None)
        return Result(result.step, result.weight, bool(result.absent), bool(result.non_finite),
                      result.latency_ns / 1e9)

    def wait_step(self, timeout=None):
        """Blocks until all submissions are done; returns the last complete step (0: none yet).

        Raises TimedOut after `timeout` seconds, naming who and what is missing; Behind when the
        step is lost to this rank; or the job's error."""
        step = ctypes.c_uint32()
        self._wait(lambda ms: ("sluice_wait_step", ms, ctypes.byref(step)), timeout)
        self._held.clear()
        return step.value

    def mark_applied(self, tensor):
        """Tells the trace that the result of `tensor` has been used: a parameter was updated with
        it. Without it the return of the first wait for the result counts. To be called before the
        tensor is submitted again; does nothing while it is in flight, or without a trace. Never
        blocks."""
        self._handle.call("sluice_mark_applied", self._index(tensor))

    # ---- stragglers ----

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
        kind = _abi.TURNS[turn.kind]
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
                                          f"output of tensor '{spec.name}'", writable=True)
        self._handle.call("sluice_catch_up", index, address)
        self._held[index] = output

    def catch_up_address(self, index, output_address):
        """catch_up() without checks and without keeping anything alive, as submit_address()."""
        self._handle.call("sluice_catch_up", index, output_address)

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
                          report.weight, bool(report.counted))

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

    # ---- small collectives ----

    def broadcast(self, buffer, root=0, timeout=None):
        """Copies `buffer` (bytearray, NumPy array or torch tensor, any type, contiguous) from rank
        `root` to all ranks, in place. All ranks call broadcast and barrier in the same order with
        the same root and size. Blocks."""
        address, size, anchor = _memory.byte_range(buffer, "buffer")
        try:
            self._handle.collective("sluice_broadcast", root, address, size, timeout=timeout)
        finally:
            del anchor

    def barrier(self, timeout=None):
        """Blocks until all ranks have called it."""
        self._handle.collective("sluice_barrier", timeout=timeout)

    # ---- state ----

    def check(self):
        """Raises the job's error when it has failed, Closed after leave(). Never blocks."""
        self._handle.call("sluice_get_status")

    def stats(self):
        """Counters since the join, as a dict; the names are those of sluice_counters."""
        return self._handle.counters()

    def describe_stall(self):
        """Why the current step waits: tensors, ranks, when each was last heard. '' if it does not.
        """
        return self._stall()[1]

    def _stall(self):
        """For how many seconds nothing has come of what the step waits for, and why, in words."""
        stall = _abi.sized(_abi.Stall)
        self._handle.call("sluice_get_stall", ctypes.byref(stall))
        return stall.stalled_ns / 1e9, stall.text.decode("utf-8", "replace")

    def schedule_plan(self):
        """What the schedule does and knows, in several lines: for 'prophet' the steps that it has
        found, when it expects each tensor, and its blocks."""
        text = ctypes.create_string_buffer(_PLAN_TEXT_BYTES)
        self._handle.call("sluice_get_schedule_plan", text, len(text))
        return text.value.decode("utf-8", "replace")

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
        return (f"<sluice.Job '{self.name}' rank {self.rank} of {self.world_size} at "
                f"{self.address}>")
