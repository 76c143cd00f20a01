"""`python3 -m sluice demo`: train a small network through an appliance, all on this machine.

Starts `sluiced` on vhost-user ports (no root, no NIC, no hugepages), trains with four PyTorch DDP
workers through it, trains once more over Gloo, and compares. Leaves the loss curves and a trace of
one step. Ends with status 1 unless the accuracy is at least 0.95 and within one point of Gloo's,
and all ranks end with the same model. Everything that it starts ends with it.
"""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sluice import _library, errors, trace
from sluice._processes import Child, describe_exit, stop_all
from sluice.demo import report
from sluice.launch import Launcher, free_port, rank_environment

ADDRESS = "10.77.0.1"
PORT = 7700
READY_TIMEOUT_S = 30.0
TRAINING_LIMIT_S = 240.0
_PACKAGES = {"torch": "python3-torch", "sklearn": "python3-sklearn",
             "matplotlib": "python3-matplotlib", "tqdm": "python3-tqdm"}


class DemoError(Exception):
    """The demonstration cannot go on; the text says why and what to do."""


class _Stopped(Exception):
    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def find_appliance(build_dir):
    """The path of sluiced: in the build folder, beside the source tree's, or installed."""
    places = []
    source_tree = Path(__file__).resolve().parents[4]
    if build_dir:
        places = [Path(build_dir) / "dataplane" / "sluiced", Path(build_dir) / "sluiced"]
    elif (source_tree / "CMakeLists.txt").exists():
        places = [source_tree / "build" / "dataplane" / "sluiced"]
    for place in places:
        if place.is_file():
            return str(place.resolve())
    installed = shutil.which("sluiced")
    if installed and not build_dir:
        return installed
    looked = [f"at {place}" for place in places] + ([] if build_dir else ["on the PATH"])
    raise DemoError(f"there is no sluiced {' or '.join(looked)}: install its Debian package, build "
                    "it with './run build', or give --build-dir")


def check_packages():
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(f"{sys.executable} has no {', '.join(missing)}: apt install " +
                        " ".join(_PACKAGES[name] for name in missing))


class Appliance:
    """A running sluiced with one vhost-user port for each worker. A context manager."""

    def __init__(self, binary, folder, log_path, workers, mtu=1500):
        self._binary = binary
        self._mtu = mtu
        self._folder = folder
        self._log_path = log_path
        self._workers = workers
        self._child = None
        self.secret = secrets.token_hex(16)
        self.metrics_port = free_port()
        self.address = f"vhost://{ADDRESS}:{PORT}{folder}/worker{{rank}}.sock"

    def _configuration(self):
        lines = ["[appliance]", f'address = "{ADDRESS}/24"', f"port = {PORT}",
                 f'secret = "{self.secret}"', 'polling = "adaptive"', "memory_mib = 256", "",
                 "[limits]", "member_timeout_s = 10", "",
                 "[metrics]", f'address = "127.0.0.1:{self.metrics_port}"']
        for worker in range(self._workers):
            lines += ["", "[[port]]", f'name = "worker{worker}"', 'type = "vhost-user"',
                      f'path = "{self._folder}/worker{worker}.sock"', f"mtu = {self._mtu}"]
        return "\n".join(lines) + "\n"

    def log_tail(self, count=8):
        try:
            return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return ""

    @property
    def pid(self):
        return self._child.pid

    def exit_text(self):
        """Empty while it runs, else how it ended."""
        status = self._child.poll()
        return "" if status is None else describe_exit(status)

    def __enter__(self):
        config = Path(self._folder) / "demo.toml"
        config.touch(mode=0o600)  # it holds the secret
        config.write_text(self._configuration())
        with open(self._log_path, "wb") as log:
            self._child = Child([self._binary, "--config", str(config)], stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT)
        try:
            self._await_ready()
        except BaseException:
            stop_all([self._child])
            raise
        return self

    def _await_ready(self):
        deadline = time.monotonic() + READY_TIMEOUT_S
        while "ready:" not in self._log_path.read_text(errors="replace"):
            ended = self.exit_text()
            if ended:
                raise DemoError(f"sluiced {ended} before it was ready. Its last words "
                                f"({self._log_path}):\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise DemoError(f"sluiced was not ready after {READY_TIMEOUT_S:.0f} s. Its last "
                                f"words ({self._log_path}):\n{self.log_tail()}")
            time.sleep(0.05)

    def __exit__(self, kind, value, traceback):
        stop_all([self._child])


