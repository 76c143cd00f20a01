"""`python3 -m sluice launch`: start the ranks of a script on this machine.

Sets the environment that torchrun would set, puts the rank in front of each line of output, and
when one rank fails stops the others and says which one failed and why. Debian 12's own torchrun
does not run on its Python 3.11, which is one reason for this module.
"""

import argparse
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time

from sluice._processes import Child, describe_exit, signal_name, stop_all

_READ_BYTES = 65536
_DRAIN_S = 1.0  # for output that is still in the pipe when a rank has ended


def free_port(host="127.0.0.1"):
    """A TCP port that nothing uses at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def rank_environment(base, *, rank, local_rank, local_world_size, world_size, node_rank,
                     master_addr, master_port, run_id=None, address=None):
    """The variables of one rank: torchrun's, and Sluice's. Returns a new dict; `base` is kept."""
    env = dict(base)
    env.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(local_world_size), GROUP_RANK=str(node_rank),
        MASTER_ADDR=master_addr, MASTER_PORT=str(master_port), PYTHONUNBUFFERED="1")
    if master_addr == "127.0.0.1":
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else Gloo looks up this host's own name
    if local_world_size > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # else each rank starts a thread per core
    if run_id is not None:
        env["SLUICE_RUN_ID"] = str(run_id)
    if address is not None:
        env["SLUICE_ADDRESS"] = address
    return env


class Printer:
    """Writes lines of several ranks to one stream, each with its rank in front.

    A progress bar redraws its line with carriage returns. On a terminal the latest state of one
    such line stays at the bottom; in a file only its last state is written.
    """

    def __init__(self, stream):
        self._stream = stream
        self._terminal = stream.isatty()
        self._bar = ""

    def line(self, prefix, text):
        clear = "\r\x1b[K" if self._bar else ""
        self._stream.write(f"{clear}{prefix}{text}\n{self._bar}")
        self._stream.flush()

    def bar(self, prefix, text):
        if not self._terminal or not text:
            return
        columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._bar = (prefix + text)[:columns - 1]
        self._stream.write(f"\r\x1b[K{self._bar}")
        self._stream.flush()

    def end_bar(self):
        if self._bar:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._bar = ""


class _Pipe:
    """Splits what a rank writes into lines and progress bars. Reads of one rank and stream."""

    def __init__(self, rank, file, printer, prefix, bar_prefix):
        self.rank = rank
        self.file = file
        self.last_line = ""
        self._printer = printer
        self._prefix = prefix
        self._bar_prefix = bar_prefix
        self._rest = b""

    def read(self):
        """Takes what is there. False at the end of the stream."""
        data = os.read(self.file.fileno(), _READ_BYTES)
        if not data:
            if self._rest:
                self._emit(self._rest, final=True)
                self._rest = b""
            return False
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._emit(line, final=True)
        if b"\r" in self._rest:
            self._emit(self._rest, final=False)
            self._rest = self._rest[self._rest.rfind(b"\r"):]
        return True

    def _emit(self, raw, final):
        text = raw.decode("utf-8", "replace")
        prefix = self._bar_prefix if "\r" in text else self._prefix
        if "\r" in text:
            text = [part for part in text.split("\r") if part.strip()][-1:]
            text = text[0] if text else ""
            if final:
                self._printer.end_bar()
        if not final:
            self._printer.bar(prefix, text)
        elif text or not raw:
            if not text and not self.last_line:
                return
            self._printer.line(prefix, text)
            self.last_line = text.strip() or self.last_line


class Launcher:
    """The ranks of one run, from start to end. Main thread only; leaves no process behind."""

    def __init__(self, commands, environments, *, ranks, stdout=None, stderr=None,
                 keep_going=False, grace_s=5.0, limit_s=None, bar_prefix=True):
        self._commands = commands
        self._environments = environments
        self._ranks = ranks
        self._keep_going = keep_going
        self._grace_s = grace_s
        self._limit_s = limit_s
        self._signal = None
        self._children = []
        self._pipes = []
        self._selector = selectors.DefaultSelector()
        self._err = Printer(stderr or sys.stderr)
        self._out = Printer(stdout or sys.stdout)
        self._bar_prefix = bar_prefix
        self.failure = ""  # one line, once a rank has failed
        self.stopped_by = None  # number of the signal that ended the run

    def run(self):
        """Returns 0, or the status of the first rank that failed (128 + number for a signal; 124
        when the ranks ran longer than `limit_s`)."""
        handlers = {number: signal.signal(number, self._on_signal)
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            self._start()
            return self._watch()
        finally:
            stop_all(self._children, grace_s=self._grace_s)
            self._drain(time.monotonic() + _DRAIN_S)
            self._out.end_bar()
            self._err.end_bar()
            self._selector.close()
            for child in self._children:
                child.popen.stdout.close()
                child.popen.stderr.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number, _frame):
        self._signal = number

    def _start(self):
        for rank, command, environment in zip(self._ranks, self._commands, self._environments):
            child = Child(command, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self._children.append(child)
            prefix = f"[{rank}] "
            for file, printer in ((child.popen.stdout, self._out), (child.popen.stderr, self._err)):
                pipe = _Pipe(rank, file, printer, prefix, prefix if self._bar_prefix else "")
                self._pipes.append(pipe)
                self._selector.register(file, selectors.EVENT_READ, pipe)

    def _read_once(self, timeout_s):
        for key, _ in self._selector.select(timeout_s):
            if not key.data.read():
                self._selector.unregister(key.fileobj)

    def _drain(self, deadline):
        while self._selector.get_map() and time.monotonic() < deadline:
            self._read_once(0.05)

    def _watch(self):
        failed_status = 0
        reported = set()
        deadline = None if self._limit_s is None else time.monotonic() + self._limit_s
        while len(reported) < len(self._children):
            if self._signal is not None:
                return self._interrupt()
            if deadline is not None and time.monotonic() > deadline:
                self.failure = f"not finished after {self._limit_s:.0f} s; stopped"
                return 124
            if self._selector.get_map():
                self._read_once(0.1)
            else:
                time.sleep(0.05)
            for rank, child in zip(self._ranks, self._children):
                status = child.poll()
                if status is None or rank in reported:
                    continue
                reported.add(rank)
                if status == 0:
                    continue
                failed_status = failed_status or (status if status > 0 else 128 - status)
                self._report(rank, child, status)
                if not self._keep_going:
                    return failed_status
        return failed_status

    def _report(self, rank, child, status):
        self._drain(time.monotonic() + 0.2)
        words = [pipe.last_line for pipe in self._pipes if pipe.rank == rank]
        last = words[1] or words[0]
        alive = [r for r, c in zip(self._ranks, self._children) if c.poll() is None]
        self.failure = f"rank {rank} (pid {child.pid}) {describe_exit(status)}"
        text = self.failure + (f": {last}" if last else "")
        if alive and not self._keep_going:
            text += f"; stopping rank{'s' * (len(alive) > 1)} {', '.join(map(str, alive))}"
        self._err.end_bar()
        self._err.line("sluice launch: ", text)

    def _interrupt(self):
        number, self._signal = self._signal, None
        self.stopped_by = number
        self._err.end_bar()
        self._err.line("sluice launch: ", f"{signal_name(number)}: stopping all ranks")
        for child in self._children:
            child.send(number)
        deadline = time.monotonic() + self._grace_s
        while time.monotonic() < deadline and self._signal is None:
            if all(child.poll() is not None for child in self._children):
                break
            self._read_once(0.05) if self._selector.get_map() else time.sleep(0.05)
        return 128 + number


def script_command(script, arguments, module=False):
    """The command that runs a Python script, a module, or any other program."""
    if module:
        return [sys.executable, "-m", script, *arguments]
    if script.endswith(".py"):
        return [sys.executable, script, *arguments]
    return [script, *arguments]


def add_arguments(parser):
    parser.add_argument("-n", "--nproc", type=int, required=True, metavar="N",
                        help="ranks to start on this machine")
    parser.add_argument("--address", help="appliance, as SLUICE_ADDRESS; '{rank}' is replaced")
    parser.add_argument("--run-id", help="name of this run, equal on all nodes (default: random)")
    parser.add_argument("--nnodes", type=int, default=1, metavar="M", help="machines in the run")
    parser.add_argument("--node-rank", type=int, default=0, metavar="I",
                        help="which of them this is, from 0")
    parser.add_argument("--master-addr", default="127.0.0.1", help="address of node 0")
    parser.add_argument("--master-port", type=int, help="TCP port on node 0 (default: a free one)")
    parser.add_argument("--keep-going", action="store_true",
                        help="when a rank fails, let the others run on")
    parser.add_argument("--grace", type=float, default=5.0, metavar="S",
                        help="seconds between SIGTERM and SIGKILL (default 5)")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def problem_with(options):
    """What is wrong with the command line, or an empty string."""
    if options.nproc < 1:
        return f"-n {options.nproc}: at least one rank is needed"
    if not 0 <= options.node_rank < options.nnodes:
        return f"--node-rank {options.node_rank}: must be 0..{options.nnodes - 1} (--nnodes)"
    if options.nnodes > 1 and options.master_port is None:
        return "--nnodes: give --master-port, the same on all nodes"
    if not options.module and options.script.endswith(".py") and not os.path.exists(options.script):
        return f"{options.script}: no such file"
    return ""


def run(options):
    problem = problem_with(options)
    if problem:
        print(f"sluice launch: {problem}", file=sys.stderr)
        return 2
    run_id = options.run_id
    if run_id is None and options.nnodes == 1:
        run_id = secrets.token_hex(8)
    port = options.master_port or free_port()
    ranks = [options.node_rank * options.nproc + local for local in range(options.nproc)]
    environments = [
        rank_environment(os.environ, rank=rank, local_rank=local, local_world_size=options.nproc,
                         world_size=options.nproc * options.nnodes, node_rank=options.node_rank,
                         master_addr=options.master_addr, master_port=port, run_id=run_id,
                         address=options.address)
        for local, rank in enumerate(ranks)]
    command = script_command(options.script, options.arguments, options.module)
    try:
        return Launcher([command] * len(ranks), environments, ranks=ranks,
                        keep_going=options.keep_going, grace_s=options.grace).run()
    except OSError as error:
        print(f"sluice launch: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
