"""`Operations`: the operations of a process group, through the box or over Gloo.

All ranks choose alike, because each chooses by what c10d wants equal on all of them: kind, type,
reduction, number of tensors. A call that does not fit goes to Gloo as well, which refuses it in
its own words.
"""

import contextlib
import logging

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ReduceOp

from sluice import _settings, _torch_session, errors
from sluice._torch_dynamo import unseen
from sluice._torch_gloo import Inner
from sluice._torch_monitored import MonitoredBarrier
from sluice._torch_work import Kept, Work

_log = logging.getLogger("sluice")
_SUMMED = (torch.float32, torch.float16, torch.bfloat16)
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_said = set()  # (kind, way) of operations that the log has told of


class _Odd(Exception):
    """Why an operation does not go through the box."""


def _operation(kind, *names):
    """Decorator of a method that returns what _through_box() takes, or raises _Odd: then Gloo's
    method gets the call, which has the first of `names` that torch knows."""
    def decorate(method):
        def call(self, *arguments, **named):
            try:
                begun = method(self, *arguments, **named)
            except _Odd as why:
                return self.over_gloo(kind, why, names, *arguments, **named)
            return self.through_box(kind, *begun)
        call.__doc__ = method.__doc__
        return unseen(call)
    return decorate


def _forwarded(kind, *names):
    """A method that gives the call to Gloo's."""
    def call(self, *arguments, **named):
        return self.over_gloo(kind, self.reason("the box does not do this"), names, *arguments,
                              **named)
    return unseen(call)


class _Group:
    """A process group's two ways, and which one is open."""

    def prepare_without_members(self, name, rank, size, timeout, ended=None):
        """A group that cannot do anything yet. `ended`: why, for those who call operations."""
        self._name, self._own, self._count, self._timeout = name, rank, size, timeout
        self._is_default = False
        self._place(range(size))
        self._inner, self._monitored = Inner(None, rank, size, timeout), None
        self._forced = _settings.collectives()
        self._kept, self._ended, self._number = None, ended, 0
        self._shared = self._box = self._error = None

    def prepare(self, store, name, rank, size, ranks, timeout, alone_as=None):
        """`ranks`: the group's in the world, in its order; [] for the default group. Blocks until
        they have joined where no session with the appliance serves them yet. `alone_as`: this
        rank's number in the world, of a group with a session to itself, whose job has its name."""
        self.prepare_without_members(name, rank, size, timeout)
        self._is_default = not ranks
        self._place(list(ranks) or range(size))
        self._inner = Inner(store, rank, size, timeout)
        self._monitored = MonitoredBarrier(store, rank, size)
        if self._forced == "gloo":
            return
        if alone_as is not None:
            self._shared, self._box = _torch_session.alone(store, name, rank, size, alone_as,
                                                           timeout)
        else:
            world_rank = dist.get_rank() if dist.is_initialized() else rank
            self._shared, self._box = _torch_session.joined(store, name, rank, size, ranks,
                                                            world_rank, timeout)

    def _place(self, ranks):
        """The group's ranks, in its order, by their numbers in the session, whose group ascends."""
        ascending = sorted(ranks)
        self._places = [ascending.index(rank) for rank in ranks]
        self._in_order = self._places == list(range(len(ascending)))

    def keep_works(self):
        """For a torch that does not: its C++ loses the Python part of a Work."""
        self._kept = Kept()

    def reason(self, otherwise):
        """Why an operation goes over Gloo."""
        if self._box is not None:
            return otherwise
        return "SLUICE_DISABLE=1" if _settings.disabled() else "SLUICE_COLLECTIVES=gloo"

    def over_gloo(self, kind, why, names, *arguments, **named):
        self._check()
        if self._forced == "box":
            raise errors.InvalidArgument(
                f"rank {self._own} of group '{self._name}', {kind}: SLUICE_COLLECTIVES=box in the "
                f"environment, and this goes over Gloo ({why})")
        _say(kind, f"over Gloo ({why})")
        self._number += 1
        inner = self._inner.get()
        method = next((name for name in names if hasattr(inner, name)), names[0])
        return getattr(inner, method)(*arguments, **named)

    def through_box(self, kind, tensors, begin, finish=None, after=()):
        """A Work of the ticket that begin() returns."""
        self._check()
        _say(kind, f"through the appliance at {self._shared.session.address}")
        self._number += 1
        what = (self._own, self._name, kind, tensors[0] if tensors else None)
        work = Work(self._begun(begin), tensors, what, finish, after, self._note)
        return work if self._kept is None else self._kept.add(work)

    def _begun(self, begin):
        """begin(), once there is room for one more operation."""
        while True:
            try:
                return begin()
            except errors.Busy:
                for ticket in self._box.open()[:1]:
                    with contextlib.suppress(errors.Error):
                        ticket.wait()

    def _note(self, error):
        self._error = self._error or error

    def errored(self):
        """The first error of an operation through the box; None while there was none."""
        return self._error

    def _check(self):
        if self._ended is not None:
            raise errors.Closed(f"rank {self._own} of group '{self._name}': {self._ended}")

    # ---- what the box takes ----

    def _seconds(self, opts):
        given = 0 if opts is None else opts.timeout.total_seconds()
        return given if given > 0 else self._timeout.total_seconds()

    def _one(self, *lists):
        """The tensor of each list; _Odd when the box does not take such."""
        if self._box is None:
            raise _Odd(self.reason(""))
        if any(len(tensors) != 1 for tensors in lists):
            raise _Odd("several tensors in one call")
        for tensor in (tensors[0] for tensors in lists):
            if tensor.layout is not torch.strided:
                raise _Odd("sparse")
            self._reach(tensor.device)
        return [tensors[0] for tensors in lists]

    def _reach(self, device):
        """_Odd for a device whose tensors do not go through the box. All ranks of a session have
        a CUDA device or none has, so a tensor on another one than this rank's is an error."""
        mine = self._shared.device
        if device.type == "cpu":
            return
        if device.type != "cuda" or mine is None:
            raise _Odd(f"on a device, {device}, which not every rank had chosen by "
                       "torch.cuda.set_device() before init_process_group()")
        if device.index != mine:
            raise errors.InvalidArgument(
                f"rank {self._own} of group '{self._name}': a tensor is on {device}, and the "
                f"group was made for cuda:{mine}: call torch.cuda.set_device({device.index}) "
                "before init_process_group()")

    def _average(self, tensor, opts):
        """Whether to average; _Odd when the box does not reduce such."""
        if tensor.dtype not in _SUMMED:
            raise _Odd(str(tensor.dtype).replace("torch.", ""))
        if opts is None:
            return False
        for name in _REDUCTIONS:
            if opts.reduceOp == getattr(ReduceOp, name, None):
                if name in ("SUM", "AVG"):
                    return name == "AVG"
                raise _Odd(name)
        raise _Odd("another reduction")

    def _root(self, opts):
        """The root's place in the session's group."""
        root = 0 if opts is None else opts.rootRank
        if not 0 <= root < self._count:
            raise _Odd("no such root")
        return self._places[root]

    def _fit(self, whole, parts, part):
        """_Odd unless `whole` (else a list of parts) has one like `part` for every rank."""
        if not self._in_order:
            raise _Odd("ranks in another order than the world's")
        like = [whole] if parts is None else parts
        elems = part.numel() * (self._count if parts is None else 1)
        if len(like) != (1 if parts is None else self._count) or any(
                one.numel() != elems or one.dtype != part.dtype or one.device != part.device
                or one.layout is not torch.strided for one in like):
            raise _Odd("parts that differ in size, type or place")


