"""The gpu bench: the CUDA plug-in's kernels and copies, on a machine that has a device.

Counted are bytes of a gradient of 64 MiB in float32, in chunks of 336. `pack` is what a device
would do in front of the bus: gradient + residual, what of it is above the threshold (1 %),
rounded, as entries one behind the other; `residual` what is left then; `unpack` writes
averages from results, of a density of 7.7 % (what 8 workers at 1 % make) and dense; `convert`
rounds all. They are compared with a copy of the gradient within the device. rank, sigma and
dynamic find a threshold; `processor_sigma` is what one core of the host takes for sigma's. That
device and host find the same threshold is checked first.

`engine` is a copy out of the device in one piece; `pieces` is the same in the pieces that the
client cuts it into, of which some 50 us worth run at once (here looked at all the time, by the
client every 20 us). overlap_share says how much of the shorter of two works is hidden behind the
other: a copy back into the device, and packing.

Time is the host's monotonic clock, of kernels over 16 calls in a row, so that starting them is
hidden; other work of the device counts. Without a device nothing is measured. `--save DIR` keeps
the figures as JSON under the device's name.
"""
import json
import os
import re

import report

DESCRIPTION = "kernels and copies of the CUDA plug-in, on a machine with a device"
FOLDER = {"cuda": "client", "fake": "tests/fake_device"}  # of the plug-in


def add_options(parser):
    report.add_repetitions(parser, default=9)
    parser.add_argument("--kib", type=int, default=64 << 10, metavar="N",
                        help="KiB of gradient (default 65536)")
    parser.add_argument("--plugin", choices=FOLDER, default="cuda",
                        help="fake: the tests' one, whose figures say nothing")
    parser.add_argument("--save", metavar="DIR", help="write the figures as JSON there")


def samples_of(output):
    device, *rows = output.splitlines()
    samples = {}
    for row in rows:
        side, seconds = row.split()
        samples.setdefault(side, report.Samples()).add(seconds)
    return device.removeprefix("device "), samples


def figures_of(samples):
    took = {side: taken.median for side, taken in samples.items()}
    hidden = took["return_alone"] + took["packs_alone"] - took["return_and_packs"]
    return {"pack_vs_copy": took["pack_float32"] / took["copy"],
            "unpack_vs_copy": took["unpack_sparse"] / took["copy"],
            "pinned_vs_engine": took["engine"] / took["pieces"],
            "sigma_vs_cpu": took["processor_sigma"] / took["sigma"],
            "overlap_share": hidden / min(took["return_alone"], took["packs_alone"])}


def run(options):
    folder = os.path.join(report.build_dir(), FOLDER[options.plugin])
    if not os.path.exists(os.path.join(folder, "libsluice_cuda.so")):
        raise report.BenchError(f"{folder} has no libsluice_cuda.so: build where CMake finds nvcc")
    device, samples = samples_of(report.run_program(
        [report.program("bench/bench_gpu"), f"--kib={options.kib}",
         f"--repetitions={options.repetitions}"], 1800,
        {**os.environ, "SLUICE_PLUGIN_DIR": folder}))
    print(f"{device}: {options.kib} KiB of float32, medians [least .. largest] of "
          f"{options.repetitions} interleaved repetitions")
    copy = samples["copy"].median
    report.table(["side", "us", "of a copy", "GB/s of gradient"],
                 [[side, report.Samples([1e6 * value for value in taken.values]).cell(1),
                   f"{taken.median / copy:.2f}", f"{options.kib * 1.024e-6 / taken.median:.1f}"]
                  for side, taken in samples.items()])
    figures = figures_of(samples)
    if options.save:
        os.makedirs(options.save, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "_", device.lower())
        with open(os.path.join(options.save, f"gpu_{name}.json"), "w", encoding="utf-8") as file:
            json.dump({"device": device, "kib": options.kib, "figures": figures,
                       "machine": report.machine().removeprefix("machine: "),
                       "seconds": {side: taken.values for side, taken in samples.items()}},
                      file, indent=1)
    report.result("gpu", **figures)
