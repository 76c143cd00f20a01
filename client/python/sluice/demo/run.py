"""`python3 -m sluice demo`: train a small network through an appliance, all on this machine.

Starts `sluiced` on vhost-user ports (no root, no NIC, no hugepages), trains with four PyTorch DDP
workers through it, trains once more over Gloo, and compares. Leaves the loss curves and a trace of
one step. Ends with status 1 unless the accuracy is at least 0.95 and within one point of Gloo's,
and all ranks end with the same model. Everything that it starts ends with it.

With --slow-rank or --kill the appliance completes a step without the ranks that are hindered, and
Gloo's column shows what happens to a ring. With --stay the training goes on, round by round, so
that there is something to watch.
"""

import importlib.util
import json
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from sluice import _library, errors, trace
from sluice._box import BoxError, LocalBox, find_appliance
from sluice._processes import free_port
from sluice.demo import report
from sluice.launch import Launcher, rank_environment

TRAINING_LIMIT_S = 240.0
# A step of the demonstration's network takes a few ms, too short to see who waits for whom.
CALM_STEP_S, SLOW_STEP_S = 0.02, 0.1
DEATH_STEP = 60
RESTART_DELAY_S = 1.0  # a socket that closes says at once that its rank is gone
_PACKAGES = {"torch": "python3-torch", "sklearn": "python3-sklearn",
             "matplotlib": "python3-matplotlib", "tqdm": "python3-tqdm"}


class DemoError(Exception):
    """The demonstration cannot go on; the text says why and what to do."""


class _Stopped(Exception):
    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def check_packages():
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(f"{sys.executable} has no {', '.join(missing)}: apt install " +
                        " ".join(_PACKAGES[name] for name in missing))


class Hindrances:
    """What happens to which rank, and how many ranks then complete a step."""

    def __init__(self, options):
        self.slow = options.slow_rank
        self.killed = options.kill
        hindered = {rank for rank in (self.slow, self.killed) if rank is not None}
        self.any = bool(hindered)
        self.k = options.workers - len(hindered)
        for flag, rank in (("--slow-rank", self.slow), ("--kill", self.killed)):
            if rank is not None and not 0 <= rank < options.workers:
                raise DemoError(f"{flag} {rank}: must be 0..{options.workers - 1} (--workers)")
        if not self.k:
            raise DemoError("no rank is left that completes a step: give more --workers")

    def arguments(self, rank):
        """Of the training script of that rank."""
        found = []
        if self.any:
            found += ["--pause", str(SLOW_STEP_S if rank == self.slow else CALM_STEP_S)]
        if rank == self.killed:
            found += ["--die-at", str(DEATH_STEP)]
        return found

    def text(self):
        """A sentence, empty without any."""
        parts = []
        if self.slow is not None:
            parts.append(f"rank {self.slow} is {SLOW_STEP_S / CALM_STEP_S:.0f} x slower")
        if self.killed is not None:
            parts.append(f"rank {self.killed} is killed in step {DEATH_STEP} and started again")
        return "; ".join(parts)


def train(label, script, options, folder, extra_environment, arguments=lambda rank: [],
          **launcher_options):
    """Runs a training script on all ranks; returns their results, rank by rank.

    Raises DemoError when a rank fails for good, _Stopped when a signal ended it.
    """
    folder.mkdir()
    package_parent = str(Path(__file__).resolve().parents[2])
    base = {**os.environ, **extra_environment}
    base["PYTHONPATH"] = os.pathsep.join(filter(None, (package_parent, base.get("PYTHONPATH"))))
    base["SLUICE_STATS"] = str(folder / "stats{rank}.json")
    port = free_port()
    run_id = secrets.token_hex(8)
    ranks = range(options.workers)
    command = [sys.executable, str(Path(__file__).with_name(script)), "--label", label,
               "--epochs", str(options.epochs), "--out", str(folder)]
    environments = [
        rank_environment(base, rank=rank, local_rank=rank, local_world_size=options.workers,
                         world_size=options.workers, node_rank=0, master_addr="127.0.0.1",
                         master_port=port, run_id=run_id) for rank in ranks]
    launcher = Launcher([command + arguments(rank) for rank in ranks], environments, ranks=ranks,
                        bar_prefix=False, limit_s=TRAINING_LIMIT_S,
                        stop_signal=signal.SIGTERM,  # Python says nothing at it, unlike SIGINT
                        **launcher_options)
    status = launcher.run()
    if launcher.stopped_by is not None:
        raise _Stopped(launcher.stopped_by)
    if status != 0:
        raise DemoError(f"{label.strip()}: {launcher.failure}")
    results = []
    for rank in ranks:
        result = json.loads((folder / f"rank{rank}.json").read_text())
        stats = folder / f"stats{rank}.json"
        result["stats"] = json.loads(stats.read_text()) if stats.exists() else {}
        results.append(result)
    return results


