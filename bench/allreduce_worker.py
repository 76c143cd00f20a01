"""One rank of the allreduce bench, for either side; allreduce.py starts it in a host of the lab.

    allreduce_worker.py sluice|gloo ELEM_COUNT[,ELEM_COUNT ...] DTYPE MTU

RANK, WORLD_SIZE and addresses stand in the environment.

It prints "ready" once joined. For each line "go COUNT" on standard input: a barrier, then so many
sums of tensors of so many elements (Gloo: of one of as many) over all ranks, then one line of JSON
with the monotonic clock's nanoseconds, which the ranks of one machine share, at the start of the
first, at the end of each and of the last, and the processor time of this process within the sums.
It checks every element of each sum: a side that is wrong prints no time. End of input ends it.

Both sum float32, which DTYPE says how to send: sluice in bfloat16 is its wire format, gloo in
float16 what DDP's fp16 compression hook does. Narrowing and widening are within the time.
"""
import json
import os
import sys
import time

import torch

TIMEOUT_S = 120


class SluiceSide:
    def __init__(self, elem_counts, dtype, mtu):
        import sluice
        self.elem_counts = elem_counts
        self.names = [f"gradient{index}" for index in range(len(elem_counts))]
        self.job = sluice.Job([(name, elem_count, "float32")
                               for name, elem_count in zip(self.names, elem_counts)],
                              averaging="sum", mtu=mtu, wire=dtype)
        self.job.barrier(timeout=TIMEOUT_S)

    def barrier(self):
        self.job.barrier(timeout=TIMEOUT_S)

    def sum(self, values):
        for name, part in zip(self.names, values.split(self.elem_counts)):
            self.job.submit(name, part)
        for name in self.names:
            self.job.wait(name, timeout=TIMEOUT_S)

    def stats(self):
        return self.job.stats()

    def close(self):
        self.job.close()


class GlooSide:
    def __init__(self, elem_counts, dtype, mtu):
        import torch.distributed
        self.distributed = torch.distributed
        self.hook = dtype == "float16"
        self.distributed.init_process_group("gloo")

    def barrier(self):
        self.distributed.barrier()

    def sum(self, values):
        sent = values.to(torch.float16) if self.hook else values
        self.distributed.all_reduce(sent)
        if self.hook:
            values.copy_(sent)

    def stats(self):
        return {}

    def close(self):
        self.distributed.destroy_process_group()


def main():
    torch.set_num_threads(1)
    name, elem_counts, dtype, mtu = sys.argv[1:]
    elem_counts = [int(each) for each in elem_counts.split(",")]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    side = {"sluice": SluiceSide, "gloo": GlooSide}[name](elem_counts, dtype, int(mtu))
    # Small integers, exact in any order of summation and in every format, as their averages are,
    # that differ from rank to rank and neighbours.
    pattern = torch.arange(sum(elem_counts), dtype=torch.int64).remainder_(13).to(torch.float32)
    expected = pattern * world_size + world_size * (world_size - 1) // 2
    values = torch.empty_like(pattern)
    print("ready", flush=True)
    for line in sys.stdin:
        word, count = line.split()
        if word != "go":
            break
        torch.add(pattern, rank, out=values)
        side.barrier()
        start_ns = time.monotonic_ns()
        ends_ns, process_ns = [], 0
        for _ in range(int(count)):
            if ends_ns:
                torch.add(pattern, rank, out=values)
            process_ns -= time.process_time_ns()
            side.sum(values)
            process_ns += time.process_time_ns()
            ends_ns.append(time.monotonic_ns())
            if not torch.equal(values, expected):
                sys.exit(f"rank {rank}: the {name} sum is wrong")
        stats = side.stats()
        print(json.dumps({"start_ns": start_ns, "end_ns": ends_ns[-1], "ends_ns": ends_ns,
                          "process_ns": process_ns,
                          "retransmissions": stats.get("retransmissions", 0),
                          "chunk_bytes": stats.get("chunk_bytes", 0)}), flush=True)
    side.close()


if __name__ == "__main__":
    main()
