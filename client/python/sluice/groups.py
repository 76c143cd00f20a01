"""`Session` and `Group`: operations of any length and order among some of a job's ranks.

    with sluice.Session("udp://10.77.0.1", rank=0, world_size=4) as session:
        group = session.group("pair", [0, 1])       # never blocks
        ticket = group.all_reduce(gradient)         # in place; returns at once
        ticket.wait()

A process joins once and makes as many groups as it wants. All members of a group call the same
operations in the same order; the order across groups is free, and so is that of completion. Any
thread may call any method at any time. The process group of torch.distributed that is made of this
is `backend="sluice"`.
"""

import atexit
import ctypes
import dataclasses
import math
import os
import threading
import time

from sluice import _abi, _memory, _settings, errors
from sluice._member import Member
from sluice._options import Options
from sluice._values import dtype_name

_SLICE_MS = 100  # Ctrl-C is noticed after this long
_MOST_UNSEEN = 64  # operations of a group that may be over and keep their arrays alive


class Session(Member):
    """One process's membership of a job of operations. Constructing it joins and waits until all
    ranks have joined.

    address      as of sluice.Job.
    options      keywords, of the fields of `sluice.Options`: job, rank, world_size, secret, run_id,
                 ordinal, local_address, mtu, chunk_bytes, reproducible, memory, device and the
                 timeouts. A job of operations is no job of sums: two jobs of one name need
                 different ordinals.
    elastic      True: processes come and go, `world_size` of them at a time at most, and each gets
                 a `rank` that no other has; give none. The job starts with its first process. Give
                 all of them the same run_id: by default it is SLUICE_RUN_ID, else the job's name. A
                 process that dies breaks the groups that it is in and nothing else. broadcast() and
                 barrier() of the session, of all ranks that there can be, raise InvalidArgument.

    Blocks and raises as sluice.Job. After fork() a session is inert in the child.
    """

    def __init__(self, address=None, *, elastic=False, **options):
        asked = Options.of(options)
        if elastic and asked.rank is not None:
            raise errors.InvalidArgument(f"rank={asked.rank}: an elastic job gives the rank")
        if elastic and asked.run_id is None:
            asked = dataclasses.replace(asked, run_id=os.environ.get("SLUICE_RUN_ID")
                                        or _settings.job_name(asked.job))
        super().__init__(None, address, asked, any_rank=elastic)
        self._done = _Completions()
        self._held["semaphore"] = self._done.semaphore  # until the library has closed the job

    def group(self, name, ranks):
        """The Group of `ranks`, this rank among them, which its members call by `name` (1 to 64
        bytes of UTF-8). Never blocks; ranks make their groups in any order. The same name again is
        the same group. Raises InvalidArgument for a name that has other ranks already, Exhausted
        beyond 256 groups."""
        members = sorted(int(rank) for rank in ranks)
        pointer = ctypes.c_void_p()
        self._handle.call("sluice_make_group", name.encode(),
                          (ctypes.c_uint32 * len(members))(*members), len(members),
                          ctypes.byref(pointer))
        return Group(self, self._done, pointer, name, tuple(members))

    def abort(self, reason=""):
        """Leaves because of an error on this side: the calls of all ranks fail at once with this
        rank's name and `reason`. Waits at most 1 s."""
        self._handle.call("sluice_abort_with", reason.encode())

    def close(self):
        """As of sluice.Job; operations that are open end with Closed."""
        self._handle.close()
        self._done.close()


