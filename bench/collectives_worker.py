"""One rank of the collectives bench, for either side, in a host of collectives.py's lab.

    collectives_worker.py sluice|gloo

RANK, WORLD_SIZE and addresses stand in the environment. It prints "ready" once joined. For each
line "KIND ELEMS COUNT" on standard input: a barrier, so many operations one after the other, then
one line of JSON: the monotonic clock's nanoseconds, which the ranks of one machine share, at the
start of the first and at the end of each, and, of `rounding`, the root-mean-square error. A kind
that the library lacks prints {"missing": why}. Every element of every sum is checked. End of input
ends it.

  all_reduce  ELEMS of float32
  rs_ag       a reduce-scatter of ELEMS and an all-gather to ELEMS, at the same time
  group       a new group of all ranks, up to the end of a barrier in it
  reconfigure all members of an elastic job but one, then all, and so on
  length      COUNT pairs: an all-reduce of ELEMS, then one of a length that was never used
  rounding    an all-reduce of ELEMS of bfloat16 (float16 where bfloat16 is refused)
  hsdp        COUNT steps, as one, of a GPT of width ELEMS: two replicas, each sharded
  ddp         the same under DDP; the appliance's side has the backend "sluice"
  attach      the same under DDP over Gloo and attach(), of the appliance's side alone

The reply of these three has a digest of the parameters too.
"""
import json
import os
import sys
import time

import report  # for the paths
import torch
import torch.distributed as dist

sys.path.append(os.path.join(report.ROOT, "tests", "python"))
import gpt  # noqa: E402

TIMEOUT_S = 120


class SluiceSide:
    backend = "sluice"

    def __init__(self, rank, world_size):
        import sluice.torch  # noqa: F401 - which registers the backend
        from sluice.groups import Session
        self.world = range(world_size)
        common = dict(world_size=world_size, secret=os.environ["SLUICE_SECRET"],
                      run_id=int(os.environ["SLUICE_RUN_ID"]))
        address = os.environ["SLUICE_ADDRESS"]
        self.session = Session(address, job="collectives", rank=rank, **common)
        self.group = self.session.group("all", self.world)
        self.made = 0
        self.elastic = Session(address, job="elastic", elastic=True, **common)
        self.ranks = torch.empty(world_size, dtype=torch.int64)  # of the elastic job
        self.group.all_gather(torch.tensor([self.elastic.rank]), self.ranks).wait(TIMEOUT_S)
        self.members = None
        dist.init_process_group(self.backend)
        self.gloo = dist.new_group(backend="gloo")  # DDP's, under attach()

    def barrier(self):
        self.group.barrier().wait(TIMEOUT_S)

    def all_reduce(self, values):
        self.group.all_reduce(values).wait(TIMEOUT_S)

    def rs_ag(self, full, part, own, gathered):
        scattered = self.group.reduce_scatter(full, part)
        collected = self.group.all_gather(own, gathered)
        scattered.wait(TIMEOUT_S)
        collected.wait(TIMEOUT_S)

    def new_group(self):
        self.made += 1
        group = self.session.group(f"made{self.made}", self.world)
        group.barrier().wait(TIMEOUT_S)
        return group

    def forget(self, group):
        group.leave()

    def reconfigure(self, count):
        """The first `count` ranks are the members; nothing is done on others."""
        self.made += 1
        if self.members is not None:
            self.members.leave()
            self.members = None
        ranks = self.ranks[:count].tolist()
        if self.elastic.rank in ranks:
            self.members = self.elastic.group(f"members{self.made}", ranks)
            self.members.barrier().wait(TIMEOUT_S)

    def close(self):
        self.elastic.close()
        self.session.close()
        dist.destroy_process_group()


class GlooSide:
    backend = "gloo"

    def __init__(self, _rank, _world_size):
        dist.init_process_group("gloo")
        self.second = dist.new_group(backend="gloo")  # for what runs at the same time

    def barrier(self):
        dist.barrier()

    def all_reduce(self, values):
        dist.all_reduce(values)

    def rs_ag(self, full, part, own, gathered):
        scattered = dist.reduce_scatter_tensor(part, full, async_op=True)
        collected = dist.all_gather_into_tensor(gathered, own, group=self.second, async_op=True)
        scattered.wait()
        collected.wait()

    def new_group(self):
        group = dist.new_group(backend="gloo")
        dist.barrier(group)
        return group

    def forget(self, group):
        dist.destroy_process_group(group)

    def close(self):
        dist.destroy_process_group()


