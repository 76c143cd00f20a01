"""`Inner`: the Gloo group of the same ranks, for what the box does not do; made at first use."""

import functools
import os
import threading

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo


class Inner:
    """Made by whoever first calls a method of it. Where torch can connect ranks lazily, that
    waits for nobody; else until all ranks of the group have made theirs."""

    def __init__(self, store, rank, size, timeout):
        self._asked = (store and PrefixStore("gloo", store), rank, size)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._group = None

    def get(self):
        with self._lock:
            if self._group is None:
                self._group = self._made()
            return self._group

    def _made(self):
        make_options = getattr(ProcessGroupGloo, "_Options", None)
        if make_options is None:
            return ProcessGroupGloo(*self._asked, self._timeout)
        options = make_options()
        options._devices = _devices()
        options._timeout = self._timeout
        return ProcessGroupGloo(*self._asked, options)

    def set_timeout(self, timeout):
        with self._lock:
            self._timeout = timeout
            if self._group is not None:
                self._group.set_timeout(timeout)

    def end(self, how):
        """Calls `how`, 'abort' or 'shutdown', where the group is made and knows it."""
        with self._lock:
            group, self._group = self._group, None
        if hasattr(group, how):
            getattr(group, how)()


def _devices():
    """Of the interfaces that GLOO_SOCKET_IFNAME names, as torch's own Gloo groups have them; else
    of this host's name."""
    names = filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(","))
    makers = [functools.partial(ProcessGroupGloo.create_device, interface=name) for name in names]
    makers = makers or [ProcessGroupGloo.create_default_device]
    try:
        return [make(lazy_init=True) for make in makers]
    except TypeError:  # of a torch that connects all at once
        return [make() for make in makers]
