"""Calls into libsluice for one job: errors as exceptions, Ctrl-C in blocking calls, safe closing.

Not the interface for users (that is job.py): it knows no tensors and no settings.
"""

import ctypes
import json
import logging
import math
import sys
import threading
import time
import weakref

from sluice import _abi, errors

_log = logging.getLogger("sluice")
_SLICE_MS = 100  # Ctrl-C and close() are noticed after this long
ending_threads = set()  # idents of threads whose blocking calls, also joins, shall end


def read_counters(get):
    """A job's counters as a dict; `get` calls sluice_get_counters() with what it is given."""
    counters = _abi.sized(_abi.Counters)
    get(ctypes.byref(counters))
    return {name: getattr(counters, name) for name, _ in counters._fields_[1:]}


def _close(library, pointer, stats_file, _alive):
    if stats_file:
        try:
            with open(stats_file, "w") as file:
                json.dump(read_counters(
                    lambda counters: library.sluice_get_counters(pointer, counters)), file)
        except OSError as error:
            print(f"sluice: SLUICE_STATS={stats_file}: {error.strerror}", file=sys.stderr)
    # The process may be ending because of an exception: then the other ranks shall hear of it now.
    if getattr(sys, "last_value", None) is not None:
        library.sluice_abort(pointer)
    library.sluice_close(pointer)


