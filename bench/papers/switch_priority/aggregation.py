"""One rank of in-switch aggregation: the real client, summing at sw1. Runs inside the lab.

`aggregation.py JSON`. Streamed: the workers are the ranks; each adds the sum to parameters of its
own, so a step is its compute and one pass through the switch, in which sums come back while
gradients still go up. Stored: the parameter server is one more rank and keeps the parameters. It
takes the sums, and only when it has all of them it sends the parameters, which the switch
multicasts. Compute and transfer do not overlap, as in the baseline.

It prints one line of JSON at its end: times by the machine's monotonic clock, retransmissions and
processor time.
"""
import array
import json
import resource
import sys
import time

import sluice

TIMEOUT_S = 120
ELEM_BYTES = 4


class Rank:
    def __init__(self, settings):
        self.settings = settings
        self.counts = [-(-count // ELEM_BYTES) for count in settings["bytes"]]
        passes = ["gradient"] if settings["streamed"] else ["gradient", "parameters"]
        specs = [(f"{kind}{index}", count, "float32")
                 for kind in passes for index, count in enumerate(self.counts)]
        self.job = sluice.Job(specs, settings["url"], job=settings["job"], secret="lab",
                              rank=settings["rank"], world_size=settings["ranks"],
                              run_id=settings["run_id"], averaging="sum")
        self.buffers = {name: array.array("f", bytes(ELEM_BYTES * count))
                        for name, count, _ in specs}

    def start(self, kind, data):
        """Submits all layers of a kind, early layers the most urgent."""
        for index in range(len(self.counts)):
            name = f"{kind}{index}"
            address = self.buffers[name].buffer_info()[0]
            self.job.submit(name, address if data else None, address,
                            priority=index * 255 // len(self.counts))

    def finish(self, kind):
        for index in range(len(self.counts)):
            self.job.wait(f"{kind}{index}", timeout=TIMEOUT_S)

    def fill(self, value):
        for index, count in enumerate(self.counts):
            self.buffers[f"gradient{index}"] = array.array("f", [value]) * count

    def check(self, kind, value):
        """Every element of a sum: a rank that is wrong gives no times."""
        for index, count in enumerate(self.counts):
            expected = array.array("f", [value]) * count
            if self.buffers[f"{kind}{index}"].tobytes() != expected.tobytes():
                sys.exit(f"rank {self.settings['rank']}: {kind} {index} is not {value}")

    def worker_step(self, step, began):
        """Checks the sums of the step before and makes the next gradients while it computes."""
        workers, last = self.settings["workers"], step - 1
        streamed = self.settings["streamed"]
        if step > 0:
            self.check("gradient" if streamed else "parameters",
                       workers * last + workers * (workers - 1) // 2)
        self.fill(step + self.settings["rank"])
        time.sleep(max(0.0, began + self.settings["compute_s"] - time.monotonic()))
        self.start("gradient", True)
        if not streamed:
            self.start("parameters", False)
        self.finish("gradient")
        if not streamed:
            self.finish("parameters")

    def server_step(self):
        self.start("gradient", False)
        self.finish("gradient")
        for index in range(len(self.counts)):
            self.buffers[f"parameters{index}"] = self.buffers[f"gradient{index}"][:]
        self.start("parameters", True)
        self.finish("parameters")

    def run(self):
        ends = []
        self.job.barrier(timeout=TIMEOUT_S)
        for step in range(self.settings["steps"]):
            if self.settings["rank"] == self.settings["workers"]:
                self.server_step()
            else:
                self.worker_step(step, ends[-1] if ends else time.monotonic())
            ends.append(time.monotonic())
        stats = self.job.stats()
        self.job.barrier(timeout=TIMEOUT_S)
        self.job.close()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"ends": [round(end, 4) for end in ends],
                          "retransmits": stats["retransmissions"] + stats["results_pulled"],
                          "cpu_s": round(usage.ru_utime + usage.ru_stime, 3)},
                         separators=(",", ":")), flush=True)


if __name__ == "__main__":
    Rank(json.loads(sys.argv[1])).run()
