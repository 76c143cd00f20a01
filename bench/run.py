#!/usr/bin/python3
"""Runs one bench by name, or lists them: run.py --list, run.py [--build-dir DIR] NAME [options].

Each bench is a module in this folder with DESCRIPTION, add_options(parser) and run(options). It
prints a table and ends in one line that starts with RESULT. The exit status is 0 after a RESULT
line, 2 for wrong usage, 1 when the bench could not measure (with one line that says why).
"""
import argparse
import os
import sys

import allreduce
import big
import calls
import client
import collectives
import cutoff
import ddp_overlap
import fairness
import fold
import gpu
import hook
import latency
import local
import pipe
import pipeline
import priority
import prune
import queues
import report
import restart
import scale
import sfcd
import soak
import store
import straggler
import switch
import wire
from papers.bml import bench as bml
from papers.prophet import bench as prophet
from papers.prune import bench as prune_paper
from papers.request_scheduling import bench as request_scheduling
from papers.saina import bench as saina
from papers.switch_priority import bench as switch_priority

BENCHES = {"fold": fold, "pipeline": pipeline, "scale": scale, "big": big,
           "sfcd": sfcd, "cutoff": cutoff, "local": local, "latency": latency, "calls": calls,
           "client": client, "allreduce": allreduce,
           "collectives": collectives, "saina": saina,
           "straggler": straggler, "restart": restart, "soak": soak, "queue": queues,
           "priority": priority, "fairness": fairness, "pipe": pipe,
           "prune": prune, "gpu": gpu, "store": store,
           "switch": switch, "ddp_overlap": ddp_overlap, "hook": hook,
           "switch_priority": switch_priority,
           "prophet": prophet, "prune_paper": prune_paper, "request_scheduling": request_scheduling,
           "bml": bml, "wire": wire}


def main():
    parser = argparse.ArgumentParser(prog="bench", description="Sluice's benches.")
    parser.add_argument("--list", action="store_true", help="name the benches and end")
    parser.add_argument("--build-dir", metavar="DIR",
                        help="the build folder (default: SLUICE_BUILD, else build/ in the tree)")
    names = parser.add_subparsers(dest="name", metavar="NAME")
    for name, module in BENCHES.items():
        module.add_options(names.add_parser(name, help=module.DESCRIPTION,
                                            description=module.DESCRIPTION))
    options = parser.parse_args()
    if options.list:
        for name, module in BENCHES.items():
            print(f"{name:<16} {module.DESCRIPTION}")
        return 0
    if options.name is None:
        parser.error("no bench named; --list names them")
    if options.build_dir:
        os.environ["SLUICE_BUILD"] = os.path.abspath(options.build_dir)
    print(report.machine(), flush=True)
    try:
        BENCHES[options.name].run(options)
    except report.BenchError as error:
        print(f"bench {options.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"bench {options.name}: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
