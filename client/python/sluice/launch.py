"""`python3 -m sluice launch`: start the ranks of a script on this machine.

Sets the environment that torchrun would set, puts the rank in front of each line of output, and
when one rank fails stops the others and says which one failed and why; with --keep-going the others
run on, as a job with k < n wants it, and --restart starts the failed rank again. With --local-box
it starts an appliance for the run too, so that a script can be tried on one machine without root.
Debian 12's own torchrun does not run on its Python 3.11, which is one reason for this module.
"""

import argparse
import os
import secrets
import sys
import tempfile
from pathlib import Path

from sluice._box import BoxError, LocalBox, find_appliance
from sluice._launcher import RESTART_DELAY_S, Launcher
from sluice._processes import free_port, interface_towards


def rank_environment(base, *, rank, local_rank, local_world_size, world_size, node_rank,
                     master_addr, master_port, run_id=None, address=None):
    """The variables of one rank: torchrun's, and Sluice's. Returns a new dict; `base` is kept."""
    env = dict(base)
    env.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(local_world_size), GROUP_RANK=str(node_rank),
        MASTER_ADDR=master_addr, MASTER_PORT=str(master_port), PYTHONUNBUFFERED="1")
    interface = interface_towards(master_addr)
    if interface is not None:  # else Gloo looks up this host's own name, which may be 127.0.1.1
        env.setdefault("GLOO_SOCKET_IFNAME", interface)
    if local_world_size > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # else each rank starts a thread per core
    if run_id is not None:
        env["SLUICE_RUN_ID"] = str(run_id)
    if address is not None:
        env["SLUICE_ADDRESS"] = address
    return env


def script_command(script, arguments, module=False):
    """The command that runs a Python script, a module, or any other program."""
    if module:
        return [sys.executable, "-m", script, *arguments]
    if script.endswith(".py"):
        return [sys.executable, script, *arguments]
    return [script, *arguments]


def add_arguments(parser):
    parser.add_argument("-n", "--nproc", type=int, required=True, metavar="N",
                        help="ranks to start on this machine")
    parser.add_argument("--address", help="appliance, as SLUICE_ADDRESS; '{rank}' is replaced")
    parser.add_argument("--local-box", action="store_true",
                        help="start an appliance on this machine for this run alone, and set "
                             "SLUICE_ADDRESS and SLUICE_SECRET to it: no root, no network card")
    parser.add_argument("--build-dir", help="with --local-box: where sluiced was built (default: "
                                            "build/ of the source tree, else the PATH)")
    parser.add_argument("--run-id", help="name of this run, equal on all nodes (default: random)")
    parser.add_argument("--nnodes", type=int, default=1, metavar="M", help="machines in the run")
    parser.add_argument("--node-rank", type=int, default=0, metavar="I",
                        help="which of them this is, from 0")
    parser.add_argument("--master-addr", default="127.0.0.1", help="address of node 0")
    parser.add_argument("--master-port", type=int, help="TCP port on node 0 (default: a free one)")
    parser.add_argument("--keep-going", action="store_true",
                        help="when a rank fails, let the others run on (for jobs with k < n)")
    parser.add_argument("--restart", type=int, default=0, metavar="N",
                        help="start a rank that failed again, up to N times (default 0); it sees "
                             "SLUICE_RESTART_COUNT")
    parser.add_argument("--restart-delay", type=float, default=RESTART_DELAY_S, metavar="S",
                        help=f"seconds before that (default {RESTART_DELAY_S:g})")
    parser.add_argument("--grace", type=float, default=5.0, metavar="S",
                        help="seconds between SIGTERM and SIGKILL (default 5)")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def problem_with(options):
    """What is wrong with the command line, or an empty string."""
    if options.nproc < 1:
        return f"-n {options.nproc}: at least one rank is needed"
    if not 0 <= options.node_rank < options.nnodes:
        return f"--node-rank {options.node_rank}: must be 0..{options.nnodes - 1} (--nnodes)"
    if options.restart < 0:
        return f"--restart {options.restart}: must be 0 or more"
    if options.restart_delay < 0:
        return f"--restart-delay {options.restart_delay:g}: must be 0 or more seconds"
    if options.local_box and options.nnodes > 1:
        return (f"--nnodes {options.nnodes}: workers of other machines cannot reach a --local-box; "
                "start sluiced, and give --address")
    if options.local_box and options.address:
        return f"--local-box and --address {options.address}: give one of them"
    if options.nnodes > 1 and options.master_port is None:
        return "--nnodes: give --master-port, the same on all nodes"
    if not options.module and options.script.endswith(".py") and not os.path.exists(options.script):
        return f"{options.script}: no such file"
    return ""


def _environments(options, base):
    """The variables of each rank of this machine, by rank."""
    run_id = options.run_id
    if run_id is None and options.nnodes == 1:
        run_id = secrets.token_hex(8)
    port = options.master_port or free_port()
    first = options.node_rank * options.nproc
    return {first + local: rank_environment(
        base, rank=first + local, local_rank=local, local_world_size=options.nproc,
        world_size=options.nproc * options.nnodes, node_rank=options.node_rank,
        master_addr=options.master_addr, master_port=port, run_id=run_id, address=options.address)
        for local in range(options.nproc)}


def _launch(options, base):
    environments = _environments(options, base)
    command = script_command(options.script, options.arguments, options.module)
    try:
        return Launcher([command] * len(environments), environments.values(), ranks=environments,
                        keep_going=options.keep_going, restart=options.restart,
                        restart_delay_s=options.restart_delay, grace_s=options.grace).run()
    except OSError as error:
        print(f"sluice launch: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _launch_with_box(options):
    """The run, and around it an appliance of its own."""
    binary = find_appliance(options.build_dir)
    with tempfile.TemporaryDirectory(prefix="sluice-box-") as folder:
        with LocalBox(binary, folder, Path(folder) / "sluiced.log", options.nproc) as box:
            print(f"sluice launch: {binary} runs for these {options.nproc} ranks. Watch it with\n"
                  f"  {box.top_command}", file=sys.stderr)
            status = _launch(options, {**os.environ, "SLUICE_ADDRESS": box.address,
                                       "SLUICE_SECRET": box.secret})
            if box.exit_text():
                print(f"sluice launch: sluiced {box.exit_text()}. Its last words:\n"
                      f"{box.log_tail()}", file=sys.stderr)
            return status


def run(options):
    problem = problem_with(options)
    if problem:
        print(f"sluice launch: {problem}", file=sys.stderr)
        return 2
    if not options.local_box:
        return _launch(options, os.environ)
    try:
        return _launch_with_box(options)
    except BoxError as error:
        print(f"sluice launch: {error}", file=sys.stderr)
        return 1