def train(label, options, folder, extra_environment):
    """Runs the training script on all ranks; returns their results, rank by rank.

    Raises DemoError when a rank fails, _Stopped when a signal ended it.
    """
    folder.mkdir()
    package_parent = str(Path(__file__).resolve().parents[2])
    base = {**os.environ, **extra_environment}
    base["PYTHONPATH"] = os.pathsep.join(filter(None, (package_parent, base.get("PYTHONPATH"))))
    base["SLUICE_STATS"] = str(folder / "stats{rank}.json")
    port = free_port()
    run_id = secrets.token_hex(8)
    ranks = range(options.workers)
    command = [sys.executable, str(Path(__file__).with_name("train.py")), "--label", label,
               "--epochs", str(options.epochs), "--out", str(folder)]
    environments = [
        rank_environment(base, rank=rank, local_rank=rank, local_world_size=options.workers,
                         world_size=options.workers, node_rank=0, master_addr="127.0.0.1",
                         master_port=port, run_id=run_id) for rank in ranks]
    launcher = Launcher([command] * options.workers, environments, ranks=ranks, bar_prefix=False,
                        limit_s=TRAINING_LIMIT_S)
    status = launcher.run()
    if launcher.stopped_by is not None:
        raise _Stopped(launcher.stopped_by)
    if status != 0:
        raise DemoError(f"{label}: {launcher.failure}")
    results = []
    for rank in ranks:
        result = json.loads((folder / f"rank{rank}.json").read_text())
        stats = folder / f"stats{rank}.json"
        result["stats"] = json.loads(stats.read_text()) if stats.exists() else {}
        results.append(result)
    return results


def write_trace(traces, path):
    """One step of all ranks, from the last tenth of the training, which is steady. Its number."""
    steps = trace.merge(traces).steps
    step = steps[len(steps) * 9 // 10]
    trace.write(trace.merge(traces, step, step).events, path)
    return step


def _demo(options):
    check_packages()
    binary = find_appliance(options.build_dir)
    _library.load()
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-demo-") as folder:
        traces = f"{folder}/traces"
        print(f"starting sluiced with {options.workers} vhost-user ports")
        with Appliance(binary, folder, out / "sluiced.log", options.workers) as appliance:
            print(f"training with {options.workers} workers through the appliance "
                  f"(metrics: http://127.0.0.1:{appliance.metrics_port}/metrics)")
            try:
                ours = train("Sluice", options, Path(folder) / "sluice",
                             dict(SLUICE_ADDRESS=appliance.address, SLUICE_JOB="demo",
                                  SLUICE_SECRET=appliance.secret, SLUICE_TRACE=traces))
            except DemoError as error:
                ended = appliance.exit_text()
                words = f"; sluiced {ended}" if ended else ""
                raise DemoError(f"{error}{words}. sluiced's last words ({out}/sluiced.log):\n"
                                f"{appliance.log_tail()}") from None
        step = write_trace(traces, out / "trace.json")
        print("the same training over Gloo")
        theirs = train("Gloo  ", options, Path(folder) / "gloo", dict(SLUICE_DISABLE="1"))
    picture = out / "loss.png"
    report.draw(picture, ours, theirs)
    return report.conclude(ours, theirs, picture, f"{out / 'trace.json'}, step {step}")


def add_arguments(parser):
    parser.add_argument("--build-dir", help="where sluiced was built (default: ./run's folder)")
    parser.add_argument("--out", default="demo-out",
                        help="folder for the loss curve, the trace and the log")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--epochs", type=int, default=20, metavar="E")


def run(options):
    def stop(number, _frame):
        raise _Stopped(number)

    handlers = {number: signal.signal(number, stop)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return _demo(options)
    except (DemoError, errors.LibraryNotFound) as error:
        print(f"sluice demo: {error}", file=sys.stderr)
        return 1
    except _Stopped as stopped:
        print(f"sluice demo: {stopped}: all that it started has been stopped", file=sys.stderr)
        return stopped.status
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
