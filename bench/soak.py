"""The soak bench: hours of churn around one long job, and whether anything is lost or left behind.

Two appliances in the namespace lab, each on a network of its own. A long job of three ranks sums
known integers at one of them, with the other as its standby, and checks every element. Beside it,
drawn from a seed, one event after another: an appliance is killed with -9 and started again, or
stopped for up to ten seconds, or drained; a host's link goes down three times; a rank of the long
job is stopped; short jobs come and go; a worker of one is killed, and the other one must say so.
After each event the long job must get on.

lost_steps: steps of the long job that a rank did not end, or ended twice; wrong: sums with a wrong
element, in all jobs. In the last fifth no appliance is killed or drained, so its first and last
minute can be compared: rss_kib and fds are by how much an appliance or a rank has grown, at most.
After all jobs have ended, left_jobs, left_bytes and left_buffers are what the appliances still
hold, beyond what they held before the first.

What can go wrong: on a busy machine a short job may take longer to join than its timeout; such a
job counts in failed_jobs, with its text above the table.
"""
import os
import random
import signal
import subprocess
import time

import report
import restart

DESCRIPTION = "an hour of killed, stopped and drained appliances and workers, flapping links"
RANKS = 3
QUIET = 0.2  # of the time, at its end, in which appliances live on
SHORT_JOBS = 3  # at most at a time


def add_options(parser):
    parser.add_argument("--minutes", type=float, default=60, metavar="M", help="default 60")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the events, default 1")
    parser.add_argument("--elements", type=int, default=50_000, metavar="N",
                        help="float32 a step of the long job (default 50000)")
    parser.add_argument("--longest-stop", type=float, default=10, metavar="S",
                        help="of an appliance, in seconds (default 10)")


def resident(processes):
    """(KiB, descriptors) of each process."""
    found = []
    for process in processes:
        with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
            kib = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        found.append((kib, len(os.listdir(f"/proc/{process.pid}/fd"))))
    return found


class Soak:
    def __init__(self, lab, options):
        self.lab, self.draw = lab, random.Random(options.seed)
        self.longest_stop_s = options.longest_stop
        self.boxes = [lab.start_appliance(report.build_dir(), standby=which) for which in (0, 1)]
        self.idle = self.held()
        self.long = restart.Run(lab, options.elements, 60)
        self.short = []  # (job, processes, dead rank or None)
        self.counts = {}
        self.jobs = self.wrong = 0
        self.failed = []

    # ---- events ----

    def box_killed(self):
        which = self.draw.randrange(2)
        os.killpg(self.boxes[which].pid, signal.SIGKILL)
        self.boxes[which].wait()
        time.sleep(self.draw.uniform(0, 2))
        self._start_box(which)

    def box_drained(self):
        which = self.draw.randrange(2)
        os.killpg(self.boxes[which].pid, signal.SIGUSR1)
        if self.boxes[which].wait(120) != 0:
            raise report.BenchError("a drained sluiced has not ended in order")
        self._start_box(which)

    def _start_box(self, which):
        self.boxes[which] = self.lab.start_appliance(report.build_dir(), standby=which == 1)

    def box_stopped(self):
        self._stop(self.draw.choice(self.boxes), self.draw.uniform(0.1, self.longest_stop_s))

    def rank_stopped(self):
        self._stop(self.draw.choice(self.long.ranks), self.draw.uniform(0.1, 3))

    @staticmethod
    def _stop(process, seconds):
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGCONT)

    def link_flaps(self):
        host, link = self.draw.randrange(RANKS), self.draw.choice(("eth0", "eth1"))
        for _ in range(3):
            self.lab.in_host(host, f"ip link set {link} down")
            time.sleep(self.draw.uniform(0.05, 1))
            self.lab.in_host(host, f"ip link set {link} up")
            time.sleep(self.draw.uniform(0.05, 1))

    def job_comes(self):
        if len(self.short) < SHORT_JOBS:
            self._start_job(dead=None, steps=self.draw.randrange(20, 400))

    def worker_killed(self):
        dead = self.draw.randrange(2)
        workers = self._start_job(dead, steps=1_000_000)
        time.sleep(self.draw.uniform(0.05, 1))
        os.killpg(workers[dead].pid, signal.SIGKILL)

    def _start_job(self, dead, steps):
        import workers as e2e
        self.jobs += 1
        hosts = self.draw.sample(range(RANKS), 2)
        started = [e2e.start(self.lab, host, self.lab.url, rank, 2, job=f"short{self.jobs}",
                             run_id=self.jobs, steps=steps, elems=20_000, pause_ms=5)
                   for rank, host in enumerate(hosts)]
        self.short.append((self.jobs, started, dead))
        for rank, worker in enumerate(started):
            line = e2e.read_line(worker).strip()
            if line != "JOINED":
                self.failed.append(f"job {self.jobs}: rank {rank}: {line}")
        return started

    # ---- the run ----

    def collect(self, wait):
        """Judges short jobs that have ended; `wait`: until all have."""
        import workers as e2e
        going = []
        for job, processes, dead in self.short:
            if not wait and any(process.poll() is None for process in processes):
                going.append((job, processes, dead))
                continue
            for rank, process in enumerate(processes):
                if rank == dead:
                    process.communicate()
                elif dead is not None:
                    said, _ = process.communicate(timeout=300)
                    if process.returncode != 3 or f"rank {dead}" not in said:
                        self.failed.append(f"job {job}: rank {rank}: {said}")
                else:
                    said = e2e.finish(process, timeout=300)
                    self.wrong += said["exit"] == 4
                    if said["exit"] != 0:
                        self.failed.append(f"job {job}: rank {rank}: {said}")
        self.short = going

    def churn(self, until_s, events):
        while time.monotonic() < until_s:
            event = self.draw.choice(events)
            event()
            self.counts[event.__name__] = self.counts.get(event.__name__, 0) + 1
            since_ns = time.time_ns()
            self.long.wait(lambda since=since_ns: restart.pause_ms(self.long, since, 2) is not None,
                           f"a step after {event.__name__}", 120)
            self.collect(wait=False)
            time.sleep(self.draw.uniform(0, 1))

    def held(self):
        """(jobs, bytes of jobs, packet buffers) of each appliance."""
        import lab as lab_module
        pages = [self.lab.scrape(), self.lab.scrape(standby=True)]
        return [tuple(lab_module.metric(page, f"sluice_{name}") for name in (
            "jobs", "jobs_memory_bytes", "buffers_in_use_packets")) for page in pages]

    def wait_until_idle(self):
        deadline = time.monotonic() + 60
        while any(jobs for jobs, _, _ in self.held()) and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(1)
        return self.held()


