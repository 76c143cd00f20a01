"""Runs some of the judged records again and compares: the records can't hide a regression.

A run is a function of its key: on the kind of machine that the records come from it comes out again
bit for bit. Processors with other vector instructions and other versions of torch round otherwise.
"""
import concurrent.futures
import hashlib
import multiprocessing
import sys

SHARE = 30  # of the judged records one in so many is drawn
MOST = 100  # of a day: two minutes on two idle cores
NUMERICS = "numerics"  # the key of the record that names the machine's kind


def draw(keys, day, share=SHARE, most=MOST):
    """The keys for `day`, a datetime.date. Without `most` each comes once in any `share` days."""
    def number(text):
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    drawn = [key for key in keys if (number(key) + day.toordinal()) % share == 0]
    return sorted(drawn, key=lambda key: number(f"{day} {key}"))[:most]


def numerics():
    """What rounding depends on: the version of torch and the widest vectors of the processor."""
    import torch
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        flags = file.read().split()
    widest = next((flag for flag in ("avx512f", "avx2") if flag in flags), "neither")
    return f"torch {torch.__version__}, {widest}"


def judged(records):
    """The keys of the records that tables and figures are made of."""
    from . import experiment, tuned
    known = [*experiment.judged(), *tuned.judged(tuned.load_rates())]
    return [key for key in known if key in records]


def needed(records):
    """What runs are judged by: synchronous ones and those of targets."""
    from . import experiment
    return {key: record for key, record in records.items()
            if key.endswith(f"/{experiment.SYNC}") or "/target/" in key}


def play(key, records):
    """The record of `key` once more, judged by those of `records`."""
    import torch

    from . import experiment, tuned
    torch.set_num_threads(1)
    others = {name: record for name, record in records.items() if name != key}
    run = experiment.judged().get(key)
    if run:
        return experiment.play_after(*run, others)
    return tuned.Bench(others, lambda record: None).run(tuned.judged(tuned.load_rates())[key])


def run(keys, records, processes):
    """key -> record, run now."""
    from tqdm import tqdm
    context, known = multiprocessing.get_context("spawn"), needed(records)
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting = {pool.submit(play, key, known): key for key in keys}
        done = tqdm(concurrent.futures.as_completed(waiting), total=len(waiting), unit="run",
                    file=sys.stderr, mininterval=2)
        return {waiting[future]: future.result() for future in done}


def compare(fresh, records):
    """Prints each run that did not come to its record, and returns their keys."""
    other = [key for key, record in fresh.items() if record != records[key]]
    for key in other:
        differ = [name for name in records[key] if fresh[key].get(name) != records[key][name]]
        first = min(differ, key=lambda name: name != "tta_s", default="key")
        print(f"{key}: {', '.join(differ)} differ; {first} is {fresh[key].get(first)}, "
              f"in the records {records[key].get(first)}")
    return other
