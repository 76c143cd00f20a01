"""Sluice for torchft: `torchft.Manager(pg=sluice.torchft.ProcessGroup(), ...)`."""

import datetime
import logging

import torch
import torch.distributed as dist
from torchft import process_group

from sluice._torch_backend import SluiceBackend
from sluice.errors import TimedOut

_log = logging.getLogger("sluice")


class ProcessGroup(process_group.ProcessGroupWrapper):
    """The replicas of one rank, as a manager configures them: with each quorum they are a job of
    their own at the appliance, the address and the other options those of the environment
    (SLUICE_ADDRESS, ...). What the appliance does not do goes over Gloo. Needs torch 2.15.

    timeout   of joining and of each operation.

    configure() blocks until all replicas of the quorum have joined. Where that fails it raises
    nothing, since a manager's hook of DDP fails where configure() has raised: the operations until
    the next configure() fail with what sluice.Session raises, TimedOut when a replica does not
    come. A replica that dies ends the operations of the others with PeerLost. Futures of operations
    that fail raise the error, wait() returns False, and errored() gives it until the next
    configure(). Any thread may call any method.
    """

    def __init__(self, timeout=datetime.timedelta(seconds=60)):
        super().__init__(timeout)
        self._backend = None

    def configure(self, *arguments, **options):
        try:
            super().configure(*arguments, **options)
        except RuntimeError as error:
            _log.error("configure() has failed, and so do operations until the next one: %s", error)
            self._pg, self._backend = _Unmade(error), None

    def _create_pg(self, store, rank, world_size):
        ranks = self._global_ranks or range(world_size)
        name = f"torchft.{self._group_rank or 0}.{self._quorum_id or 0}"
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._backend = SluiceBackend(store, name, rank, world_size, [], self._timeout,
                                      alone_as=ranks[rank])
        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            group._register_backend(torch.device(device),
                                    dist.ProcessGroup.BackendType.CUSTOM, self._backend)
        return group

    def _wrap_work(self, work, opts):
        return _Waited(work)

    def errored(self):
        """The error that has broken the group, or for which there is none; None while it works,
        also after a timeout."""
        if isinstance(self._pg, _Unmade):
            return self._pg.error
        error = None if self._backend is None else self._backend.errored()
        return None if isinstance(error, TimedOut) else error

    def shutdown(self):
        """Leaves the job; operations that are under way end with an error."""
        if self._backend is not None:
            self._backend.shutdown()
        super().shutdown()

    def getBackendName(self):  # noqa: N802 - torchft's name
        return "torchft-sluice"


class _Unmade:
    """In the place of a group that could not be made: its operations fail."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, _operation):
        return lambda *_arguments: _Failed(self.error)


class _Failed(dist.Work):
    def __init__(self, error):
        super().__init__()
        self._error = error

    def wait(self, _timeout=datetime.timedelta(0)):
        raise self._error

    def get_future(self):
        over = torch.futures.Future()
        over.set_result(None)
        return over.then(lambda _over: self.wait())


class _Waited(dist.Work):
    """An operation whose wait() returns False instead of raising. A manager learns of the error by
    the future; its hook of DDP fails where wait() raises before it has asked for the future."""

    def __init__(self, work):
        super().__init__()
        self._work = work

    def wait(self, timeout=datetime.timedelta(0)):
        try:
            return self._work.wait(timeout)
        except RuntimeError as error:
            _log.info("%s", error)
            return False

    def get_future(self):
        return self._work.get_future()
