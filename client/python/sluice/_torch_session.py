"""Which session with the appliance a process group's operations go through.

Where the default group is of this backend, one session of all ranks serves it and every group
beside it. Where it is not, nobody knows whether the other ranks will make a group of this backend,
so each set of ranks has a session of its own. A session ends with the last of its groups.
"""

import hashlib
import logging
import os
import threading

from sluice import _settings, _torch_device, errors
from sluice.groups import Session

_MOST_NAME_BYTES = 64  # of a group's name
_WORLD = "world"
_ELASTIC = "elastic"
_MOST_PROCESSES = 64  # of an elastic job
_log = logging.getLogger("sluice")
_lock = threading.Lock()
_open = {}  # _WORLD, _ELASTIC, the ranks' numbers in the world, or an object -> Shared


class Shared:
    """A session and how many process groups use it.

    device  the index of the CUDA device whose tensors go through the box; None: no device's do,
            because a rank of the session has none.
    """

    def __init__(self, session, place, device=None):
        self.session, self._place, self._users = session, place, 0
        self.device = device

    def group(self, name, ranks):
        """A group of these ranks of the session; another user of it."""
        made = self.session.group(_short(name), ranks)
        self.use()
        return made

    def use(self):
        with _lock:
            self._users += 1

    def works(self):
        """Whether the session has not failed."""
        try:
            self.session.check()
        except errors.Error:
            return False
        return True

    def is_shared(self):
        """Whether several process groups use the session."""
        with _lock:
            return self._users > 1

    def release(self):
        """One user less. Closes the session after the last; blocks for at most about 1 s."""
        with _lock:
            self._users -= 1
            if self._users or _open.get(self._place) is not self:
                return
            del _open[self._place]
        self.session.close()

    def forget(self):
        """Lets later groups have a session of their own: this one has been aborted."""
        with _lock:
            if _open.get(self._place) is self:
                del _open[self._place]


def joined(store, name, rank, size, ranks, world_rank, timeout):
    """(Shared, group) for the process group `name` of the world's `ranks`, [] for the default
    group; `rank` in it of `size`. Blocks until its ranks have joined, where no session serves it
    yet. Raises what sluice.Session raises."""
    place = tuple(ranks) or _WORLD
    with _lock:
        world = _open.get(_WORLD)
        if ranks and world is not None:
            shared, members = world, ranks
        else:
            shared, members = _open.get(place) if ranks else None, range(size)
    if shared is None:
        if world is not None:  # torch 1.13 tells nobody that a group was destroyed
            world.forget()
            world.session.close()
        job = f"groups.{digest(repr(list(ranks)))[:8]}" if ranks else "groups"
        shared = _opened(place, store, job, rank, size, world_rank, timeout)
    if ranks:  # torch gives one name to groups of other ranks that are split alike from theirs
        name = f"{name}/{digest(repr(sorted(ranks)))[:8]}"
    return shared, shared.group(name, members)


def alone(store, job, rank, size, world_rank, timeout):
    """(Shared, group) of a session that serves no other process group, a job `job` of its own.
    Blocks until its ranks have joined. Raises what sluice.Session raises."""
    shared = _opened(object(), store, job, rank, size, world_rank, timeout)
    return shared, shared.group(job, range(size))


def joined_elastic():
    """The Shared of this process's elastic groups: its session goes on while their members change.
    A new one where that session has failed. Blocks until the appliance has answered. Raises what
    sluice.Session raises."""
    with _lock:
        shared = _open.get(_ELASTIC)
        if shared is None or not shared.works():
            most = _settings.integer("SLUICE_ELASTIC_RANKS", None, default=_MOST_PROCESSES, least=1)
            session = Session(elastic=True, job=f"{_settings.job_name(None)}.elastic",
                              world_size=most)
            shared = _open[_ELASTIC] = Shared(session, _ELASTIC)
        return shared


def _opened(place, store, job, rank, size, world_rank, timeout):
    session, device = _join(store, job, rank, size, world_rank, timeout)
    shared = Shared(session, place, device)
    with _lock:
        _open[place] = shared
    return shared


def _join(store, job, rank, size, world_rank, timeout):
    """(session, the device of Shared), equal in kind on all ranks: each tells the store whether it
    reaches a device before it joins, and nobody has joined before all have."""
    _settings.check_inproc(os.environ.get("SLUICE_ADDRESS", ""), size, "the process group")
    run_id = _run_id(store, rank)
    options = {"address": _settings.address(None, world_rank), "rank": rank, "world_size": size,
               "job": f"{_settings.job_name(None)}.{job}", "run_id": run_id,
               "local_address": _settings.local_address(None, world_rank),
               "join_timeout": min(max(timeout.total_seconds(), 1.0), 86_400.0)}
    way = os.environ.get("SLUICE_MEMORY")
    device = None if way == "host" else _torch_device.current()
    key = f"sluice/devices/{run_id}"
    session = None
    if device is not None:
        store.add(key, 1)
        try:
            session = Session(memory=way or "device", device=device, **options)
        except errors.NotFound as error:
            if way is not None:
                raise
            _log.info("tensors on CUDA devices go over Gloo: %s", error)
            store.add(key, -1)
    session = session or Session(memory="host", **options)
    return session, device if int(store.add(key, 0)) == size else None


def _run_id(store, rank):
    """What rank 0 draws. A store may outlive a process group, and then has an older answer: ranks
    count their questions, and make the same groups in the same order."""
    number = store.add(f"sluice/{rank}", 1)
    key = f"sluice/run/{number}"
    if rank == 0:
        store.set(key, str(_settings.drawn_run_id()))
    try:
        return int(store.get(key))
    except RuntimeError as error:
        raise errors.TimedOut(f"rank 0 of the process group did not tell the run id through the "
                              f"store: it has not come ({error})") from None


def _short(name):
    return name if len(name.encode()) <= _MOST_NAME_BYTES else digest(name)


def digest(text):
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
