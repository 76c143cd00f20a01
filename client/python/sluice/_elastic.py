"""The run id where torchrun starts a job's ranks: what rank 0 draws.

torchrun starts ranks again together, and its own count of that differs from node to node: an agent
counts the failures of its own workers. Nothing in a worker's environment is equal on all ranks and
new in each round, so rank 0 tells the others, through the store that the agents keep for workers at
MASTER_ADDR:MASTER_PORT. The store outlives a round: a rank asks under a fresh number, and only the
answer to that counts, which no rank 0 of an earlier round can have given.
"""

import datetime
import os
import secrets
import time

from sluice import _settings, errors

_CONNECT_S = 10
_POLL_S = 0.02
_stores = {}  # (host, port) -> a client of the agents' store


def run_id(given, job, rank, world_size, timeout, env=os.environ):
    """As _settings.run_id(), for rank `rank` of `job`, equal on all ranks of it. Under torchrun it
    blocks until all of them have asked; raises TimedOut."""
    store = None
    if not given and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and world_size > 1:
        store = _store(env)
    if store is None:
        return _settings.run_id(given, env)
    deadline = time.monotonic() + timeout
    if rank == 0:
        return _tell(store, f"sluice/{job}", world_size, deadline, timeout)
    return _ask(store, f"sluice/{job}/{rank}", deadline, timeout)


def _store(env):
    """None where there is none after all: the variable may be of a process further up, and torch
    1.x, whose stores cannot be asked without waiting, counts alike on all nodes."""
    at = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    if at not in _stores:
        store = None
        try:
            from torch.distributed import TCPStore
            if hasattr(TCPStore, "check"):
                store = TCPStore(at[0], int(at[1]), is_master=False, wait_for_workers=False,
                                 timeout=datetime.timedelta(seconds=_CONNECT_S))
        except (ImportError, ValueError, TypeError, RuntimeError):
            pass
        _stores[at] = store
    return _stores[at]


def _ask(store, key, deadline, timeout):
    mine = secrets.token_hex(8)
    store.set(key, mine)
    answer = f"{key}/{mine}"
    while not store.check([answer]):
        if time.monotonic() > deadline:
            raise errors.TimedOut(f"rank 0 did not tell its run id within {timeout:g} s through "
                                  "torchrun's store: it has not come to join the job")
        time.sleep(_POLL_S)
    told = store.get(answer).decode()
    store.set(f"{answer}/{told}", "heard")
    return int(told)


def _tell(store, prefix, world_size, deadline, timeout):
    """Answers until every rank has heard: what is asked first may be left of an earlier round."""
    told = str(_settings.drawn_run_id())
    missing, answered = set(range(1, world_size)), set()
    while missing:
        for rank in sorted(missing):
            key = f"{prefix}/{rank}"
            if not store.check([key]):
                continue
            answer = f"{key}/{store.get(key).decode()}"
            if answer not in answered:
                store.set(answer, told)
                answered.add(answer)
            if store.check([f"{answer}/{told}"]):
                missing.discard(rank)
        if missing and time.monotonic() > deadline:
            raise errors.TimedOut(
                f"ranks {sorted(missing)} did not ask for the run id within {timeout:g} s in "
                "torchrun's store: they have not come to join the job")
        time.sleep(_POLL_S if missing else 0)
    return int(told)
