"""A stand-in for sluice.Session: the same operations over Gloo, for tests of the backend alone.

`start()` puts it in the place of the real one where STAND_IN_FOLDER is in the environment. Small
operations overtake big ones, as at the appliance. Everything else is the least that the backend
needs.
"""

import atexit
import ctypes
import datetime
import os
import queue
import threading

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from sluice import _memory, _torch_device, _torch_operations, _torch_session, errors, groups

_SMALL_BYTES = 64 << 10
MOST_OPEN = 8
joined = []  # sessions that were made in this process


def environment(folder):
    """Of the ranks."""
    return {"STAND_IN_FOLDER": str(folder), "SLUICE_ADDRESS": "udp://box"}


class _Recorded(groups.Session):
    """The real one."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        joined.append(self)

    @property
    def closed(self):
        return self._handle.closed


def replace_session():
    _torch_session.Session = Session if "STAND_IN_FOLDER" in os.environ else _Recorded


def start(backend="sluice", **variables):
    """In the place of init_process_group(); with these in the environment."""
    import sluice.torch  # noqa: F401 - which registers the backend
    os.environ.update(variables)
    replace_session()
    if "FAKE_DEVICE" in os.environ:
        pretend_device()
    dist.init_process_group(backend)


def pretend_device():
    """Lets this process's tensors go as those of a CUDA device: any host memory is also a fake
    device's, whose plug-in SLUICE_PLUGIN_DIR has."""
    _torch_device.current = lambda: int(os.environ["FAKE_DEVICE"])
    _memory.stream_of = lambda _what, *buffers: 0 if buffers else None


def session_device():
    """The device of the default group's session; None: CUDA tensors go over Gloo."""
    return _torch_session._open["world"].device


def through_box(kind):
    """Whether operations of this kind went through the appliance."""
    return any(kind == said and way.startswith("through the appliance at ")
               for said, way in _torch_operations._said)


class Session:
    def __init__(self, address, *, job, rank, world_size, run_id, **_options):
        self.address, self.rank, self.world_size = address, rank, world_size
        self._folder = os.path.join(os.environ["STAND_IN_FOLDER"], f"{job}-{run_id}")
        os.makedirs(self._folder, exist_ok=True)
        self._groups, self.reason, self.closed = {}, None, False
        joined.append(self)

    def group(self, name, ranks):
        ranks = tuple(sorted(ranks))
        if name not in self._groups:
            self._groups[name] = Group(self, name, ranks)
        return self._groups[name]

    def abort(self, reason=""):
        self.reason = reason

    def close(self):
        self.closed = True


class Ticket:
    def __init__(self):
        self._over, self._lock = threading.Event(), threading.Lock()
        self._functions, self.error, self.cancelled = [], None, False

    def done(self):
        return self._over.is_set()

    def wait(self, timeout=None):
        if not self._over.wait(timeout):
            raise errors.TimedOut(f"nobody knows who is missing (timeout {timeout:g} s)")
        if self.error is not None:
            raise self.error

    def cancel(self):
        self.end(errors.TimedOut("given up by a rank"))

    def on_done(self, function):
        with self._lock:
            if not self._over.is_set():
                self._functions.append(function)
                return
        function()

    def end(self, error):
        with self._lock:
            if self._over.is_set():
                return
            self.error = error
            self._over.set()
        for function in self._functions:
            function()


class Group:
    def __init__(self, session, name, ranks):
        self.session, self.name, self.ranks, self.size = session, name, ranks, len(ranks)
        self.rank, self.left = ranks.index(session.rank), False
        self._tickets, self._queues = [], {}
        for kind in ("small", "big"):
            self._queues[kind] = queue.SimpleQueue()
            thread = threading.Thread(target=self._run, args=(kind,), daemon=True)
            thread.start()
            atexit.register(self._end, kind, thread)

    def _end(self, kind, thread):
        """What the thread tells torch is C++, which does not survive the interpreter's end."""
        self._queues[kind].put(None)
        thread.join(5)

    def _run(self, kind):
        path = os.path.join(self.session._folder, f"{self.name.replace('/', '_')}-{kind}")
        gloo = c10d.ProcessGroupGloo(dist.FileStore(path, self.size), self.rank, self.size,
                                     datetime.timedelta(minutes=30))
        while True:
            asked = self._queues[kind].get()
            if asked is None:
                return
            ticket, what, mine, write = asked
            try:
                said = self._gather(gloo, torch.tensor(list(what.ljust(200).encode()),
                                                       dtype=torch.uint8))
                texts = [bytes(one.tolist()).decode().strip() for one in said]
                if len(set(texts)) > 1:
                    raise errors.InvalidArgument(f"ranks called different operations: {texts}")
                values = self._gather(gloo, mine) if mine.numel() else [mine] * self.size
                with torch.inference_mode():
                    write(values)
                ticket.end(None)
            except errors.Error as error:
                ticket.end(error)
            except RuntimeError as error:
                ticket.end(errors.PeerLost(str(error)))

    def _gather(self, gloo, tensor):
        found = [torch.empty_like(_bytes(tensor)) for _ in range(self.size)]
        gloo.allgather([found], [_bytes(tensor)], c10d.AllgatherOptions()).wait()
        return [one.view(tensor.dtype) for one in found]

    def _begin(self, what, mine, write):
        ticket = Ticket()
        kind = "small" if mine.numel() * mine.element_size() <= _SMALL_BYTES else "big"
        if len(self.open()) == MOST_OPEN:
            raise errors.Busy("as many operations are under way as there may be")
        self._tickets.append(ticket)
        self._queues[kind].put((ticket, what, mine, write))
        return ticket

    def open(self):
        self._tickets = [ticket for ticket in self._tickets if not ticket.done()]
        return self._tickets

    def _sum(self, values, average, target):
        total = torch.stack([value.float() for value in values]).sum(0)
        values = (total / self.size if average else total).to(target.dtype)
        target.copy_(values.view(target.shape))

    def all_reduce(self, tensor, *, average, timeout):
        return self._begin(f"all_reduce {tensor.numel()} {tensor.dtype} {average}", tensor.clone(),
                           lambda values: self._sum(values, average, tensor))

    def reduce(self, root, tensor, *, average, timeout):
        def write(values):
            if self.rank == root:
                self._sum(values, average, tensor)
        return self._begin(f"reduce to {root} {tensor.numel()} {tensor.dtype}", tensor.clone(),
                           write)

    def reduce_scatter(self, whole, part, *, average, timeout):
        def write(values):
            mine = [value.view(self.size, -1)[self.rank] for value in values]
            self._sum(mine, average, part)
        return self._begin(f"reduce_scatter {part.numel()} {part.dtype}", whole.reshape(-1), write)

    def all_gather(self, part, whole, *, timeout):
        return self._begin(f"all_gather {part.numel()}", _bytes(part), lambda values: _bytes(
            whole).copy_(torch.cat(values)))

    def broadcast(self, root, tensor, *, timeout):
        return self._begin(f"broadcast {tensor.numel()} from {root}", _bytes(tensor).clone(),
                           lambda values: _bytes(tensor).copy_(values[root]))

    def barrier(self, *, timeout):
        return self._begin("barrier", torch.empty(0), lambda values: None)

    def leave(self):
        self.left = True


def _bytes(tensor):
    """The tensor's memory as bytes."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    memory = (ctypes.c_char * size).from_address(tensor.data_ptr())
    memory.tensor = tensor  # which must outlive it
    return torch.frombuffer(memory, dtype=torch.uint8)
