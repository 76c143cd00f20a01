"""`python3 -m sluice plan`: how long a step's communication would take, box, boxes or ring.

The costs are measured here, in two seconds: a real `sluiced` and up to eight workers sum over
vhost-user, and the processor time of either side is divided by its packets. A NIC's driver costs
less than vhost-user, which copies, and so does a box that has nothing else to do; so the plan is
cautious. A box slow enough to set the time took 0.93 to 1.25 of what was planned, 1.06 in the
middle (27 runs, 2 to 8 workers: pytest -s tests/e2e/test_plan.py).
Without a `sluiced` on this machine give both costs by hand. The model is `_plan_model.py`.
"""

import argparse
import ctypes
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from sluice import _plan_model as model
from sluice import _box, errors
from sluice.job import Job

SELF_TEST_BYTES = 8 << 20  # a rank and step
SELF_TEST_S = 2.0
SELF_TEST_RANKS = 8  # at most: two cost a box two thirds of what eight do, each, and four 0.87
_JOIN_S = 20
_BUSY = 0.15  # of all cores, by other programs


def process_cpu_ns(pid):
    """Processor time that all threads of a process have used, in nanoseconds."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # it has just ended
    return spent


def _sum_until(barrier, job, elem_count, item_bytes, end, steps, rank):
    held = (ctypes.c_char * (elem_count * item_bytes))()
    address = ctypes.addressof(held)
    job.submit("gradient", address)
    job.wait("gradient")
    barrier.wait()
    while True:
        # Rank 0 says whether another step comes, so that both take the same number.
        if rank == 0:
            steps.append(time.monotonic() < end[0])
        barrier.wait()
        if not steps[-1]:
            return
        job.submit("gradient", address)
        job.wait("gradient")


def self_test(binary, dtype, mtu=1500, seconds=SELF_TEST_S, wire="float32", workers=2):
    """Costs on this machine, from a job of so many ranks of this process, or SELF_TEST_RANKS."""
    world_size = min(workers, SELF_TEST_RANKS)
    item_bytes = model.ELEM_BYTES[dtype]
    elem_count = SELF_TEST_BYTES // item_bytes
    question = model.Question(world_size, 1.0, 1, elem_count, dtype, mtu, wire)
    chunks = model.plan(question, model.Costs(1.0, 1.0)).chunks
    failures, steps, end = [], [], [0.0]
    barrier = threading.Barrier(world_size + 1)
    with tempfile.TemporaryDirectory(prefix="sluice-plan-") as folder:
        log = Path(folder) / "sluiced.log"
        with _box.LocalBox(binary, folder, log, world_size, mtu=mtu) as appliance:
            def rank_main(rank):
                try:
                    with Job([("gradient", elem_count, dtype)], appliance.address, job="plan",
                             secret=appliance.secret, rank=rank, world_size=world_size, run_id=1,
                             mtu=mtu, wire=wire, join_timeout=_JOIN_S) as job:
                        _sum_until(barrier, job, elem_count, item_bytes, end, steps, rank)
                        barrier.wait()
                except BaseException as error:  # noqa: BLE001 - raised again below
                    failures.append(error)
                    barrier.abort()

            ranks = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world_size)]
            for rank in ranks:
                rank.start()
            try:
                end[0] = time.monotonic() + _JOIN_S + seconds
                barrier.wait()  # all have summed once: everything that is made once is made
                before = process_cpu_ns(appliance.pid), process_cpu_ns(os.getpid())
                end[0] = time.monotonic() + seconds
                while True:
                    barrier.wait()
                    if not steps[-1]:
                        break
                after = process_cpu_ns(appliance.pid), process_cpu_ns(os.getpid())
                barrier.wait()
            except threading.BrokenBarrierError:
                pass
            for rank in ranks:
                rank.join()
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure
    packets = chunks * world_size * sum(steps)
    return model.Costs(box_ns=(after[0] - before[0]) / packets,
                       worker_ns=(after[1] - before[1]) / packets)


def machine_times():
    """(seconds that this machine's cores have worked, those of this process and its children, now).
    """
    with open("/proc/stat") as file:
        user, nice, system, _idle, _waiting, *others = map(int, file.readline().split()[1:9])
    ticks = user + nice + system + sum(others)
    return ticks / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]), time.monotonic()


def others_share(before, after):
    """The share of this machine's cores that other programs took between two machine_times()."""
    worked, own, passed = (end - start for start, end in zip(before, after))
    return max(0.0, (worked - own) / (passed * os.cpu_count()))


def _positive(kind):
    def parse(text):
        value = kind(float(text)) if kind is int else kind(text)
        if value <= 0:
            raise ValueError(text)
        return value
    parse.__name__ = f"positive {kind.__name__}"
    return parse


def _mtu(text):
    value = int(text)
    if not 576 <= value <= 9000:
        raise argparse.ArgumentTypeError(f"{value} bytes: must be 576 to 9000")
    return value


def add_arguments(parser):
    parser.add_argument("--workers", type=_positive(int), required=True, metavar="N")
    parser.add_argument("--link", type=_positive(float), required=True, metavar="GBPS",
                        help="of each worker's link, and of the box's to it")
    parser.add_argument("--cores", type=_positive(int), required=True, metavar="C",
                        help="of the box: its shards")
    parser.add_argument("--model", type=_positive(int), default=25_600_000, metavar="PARAMS",
                        help="elements that a step sums; 25.6e6 by default, a ResNet-50")
    parser.add_argument("--dtype", choices=sorted(model.ELEM_BYTES), default="float32")
    parser.add_argument("--wire", choices=sorted(model.WIRES), default="float32",
                        help="how float32 travels, as a job's `wire`; a ring carries the dtype")
    parser.add_argument("--mtu", type=_mtu, default=1500,
                        metavar="BYTES")
    parser.add_argument("--box-ns", type=_positive(float), metavar="NS",
                        help="a box's core for a contribution and its result; not measured then")
    parser.add_argument("--worker-ns", type=_positive(float), metavar="NS",
                        help="a worker's core for the two packets of a chunk; likewise")
    parser.add_argument("--build-dir", help="where sluiced was built (default: found)")


def run(options):
    if options.workers < 2:
        print("plan: one worker has nobody to sum with; give --workers 2 or more",
              file=sys.stderr)
        return 2
    if options.wire != "float32" and options.dtype != "float32":
        print(f"plan: {options.dtype} travels as it is, and not as {options.wire}; leave out "
              "--wire, or give --dtype float32", file=sys.stderr)
        return 2
    question = model.Question(options.workers, options.link, options.cores, options.model,
                              options.dtype, options.mtu, options.wire)
    source = "given"
    costs = model.Costs(options.box_ns or 0.0, options.worker_ns or 0.0)
    if options.box_ns is None or options.worker_ns is None:
        begun = machine_times()
        try:
            measured = self_test(_box.find_appliance(options.build_dir), options.dtype, options.mtu,
                                 wire=options.wire, workers=options.workers)
        except (_box.BoxError, errors.Error) as error:
            print(f"plan: the costs were not measured here: {error}. Or give them, for example "
                  "--box-ns 200 --worker-ns 600", file=sys.stderr)
            return 1
        busy = others_share(begun, machine_times())
        source = "measured here over vhost-user" + \
            ("" if options.box_ns is None and options.worker_ns is None else ", or given")
        if busy > _BUSY:
            source += (f", while other programs took {busy:.0%} of this machine's cores, which "
                       "makes them too high: measure again when it rests")
        costs = model.Costs(options.box_ns or measured.box_ns,
                            options.worker_ns or measured.worker_ns)
    print(model.words(model.plan(question, costs), source))
    return 0
