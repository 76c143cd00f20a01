"""The allreduce bench's processor time of a worker: its process and the kernel on its behalf.

A softirq is charged to whatever it interrupts, so a process's time or a cgroup's says little in a
lab: who sends into a veth link pays for the receiver's kernel, a shaper's timer sends in anybody's
time, and no cgroup has an idle core's interrupts. Here all of it is done by tasks that can be told
apart, on both sides alike:

  receiving   each veth end hands its frames to a thread of the kernel of its own (threaded NAPI)
  sending     no shaper in the host: links of a rate are cables (tests/lab/cables.py, 0.2 ms), whose
              ends are received on the second core (RPS). So what is sent is cut and leaves in the
              time of who sent it: the process, or the receiving thread where an acknowledgement
              releases more of a TCP stream
  by core     the workers and their receiving threads on the first core, the box and the cables on
              the second

A worker's time is what its process takes from the start of a sum to its end (without filling the
tensor and checking the sum) and what its receiving thread takes. With the box: sluiced's, or the
receiving threads of the bridge, which forward, by worker. The cables are nobody's. A byte received
is one of payload: Sluice's ranks receive a tensor once, Gloo's 2 (n - 1) / n times. "idle irq" is
time of the first core that is neither idle nor a task's, by worker, and in no sum: near 0, or some
work has escaped.

Offloads are alike: each stack cuts its trains (UDP_SEGMENT; TCP's segments) in software, on the
sender's core, and merges the frames that it receives (UDP_GRO; TCP's GRO). A veth link that passed
uncut segments of TCP would spare Gloo both.
"""
import contextlib
import os
import sys
import time

import report
from allreduce import GBIT_MBPS, PLAIN, Setting, Side, gloo_env, sluice_env

TICKS = os.sysconf("SC_CLK_TCK")
WORKERS_CORE, BOX_CORE = 0, 1
BY_CORE = "/sys/fs/cgroup/cpuacct/cpuacct.usage_percpu"


def spent_ns(pid):
    """Processor time of a process or of a kernel's thread, all its threads."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as stat:
            total += int(stat.read().split()[0])
    return total


def tasks_ns(core):
    """Processor time that all tasks had of a core so far."""
    if os.path.exists(BY_CORE):
        with open(BY_CORE, encoding="ascii") as usage:
            return int(usage.read().split()[core])
    try:
        with open("/proc/schedstat", encoding="ascii") as stat:
            return int(next(line for line in stat if line.startswith(f"cpu{core} ")).split()[7])
    except OSError:
        raise report.BenchError(f"no {BY_CORE} (cgroup v1) and no /proc/schedstat tell a core's "
                                "interrupts from its tasks") from None


def interrupts_ns(core):
    """Of a core, so far: its time that is neither idle nor a task's. Only differences count."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = next(line for line in stat if line.startswith(f"cpu{core} ")).split()
    away = int(fields[4]) + int(fields[5]) + int(fields[8])  # idle, waiting for disks, stolen
    return time.monotonic_ns() - away * 10**9 // TICKS - tasks_ns(core)


def switches(pid):
    """How often a process's threads went to sleep so far."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as status:
            total += int(next(line for line in status if line.startswith("voluntary")).split()[1])
    return total


def pin(pid, core):
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), {core})


def receiving_threads():
    """The pids of the kernel's threads that receive for a device: {pid: device}."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/comm", encoding="ascii", errors="replace") as comm:
                thread = comm.read()
        except OSError:
            continue
        if thread.startswith("napi/"):
            found[int(name)] = thread[5:].split("-")[0]
    return found


def shell(lab, where, command):
    if lab.popen(where, ["sh", "-c", command]).wait(30) != 0:
        raise report.BenchError(f"this kernel refuses: {command}")


def split(lab):
    """Gives each end of a lab's links a receiving thread: (the hosts', the box's)."""
    before = receiving_threads()
    for host in range(lab.hosts):
        for where, device in ((host, "eth0"), (None, f"s{host}")):
            shell(lab, where, f"ethtool -K {device} gro on && "
                              f"echo 1 > /sys/class/net/{device}/threaded")
        for device in (f"near{host}", f"far{host}") if lab.cabled else ():
            shell(lab, lab.hosts, f"echo {1 << BOX_CORE:x} > "
                                  f"/sys/class/net/{device}/queues/rx-0/rps_cpus")
    made = {pid: device for pid, device in receiving_threads().items() if pid not in before}
    hosts = [pid for pid, device in made.items() if device == "eth0"]
    box = [pid for pid, device in made.items() if device != "eth0"]
    if len(hosts) != lab.hosts or len(box) != lab.hosts:
        raise report.BenchError(f"{len(made)} receiving threads for {2 * lab.hosts} devices")
    for pids, core in ((hosts, WORKERS_CORE), (box, BOX_CORE)):
        for pid in pids:
            pin(pid, core)
    return hosts, box