def run(options):
    import lab as lab_module
    try:
        with lab_module.Lab(hosts=RANKS, standby=True) as lab:
            soak_for(lab, options)
    except (lab_module.LabError, subprocess.TimeoutExpired) as error:
        raise report.BenchError(str(error)) from error


def soak_for(lab, options):
    soak = Soak(lab, options)
    gentle = [soak.box_stopped, soak.rank_stopped, soak.link_flaps, soak.job_comes, soak.job_comes,
              soak.worker_killed]
    begun_s = time.monotonic()
    quiet_s = begun_s + 60 * options.minutes * (1 - QUIET)
    soak.churn(quiet_s, [*gentle, soak.box_killed, soak.box_drained])
    soak.collect(wait=True)
    processes = [*soak.boxes, *soak.long.ranks]
    # What each event costs for the first time, and a new appliance's first jobs, is memory that
    # stays: not growth.
    for events in (gentle, *3 * [SHORT_JOBS * [soak.job_comes]]):
        for event in events:
            event()
        soak.collect(wait=True)
    before = resident(processes)
    soak.churn(begun_s + 60 * options.minutes, gentle)
    soak.collect(wait=True)
    after = resident(processes)
    said = soak.long.end()
    left = [[after_all - before_all for after_all, before_all in zip(now, idle)]
            for now, idle in zip(soak.wait_until_idle(), soak.idle)]
    wrong = soak.wrong + sum(one["wrong"] for one in said)
    for text in soak.failed:
        print(text)
    report.table(["event", "times"], [[name, str(count)] for name, count in soak.counts.items()])
    names = ["appliance", "standby", *(f"rank {rank}" for rank in range(RANKS))]
    report.table(["in the last fifth", "KiB", "descriptors"],
                 [[name, f"{one[0]} -> {two[0]}", f"{one[1]} -> {two[1]}"]
                  for name, one, two in zip(names, before, after)])
    report.result("soak", minutes=round((time.monotonic() - begun_s) / 60, 1), seed=options.seed,
                  events=sum(soak.counts.values()), steps=said[0]["steps"],
                  lost_steps=restart.lost_steps(soak.long, said), wrong=wrong,
                  survived=min(one["restarts"] for one in said), short_jobs=soak.jobs,
                  failed_jobs=len(soak.failed),
                  rss_kib=max(two[0] - one[0] for one, two in zip(before, after)),
                  fds=max(two[1] - one[1] for one, two in zip(before, after)),
                  left_jobs=int(sum(one[0] for one in left)),
                  left_bytes=int(sum(one[1] for one in left)),
                  left_buffers=int(max(one[2] for one in left)))
