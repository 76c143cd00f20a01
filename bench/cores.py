"""The processors' time: of all of them, and of one process."""
import os


class BusyShare:
    """The share of all cores' time that was not idle since the object was made, in percent."""

    def __init__(self):
        self.before = self.read()

    @staticmethod
    def read():
        with open("/proc/stat", encoding="ascii") as stat:
            fields = [int(field) for field in stat.readline().split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    def percent(self):
        total, idle = (now - then for now, then in zip(self.read(), self.before))
        return 100.0 * (total - idle) / max(total, 1)


class MachineTime:
    """Processor time of the whole machine since the object was made, without what others' processes
    took meanwhile: all that do not descend from this one. The kernel's own threads count."""

    def __init__(self):
        self.before = self.read()

    @staticmethod
    def read():
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, _, _, irq, softirq = map(int, stat.readline().split()[1:8])
        spent = user + nice + system + irq + softirq
        return (spent - _others_ticks()) / os.sysconf("SC_CLK_TCK")

    def seconds(self):
        return max(0.0, self.read() - self.before)


def _others_ticks():
    """Time of others' processes and their children that have ended, in ticks."""
    parents, ticks = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended; its parent has its time
        parents[int(name)], ticks[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))

    def is_other(pid):
        while pid not in (0, 2, os.getpid()):  # 2 is the parent of the kernel's threads
            pid = parents.get(pid, 0)
        return pid == 0

    return sum(spent for pid, spent in ticks.items() if is_other(pid))


def process_cpu_s(pid):
    """Processor time that a process has used so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