class Group:
    """Some ranks of a session's job; made by Session.group().

    Every operation returns a Ticket at once. Its arrays (NumPy arrays, torch tensors on the CPU or
    on the session's CUDA device, or addresses) are contiguous; they belong to the library, which
    keeps them alive, until the ticket is done. `timeout` in seconds (None: none) is that of the
    operation: when it has passed the operation ends on all ranks alike, with TimedOut unless it was
    complete, and the group goes on. `priority` is 0 (most urgent) to 255 (least). `stream` is the
    address of a stream of the session's device (cudaStream_t, 0: the default one), whose work so
    far comes before the operation: needed for addresses of device memory; of CUDA tensors it is
    torch's current stream.

    An operation ends with PeerLost when a member is lost, with InvalidArgument when two ranks
    called different ones (both are described), with the error of the session. Any of these breaks
    the group: what a member calls once it knows fails too. Operations end alike on all members,
    with exceptions that sluice.h lists: a member may have succeeded with its part of a reduce or a
    reduce-scatter that fails for others, and after a disagreement with a broadcast. Busy is raised
    at the call when 256 operations are open.
    """

    def __init__(self, session, completions, pointer, name, ranks):
        self._handle, self._device = session._handle, session.device
        self._completions, self._pointer = completions, pointer
        self._open = {}  # ticket -> what it keeps alive, though nobody else may hold either
        self.name, self.ranks, self.size = name, ranks, len(ranks)
        self.rank = ranks.index(session.rank)

    def all_reduce(self, input, output=None, *, average=False, dtype=None, elem_count=None,
                   wire="float32", **more):
        """Sum, or with `average` the mean, of all members' `input` to `output`, by default in
        place. Elements are float32, float16 or bfloat16: `dtype` and `elem_count` say so of an
        address. Sums are made in float32 and rounded once. `wire`: the format in which float32
        travels, 'float32', 'float16' or 'bfloat16'."""
        source, count, kind = self._elements(input, elem_count, dtype)
        target = source if output is None else self._elements(output, count, kind)[0]
        return self._begin("sluice_all_reduce", (source, target, count), (input, output),
                           dtype=kind, average=average, wire=wire, **more)

    def reduce(self, root, input, output=None, *, average=False, dtype=None, elem_count=None,
               wire="float32", **more):
        """As all_reduce(), to the member `root`, a place in this group, alone."""
        source, count, kind = self._elements(input, elem_count, dtype)
        target = source if output is None else self._elements(output, count, kind)[0]
        return self._begin("sluice_reduce", (self.ranks[root], source, target, count),
                           (input, output), dtype=kind, average=average, wire=wire, **more)

    def reduce_scatter(self, input, output, *, average=False, dtype=None, elem_count=None,
                       wire="float32", **more):
        """The sum of all members' part i of `input` to member i's `output`, `elem_count` elements;
        `input` has as many for each member."""
        target, count, kind = self._elements(output, elem_count, dtype)
        source = self._elements(input, count * self.size, kind)[0]
        return self._begin("sluice_reduce_scatter", (source, target, count), (input, output),
                           dtype=kind, average=average, wire=wire, **more)

    def all_gather(self, input, output, *, size=None, **more):
        """All members' `input`, `size` bytes of anything, one after the other to `output`."""
        source, count = self._bytes(input, size)
        target = self._bytes(output, count * self.size)[0]
        return self._begin("sluice_all_gather", (source, target, count), (input, output), **more)

    def broadcast(self, root, buffer, *, size=None, **more):
        """Copies `buffer`, `size` bytes of anything, from member `root` to all. The root's ticket
        is done when the appliance has the bytes, whatever the others call afterwards."""
        address, count = self._bytes(buffer, size)
        return self._begin("sluice_group_broadcast", (self.ranks[root], address, count),
                           (buffer,), **more)

    def barrier(self, **more):
        """Done when all members have called it."""
        return self._begin("sluice_group_barrier", (), (), **more)

    def open(self):
        """The tickets of operations that this rank has called and that are not over, oldest first.
        Never blocks."""
        return [ticket for ticket in list(self._open) if not ticket.done()]

    def leave(self):
        """This rank calls no more operations of the group. Raises Busy while one is open."""
        self.call("sluice_leave_group")

    def abort(self):
        """As leave(), in the middle of operations: those of this rank end with Closed, and the
        group is broken for the others. The rank stays in its other groups and may make new ones."""
        self.call("sluice_abort_group")

    def _elements(self, array, elem_count, dtype):
        """(address, element count, dtype's name) of what an operation reduces."""
        if array is None or isinstance(array, int):
            if elem_count is None or dtype is None:
                raise errors.InvalidArgument("an address needs elem_count=... and dtype=...")
            return array, elem_count, dtype_name(dtype, "of an address")
        kind = dtype_name(dtype or array.dtype, "given")
        count = math.prod(array.shape) if elem_count is None else elem_count
        return (_memory.element_pointer(array, count, kind, "array", writable=False,
                                        device=self._device), count, kind)

    def _bytes(self, array, size):
        """(address, bytes) of what an operation copies."""
        if array is None or isinstance(array, int):
            if size is None:
                raise errors.InvalidArgument("an address needs size=..., in bytes")
            return array, size
        address, found, _anchor = _memory.byte_range(array, "array", self._device)
        if size not in (None, found):
            raise errors.InvalidArgument(f"array has {found} bytes, not {size}")
        return address, found

    def _begin(self, function, arguments, arrays, *, dtype="float32", average=False,
               wire="float32", priority=128, timeout=None, stream=None):
        if stream is None:
            stream = _memory.stream_of(f"operation of group '{self.name}'", *arrays)
        operation = _abi.sized(_abi.Operation)
        self._handle.library.sluice_operation_init(ctypes.byref(operation))
        operation.dtype = _abi.DTYPE[dtype]
        operation.wire = _abi.WIRE[wire]
        operation.reduction = _abi.REDUCTION["mean" if average else "sum"]
        operation.priority = priority
        operation.timeout_ms = (_abi.FOREVER if timeout is None
                                else min(max(1, math.ceil(timeout * 1000)), 0x7FFFFFFF))
        operation.on_device, operation.stream = stream is not None, stream or None
        self._completions.notify(operation)
        number = ctypes.c_uint64()
        self.call(function, *arguments, ctypes.byref(operation), ctypes.byref(number))
        ticket = Ticket(self, self._completions, number.value)
        self._open[ticket] = arrays
        if len(self._open) % _MOST_UNSEEN == 0:
            self.open()  # forgets those that nobody asks after
        return ticket

    def _forget(self, ticket):
        self._open.pop(ticket, None)

    def call(self, name, *arguments):
        """Calls a function of the group that does not block; raises its error."""
        status, text = self.outcome(name, *arguments)
        if status != _abi.OK:
            raise errors.make(status, text)

    def outcome(self, name, *arguments):
        """(status, error text) of a function of the group."""
        return self._handle.call_on(self._pointer, name, *arguments)

    def __repr__(self):
        return f"<sluice.Group '{self.name}' of ranks {list(self.ranks)}>"