def through(box, hindrances, options, folder, trace_folder=None):
    """The training over the appliance; the results, rank by rank."""
    environment = dict(SLUICE_ADDRESS=box.address, SLUICE_JOB="demo", SLUICE_SECRET=box.secret)
    if trace_folder:
        environment["SLUICE_TRACE"] = trace_folder
    try:
        if not hindrances.any:
            return train("Sluice", "train.py", options, folder, environment)
        until = [] if hindrances.killed is None else ["--until", str(folder / "returned")]
        return train("Sluice", "train_stragglers.py", options, folder, environment,
                     lambda rank: ["--k", str(hindrances.k), *until, *hindrances.arguments(rank)],
                     keep_going=True, restart=int(hindrances.killed is not None),
                     restart_delay_s=RESTART_DELAY_S)
    except DemoError as error:
        ended = box.exit_text()
        words = f"; sluiced {ended}" if ended else ""
        raise DemoError(f"{error}{words}. sluiced's last words:\n{box.log_tail()}") from None


def over_gloo(hindrances, options, folder):
    """(results, "") of the same over a ring, or (None, why it ended)."""
    try:
        return train("Gloo  ", "train.py", options, folder, dict(SLUICE_DISABLE="1"),
                     hindrances.arguments), ""
    except DemoError as error:
        if hindrances.killed is None:
            raise
        return None, str(error)


def write_trace(traces, path):
    """One step of all ranks, from the last tenth of the training, which is steady. Its number."""
    steps = trace.merge(traces).steps
    step = steps[len(steps) * 9 // 10]
    trace.write(trace.merge(traces, step, step).events, path)
    return step


def watch(box, hindrances, options, folder):
    """Trains round by round until a signal comes, or a round fails."""
    print("the training goes on, round by round, until Ctrl-C. Watch it in another terminal with\n"
          f"  {box.top_command}\n  curl {box.metrics_url}")
    try:
        for number in range(1, sys.maxsize):
            through(box, hindrances, options, folder / f"round{number}")
    except _Stopped as stopped:
        print(f"{stopped}: all that was started has been stopped")


def _demo(options):
    check_packages()
    hindrances = Hindrances(options)
    binary = find_appliance(options.build_dir)
    _library.load()
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-demo-") as folder:
        traces = f"{folder}/traces"
        print(f"starting sluiced with {options.workers} vhost-user ports (log: {out}/sluiced.log)")
        with LocalBox(binary, folder, out / "sluiced.log", options.workers) as box:
            print(f"training with {options.workers} workers through the appliance "
                  f"(metrics: {box.metrics_url})")
            if hindrances.any:
                print(f"{hindrances.text()}; a step is complete with {hindrances.k} ranks")
            ours = through(box, hindrances, options, Path(folder) / "sluice", traces)
            step = write_trace(traces, out / "trace.json")
            print("the same training over Gloo")
            theirs, why = over_gloo(hindrances, options, Path(folder) / "gloo")
            picture = out / "loss.png"
            report.draw(picture, ours, theirs)
            status = report.conclude(ours, theirs, why, picture,
                                     f"{out / 'trace.json'}, step {step}")
            if options.stay:
                watch(box, hindrances, options, Path(folder))
            return status


def add_arguments(parser):
    parser.add_argument("--build-dir", help="where sluiced was built (default: ./run's folder)")
    parser.add_argument("--out", default="demo-out",
                        help="folder for the loss curve, the trace and the log")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--epochs", type=int, default=20, metavar="E")
    parser.add_argument("--slow-rank", type=int, metavar="R",
                        help="this rank's steps take five times as long, and nobody waits for it")
    parser.add_argument("--kill", type=int, metavar="R",
                        help="kill this rank in the middle and start it again; the others train on")
    parser.add_argument("--stay", action="store_true",
                        help="train on until Ctrl-C, for `top` and the metrics page")


def run(options):
    def stop(number, _frame):
        raise _Stopped(number)

    handlers = {number: signal.signal(number, stop)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return _demo(options)
    except (DemoError, BoxError, errors.LibraryNotFound) as error:
        print(f"sluice demo: {error}", file=sys.stderr)
        return 1
    except _Stopped as stopped:
        print(f"sluice demo: {stopped}: all that it started has been stopped", file=sys.stderr)
        return stopped.status
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
