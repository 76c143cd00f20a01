"""One copy of the model for all workers: UDP datagrams to a group, made reliable by TCP feedback.

The server may be a window ahead of the slowest receiver. A receiver says over TCP how far it has
everything and what it lacks first (the NACK); what it lacks is sent again to the group. SendWindow
and ReceiveWindow are pure; Caster and Receiver are their sockets.
"""
import socket
import struct

from . import streams

GROUP, PORT, FEEDBACK_PORT = "239.77.0.1", 7001, 7002
DATAGRAM = struct.Struct("!HI")       # step, sequence number from 0
FEEDBACK = struct.Struct("!BHII")     # receiver, step, all below this came, the first that lacks
NOTHING_LACKS = 0xFFFFFFFF
UDP_BYTES = 1472                      # fills a frame of MTU 1500
PAYLOAD_BYTES = UDP_BYTES - DATAGRAM.size
WINDOW = streams.RECEIVE_BUFFER_BYTES // PAYLOAD_BYTES
FEEDBACK_EVERY = 8
RESEND_AFTER_S = 0.1   # the same datagram not more often
SILENCE_S = 0.3        # without progress: the last datagrams or their reports are missing


class SendWindow:
    """Which datagram goes next."""

    def __init__(self, receivers, window):
        self._receivers, self._window = receivers, window
        self._count = 0
        self._next = [0] * receivers  # all below this came, by receiver
        self._sent = 0
        self._again = {}              # sequence number -> when it was asked for or sent again
        self._todo = []               # to be sent again
        self.progress_at = 0.0

    def begin(self, count, now):
        self._count, self._sent, self.progress_at = count, 0, now
        self._next = [0] * self._receivers
        self._again, self._todo = {}, []

    @property
    def done(self):
        return min(self._next) >= self._count

    def take(self):
        """(sequence number, whether it is sent again) of what may go now; None: nothing may."""
        if self._todo:
            return self._todo.pop(0), True
        if self._sent >= min(self._count, min(self._next) + self._window):
            return None
        self._sent += 1
        return self._sent - 1, False

    def feedback(self, receiver, through, lacks, now):
        if through > self._next[receiver]:
            self._next[receiver] = through
            self.progress_at = now
        if lacks != NOTHING_LACKS:
            self._repeat(lacks, now)

    def check(self, now):
        """Call at wake_at: what the slowest receiver lacks is sent again."""
        if not self.done and now >= self.progress_at + SILENCE_S:
            self.progress_at = now
            self._repeat(min(self._next), now)

    def _repeat(self, number, now):
        if number < self._sent and now - self._again.get(number, -1e9) >= RESEND_AFTER_S:
            self._again[number] = now
            self._todo.append(number)

    @property
    def wake_at(self):
        return None if self.done else self.progress_at + SILENCE_S


class ReceiveWindow:
    """What has come of one transfer."""

    def __init__(self, count):
        self._count, self._beyond = count, set()
        self.through = 0   # all below this came

    def data(self, number):
        if number < self.through:
            return
        self._beyond.add(number)
        while self.through in self._beyond:
            self._beyond.discard(self.through)
            self.through += 1

    @property
    def lacks(self):
        return self.through if self._beyond else NOTHING_LACKS

    @property
    def complete(self):
        return self.through == self._count


def datagrams(byte_count):
    return -(-byte_count // PAYLOAD_BYTES)


class Caster:
    """The server's side."""

    def __init__(self, address):
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF,
                                socket.inet_aton(address))
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        self._listener = socket.create_server(("", FEEDBACK_PORT))
        self.sockets, self._partial, self._window = [], {}, None
        self._step, self._bytes = 0, 0
        self.resent = 0

    def accept(self, receivers):
        """Waits for the feedback connections of so many workers."""
        for _ in range(receivers):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self.sockets.append(sock)
            self._partial[sock] = b""
        self._window = SendWindow(receivers, WINDOW)

    @property
    def wake_at(self):
        return self._window.wake_at

    def begin(self, step, byte_count, now):
        self._step, self._bytes = step, byte_count
        self._window.begin(datagrams(byte_count), now)
        self.work(now)

    def work(self, now):
        """Reads feedback, sends what may go."""
        for sock in self.sockets:
            try:
                data = self._partial[sock] + sock.recv(65536)
            except BlockingIOError:
                continue
            whole = len(data) // FEEDBACK.size * FEEDBACK.size
            self._partial[sock] = data[whole:]
            for receiver, step, through, lacks in FEEDBACK.iter_unpack(data[:whole]):
                if step == self._step & 0xFFFF:
                    self._window.feedback(receiver, through, lacks, now)
        self._window.check(now)
        while (choice := self._window.take()) is not None:
            number, again = choice
            self.resent += again
            size = min(PAYLOAD_BYTES, self._bytes - number * PAYLOAD_BYTES)
            packet = DATAGRAM.pack(self._step & 0xFFFF, number) + bytes(size)
            self._socket.sendto(packet, (GROUP, PORT))


class Receiver:
    """A worker's side."""

    def __init__(self, server_address, address, rank, byte_count):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
                               socket.inet_aton(GROUP) + socket.inet_aton(address))
        self.socket.bind((GROUP, PORT))
        self.socket.setblocking(False)
        self._feedback = socket.create_connection((server_address, FEEDBACK_PORT))
        self._feedback.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rank, self._count = rank, datagrams(byte_count)
        self._step, self._window, self._unreported = 0, ReceiveWindow(self._count), 0

    def work(self):
        """Reads what is there; returns how many models are complete now that were not before."""
        complete = 0
        while True:
            try:
                packet = self.socket.recv(2048)
            except BlockingIOError:
                return complete
            step, number = DATAGRAM.unpack_from(packet)
            if step != self._step & 0xFFFF:
                continue
            self._window.data(number)
            self._unreported += 1
            if (self._window.complete or self._window.lacks != NOTHING_LACKS
                    or self._unreported >= FEEDBACK_EVERY):
                self._report()
            if self._window.complete:
                complete += 1
                self._step += 1
                self._window = ReceiveWindow(self._count)

    def _report(self):
        self._unreported = 0
        self._feedback.sendall(FEEDBACK.pack(self._rank, self._step & 0xFFFF,
                                             self._window.through, self._window.lacks))