class Ticket:
    """One operation that was called. Any thread may call any method."""

    def __init__(self, group, completions, number):
        self._group, self._completions, self.number = group, completions, number
        self._error = None
        self._is_done = False

    @property
    def error(self):
        """The error that the operation has ended with; None before, and when it has succeeded."""
        return self._error

    def done(self):
        """Whether the operation is over: its arrays are the caller's again. Never blocks."""
        if not self._is_done:
            self._ask("sluice_test")
        return self._is_done

    def wait(self, timeout=None):
        """Blocks until the operation is over; raises its error. Raises TimedOut, which names who
        has not called it, after `timeout` seconds: the operation goes on."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._is_done:
            left_ms = _SLICE_MS
            if end is not None:
                left_ms = min(left_ms, max(0, math.ceil((end - time.monotonic()) * 1000)))
            status, text = self._ask("sluice_wait", left_ms)
            if not self._is_done and end is not None and time.monotonic() >= end:
                raise errors.make(status or _abi.TIMED_OUT, f"{text} (timeout {timeout:g} s)")
        if self._error is not None:
            raise self._error

    def cancel(self):
        """Gives the operation up for all members: it ends soon, with TimedOut unless it was
        complete, alike on all of them. Does nothing when it is over."""
        self._group.call("sluice_cancel", self.number)

    def on_done(self, function):
        """Lets a thread of the session call function() once the operation is over, which it may be
        already. `function` must not raise, and must not wait for another operation."""
        self._completions.on_done(self, function)

    def _ask(self, name, *arguments):
        done = ctypes.c_int32()
        status, text = self._group.outcome(name, self.number, *arguments, ctypes.byref(done))
        ended = status in (errors.Closed.status, errors.Forked.status)
        if done.value or ended or status not in (_abi.OK, _abi.TIMED_OUT, _abi.INTERRUPTED):
            if status != _abi.OK:
                self._error = self._error or errors.make(status, text)
            self._is_done = True
            self._group._forget(self)
        return status, text


class _Completions:
    """The thread of a session that calls functions for tickets that are over.

    The library's progress thread posts a semaphore by the C library's own sem_post(), which reads
    the first argument of the callback alone: a callback in Python would let packets wait for the
    interpreter's lock.
    """

    _SEMAPHORE_BYTES = 32  # of glibc's sem_t

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.semaphore = (ctypes.c_uint64 * (self._SEMAPHORE_BYTES // 8))()
        self._libc.sem_init(self.semaphore, 0, 0)
        self._lock = threading.Lock()
        self._waiting = {}  # ticket -> functions
        self._thread = None
        self._closing = False

    def notify(self, operation):
        """Lets the operation's end wake the thread."""
        operation.done = ctypes.cast(self._libc.sem_post, _abi.DoneFn)
        operation.user = ctypes.addressof(self.semaphore)

    def on_done(self, ticket, function):
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sluice-done", daemon=True)
                self._thread.start()
                # What it calls may be C++, which does not survive that the interpreter ends first.
                atexit.register(self.close)
            self._waiting.setdefault(ticket, []).append(function)
        self._libc.sem_post(self.semaphore)

    def close(self):
        """Calls what still waits, whose tickets end with Closed, and ends the thread."""
        self._closing = True
        thread = self._thread
        if thread is not None:
            atexit.unregister(self.close)
            self._libc.sem_post(self.semaphore)
            if thread is not threading.current_thread():
                thread.join()

    def _run(self):
        while True:
            self._libc.sem_wait(self.semaphore)
            while self._libc.sem_trywait(self.semaphore) == 0:
                pass
            with self._lock:
                asked = list(self._waiting)
            for ticket in asked:
                if ticket.done():
                    with self._lock:
                        functions = self._waiting.pop(ticket)
                    for function in functions:
                        function()
            if self._closing:
                return
