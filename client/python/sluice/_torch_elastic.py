"""`SluiceElasticGroup`: a process group whose members change, by torch 2.15's reconfigure().

    init_process_group("sluice", ..., enable_reconfigure=True)
    handle = torch.distributed._get_reconfigure_handle()      # the others learn it somehow
    torch.distributed._reconfigure(uuid, handles).wait()      # on all that shall be members

A process joins an elastic job at the appliance once, and keeps that membership: another set of
members is another group there, so no connection is made. A ProcessGroup and no Backend, because a
Backend in Python cannot change its rank and size.
"""

import secrets

from torch._C import _distributed_c10d as c10d

from sluice import _torch_session, errors
from sluice._torch_dynamo import unseen
from sluice._torch_gloo import Inner
from sluice._torch_monitored import MonitoredBarrier
from sluice._torch_operations import Operations
from sluice._torch_work import Work

_PREFIX = "sluice"
_UNMADE = "it has no members yet: call reconfigure()"


class SluiceElasticGroup(Operations, c10d.ProcessGroup):
    """Made by torch. Any thread may call any method; reconfigure() and abort() one at a time.

    Its rank and size are what init_process_group() was given until the first reconfigure(), which
    every operation needs. After abort(), and after a member was lost, reconfigure() makes it work
    again; after the appliance was lost, it does so with new handles of all. What the box does not
    do goes over Gloo, which needs a store that all members share."""

    def __init__(self, store, name, rank, size, timeout):
        c10d.ProcessGroup.__init__(self, rank, size)
        self.prepare_without_members(name, rank, size, timeout, _UNMADE)
        self._store = store
        self._incarnation = secrets.token_hex(4)
        self._uuids = set()
        if self._forced != "gloo":
            self._shared = _torch_session.joined_elastic()
            self._shared.use()

    def name(self):
        return "sluice"

    def getRank(self):  # noqa: N802 - torch's name
        return self._own

    def getSize(self):  # noqa: N802 - torch's name
        return self._count

    @property
    def supports_reconfigure(self):
        return self._shared is not None

    def get_reconfigure_handle(self):
        """Of this process in this group, for as long as its session with the appliance works. Where
        that has failed, joins again, which blocks until the appliance has answered, and gives
        another handle. Raises what sluice.Session raises."""
        if not self._shared.works():
            shared = _torch_session.joined_elastic()
            shared.use()
            self._end("the appliance was lost: call reconfigure() with new handles of all", "abort")
            self._shared.session.close()
            self._shared, self._incarnation = shared, secrets.token_hex(4)
        return self._handle()

    def _handle(self):
        return f"{_PREFIX}:{self._shared.session.rank}:{self._incarnation}"

    @unseen
    def reconfigure(self, opts):
        """The group consists of the processes of opts.handles from now on: of a list in its order,
        of a set in an order that all of them know. Operations that are under way end with Closed.
        Returns a Work that is done when all members have called it with the same uuid and handles;
        it fails with TimedOut, which names who has not, or PeerLost. opts.uuid: not used by this
        group before. Raises InvalidArgument. Never blocks."""
        handles = self._checked(opts)
        self._leave_members(in_order=True)
        ranks = [_rank_of(handle) for handle in handles]
        what = _torch_session.digest(f"{opts.uuid} {handles}")
        self._uuids.add(opts.uuid)
        self._own, self._count = handles.index(self._handle()), len(handles)
        self._place(ranks)
        store = c10d.PrefixStore(what, self._store)
        self._inner = Inner(store, self._own, self._count, self._timeout)
        self._monitored = MonitoredBarrier(store, self._own, self._count)
        self._box = self._shared.session.group(what, ranks)
        self._ended, self._error, self._number = None, None, 0
        timeout = opts.timeout or self._timeout
        ticket = self._box.barrier(timeout=timeout.total_seconds())
        return Work(ticket, [], (self._own, self._name, f"reconfigure to uuid {opts.uuid}", None))

    def _checked(self, opts):
        """The handles in the order of ranks."""
        handles = opts.handles
        place = f"group '{self._name}', reconfigure to uuid {opts.uuid}: "
        if self._gone:
            raise errors.Closed(place + "this group has been destroyed")
        if self._shared is None:
            raise errors.InvalidArgument(place + self.reason(""))
        if not self._shared.works():
            raise errors.Closed(place + "the session with the appliance has failed: "
                                "get_reconfigure_handle() joins again, on all processes")
        if opts.uuid in self._uuids:
            raise errors.InvalidArgument(place + "this group has used it before: give a fresh one")
        for handle in handles:
            if _rank_of(handle) is None:
                raise errors.InvalidArgument(f"{place}'{handle}' is no handle of this backend")
        if isinstance(handles, (set, frozenset)):
            handles = sorted(handles, key=_rank_of)
        if len({_rank_of(handle) for handle in handles}) != len(handles):
            raise errors.InvalidArgument(place + f"two handles name one process: {handles}")
        if self._handle() not in handles:
            raise errors.InvalidArgument(
                f"{place}this process's handle {self._handle()} is not among "
                f"{handles}: call it on those that shall be members")
        return list(handles)

    def _leave_members(self, in_order):
        """Ends what is under way with the members so far; for the others too, not `in_order`."""
        self._inner.end("abort")
        box, self._box = self._box, None
        if box is not None:
            box.leave() if in_order and not box.open() else box.abort()

    _gone = False

    def _end(self, why, how):
        if self._gone:
            return
        self._ended, self._gone = why, how == "shutdown"
        try:
            self._leave_members(in_order=self._gone)
        except errors.Error:
            pass  # the session has failed before
        if self._gone and self._shared is not None:
            self._shared.release()


def _rank_of(handle):
    """The process's rank in the elastic job; None: it is no handle."""
    parts = handle.split(":")
    return int(parts[1]) if len(parts) == 3 and parts[0] == _PREFIX and parts[1].isdigit() else None
