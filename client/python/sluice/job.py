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

from sluice import _abi, _library, _memory, _policy, _settings, errors
from sluice._handle import Handle
from sluice._options import Options
from sluice._stragglers import Stragglers
from sluice._values import Result, Tensor, dtype_name

_PLAN_TEXT_BYTES = 1 << 20
_log = logging.getLogger("sluice")


class Job(Stragglers):
    """One worker of one job. Constructing it joins and waits until all ranks have joined.

    tensors      list of (name, element count, dtype) in registration order, equal on all ranks.
                 dtype: 'float32', 'float16', 'bfloat16', or NumPy's or torch's name for one. With
                 a fourth member, True, it travels as it is, whatever `wire` and `prune` say: what
                 is no gradient; with a fifth it is never pruned.
    address      'udp://HOST[:PORT]', 'vhost://HOST[:PORT]/SOCKET', 'inproc://NAME';
                 default SLUICE_ADDRESS. '{rank}' is replaced by the rank.
    options      keywords, the fields of `sluice.Options`: job, rank, world_size, policy, ...

    Blocks for at most connect_timeout + join_timeout + 1 s, and while the appliance says that it
    prepares the job's memory (about 1 s a GiB; logged). Raises LibraryNotFound, Unreachable
    (nothing answers), Refused (wrong secret, another layout or world size, a rank that is taken),
    TimedOut (ranks are missing; named), NotFound, InvalidArgument, IoError.

    A job that has failed stays failed: each later call raises the same error at once.
    """

    def __init__(self, tensors, address=None, **options):
        library = _library.load()
        options = Options(**options)
        self.rank = _settings.integer("RANK", options.rank)
        self.world_size = _settings.integer("WORLD_SIZE", options.world_size)
        self.address = _settings.address(address, self.rank)
        self.name = _settings.job_name(options.job)
        self.tensors = self._registered(tensors)
        self._indices = {tensor.name: index for index, tensor in enumerate(self.tensors)}
        self._stall_report_s = options.stall_report
        self._held = {}  # tensor index -> what must stay alive while it is in flight
        struct = options.struct(library, rank=self.rank, world_size=self.world_size,
                                address=self.address.encode(), job_name=self.name.encode())
        # Those with a residual, by name.
        self.rounded = tuple(spec.name for spec in self.tensors if spec.dtype == "float32"
                             and not spec.exact and (struct.wire != _abi.WIRES["float32"]
                                                     or self._prunes(struct, spec)))
        self._handle = Handle(library, struct, self._structs(), self._held,
                              _settings.stats_file(self.rank))
        info = _abi.sized(_abi.PolicyInfo)
        self._handle.call("sluice_get_policy", ctypes.byref(info))
        self.policy = _policy.from_info(library, info)

    @staticmethod
    def _prunes(struct, spec):
        return (struct.prune != _abi.PRUNES["off"] and not spec.dense
                and spec.elem_count >= struct.prune_min_elems)

    @staticmethod
    def _registered(tensors):
        specs = []
        for index, entry in enumerate(tensors):
            name, elem_count, dtype, exact, dense = (*entry, False, False)[:5]
            name = str(index) if name is None else str(name)
            specs.append(Tensor(name, int(elem_count), dtype_name(dtype, name), exact, dense))
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
            struct.flags = ((_abi.TENSOR_EXACT if spec.exact else 0)
                            | (_abi.TENSOR_DENSE if spec.dense else 0))
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

    def set_averaging(self, tensor, averaging):
        """What outputs of `tensor` hold from its next submission on, as the option `averaging` has
        it, whatever that says; 'default': that again. To be called alike on all ranks, which nobody
        checks. Raises Busy while the tensor is in flight, InvalidArgument. Never blocks."""
        self._handle.call("sluice_set_averaging", self._index(tensor),
                          _policy.choice("averaging", averaging, _abi.AVERAGING))

    def get_residual(self, tensor, values):
        """Copies what of this rank's gradients is not delivered yet, an element each, to `values`
        (float32: NumPy array or torch CPU tensor). Of the tensors in `rounded`, which travel at a
        loss. Raises Busy while the tensor is in flight, InvalidArgument. Never blocks."""
        self._residual("sluice_get_residual", tensor, values, writable=True)

    def set_residual(self, tensor, values):
        """Takes it up again after a restart, before the first gradient. As get_residual()."""
        self._residual("sluice_set_residual", tensor, values, writable=False)

    def _residual(self, function, tensor, values, writable):
        index = self._index(tensor)
        spec = self.tensors[index]
        address = _memory.element_pointer(values, spec.elem_count, "float32",
                                          f"residual of tensor '{spec.name}'", writable=writable)
        self._handle.call(function, index, address)

    def scale_residuals(self, factor):
        """Says that gradients are larger by `factor` from now on, because the scale of the loss
        has changed (a GradScaler). Raises Busy in the middle of a step. Never blocks."""
        self._handle.call("sluice_scale_residuals", factor)

    def flush_residuals(self):
        """Before the submissions of this rank's last step: pruned tensors leave whole from now on,
        with all that was left behind. Never blocks."""
        self._handle.call("sluice_flush_residuals")

    def mark_applied(self, tensor):
        """Tells the trace that the result of `tensor` has been used: a parameter was updated with
        it. Without it the return of the first wait for the result counts. To be called before the
        tensor is submitted again; does nothing while it is in flight, or without a trace. Never
        blocks."""
        self._handle.call("sluice_mark_applied", self._index(tensor))

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
