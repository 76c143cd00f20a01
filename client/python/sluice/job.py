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
import os

from sluice import _abi, _memory, _policy, _settings, errors
from sluice._member import Member
from sluice._options import Options
from sluice._stragglers import Stragglers
from sluice._values import LeftBehind, Result, Tensor, checked_weight, dtype_name



class Job(Member, Stragglers):
    """One worker of one job. Constructing it joins and waits until all ranks have joined.

    tensors      list of (name, element count, dtype) in registration order, equal on all ranks.
                 dtype: 'float32' (default), 'float16', 'bfloat16', or NumPy's or torch's name for
                 one. With a fourth member, True, it travels as it is, whatever `wire` and `prune`
                 say: what is no gradient; with a fifth it is never pruned.
    address      'udp://HOST[:PORT][,HOST...]', 'vhost://HOST[:PORT]/SOCKET', 'inproc://NAME',
                 'bcube://N,K[?...]'; default SLUICE_ADDRESS. '{rank}' is replaced by the rank.
    options      keywords, the fields of `sluice.Options`: job, rank, world_size, policy, ...

    Blocks for at most connect_timeout + join_timeout + 1 s, and while the appliance says that it
    prepares the job's memory (about 1 s a GiB; logged). Raises LibraryNotFound, Unreachable
    (nothing answers), Refused (wrong secret, another layout or world size, a rank that is taken),
    PeerLost (the run has ended; named by whom), TimedOut (ranks are missing; named), NotFound,
    InvalidArgument, IoError.

    A job that has failed stays failed: each later call raises the same error at once.
    """

    def __init__(self, tensors, address=None, **options):
        super().__init__(self._registered(tensors), address, Options.of(options))
        self._indices = {tensor.name: index for index, tensor in enumerate(self.tensors)}
        asked = self._asked
        # Those with a residual, by name; and the floats of it for each element.
        is_narrow = asked.wire != _abi.WIRE["float32"]
        self.rounded = tuple(spec.name for spec in self.tensors if spec.dtype == "float32"
                             and not spec.exact and (is_narrow or asked.prune.momentum > 0
                                                     or self._prunes(asked, spec)))
        self.pruned = tuple(index for index, spec in enumerate(self.tensors)
                            if self._prunes(asked, spec))
        self.traced = bool(asked.trace_dir or os.environ.get("SLUICE_TRACE"))
        self.residual_floats = 2 if asked.prune.momentum > 0 else 1
        info = _abi.sized(_abi.PolicyInfo)
        self._handle.call("sluice_get_policy", ctypes.byref(info))
        self.policy = _policy.from_info(self._library, info)

    @staticmethod
    def _prunes(struct, spec):
        return (struct.prune.rule != _abi.PRUNE_RULE["off"] and spec.dtype == "float32"
                and not spec.exact and not spec.dense
                and spec.elem_count >= struct.prune.min_elems)

    @staticmethod
    def _registered(tensors):
        specs = []
        for index, entry in enumerate(tensors):
            if not isinstance(entry, (tuple, list)) or not 2 <= len(entry) <= 5:
                raise errors.InvalidArgument(
                    f"tensor {index} is {entry!r}: give (name, element count, dtype)")
            defaults = ("float32", False, False)
            name, elem_count, dtype, exact, dense = (*entry, *defaults[len(entry) - 2:])
            name = str(index) if name is None else str(name)
            what = f"{elem_count!r} elements of tensor '{name}'"
            elem_count = _settings.whole(what, elem_count, 1, 1 << 48)
            specs.append(Tensor(name, elem_count, dtype_name(dtype, name), exact, dense))
        if not specs:
            raise errors.InvalidArgument("tensors is empty: a job needs at least one")
        if len({spec.name for spec in specs}) != len(specs):
            raise errors.InvalidArgument("two tensors have the same name")
        return tuple(specs)

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

    def submit(self, tensor, input, output=None, *, weight=1, priority=0, stream=None):
        """Contributes a tensor to its next step. Returns at once.

        tensor    index, or name as registered.
        input     the tensor's elements: NumPy array, torch tensor on the CPU or on the job's
                  `device`, or an address (int). None: no data from this rank, which counts as
                  zeros; `output` is needed.
        output    likewise, receives the average; None: in place, over `input`.
        weight    samples that the input sums over, 0 to 2^32 - 1; 0 on all ranks: the mean is NaN.
        priority  0 most urgent .. 255 least, on the wire and in the switch.
        stream    of the job's device, whose work so far makes the input: an address
                  (cudaStream_t), 0 for the default one. Needed for addresses of device memory; of
                  torch tensors there it is torch's current one.

        Arrays belong to the library, which keeps them alive, until the tensor is done (wait() or
        wait_step() has returned); memory given by address must be kept alive by the caller.
        Raises Busy when the tensor's previous submission is not done, InvalidArgument for arrays
        of another size, type or device, and the job's error when it has failed.
        """
        index = self._index(tensor)
        weight = checked_weight(weight)
        spec = self.tensors[index]
        in_place = output is None
        if input is None and in_place:
            raise errors.InvalidArgument(
                f"tensor '{spec.name}' was given neither input nor output: leave it out and call "
                "end_step(), or give an output")
        source = None if input is None else _memory.element_pointer(
            input, spec.elem_count, spec.dtype, f"input of tensor '{spec.name}'",
            writable=in_place, device=self.device)
        target = source if in_place else _memory.element_pointer(
            output, spec.elem_count, spec.dtype, f"output of tensor '{spec.name}'", writable=True,
            device=self.device)
        if stream is None:
            stream = _memory.stream_of(f"tensor '{spec.name}'", input, output)
        before = self._held.get(index)
        self._held[index] = (before, input, output)
        try:
            self.submit_address(index, source, target, weight, priority, stream)
        except BaseException:
            self._held[index] = before
            raise
        self._held[index] = (input, output)

    def submit_address(self, index, input_address, output_address, weight=1, priority=0,
                       stream=None):
        """submit() without checks and without keeping anything alive: addresses of elem_count
        elements, of the host's memory where `stream` is None. For callers, such as the PyTorch
        hook, that know their memory."""
        if stream is None:
            self._handle.call("sluice_submit", index, input_address, output_address, weight,
                              priority)
        else:
            self._submit_device(index, input_address, output_address, weight, priority, stream)

    def submit_many(self, submissions):
        """submit_address() of many tensors in one call: `submissions` is a ctypes array of
        `_abi.Submission`, read before this returns. Their memory is the host's, or the device's
        where the job has one. Raises what the first tensor that is refused raises: those before it
        are submitted."""
        self._handle.call("sluice_submit_many", submissions, len(submissions))

    def _submit_device(self, index, source, target, weight, priority, stream, catch_up=False):
        submission = _abi.Submission(ctypes.sizeof(_abi.Submission), index, weight, priority,
                                     catch_up, source, target, stream or None)
        self._handle.call("sluice_submit_device", ctypes.byref(submission))

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

    def wait_many(self, tensors, least, timeout=None):
        """Blocks until the last submissions of the first `least` of these tensor indices are done;
        returns how many leading ones are. Raises as wait()."""
        array = (ctypes.c_uint32 * len(tensors))(*tensors)
        done = ctypes.c_size_t()
        self._wait(lambda ms: ("sluice_wait_tensors", array, len(array), least, ms,
                               ctypes.byref(done)), timeout)
        for index in tensors[:done.value]:
            self._held.pop(index, None)
        return done.value

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
        loss. With `prune_momentum` the velocity's elements come after these. Raises Busy while the
        tensor is in flight, InvalidArgument. Never blocks."""
        self._residual("sluice_get_residual", tensor, values, writable=True)

    def set_residual(self, tensor, values):
        """Takes it up again after a restart, before the first gradient. As get_residual()."""
        self._residual("sluice_set_residual", tensor, values, writable=False)

    def _residual(self, function, tensor, values, writable):
        index = self._index(tensor)
        spec = self.tensors[index]
        address = _memory.element_pointer(values, spec.elem_count * self.residual_floats, "float32",
                                          f"residual of tensor '{spec.name}'", writable=writable)
        self._handle.call(function, index, address)

    def get_pruning(self, tensor):
        """Where the pruning of a tensor stands, a number to be kept beside its residual: its steps
        so far, by which warm-up and samples go, and the last threshold. As get_residual()."""
        position = ctypes.c_uint64()
        self._handle.call("sluice_get_pruning", self._index(tensor), ctypes.byref(position))
        return position.value

    def set_pruning(self, tensor, position):
        """Takes it up again after a restart with the same rule, before the first gradient."""
        self._handle.call("sluice_set_pruning", self._index(tensor), position)

    def scale_residuals(self, factor):
        """Says that gradients are larger by `factor` from now on, because the scale of the loss
        has changed (a GradScaler). Raises Busy in the middle of a step. Never blocks."""
        self._handle.call("sluice_scale_residuals", factor)

    def flush_residuals(self):
        """Before the submissions of this rank's last step: pruned tensors leave whole from now on,
        with all that was left behind. leave(), finish() and close() deliver none of it: that takes
        a step of the others. Never blocks."""
        self._handle.call("sluice_flush_residuals")

    def mark_applied(self, tensor):
        """Tells the trace that the result of `tensor` has been used: a parameter was updated with
        it. Without it the return of the first wait for the result counts. To be called before the
        tensor is submitted again; does nothing while it is in flight, or without a trace. Never
        blocks."""
        self._handle.call("sluice_mark_applied", self._index(tensor))

    # ---- questions ----

    def left_behind(self):
        """What would be lost if this rank ended now: a LeftBehind of all pruned tensors. To be
        asked before leave(): after it Closed. Raises Busy while such a tensor is in flight. Blocks
        for a pass over the residuals."""
        found = _abi.sized(_abi.LeftBehind)
        self._handle.call("sluice_get_left_behind", ctypes.byref(found))
        return LeftBehind(found.elem_count, found.norm)
