"""`Fallback`: ends steps over the process group while no box answers. For attach(fallback="group").

A step has one result on all ranks. So the ranks first stop using the box, all of them, and only
then add up anything over the group:

 1. A rank that has heard no box for `after_s` asks all ranks to stop, at the group's store. Each
    rank looks there ten times a second; half of them may still see the box.
 2. A rank that stops leaves the job, from where on the job gives it no result, and states at the
    store how many steps it has ended. It reads the statements of all others: no sum before that.
 3. A step that some ranks have ended and some have not is given by the first rank that has: each
    rank keeps the newest results in memory of their own. Ranks differ by one step at most, since
    a step needs all ranks.
    A rank whose training thread is between two steps, in a collective call that waits for the rank
    that lacks the step, states and gives by a thread of its own.
 4. A step that no rank has ended is summed over the group, from the same contributions: the job
    does not write its results over them.

Meanwhile each rank tries to join the box anew, on a thread, as a member of another run. Each step
over the group adds up how many ranks have joined. Once all have, the next step is the box's.
"""

import atexit
import datetime
import hashlib
import logging
import threading
import time

import torch
import torch.distributed as dist

from sluice import errors
from sluice._handle import ending_threads
from sluice._torch_gloo import Inner

_log = logging.getLogger("sluice")
LOOK_S = 0.1  # between two looks at the store
_RETRY_S = 0.5
_NEXT_RUN_S = 2.0  # ranks that wait in a join for one that has given it up
RETURN_JOIN_S = 10.0


class ProcessGroup:
    """A torch.distributed group, as Fallback uses it. add() and give() from any thread."""

    def __init__(self, group, name, patience_s):
        ranks = [dist.distributed_c10d.get_global_rank(group, rank)
                 for rank in range(dist.get_world_size(group))]
        self.rank, self.size = dist.get_rank(group), len(ranks)
        self._group = group
        self._store = dist.PrefixStore(f"sluice/fallback/{name}/{ranks[0]}-{len(ranks)}",
                                       dist.distributed_c10d._get_default_store())
        # The script's own calls may be under way in `group`.
        self._of_givers = Inner(self._store, self.rank, self.size,
                                datetime.timedelta(seconds=patience_s))

    def add(self, key, number):
        """Adds to a number that all ranks see once this returns, at first 0; returns the sum."""
        return self._store.add(key, number)

    def sum(self, tensors):
        """Replaces each tensor by the sum over all ranks."""
        for work in [dist.all_reduce(one, group=self._group, async_op=True) for one in tensors]:
            work.wait()

    def give(self, tensors, rank):
        """Replaces each tensor by that rank's. In memory of the host."""
        options = dist.BroadcastOptions()
        options.rootRank = rank
        group = self._of_givers.get()
        for work in [group.broadcast([one], options) for one in tensors]:
            work.wait()


class Return(threading.Thread):
    """Joins a job at the box, as often as it takes. `join` makes the job, or raises."""

    def __init__(self, join):
        super().__init__(name="sluice-return", daemon=True)
        self._join, self._lock = join, threading.Lock()
        self._unwanted = threading.Event()
        self._job = None
        self.failed = False  # and another run is needed
        atexit.register(self.stop)  # a thread must not be in the library when Python ends
        self.start()

    def run(self):
        try:
            self._try()
        finally:
            ending_threads.discard(self.ident)

    def _try(self):
        said = None
        while not self._unwanted.is_set():
            try:
                job = self._join()
            except (errors.Unreachable, errors.Refused, errors.IoError) as error:
                if type(error) is not said:
                    said = type(error)
                    _log.info("training goes on over the process group: %s", error)
                self._unwanted.wait(_RETRY_S)
                continue
            except errors.Error as error:
                if not self._unwanted.wait(_NEXT_RUN_S):
                    _log.info("training goes on over the process group: %s", error)
                self.failed = True
                return
            with self._lock:
                if not self._unwanted.is_set():
                    self._job = job
                    return
            job.close()

    def ready(self):
        """Whether all ranks have joined, as far as this one knows."""
        with self._lock:
            if self._job is None:
                return False
            try:
                self._job.check()
                return True
            except errors.Error:
                self.failed = True
                return False

    def take(self):
        """The job, which is the caller's."""
        self._unwanted.set()
        atexit.unregister(self.stop)
        with self._lock:
            job, self._job = self._job, None
        return job

    def stop(self):
        """Ends a join that is under way; waits for that for at most 2 s."""
        job = self.take()
        if job is not None:
            job.close()
        if self.is_alive():
            ending_threads.add(self.ident)
            self.join(2)


