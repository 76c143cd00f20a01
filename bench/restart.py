"""The restart bench: an appliance that is killed with -9 and started again while a job sums.

Ranks, one a host of the namespace lab (tests/lab, sluiced on af_packet ports), sum known integers
step after step over udp://, and check every element. Each round kills sluiced in mid-step and
starts it again at once. The pause of a round is the time from the new process's line "ready" (when
it was written to the log) to the end of the next step, a short one, on the last rank: what the job
adds to the time that the box takes to start. lost_steps: steps that a rank did not end, or ended
twice; identical: every element of every sum was right on every rank.

With a standby the box where the job is is killed as often, and drained as often, and started again
while the job is at the other. standby: from the kill to the end of the second step after it on the
last rank, so with the time in which the ranks notice. drain: by how much the longest pause between
two steps around the request is longer than a median one.

What surviving costs is measured without a kill, in turns: the time of a step with restart_timeout
on, over that with 0, both medians of the turns' medians (step_cost), and the processor time of the
ranks' progress threads likewise (cpu_cost), which other processes disturb less. A rank's memory
for it is 4 bytes an element and 40 a chunk; on the wire it costs nothing before a restart.

What can go wrong: the links are unshaped and ranks share the cores with sluiced, so a copy shows
more than on a network that is the limit.
"""
import itertools
import json
import os
import signal
import statistics
import subprocess
import time

import report

DESCRIPTION = "sluiced killed or drained under a job over udp: lost steps, pauses, cost"
WORKER = os.path.join(report.ROOT, "bench", "restart_worker.py")
RUNS_S = 0.3  # of a job between two kills


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="kills (default 20)")
    parser.add_argument("--standby-rounds", type=int, default=10, metavar="N",
                        help="kills and drains with a standby, half each (default 10)")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="default 4")
    parser.add_argument("--elements", type=int, default=100_000, metavar="N",
                        help="float32 a step while sluiced is killed (default 100000)")
    parser.add_argument("--turn-elements", type=int, default=1_000_000, metavar="N",
                        help="float32 a step while the cost is measured (default 1000000)")
    parser.add_argument("--turns", type=int, default=5, metavar="N",
                        help="of the cost's measurement, with and without; 0: none (default 5)")
    parser.add_argument("--turn-steps", type=int, default=40, metavar="N",
                        help="steps of a turn (default 40)")


class Run:
    """The ranks of one job in the lab."""

    def __init__(self, lab, elements, restart_s):
        library = os.environ.get("SLUICE_LIBRARY",
                                 os.path.join(report.build_dir(), "client", "libsluice.so"))
        env = {"SLUICE_ADDRESS": lab.url, "SLUICE_SECRET": "lab", "WORLD_SIZE": str(lab.hosts),
               "SLUICE_RUN_ID": f"restart-{time.monotonic_ns()}", "SLUICE_LIBRARY": library,
               "PYTHONPATH": os.path.join(report.ROOT, "client", "python")}
        self.logs = [lab.directory / f"rank{rank}.out" for rank in range(lab.hosts)]
        self.ranks, self.last_lines = [], [""] * lab.hosts
        self._times, self._outputs = [{} for _ in self.logs], []
        for rank, log in enumerate(self.logs):
            with log.open("wb") as output:
                self.ranks.append(lab.popen(
                    rank, [report.PYTHON, "-u", WORKER, str(elements), str(restart_s)],
                    env={**env, "RANK": str(rank)}, stdin=subprocess.PIPE, stdout=output,
                    stderr=subprocess.PIPE))
            self._outputs.append(log.open(encoding="ascii"))
        self.wait(lambda: all(times for times in self.times()), "the first step")

    def wait(self, condition, what, timeout_s=120):
        deadline = time.monotonic() + timeout_s
        while not condition():
            for rank, process in enumerate(self.ranks):
                if process.poll() is not None:
                    raise report.BenchError(f"rank {rank} has ended: "
                                            f"{process.stderr.read().decode()}")
            if time.monotonic() > deadline:
                raise report.BenchError(f"no sign of {what} after {timeout_s} s")
            time.sleep(0.01)

    def times(self):
        """Of each rank: when its steps ended, in ns, by step."""
        for rank, output in enumerate(self._outputs):
            for part in output:
                last = self.last_lines[rank]
                line = self.last_lines[rank] = part if last.endswith("\n") else last + part
                if line[:1].isdigit() and line.endswith("\n"):
                    step, ns = line.split()
                    self._times[rank][int(step)] = int(ns)
        return self._times

    def end(self):
        """What each rank says at the end."""
        self.ranks[0].stdin.close()
        for rank, process in enumerate(self.ranks):
            if process.wait(120) != 0:
                raise report.BenchError(f"rank {rank}: {process.stderr.read().decode()}")
        self.times()
        return [json.loads(line) for line in self.last_lines]


def pause_ms(run, since_ns, steps=1):
    """From then to the end of so many steps after it on the last rank; None while they run."""
    ends = []
    for times in run.times():
        newest = itertools.takewhile(lambda ns: ns > since_ns, reversed(times.values()))
        later = list(newest)[::-1]
        if len(later) < steps:
            return None
        ends.append(later[steps - 1])
    return (max(ends) - since_ns) / 1e6


