"""`Work`: what torch.distributed gets for an operation that goes through the box.

Torch's C++ asks a Python Work for wait() and get_future() alone. Errors: wait() raises them as they
are; of a future, what Future.set_exception() was given does not reach C++, which would take it for
the result, so the future is one of then(), whose callback raises. C++ makes RuntimeError of that,
whose text begins with the name of the error's class.
"""

import datetime
import threading

import torch
from torch._C._distributed_c10d import Work as _Work

from sluice import _torch_device
from sluice._torch_dynamo import unseen
from sluice.errors import Error, TimedOut


class Work(_Work):
    """One operation under way. Any thread may call any method."""

    def __init__(self, ticket, tensors, what, finish=None, after=(), failed=None):
        """ticket    of sluice.Group
        tensors   the list that result() and the future give
        what      (rank, group's name, kind, tensor or None), which an error names
        finish    copies to where the caller wants the values; None: the box wrote them there
        after     tickets that must be over too, for a barrier
        failed    called with the error that the operation has ended with"""
        super().__init__()
        self._ticket, self._tensors, self._what = ticket, tensors, what
        self._finish, self._after, self._failed = finish, after, failed
        self._lock = threading.Lock()
        self._error = None
        self._is_settled = False
        self._future = self._over = None

    @unseen
    def is_completed(self):
        if not self._is_settled and self._ticket.done():
            if all(ticket.done() for ticket in self._after):
                self._settle()
        return self._is_settled

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        self.is_completed()
        return self._error

    @unseen
    def wait(self, timeout=datetime.timedelta(0)):
        """Blocks until the operation is over; True. Raises its error, or, after `timeout` (0: that
        of the operation alone), TimedOut: it goes on."""
        seconds = timeout.total_seconds() if timeout else None
        for ticket in (*self._after, self._ticket):
            try:
                ticket.wait(seconds)
            except Error as error:
                if not ticket.done():
                    raise self._named(error) from None
        self._settle()
        self._complete()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def result(self):
        return self._tensors

    @unseen
    def get_future(self):
        """Done when wait() has returned, at the latest."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._over = torch.futures.Future(devices=list(
                {tensor.device for tensor in self._tensors if tensor.device.type == "cuda"}))
            self._future = self._over.then(self._checked)
            tickets = (*self._after, self._ticket)
            left = len(tickets)
        if self.is_completed():
            self._complete()
            return self._future

        def ended():
            nonlocal left
            with self._lock:
                left -= 1
                is_last = left == 0
            if is_last:
                self._complete()
        for ticket in tickets:  # each holds this work until then, though nobody else may
            ticket.on_done(ended)
        return self._future

    def _complete(self):
        with self._lock:
            over, self._over = self._over, None
        if over is not None:
            over.set_result(None)

    def _checked(self, _over):
        self._settle()
        if self._error is not None:
            raise self._error
        return self._tensors

    def _settle(self):
        with self._lock:
            if self._is_settled:
                return
            error = self._ticket.error
            if error is not None:
                error = self._named(error)
                if self._failed is not None:
                    self._failed(error)
            elif self._finish is not None:
                with torch.inference_mode():  # as the box, which asks nobody's leave to write
                    self._finish()
                # Another thread may wait for this work, and goes on in another stream.
                _torch_device.settle(self._tensors)
            self._error, self._finish, self._after = error, None, ()
            self._is_settled = True

    def _named(self, error):
        rank, group, kind, tensor = self._what
        of = ("" if tensor is None else
              f" of {tensor.numel():,} {str(tensor.dtype).replace('torch.', '')}")
        late = "Timed out waiting: " if isinstance(error, TimedOut) else ""  # as Gloo says
        return type(error)(f"rank {rank} of group '{group}', {kind}{of}: {late}{error}")


class Kept:
    """Keeps the Python part of works alive, as torch before 2.15 does not while C++ has the work:
    those under way, and the newest of those that are over."""

    _MOST = 256

    def __init__(self):
        self._works = []

    def add(self, work):
        if len(self._works) >= self._MOST:
            half = self._MOST // 2
            self._works = ([one for one in self._works[:half] if not one.is_completed()]
                           + self._works[half:])
        self._works.append(work)
        return work
