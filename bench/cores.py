"""What the processors did: all of them, and one process."""
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


def process_cpu_s(pid):
    """Processor time that a process has used so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