class Split:
    """A side of the bench in a lab of its own, by core. Samples: milliseconds of a worker and sum.
    """

    def __init__(self, stack, library, setting, elem_count):
        import cables
        import lab as lab_module
        ours, rate = library == "sluice", setting.rate
        lab = stack.enter_context(lab_module.Lab(
            setting.world_size, rate, "af_packet" if ours else "bridge", setting.mtu,
            cabled=rate is not None))
        self.hosts, self.box = split(lab)
        if rate is not None:
            stack.enter_context(cables.laid(lab, report.build_dir(), cables.Cable(
                mbps=int(rate), round_trip_ms=0.2, queue=1000)))
        lab.congestion("cubic")
        if ours:
            self.box.append(lab.start_appliance(report.build_dir()).pid)
            pin(self.box[-1], BOX_CORE)
        self.side = Side(lab, library, setting.world_size, [elem_count, "float32", setting.mtu],
                         sluice_env(lab) if ours else gloo_env(lab))
        self.side.wait_ready()
        for process in self.side.ranks:
            pin(process.pid, WORKERS_CORE)
        self.parts = {name: report.Samples() for name in ("process", "receiving", "box", "idle irq",
                                                          "switches")}

    def round(self, counted):
        before = self._read()
        rows = self.side.round(counted)
        receiving, box, irq, switches = (now - then for now, then in zip(self._read(), before))
        if counted:
            process_ns = sum(row["process_ns"] for row in rows)
            values = (process_ns / 1e6, receiving / 1e6, box / 1e6, irq / 1e6, switches)
            for samples, value in zip(self.parts.values(), values):
                samples.add(value / len(rows))

    def _read(self):
        return (sum(map(spent_ns, self.hosts)), sum(map(spent_ns, self.box)),
                interrupts_ns(WORKERS_CORE),
                sum(switches(process.pid) for process in self.side.ranks))

    def part(self, name):
        return self.parts[name].median

    @property
    def worker_ms(self):
        return self.part("process") + self.part("receiving")

    @property
    def all_ms(self):
        return self.worker_ms + self.part("box")


HEADERS = ["milliseconds of a worker and sum", "process", "receiving", "worker",
           "ns a byte received", "box", "with the box", "idle irq", "switches", "seconds"]


def measure(setting, options):
    """The table's rows of a setting, and Gloo's time / ours: (a worker's, with the box)."""
    elem_count = int(options.megabytes * 1e6) // 4
    with contextlib.ExitStack() as stack:
        sides = {name: Split(stack, name, setting, elem_count) for name in PLAIN}
        for repetition in range(options.repetitions + 1):
            for side in sides.values():
                side.round(counted=repetition > 0)
    rows, n = [], setting.world_size
    for name, side in sides.items():
        received = elem_count * 4 * (1 if name == "sluice" else 2 * (n - 1) / n)
        rows.append([f"{setting} {name}", side.parts["process"].cell(1),
                     side.parts["receiving"].cell(1), f"{side.worker_ms:.1f}",
                     f"{side.worker_ms * 1e6 / received:.2f}", f"{side.part('box'):.1f}",
                     f"{side.all_ms:.1f}", f"{side.part('idle irq'):.1f}",
                     f"{side.part('switches'):.0f}", f"{side.side.seconds.median:.3f}"])
    return rows, (sides["gloo"].worker_ms / sides["sluice"].worker_ms,
                  sides["gloo"].all_ms / sides["sluice"].all_ms)


def measure_all(options):
    """Prints the table; returns the RESULT line's figures."""
    if not {WORKERS_CORE, BOX_CORE} <= os.sched_getaffinity(0):
        raise report.BenchError("two cores are needed, one for the workers and one for the box")
    rows, figures = [], {}
    for rate in dict.fromkeys((options.rate, *((GBIT_MBPS, None) if options.long else ()))):
        for mtu in (1500, 9000):
            more, ratios = measure(Setting(rate, mtu, min(options.workers), PLAIN), options)
            rows += more
            name = f"{rate:g}_{mtu}" if rate else f"unshaped_{mtu}"
            figures[f"worker_cpu_vs_gloo_{name}"], figures[f"with_box_{name}"] = ratios
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    report.table(HEADERS, rows)
    return figures