def kill_rounds(lab, box, options):
    run = Run(lab, options.elements, 60)
    pauses = []
    for _ in range(options.rounds):
        time.sleep(RUNS_S)
        os.killpg(box.pid, signal.SIGKILL)
        box.wait()
        box = lab.start_appliance(report.build_dir())
        ready_ns = os.stat(lab.directory / "sluiced.log").st_mtime_ns
        run.wait(lambda ready_ns=ready_ns: pause_ms(run, ready_ns) is not None, "a step", 60)
        pauses.append(pause_ms(run, ready_ns))
    said = run.end()
    lost = lost_steps(run, said)
    survived = min(one["restarts"] for one in said)
    return box, pauses, lost, all(one["wrong"] == 0 for one in said), survived


def standby_rounds(lab, options):
    boxes = [lab.start_appliance(report.build_dir(), standby=standby) for standby in (False, True)]
    run = Run(lab, options.elements, 60)
    killed_ms, drained_ms = [], []
    for turn in range(2 * options.standby_rounds):
        place = turn % 2
        time.sleep(RUNS_S + 1)  # the ranks have seen the other box
        usual_ms = statistics.median(pauses_ms(run))
        begun_ns = time.time_ns()
        if turn % 4 < 2:
            os.killpg(boxes[place].pid, signal.SIGKILL)
            boxes[place].wait()
            # The results of the first may have been on their way when it died.
            run.wait(lambda since=begun_ns: pause_ms(run, since, 2) is not None, "a step", 60)
            killed_ms.append(pause_ms(run, begun_ns, 2))
        else:
            os.killpg(boxes[place].pid, signal.SIGUSR1)
            if boxes[place].wait(60) != 0:
                raise report.BenchError("a drained sluiced has not ended in order")
            run.wait(lambda since=time.time_ns(): pause_ms(run, since) is not None, "a step", 60)
            drained_ms.append(max(pauses_ms(run, begun_ns)) - usual_ms)
        boxes[place] = lab.start_appliance(report.build_dir(), standby=place == 1)
    said = run.end()
    return killed_ms, drained_ms, said, lost_steps(run, said)


def pauses_ms(run, since_ns=0):
    """Between two steps' ends of each rank, of which the second came later than that."""
    return [(later - earlier) / 1e6 for times in run.times()
            for earlier, later in zip(list(times.values()), list(times.values())[1:])
            if later > since_ns]


def lost_steps(run, said):
    lost = sum(abs(one["steps"] - len(times)) for one, times in zip(said, run.times()))
    return lost + sum(one["steps"] != said[0]["steps"] for one in said)


def step_ms(lab, options, restart_s):
    """Of a step: its time, and the processor time of a rank's progress thread."""
    run = Run(lab, options.turn_elements, restart_s)
    run.wait(lambda: len(run.times()[0]) > options.turn_steps, "the last step of a turn")
    times = list(run.times()[0].values())
    said = run.end()
    return (statistics.median(later - earlier for earlier, later in zip(times, times[1:])) / 1e6,
            statistics.mean(one["progress_ns"] / one["steps"] for one in said) / 1e6)


def run(options):
    import lab as lab_module
    try:
        with lab_module.Lab(hosts=options.ranks) as lab:
            box = lab.start_appliance(report.build_dir())
            sides = {60: (report.Samples(), report.Samples()),
                     0: (report.Samples(), report.Samples())}
            for _ in range(options.turns):
                for restart_s, samples in sides.items():
                    for sample, ms in zip(samples, step_ms(lab, options, restart_s)):
                        sample.add(ms)
            box, pauses, lost, identical, survived = kill_rounds(lab, box, options)
        with lab_module.Lab(hosts=options.ranks, standby=True) as lab:
            killed, drained, said, lost_there = standby_rounds(lab, options)
    except lab_module.LabError as error:
        raise report.BenchError(str(error)) from error
    lost += lost_there
    identical &= all(one["wrong"] == 0 for one in said)
    megabytes = 4 * options.turn_elements / 1e6
    report.table(["", "ms"], [["pause, median", f"{statistics.median(pauses):.0f}"],
                              ["pause, longest", f"{max(pauses):.0f}"],
                              ["to the standby, median", f"{statistics.median(killed):.0f}"],
                              ["to the standby, longest", f"{max(killed):.0f}"],
                              ["drained, longest", f"{max(drained):.0f}"]])
    figures = {}
    if options.turns:
        report.table([f"a step of {megabytes:.1f} MB", "ms", "of the progress thread"],
                     [["with restart_timeout", *(sample.cell() for sample in sides[60])],
                      ["without", *(sample.cell() for sample in sides[0])]])
        figures["step_cost"], figures["cpu_cost"] = (
            round(on.median / off.median, 3) for on, off in zip(sides[60], sides[0]))
    report.result("restart", rounds=options.rounds, survived=survived, lost_steps=lost,
                  identical=int(identical), pause_p50_ms=round(statistics.median(pauses)),
                  pause_max_ms=round(max(pauses)),
                  standby_p50_ms=round(statistics.median(killed)),
                  standby_max_ms=round(max(killed)), drain_max_ms=round(max(drained)), **figures)
