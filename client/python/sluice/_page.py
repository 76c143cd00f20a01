"""A worker's page of metrics, for Prometheus and `python3 -m sluice top`: where SLUICE_METRICS is.

One a process, with the rows of all of its jobs, made when somebody asks, on a thread of its own; a
process that shall have none starts no thread. Names: dataplane/ops/README.md.
"""

import atexit
import logging
import os
import threading
import time
import weakref

from sluice import _abi, errors

PATH = "/metrics"
_BETWEEN_S = 0.05  # two pages: who asks for more takes no more of training's time
_PATIENCE_S = 2.0  # with one that has connected and does not ask, while others wait
_FACTS = ("receive_credit_packets", "chunk_bytes", "shards", "oldest_request_iterations",
          "detoured_lanes")  # counters that do not only grow
_OF_TRANSPORTS = ("send_errors", "segmented_packets", "coalesced_packets", "receive_drops")
_log = logging.getLogger("sluice")


class _Page:
    """The jobs on it, and where it is served."""

    def __init__(self):
        self._reset()

    def _reset(self):
        self._lock = threading.Lock()  # while jobs are asked
        self._members = weakref.WeakSet()
        self._server = None

    def show(self, member, place):
        with self._lock:
            self._members.add(member)
            if self._server is None:
                self._server = _serve(*place)

    def text(self):
        with self._lock:
            return _text(sorted(self._members, key=lambda one: (one.label, one.rank)))

    def clear(self):
        """No job is asked from now on: at exit the library frees them."""
        with self._lock:
            self._members.clear()

    def forget(self):
        """In a child of fork(), which has neither the jobs nor the thread."""
        server = self._server
        self._reset()
        if server is not None:
            server.server_close()


_page = _Page()
os.register_at_fork(after_in_child=_page.forget)


def show(member, place):
    """Puts a job that has been joined on the page; `place`: _settings.metrics(). Not to be had, it
    is a warning: training goes on."""
    if place is None:
        return
    _page.show(member, place)


def _serve(host, port):
    from http.server import BaseHTTPRequestHandler
    import socket
    from socketserver import TCPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_GET(self):
            if self.path.partition("?")[0] != PATH:
                self.send_error(404, explain=f"The metrics are at {PATH}")
                return
            body = _page.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    class Server(TCPServer):
        allow_reuse_address = True

        def handle_error(self, *_):
            _log.debug("the page of metrics", exc_info=True)

    def answer():
        while True:
            server.handle_request()
            time.sleep(_BETWEEN_S)

    try:
        Server.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server = Server((host, port), Handler)
    except OSError as error:
        _log.warning(
            "SLUICE_METRICS: no page of metrics at %s:%d (%s); training goes on. It is HOST:PORT, "
            "an address of this machine and a port that is free; LOCAL_RANK, of which each process "
            "of a machine has another, is added to the port", host, port, error.strerror)
        return None
    atexit.register(_page.clear)  # after the jobs' own registration, so before they are freed
    threading.Thread(target=answer, name="sluice-page", daemon=True).start()
    _log.info("metrics at http://%s:%d%s", host, port, PATH)
    return server


def _text(members):
    families, count = {}, 0
    for member in members:
        try:
            rows = list(_rows(member))
        except errors.Error:  # it has been closed
            continue
        count += 1
        for name, meaning, labels, value in rows:
            labels = {"job": member.label, "rank": member.rank, **labels}
            text = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            families.setdefault(name, (meaning, []))[1].append((f"{{{text}}}", value))
    families["sluice_worker_jobs"] = "Jobs of this process.", [("", count)]
    lines = []
    for name, (meaning, rows) in families.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {value}" for labels, value in rows]
    return "\n".join(lines) + "\n"


def _escaped(label):
    return str(label).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _rows(member):
    """(name, help, labels, value) of a job; raises Error when it is none any more."""
    stalled_s, _, missing = member._stall()
    yield "sluice_worker_world_size", "Ranks of the job.", {}, member.world_size
    yield ("sluice_worker_running", "1 while the job works; 0 after it has failed or was left.", {},
           int(_works(member)))
    yield ("sluice_worker_stalled_seconds",
           "Since something came last of what this rank waits for; 0: it waits for nothing.", {},
           round(stalled_s, 3))
    for rank in sorted(missing):
        yield ("sluice_worker_missing", "Ranks that this one has been told it waits for.",
               {"missing": rank}, 1)
    helps = {name: meaning[0].upper() + meaning[1:] + "." for name, meaning in zip(*(
        _abi.names(member._library, f"sluice_counter_{what}") for what in ("name", "help")))}
    for name, value in member.stats().items():
        yield _family("sluice_worker_", name), helps[name], {}, value
    for part in member.part_stats():
        labels = {key: part.pop(key) for key in ("thread", "level")}
        for name, value in part.items():
            if name not in _OF_TRANSPORTS:
                yield _family("sluice_worker_part_", name), helps[name], labels, value


def _works(member):
    try:
        member.check()
        return True
    except errors.Error:
        return False


def _family(area, name):
    return area + name + ("" if name in _FACTS else "_total")
