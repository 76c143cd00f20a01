"""TCP connections that carry layers, and the settings that all policies share. No policy here.

A layer on the wire is its index, its size and so many zeros. A connection sends its
layers one after the other and never blocks; its owner selects on it.
"""
import socket
import struct
from collections import deque

PORT = 7000
HEADER = struct.Struct("!HI")  # layer, bytes
HELLO = struct.Struct("!BBB")  # worker, direction, band
DOWN, UP = 0, 1
# Bounds what one connection can have in a queue: no queue of a switch ever overflows.
RECEIVE_BUFFER_BYTES = 64 * 1024
CONGESTION = b"cubic"
ACK_PRECEDENCE = 7
_ZEROS = memoryview(bytes(256 * 1024))
_SCRATCH = memoryview(bytearray(256 * 1024))
_RETRANSMITS_AT = 100  # offset of tcpi_total_retrans in struct tcp_info of linux/tcp.h


def prepare(sock):
    """Before it listens or connects, so that the window is negotiated with it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connect(server_address, worker, direction, band):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    prepare(sock)
    sock.connect((server_address, PORT))
    sock.sendall(HELLO.pack(worker, direction, band))
    return Stream(sock)


def listen():
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    prepare(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", PORT))
    sock.listen(64)
    return sock


def accept(listener):
    """The next connection, with who it is from: (worker, direction, band, Stream)."""
    sock, _ = listener.accept()
    hello = sock.recv(HELLO.size, socket.MSG_WAITALL)
    return (*HELLO.unpack(hello), Stream(sock))


class Stream:
    def __init__(self, sock):
        sock.setblocking(False)
        self.socket = sock
        self._outbox = deque()  # memoryviews
        self._header = b""
        self._left = 0          # bytes of the layer that is being received
        self._layer = None      # its index
        self.closed = False

    def fileno(self):
        return self.socket.fileno()

    def mark(self, precedence):
        """Class selector of what this end sends from now on, 0 to 7."""
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, precedence << 5)

    def put(self, layer, byte_count):
        """Queues a layer behind those that wait."""
        self._outbox.append(memoryview(HEADER.pack(layer, byte_count)))
        for at in range(0, byte_count, len(_ZEROS)):
            self._outbox.append(_ZEROS[:min(len(_ZEROS), byte_count - at)])

    @property
    def waiting(self):
        return bool(self._outbox)

    def flush(self):
        """Gives the kernel what it takes."""
        while self._outbox:
            views = [self._outbox[i] for i in range(min(16, len(self._outbox)))]
            try:
                sent = self.socket.sendmsg(views)
            except BlockingIOError:
                return
            while sent:
                first = self._outbox[0]
                if sent < len(first):
                    self._outbox[0] = first[sent:]
                    break
                sent -= len(first)
                self._outbox.popleft()

    def receive(self):
        """Reads what is there; yields each layer that is complete."""
        while True:
            try:
                count = self.socket.recv_into(_SCRATCH)
            except BlockingIOError:
                return
            if count == 0:
                self.closed = True
                return
            yield from self._parse(count)

    def _parse(self, count):
        at = 0
        while at < count:
            if self._layer is None:
                taken = min(HEADER.size - len(self._header), count - at)
                self._header += bytes(_SCRATCH[at:at + taken])
                at += taken
                if len(self._header) < HEADER.size:
                    return
                self._layer, self._left = HEADER.unpack(self._header)
                self._header = b""
            taken = min(self._left, count - at)
            self._left -= taken
            at += taken
            if self._left == 0:
                done, self._layer = self._layer, None
                yield done

    def retransmits(self):
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        return struct.unpack_from("I", info, _RETRANSMITS_AT)[0]
