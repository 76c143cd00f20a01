"""The hook bench: the time that attach() and overlap() take of the thread that trains.

Three copies of one model (a chain of small linear layers, SGD with momentum, one thread) are
trained in this process by turns, over an in-process appliance with a world of one:

  bare      DDP with a communication hook that returns each bucket at once
  attach    sluice.torch.attach()
  overlap   sluice.torch.overlap()

Counted is the processor time of this thread (thread_time). A wait for the appliance takes none, and
the client's own thread and other processes are not in it. "in all" is of whole steps: forward,
backward, optimizer, zero_grad. It has all that hooks, look-ups of parameters and the optimizer in
parts take, wherever in a step. "in the hook" is of DDP's calls of the communication hook alone, one
a bucket. Both are differences to the bare side of the same repetition, divided by steps and
tensors. DDP itself, autograd and the optimizer are alike on all sides and cancel. us_tensor is of
attach() in the hook, where all that it does for each tensor is done but a look at requires_grad;
overlap_us_tensor is of overlap() in all.

What can go wrong: a step's time varies with the caches and cores that are shared with others, by
more than attach() takes. A repetition is a few steps of each side, so that a slow moment hits all,
and the median is of many. Tensors are small, so that the client's thread has few bytes to read
beside this one: the figures are of calls, which do not depend on the size of a tensor. All results
are here when the next forward begins; where they come one by one, overlap() runs the optimizer in
more parts, while it would wait.
"""
import functools
import itertools
import os
import time

import report

DESCRIPTION = "processor time of the PyTorch hooks, a tensor and step"

SIDES = ("bare", "attach", "overlap")
WARM_UP_STEPS = 4  # the layout of DDP's buckets and the order of the forward are known then


def add_options(parser):
    report.add_repetitions(parser, default=25)
    parser.add_argument("--tensors", type=int, nargs="+", default=[300, 3000], metavar="N",
                        help="parameters of the model, two a layer; the RESULT is of the first "
                             "(default 300 3000)")
    parser.add_argument("--elements", type=int, default=1_000_000, metavar="N",
                        help="of all tensors together (default 1,000,000)")
    parser.add_argument("--steps", type=int, default=0, metavar="N",
                        help="of a side in a repetition (default 1,500 / tensors)")


class Side:
    """One model under one way to train, and its times."""

    def __init__(self, name, tensors, elements, address):
        import torch
        from torch.nn.parallel import DistributedDataParallel
        width = max(1, int((2 * elements / tensors) ** 0.5))
        torch.manual_seed(1)
        net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(tensors // 2)))
        self.model = DistributedDataParallel(net, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        self.inputs = torch.randn(1, width)
        self.in_hook_ns = 0
        self.attachment = None
        if name == "bare":
            self.model.register_comm_hook(self, _bare_hook())
            return
        import sluice.torch
        options = {"job": f"{name}-{tensors}", "rank": 0, "world_size": 1}
        self.attachment = (
            sluice.torch.attach(self.model, address, **options) if name == "attach" else
            sluice.torch.overlap(self.model, self.optimizer, address, **options))
        self.attachment._on_bucket = self.clocked(self.attachment._on_bucket)

    def clocked(self, call):
        @functools.wraps(call)
        def clocked(*arguments):
            begun_ns = time.thread_time_ns()
            try:
                return call(*arguments)
            finally:
                self.in_hook_ns += time.thread_time_ns() - begun_ns
        return clocked

    def steps(self, count):
        """Processor seconds of `count` steps, and those of them in the communication hook."""
        self.in_hook_ns = 0
        begun_ns = time.thread_time_ns()
        for _ in range(count):
            self.model(self.inputs).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return (time.thread_time_ns() - begun_ns) / 1e9, self.in_hook_ns / 1e9

    def end(self):
        if self.attachment is not None:
            self.attachment.detach()


def _bare_hook():
    import torch
    import torch.distributed as dist

    def finished(bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def hook(side: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return side.clocked(finished)(bucket)
    return hook


def measure(tensors, options):
    """{side: (Samples of a step's ms, of the us a tensor in the hook, of the us a tensor in all)},
    the last two beyond the bare side's."""
    address = f"inproc://hook-{os.getpid()}-{tensors}"
    steps = options.steps or max(1, 1500 // tensors)
    sides = {name: Side(name, tensors, options.elements, address) for name in SIDES}
    samples = {name: tuple(report.Samples() for _ in range(3)) for name in SIDES}
    for side in sides.values():
        side.steps(WARM_UP_STEPS)
    orders = itertools.cycle(itertools.permutations(SIDES))
    for _ in range(options.repetitions):
        times = {name: sides[name].steps(steps) for name in next(orders)}
        us_tensor = 1e6 / steps / tensors
        for name, (all_s, hook_s) in times.items():
            step_ms, in_hook, in_all = samples[name]
            step_ms.add(1e3 * all_s / steps)
            in_hook.add((hook_s - times["bare"][1]) * us_tensor)
            in_all.add((all_s - times["bare"][0]) * us_tensor)
    for side in sides.values():
        side.end()
    return steps, samples


def run(options):
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        raise report.BenchError("torch is missing: install python3-torch") from None
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("SLUICE_LIBRARY", os.path.join(report.build_dir(), "client"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rows, figures = [], {}
    for tensors in options.tensors:
        steps, samples = measure(tensors, options)
        for name, (step_ms, in_hook, in_all) in samples.items():
            beyond = ["", ""] if name == "bare" else [in_hook.cell(2), in_all.cell(2)]
            rows.append([f"{tensors} tensors, {steps} steps a repetition: {name}",
                         step_ms.cell(2), *beyond])
        figures.setdefault("us_tensor", samples["attach"][1].median)
        figures.setdefault("overlap_us_tensor", samples["overlap"][2].median)
    dist.destroy_process_group()
    print(f"torch {torch.__version__}, {options.elements} elements; processor time of the thread "
          "that trains")
    report.table(["", "ms a step", "in the hook, us a tensor", "in all, us a tensor"], rows)
    report.result("hook", **figures)