class Operations(_Group):
    """By c10d's names for the methods, which its C++ calls. Tensors belong to the operation until
    its Work is over; of those that are not contiguous a copy is sent, and the values written back.
    """

    @_operation("all_reduce", "allreduce")
    def allreduce(self, tensors, opts=None):
        tensor, = self._one(tensors)
        average = self._average(tensor, opts)
        flat, finish = _in_place(tensor)
        return [tensor], lambda: self._box.all_reduce(
            flat, average=average, timeout=self._seconds(opts)), finish

    @_operation("reduce", "reduce")
    def reduce(self, tensors, opts=None):
        tensor, = self._one(tensors)
        average, root = self._average(tensor, opts), self._root(opts)
        flat, finish = _in_place(tensor)
        return [tensor], lambda: self._box.reduce(
            root, flat, average=average,
            timeout=self._seconds(opts)), finish if root == self._places[self._own] else None

    @_operation("broadcast", "broadcast")
    def broadcast(self, tensors, opts=None):
        tensor, = self._one(tensors)
        root = self._root(opts)
        flat, finish = _in_place(tensor)
        return [tensor], lambda: self._box.broadcast(
            root, flat, timeout=self._seconds(opts)), finish

    @_operation("all_gather", "allgather")
    def allgather(self, outputs, inputs, opts=None):
        part, = self._one(inputs)
        parts = outputs[0] if len(outputs) == 1 else []
        self._fit(None, parts, part)
        whole = torch.empty(self._count * part.numel(), dtype=part.dtype, device=part.device)

        def finish():
            for one, values in zip(parts, whole.tensor_split(self._count)):
                one.copy_(values.view(one.shape))
        return list(parts), lambda: self._box.all_gather(
            _flat(part), whole, timeout=self._seconds(opts)), finish

    @_operation("all_gather_into_tensor", "all_gather_single", "_allgather_base")
    def all_gather_single(self, output, input, opts=None):
        return self._gather_into([output], [input], opts)

    # Functional collectives make such calls of one tensor.
    @_operation("all_gather_into_tensor, coalesced", "all_gather_single_coalesced",
                "allgather_into_tensor_coalesced")
    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        return self._gather_into(outputs, inputs, opts)

    def _gather_into(self, outputs, inputs, opts):
        whole, part = self._one(outputs, inputs)
        self._fit(whole, None, part)
        flat, finish = _in_place(whole)
        return [whole], lambda: self._box.all_gather(
            _flat(part), flat, timeout=self._seconds(opts)), finish

    @_operation("reduce_scatter", "reduce_scatter")
    def reduce_scatter(self, outputs, inputs, opts=None):
        part, = self._one(outputs)
        average = self._average(part, opts)
        parts = inputs[0] if len(inputs) == 1 else []
        self._fit(None, parts, part)
        whole = torch.cat([one.detach().reshape(-1) for one in parts])
        flat, finish = _in_place(part)
        return [part], lambda: self._box.reduce_scatter(
            whole, flat, average=average, timeout=self._seconds(opts)), finish

    @_operation("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base")
    def reduce_scatter_single(self, output, input, opts=None):
        return self._scatter_from([output], [input], opts)

    @_operation("reduce_scatter_tensor, coalesced", "reduce_scatter_single_coalesced",
                "reduce_scatter_tensor_coalesced")
    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        return self._scatter_from(outputs, inputs, opts)

    def _scatter_from(self, outputs, inputs, opts):
        whole, part = self._one(inputs, outputs)
        average = self._average(part, opts)
        self._fit(whole, None, part)
        flat, finish = _in_place(part)
        return [part], lambda: self._box.reduce_scatter(
            _flat(whole), flat, average=average, timeout=self._seconds(opts)), finish

    @_operation("barrier", "barrier")
    def barrier(self, opts=None):
        if self._box is None:
            raise _Odd(self.reason(""))
        return [], lambda: self._box.barrier(timeout=self._seconds(opts)), None, self._box.open()

    # Not for the box.
    allreduce_sparse = _forwarded("all_reduce, sparse", "allreduce_sparse")
    allreduce_coalesced = _forwarded("all_reduce, coalesced", "allreduce_coalesced")
    allgather_coalesced = _forwarded("all_gather, coalesced", "allgather_coalesced")
    gather = _forwarded("gather", "gather")
    scatter = _forwarded("scatter", "scatter")
    alltoall = _forwarded("all_to_all", "alltoall")
    all_to_all_single = _forwarded("all_to_all_single", "all_to_all_single", "alltoall_base")
    send = _forwarded("send", "send")
    recv = _forwarded("recv", "recv")
    recv_anysource = _forwarded("recv from any rank", "recv_anysource")

    @unseen
    def monitored_barrier(self, timeout, wait_all_ranks=False):
        """`timeout` a timedelta, or options that have one, as C++ gives it."""
        self._check()
        seconds = getattr(timeout, "timeout", timeout).total_seconds()
        _say("monitored_barrier", "through the process group's store")
        self._monitored.wait(seconds if seconds >= 0 else self._timeout.total_seconds(),
                             wait_all_ranks)

    # ---- the group's life ----

    def getBackendName(self):  # noqa: N802 - torch's name
        return "sluice"

    def set_timeout(self, timeout):
        """Of operations that are called from now on, unless they have their own."""
        self._timeout = timeout
        self._inner.set_timeout(timeout)

    def _get_sequence_number_for_group(self):
        return self._number

    def _set_sequence_number_for_group(self):
        """Nothing to agree on: all ranks count from 0."""

    @unseen
    def abort(self):
        """Ends the operations that are under way, on all ranks, with an error that names this one.
        Where the group has a session to itself, or is the default group, that is aborted."""
        self._end("this group has been aborted", "abort")

    @unseen
    def shutdown(self):
        """Leaves. Operations of the group that are under way end as by abort()."""
        self._end("this group has been destroyed", "shutdown")

    def _end(self, why, how):
        if self._ended is not None:
            return
        self._ended = why
        self._inner.end(how)
        if self._box is None:
            return
        under_way = self._box.open()
        try:
            if how == "abort" and (self._is_default or not self._shared.is_shared()):
                self._shared.forget()
                self._shared.session.abort(f"abort() of process group '{self._name}'")
            else:
                for ticket in under_way:
                    ticket.cancel()
                if not under_way:
                    self._box.leave()
        except errors.Error as error:  # the session has failed before
            _log.info("group '%s': %s", self._name, error)
        self._shared.release()


def _say(kind, way):
    if (kind, way) not in _said:
        _said.add((kind, way))
        _log.info("%s: %s", kind, way)


def _flat(tensor):
    """The tensor, or a copy that lies in one piece."""
    tensor = tensor.detach()
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.clone(
        memory_format=torch.contiguous_format).resolve_neg()


def _in_place(tensor):
    """(what the box reads and writes, what to call then): where the tensor does not lie in one
    piece a copy, and what writes it back."""
    flat = _flat(tensor)
    if flat.data_ptr() == tensor.data_ptr():
        return flat, None
    return flat, lambda: tensor.copy_(flat)