class Rank:
    def __init__(self, side, rank, world_size):
        self.side, self.rank, self.world_size = side, rank, world_size
        self.steps = {}  # by kind: a function that does one

    def pattern(self, elems):
        # Small integers: exact in any order of summation.
        return torch.arange(elems, dtype=torch.int64).remainder_(13).to(torch.float32)

    def total(self, pattern):
        return pattern * self.world_size + self.world_size * (self.world_size - 1) // 2

    def check(self, found, expected, what):
        if not torch.equal(found, expected):
            sys.exit(f"rank {self.rank}: the {what} is wrong")

    def all_reduce(self, elems, count):
        pattern = self.pattern(elems)
        values, expected = torch.empty_like(pattern), self.total(pattern)

        def once(_index):
            torch.add(pattern, self.rank, out=values)
            begin_ns = time.monotonic_ns()
            self.side.all_reduce(values)
            end_ns = time.monotonic_ns()
            self.check(values, expected, "sum")
            return begin_ns, end_ns
        return self.timed(once, count)

    def rs_ag(self, elems, count):
        each = elems // self.world_size
        full = self.pattern(each * self.world_size) + self.rank
        part, own = torch.empty(each), torch.full((each,), float(self.rank))
        gathered = torch.empty(each * self.world_size)
        expected = self.total(full - self.rank)[each * self.rank:each * (self.rank + 1)]
        ranks = torch.arange(self.world_size).repeat_interleave(each).to(torch.float32)

        def once(_index):
            begin_ns = time.monotonic_ns()
            self.side.rs_ag(full, part, own, gathered)
            end_ns = time.monotonic_ns()
            self.check(part, expected, "reduce-scatter")
            self.check(gathered, ranks, "all-gather")
            return begin_ns, end_ns
        return self.timed(once, count)

    def group(self, _elems, count):
        def once(_index):
            begin_ns = time.monotonic_ns()
            group = self.side.new_group()
            end_ns = time.monotonic_ns()
            self.side.forget(group)
            self.side.barrier()
            return begin_ns, end_ns
        return self.timed(once, count)

    def reconfigure(self, _elems, count):
        def once(index):
            self.side.barrier()
            begin_ns = time.monotonic_ns()
            self.side.reconfigure(self.world_size - (index + 1) % 2)
            return begin_ns, time.monotonic_ns()
        return self.timed(once, count)

    def length(self, elems, count):
        values = torch.zeros(elems + count)

        def once(index):
            more = index // 2 + 1 if index % 2 else 0
            begin_ns = time.monotonic_ns()
            self.side.all_reduce(values[:elems + more])
            return begin_ns, time.monotonic_ns()
        return self.timed(once, 2 * count)

    def rounding(self, elems, _count):
        generator = torch.Generator().manual_seed(1)
        gradients = torch.randn(self.world_size, elems, generator=generator)
        for dtype in (torch.bfloat16, torch.float16):
            values = gradients[self.rank].to(dtype)
            try:
                self.side.all_reduce(values)
            except RuntimeError as error:
                refused = str(error)
                continue
            exact = gradients.to(dtype).to(torch.float64).sum(0)
            error = (values.to(torch.float64) - exact).square().mean().sqrt().item()
            return {"error": error / exact.square().mean().sqrt().item(), "dtype": str(dtype)}
        return {"missing": refused}

    def hsdp(self, width, count):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        def wrap(net):
            mesh = init_device_mesh("cpu", (2, self.world_size // 2),
                                    mesh_dim_names=("replicate", "shard"))
            for part in (*net.blocks, net):
                fully_shard(part, mesh=mesh)
            return net
        return self.train("hsdp", wrap, width, count)

    def ddp(self, width, count):
        return self.train("ddp", torch.nn.parallel.DistributedDataParallel, width, count)

    def attach(self, width, count):
        def wrap(net):
            import sluice.torch
            model = torch.nn.parallel.DistributedDataParallel(net, process_group=self.side.gloo)
            self.attached = sluice.torch.attach(model, job="attached")
            return model
        return self.train("attach", wrap, width, count)

    def train(self, kind, wrap, width, count):
        if kind not in self.steps:
            torch.manual_seed(1)
            net = gpt.GPT(width=width, layers=4, heads=4)
            self.steps[kind] = self.training(net, wrap(net))
        net, step = self.steps[kind]

        def once(_index):
            begin_ns = time.monotonic_ns()
            for _ in range(count):
                step()
            return begin_ns, time.monotonic_ns()
        times = self.timed(once, 1)
        whole = [one.full_tensor() if hasattr(one, "full_tensor") else one
                 for one in net.parameters()]
        return {**times, "digest": gpt.digest(torch.nn.ParameterList(whole))}

    def training(self, net, model):
        """(the module, a function that does a step)."""
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        text = gpt.batches(self.rank)

        def step():
            model(*next(text)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return net, step

    def timed(self, once, count):
        self.side.barrier()
        spans = [once(index) for index in range(count)]
        return {"begins_ns": [begin for begin, _ in spans], "ends_ns": [end for _, end in spans]}


def main():
    torch.set_num_threads(1)
    name = sys.argv[1]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    side = {"sluice": SluiceSide, "gloo": GlooSide}[name](rank, world_size)
    ran = Rank(side, rank, world_size)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, elems, count = line.split()
        try:
            said = getattr(ran, kind)(int(elems), int(count))
        except (RuntimeError, AttributeError, ImportError) as error:
            if name != "gloo" and not isinstance(error, ImportError):
                raise
            said = {"missing": str(error).splitlines()[0]}
        print(json.dumps(said), flush=True)
    side.close()


if __name__ == "__main__":
    main()
