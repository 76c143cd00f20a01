"""The command line: python3 -m sluice COMMAND."""

import argparse
import sys

import sluice
from sluice import _store_command, bcube, doctor, launch, plan, top, trace
from sluice.demo import run as demo


def parser():
    """Of all commands; each has a function `run` that takes what was parsed."""
    found = argparse.ArgumentParser(
        prog="python3 -m sluice", description="Sluice: a software switch that sums gradients.")
    found.add_argument("--version", action="version", version=f"sluice {sluice.__version__}")
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module, text in (
            ("doctor", doctor, "say what works on this machine and why not"),
            ("launch", launch, "start the ranks of a script on this machine"),
            ("top", top, "watch an appliance: jobs, who is late, drops, ports"),
            ("trace", trace, "make one Chrome trace of the files that SLUICE_TRACE=DIR left"),
            ("plan", plan, "say what a step would take through a box, several, or a ring"),
            ("bcube", bcube, "plan a network of several switches and ports a worker"),
            ("store", _store_command, "save a parameter store without workers, or found one"),
            ("demo", demo, "train a small network through an appliance, all on this machine")):
        command = commands.add_parser(name, help=text, description=module.__doc__.splitlines()[0])
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return found


def main(arguments=None):
    options = parser().parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
