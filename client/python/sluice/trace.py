"""`python3 -m sluice trace DIR`: one Chrome trace of what the ranks left with SLUICE_TRACE=DIR.

Ranks of one machine share a clock. Those of other machines are moved onto the clock of the lowest
rank: the appliance tells every rank when the contribution came that completed a tensor, and ranks
place that moment on their own clocks; clocks of two machines agree no better than half of a rank's
smallest round trip. Reads files of processes that were killed, too: those lack the last 0.2 s. A
rank's file ends at 64 MiB (about 45,000 tensors' steps) and says so.

One process a rank, one track a tensor. Below each step its phases, each until the last packet of
tensor has left it: waits to be queued, waits in the queue, on the wire, waits for other ranks,
result on its way, waits to be applied (until the wait for it returned, or job.mark_applied(tensor)
was called, as overlap() does). Instants mark the first contribution of any rank and the one that
completed it, both at the appliance. A click on a step shows all times as measured, and how
often packets were sent again. What the log says of a stalled step is marked on the rank.

Over a BCube each tensor has another track for each lane that takes a part of it, named by thread,
stage, way and level: there "waits for other ranks" is the wait at that level's switch, and a part
whose sum another worker wants "waits to be counted". Steps that went by way of another switch say
"detoured"; "detour" and "back from a detour" mark when lanes moved, and why.
"""

import collections
import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

PATTERN = "sluice-*-rank*.json"


class TraceError(Exception):
    """There is nothing to show; the text says why and what to do."""


class _Rank(NamedTuple):
    path: Path
    about: dict  # the arguments of "trace begins": job, rank, run_id, machine, ...
    events: list


class Merged(NamedTuple):
    events: list
    ranks: list  # that are in it, sorted
    steps: list  # likewise
    remarks: list  # what its reader should know, in words


def read_events(path):
    """The events of a file in the "JSON array" form; its end, or its last line, may be missing."""
    text = Path(path).read_text(encoding="utf-8", errors="replace").rstrip()
    if not text.endswith("]"):
        text = text.rstrip(",") + "]"
    try:
        events = json.loads(text)
    except ValueError:  # cut off in the middle of an event: one is a line
        try:
            events = json.loads(text.rpartition("\n")[0].rstrip().rstrip(",") + "]")
        except ValueError as error:
            raise TraceError(f"{path} is not a Chrome trace: {error}") from None
    if not isinstance(events, list):
        raise TraceError(f"{path} is not a Chrome trace in the form of an array")
    return events


def _read_rank(path):
    events = read_events(path)
    about = next((e["args"] for e in events if e.get("name") == "trace begins"), None)
    if about is None:
        raise TraceError(f"{path} is not a trace of Sluice: it has no event 'trace begins'")
    return _Rank(path, about, events)


def _step(event):
    return event.get("args", {}).get("step")


def _completions(rank):
    """When each sum that ranks share was complete at an appliance, on the rank's clock, in
    microseconds. Of a BCube's, those at the turn: on the other ways ranks want different sums."""
    return {(*(args.get(key) for key in ("tensor", "step", "level", "switch")),):
            event["ts"] + args["kth_contribution_us"]
            for event in rank.events for args in [event.get("args", {})]
            if "kth_contribution_us" in args and args.get("way", "turn") == "turn"}


def _clock_shifts(ranks):
    """({machine: microseconds to add}, remarks)."""
    reference = ranks[0].about["machine"]
    machines = collections.defaultdict(list)
    for rank in ranks:
        machines[rank.about["machine"]].append(_completions(rank))
    shifts, remarks = {reference: 0.0}, []

    def apart(machine):  # from those whose clocks are known
        return [ours[key] + shift - times[key] for known, shift in shifts.items()
                for ours in machines[known] for times in machines[machine]
                for key in ours.keys() & times.keys()]

    while waiting := [machine for machine in machines if machine not in shifts]:
        machine, moments = next(((each, found) for each in waiting if (found := apart(each))),
                                (None, []))
        if not moments:
            remarks += [f"machine {each} has no step in common with {reference}: its clock is its "
                        "own" for each in waiting]
            return shifts | dict.fromkeys(waiting, 0.0), remarks
        shifts[machine] = statistics.median(moments)
        remarks.append(f"machine {machine}: clock moved by {shifts[machine]:.0f} us, by "
                       f"{len(moments)} moments at the appliance that both know")
    return shifts, remarks


def merge(folder, first_step=1, last_step=None):
    """The traces of the newest run in `folder` as one; of some steps only, if asked for."""
    paths = sorted(Path(folder).glob(PATTERN), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise TraceError(f"{folder} has no {PATTERN}: run the job with SLUICE_TRACE={folder}")
    everything = [_read_rank(path) for path in paths]
    run = everything[-1].about["run_id"]
    ranks = sorted((rank for rank in everything if rank.about["run_id"] == run),
                   key=lambda rank: (rank.about["ordinal"], rank.about["rank"]))
    shifts, remarks = _clock_shifts(ranks)
    remarks += [f"{rank.path.name} is of another run and left out" for rank in everything
                if rank.about["run_id"] != run]
    missing = set(range(ranks[0].about["world_size"])) - {rank.about["rank"] for rank in ranks}
    if missing:
        remarks.append("no file of rank " + ", ".join(map(str, sorted(missing))))
    merged, steps = [], set()
    for rank in ranks:
        shift = shifts[rank.about["machine"]]
        for event in rank.events:
            step = _step(event)
            if step is None and event["ph"] == "X" or step is not None and (
                    step < first_step or last_step is not None and step > last_step):
                continue
            if "ts" in event:
                if step is None and first_step > 1:
                    continue  # how the trace began would stretch the picture
                event["ts"] += shift
            if step is not None:
                steps.add(step)
            merged.append(event)
    return Merged(merged, sorted({rank.about["rank"] for rank in ranks}), sorted(steps), remarks)


def write(events, path):
    """One event a line, as the ranks' files."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in events))
        file.write("\n]\n")


def parse_steps(text):
    """(first, last) of 'N' or 'N-M'; ValueError says what is wrong."""
    first, dash, last = text.partition("-")
    if not first.isdigit() or dash and not last.isdigit() or int(first) < 1:
        raise ValueError(f"{text!r} names no steps: give N or N-M, counted from 1")
    span = int(first), int(last) if dash else int(first)
    if span[0] > span[1]:
        raise ValueError(f"{text!r} names no steps: {span[0]} is after {span[1]}")
    return span


def add_arguments(parser):
    parser.add_argument("folder", metavar="DIR", help="what SLUICE_TRACE was")
    parser.add_argument("--out", metavar="FILE", help="default: DIR/trace.json")
    parser.add_argument("--steps", metavar="N[-M]", help="these steps only")


def run(options):
    out = options.out or str(Path(options.folder) / "trace.json")
    try:
        merged = merge(options.folder, *(parse_steps(options.steps) if options.steps else ()))
        if not merged.steps:
            raise TraceError(f"{options.folder}: no rank has finished a tensor" + (
                f" in step {options.steps}" if options.steps else ""))
        write(merged.events, out)
    except (TraceError, OSError) as error:
        print(f"sluice trace: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"sluice trace: --steps {error}", file=sys.stderr)
        return 2
    for remark in merged.remarks:
        print(remark)
    print(f"{out}: ranks {', '.join(map(str, merged.ranks))}, steps {merged.steps[0]} to "
          f"{merged.steps[-1]}; open it in https://ui.perfetto.dev or chrome://tracing")
    return 0