def _interruptible(call, cancelled, on_slice=lambda waited_s: None):
    """Runs a blocking call so that Ctrl-C works; from the main thread, on_slice(waited_s) between.

    Python runs signal handlers on the main thread and between bytecodes only, so from the main
    thread the call moves to a helper thread. `cancelled` is a set of thread idents that the
    library's `interrupted` callback looks at.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome = []
    done = threading.Event()

    def helper():
        try:
            outcome.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again below
            outcome.append((None, error))
        finally:
            done.set()

    thread = threading.Thread(target=helper, name="sluice-call", daemon=True)
    begun_s = time.monotonic()
    thread.start()
    try:
        while not done.wait(_SLICE_MS / 1000):
            on_slice(time.monotonic() - begun_s)
    except BaseException:
        cancelled.add(thread.ident)
        done.wait(2.0)
        cancelled.discard(thread.ident)
        raise
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


class _Reports:
    """What the library reports by itself. Of a job with tensors stalls are left out once it is
    joined, `pointer`: whoever waits asks what is missing, of a step."""

    def __init__(self, library):
        self._library = library
        self._restarts = 0
        self.pointer = None

    def log(self, _user, text):
        if self.pointer is None or self._has_restarted():
            _log.warning("%s", text.decode("utf-8", "replace"))

    def _has_restarted(self):
        """Its appliance was lost and is back, since the last report."""
        counters = read_counters(
            lambda found: self._library.sluice_get_counters(self.pointer, found))
        before, self._restarts = self._restarts, counters["appliance_restarts"]
        return self._restarts > before


class Handle:
    """A joined job in the C library. Any thread may call any method."""

    def __init__(self, library, options, tensors, alive, stats_file=None):
        """Joins; blocks. `tensors`: of the layout; None: a job of operations. `alive` is kept
        until the job is closed: memory that it may write to. `stats_file` gets the counters as JSON
        when the job is closed."""
        self.library = self._library = library
        self._condition = threading.Condition()
        self._calls = 0
        self._closing = False
        self._cancelled = set()  # threads (idents) whose blocking call shall end; None: all
        cancelled = self._cancelled
        self._interrupted = _abi.InterruptedFn(
            lambda _user: int(None in cancelled or threading.get_ident() in cancelled
                              or threading.get_ident() in ending_threads))
        options.callbacks.interrupted = self._interrupted
        reports = _Reports(library)
        stalled = options.callbacks.on_stall = _abi.StallFn(reports.log)
        self._pointer = self._join(options, tensors)
        if tensors is not None:
            reports.pointer = self._pointer
        self._finalizer = weakref.finalize(
            self, _close, library, self._pointer, stats_file, (alive, self._interrupted, stalled))

    def _join(self, options, tensors):
        pointer = ctypes.c_void_p()

        def call():
            layout = () if tensors is None else (tensors, len(tensors))
            join = getattr(self._library, "sluice_join" if layout else "sluice_join_operations")
            status = join(ctypes.byref(options), *layout, ctypes.byref(pointer))
            return status, "" if status == _abi.OK else self._last_error(None)

        try:
            status, text = _interruptible(call, self._cancelled)
        except BaseException:
            if pointer.value:  # it had just been joined
                self._library.sluice_close(pointer)
            raise
        if status != _abi.OK:
            raise errors.make(status, text)
        return pointer

    def _last_error(self, pointer):
        return (self._library.sluice_last_error(pointer) or b"").decode("utf-8", "replace")

    def _call(self, name, *arguments):
        """(status, error text) of a function of the job."""
        return self.call_on(self._pointer, name, *arguments)

    def call_on(self, pointer, name, *arguments):
        """(status, error text) of a function of the job's object at `pointer`. close() waits until
        it is over."""
        with self._condition:
            if self._closing:
                return errors.Closed.status, "the job has been closed in this process"
            self._calls += 1
        try:
            status = getattr(self._library, name)(pointer, *arguments)
            return status, "" if status == _abi.OK else self._last_error(self._pointer)
        finally:
            with self._condition:
                self._calls -= 1
                if self._closing:
                    self._condition.notify_all()

    def call(self, name, *arguments):
        """Calls a function that does not block; raises its error."""
        status, text = self._call(name, *arguments)
        if status != _abi.OK:
            raise errors.make(status, text)

    def collective(self, name, *arguments, timeout, on_slice):
        """Calls a function that blocks and cannot be repeated: its last argument is a timeout."""
        timeout_ms = _abi.FOREVER if timeout is None else int(timeout * 1000)
        status, text = _interruptible(lambda: self._call(name, *arguments, timeout_ms),
                                      self._cancelled, on_slice)
        if status != _abi.OK:
            raise errors.make(status, text)

    def wait(self, call_for_ms, timeout, on_slice):
        """Repeats a wait in slices until it is over, so that Ctrl-C works on any thread.

        call_for_ms(ms) returns (name, arguments...); on_slice(waited_s) is called between slices.
        """
        start = time.monotonic()
        while True:
            left_ms = _SLICE_MS
            if timeout is not None:
                # 0 only polls: its error does not say who and what is missing
                left_s = start + timeout - time.monotonic()
                left_ms = min(left_ms, max(int(timeout > 0), math.ceil(left_s * 1000)))
            status, text = self._call(*call_for_ms(left_ms))
            if status == _abi.OK:
                return
            if status not in (_abi.TIMED_OUT, _abi.INTERRUPTED):
                raise errors.make(status, text)
            waited = time.monotonic() - start
            if timeout is not None and waited >= timeout:
                raise errors.make(_abi.TIMED_OUT, f"{text} (timeout {timeout:g} s)")
            on_slice(waited)

    def counters(self):
        """The job's counters as a dict."""
        return read_counters(lambda counters: self.call("sluice_get_counters", counters))

    def part_counters(self):
        """Of each part of the job's traffic: a dict with thread, level, and the counters."""
        found, part = [], _abi.sized(_abi.Part)
        try:
            while True:
                counters = read_counters(lambda counters: self.call(
                    "sluice_get_part_counters", len(found), ctypes.byref(part), counters))
                found.append({"thread": part.thread, "level": part.level, **counters})
        except errors.NotFound:
            return found

    @property
    def closed(self):
        return self._closing

    def close(self):
        """Ends calls that block on other threads, leaves, frees. May be called more than once."""
        with self._condition:
            if self._closing:
                return
            self._closing = True
            self._cancelled.add(None)
            while self._calls:
                self._condition.wait(_SLICE_MS / 1000)
        self._finalizer()