class Fallback:
    """Where the steps of one rank end. Use from the thread that trains. Has a thread that answers
    the other ranks while that one is between two steps, until end().

    group      a ProcessGroup.
    job        the sluice.Job; afterwards the present one, closed while `is_away`.
    join       join(number) joins another run of the job, the same for all ranks by that number.
    results    tensors for the results of a step, one for each type of element, equal on all ranks.
    after_s    seconds without a box.
    patience_s how long ranks wait at the store for each other.
    """

    def __init__(self, group, job, join, results, after_s, patience_s):
        self.job, self.is_away, self.group_steps = job, False, 0
        self._group, self._join, self._results = group, join, results
        self._after_s, self._patience_s = after_s, patience_s
        self._ended = 0  # steps
        self._times = self._runs = 0  # the group was used; a run was joined
        self._returning = None
        self._is_open = True  # the job
        # Held by the thread that ends a step or answers the others: what follows is its own.
        self._turn = threading.Lock()
        self._given = False  # a step that has not ended here was given meanwhile
        self._error = None   # of the thread that answers
        self._over = threading.Event()
        self._answering = threading.Thread(target=self._answer, name="sluice-fallback", daemon=True)
        self._answering.start()
        atexit.register(self.end)

    def end_step(self, contributions, weight, take_results):
        """Ends the step that this rank has contributed to, when its contributions (tensors) hold
        the averages. `take_results()` copies the results there. Blocks. Raises the job's errors,
        and PeerLost where a rank does not come to the group."""
        with self._turn:
            if self._error is not None:
                raise self._error
            if self.is_away:
                self._close()  # the other thread has left it
            if self._given or (not self.is_away and (self._wait() or self._change_over())):
                take_results()
                self._given = False
            else:
                with _naming_the_group():
                    self._sum(contributions, weight)
                self.group_steps += 1
            self._ended += 1

    def stops(self, error=None):
        """Whether the ranks leave the job: an error of it is a consequence of that, then."""
        if isinstance(error, errors.Unreachable) and not self.is_away:
            self._ask()
        return self.is_away or self._group.add(f"stop/{self._times}", 0) != 0

    def end(self):
        """Nothing is joined any more, and the other ranks hear nothing. Idempotent."""
        atexit.unregister(self.end)
        self._over.set()
        self._answering.join(2)
        if self._returning is not None:
            self._returning.stop()
        if self.is_away:
            self._close()

    def _close(self):
        if self._is_open:
            self._is_open = False
            self.job.close()

    # ---- the box ----

    def _ask(self):
        self._group.add(f"stop/{self._times}", 1)

    def _wait(self):
        """True: the job's results are here. False: the ranks leave it."""
        begun_s, reports = time.monotonic(), self.job._reports()
        heard, heard_s = None, begun_s
        while True:
            try:
                self.job.wait_step(timeout=LOOK_S)
                return True
            except errors.TimedOut:
                now_s, packets = time.monotonic(), self._packets()
                if packets != heard:  # a box that has nothing to tell answers keepalives
                    heard, heard_s = packets, now_s
                if now_s - heard_s >= self._after_s:
                    self._ask()
                if self.stops():
                    return False
                reports(now_s - begun_s)
            except errors.Error as error:
                if not self.stops(error):
                    raise
                return False

    def _packets(self):
        """How many packets of any box have come; None where the job has just failed."""
        try:
            return self.job.stats()["packets_received"]
        except errors.Error:
            return None

    # ---- from the box to the group ----

    def _answer(self):
        """What end_step() does for the others, while the training thread is outside of it."""
        while not self._over.wait(LOOK_S):
            try:
                if not self.stops() or not self._turn.acquire(blocking=False):
                    continue
            except RuntimeError:
                return  # the store is gone, and the process group with it
            try:
                if not self.is_away and self.stops():
                    self._given = self._leave()
            except errors.Error as error:
                self._error = error
                return
            except RuntimeError as error:
                self._error = errors.PeerLost(f"the process group's store has failed: {error}")
                return
            finally:
                self._turn.release()

    def _change_over(self):
        """True: another rank has given the step that this one was in."""
        self._close()
        return self._leave()

    def _leave(self):
        """Takes no more results of the job. True: as above."""
        self._group.add(f"ended/{self._times}/{self._group.rank}", 1 + self._ended)
        ended = self._statements()
        if max(ended) - min(ended) > 1:
            raise errors.Internal(f"the ranks have ended {ended} steps: must differ by 1 at most")
        _log.warning("rank %d: no box has answered some rank for %g s: training goes on over the "
                     "process group from step %d on", self._group.rank, self._after_s,
                     max(ended) + 1)
        self.is_away = True
        self._times += 1
        self._try_to_return()
        if max(ended) != min(ended):
            with _naming_the_group():
                self._group.give(self._results, ended.index(max(ended)))
        return self._ended < max(ended)

    def _statements(self):
        """How many steps each rank has ended, once all have left the job."""
        keys = [f"ended/{self._times}/{rank}" for rank in range(self._group.size)]
        deadline_s = time.monotonic() + self._patience_s
        while True:
            found = [self._group.add(key, 0) for key in keys]
            missing = [rank for rank, number in enumerate(found) if number == 0]
            if not missing:
                return [number - 1 for number in found]
            if time.monotonic() > deadline_s:
                raise errors.PeerLost(
                    f"no box has answered for {self._after_s:g} s, and ranks {missing} have not "
                    f"come to the process group's store within {self._patience_s:g} s: no rank can "
                    "go on without them")
            time.sleep(LOOK_S)

    # ---- the group, and back ----

    def _sum(self, contributions, weight):
        back = self._returning
        is_ready = back.ready()
        said = torch.tensor([weight, is_ready, back.failed], dtype=torch.float64)
        self._group.sum([*contributions, said])
        weights, ready, failed = said.tolist()
        for tensor in contributions:
            tensor.div_(weights)
        if ready == self._group.size:
            self.job, self.is_away, self._returning = back.take(), False, None
            self._is_open = True
            _log.warning("rank %d: training is back at %s from step %d on", self._group.rank,
                         self.job.address, self._ended + 2)
        elif failed:
            back.stop()
            self._try_to_return()

    def _try_to_return(self):
        self._runs += 1
        self._returning = Return(lambda number=self._runs: self._join(number))


class _naming_the_group:
    """Makes PeerLost of the errors of torch.distributed."""

    def __enter__(self):
        return self

    def __exit__(self, kind, value, _trace):
        if kind is not None and issubclass(kind, RuntimeError):
            raise errors.PeerLost(f"no box answers, and the process group has failed: {value}")


def run_of(run_id, number):
    """The id of the run that all ranks join by that number, after the run that was the first."""
    data = f"{run_id}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1
