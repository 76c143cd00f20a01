"""`monitored_barrier()` of a process group, through its store: rank 0 names who has not come.

It needs no connection to a rank that hangs. The texts are those of torch's Gloo.
"""

import datetime
import time

from sluice.errors import TimedOut

_SLICE_S = 0.01  # between two looks into the store


class MonitoredBarrier:
    """Of one process group. Its ranks call it equally often: who comes too late hears so."""

    def __init__(self, store, rank, size):
        self._store, self._rank, self._size = store, rank, size
        self._number = 0

    def wait(self, timeout_s, wait_all_ranks=False):
        """Blocks until all ranks have called it. Raises TimedOut after `timeout_s`: on rank 0 with
        the first rank that has not come, or with `wait_all_ranks` all of them."""
        self._number += 1
        deadline = time.monotonic() + timeout_s
        if self._rank == 0:
            said = self._missing(deadline, f"{timeout_s * 1000:.0f} ms", wait_all_ranks)
            self._store.set(self._key("verdict"), said)
        else:
            self._store.set(self._key(self._rank), "here")
            came = self._await("verdict", deadline)
            said = self._store.get(self._key("verdict")).decode() if came else "no answer"
            if said:
                said = (f"Rank {self._rank} successfully reached monitoredBarrier, but received "
                        f"errors while waiting for send/recv from rank 0: {said}")
        if said:
            raise TimedOut(said)

    def _missing(self, deadline, limit, wait_all_ranks):
        """What rank 0 has to say; "" when all have come."""
        missing = []
        for rank in range(1, self._size):
            if not wait_all_ranks and time.monotonic() >= deadline:
                return f"Rank 0 timed out in monitoredBarrier after {limit}"
            if not self._await(rank, deadline):
                missing.append(str(rank))
                if not wait_all_ranks:
                    break
        if not missing:
            return ""
        who = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        return f"{who} failed to pass monitoredBarrier in {limit}"

    def _await(self, who, deadline):
        """Whether the key of `who` came until then."""
        while not self._has(self._key(who)):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_SLICE_S)
        return True

    def _has(self, key):
        if hasattr(self._store, "check"):
            return self._store.check([key])
        try:  # of a torch before 2.0
            self._store.wait([key], datetime.timedelta(seconds=_SLICE_S))
        except RuntimeError:
            return False
        return True

    def _key(self, who):
        return f"sluice/monitored/{self._number}/{who}"
