"""The straggler bench: the time of a step when one of 8 ranks is slow, with k = 6 and with k = n.

Real PyTorch ranks train a small network in the namespace lab (tests/lab, sluiced on af_packet
ports), one host each. A step's compute is padded by sleep to a fixed time, so that the ranks do
not compete for this machine's cores: the table shows the CPU time of a step, and the bench refuses
to measure when the fixed time is less than 5 times as long. Three trainings, one after the other:

  calm    k = n, no stragglers: the reference
  k = 6   one rank takes 5 times as long for the whole run, one is stopped (SIGSTOP) for three
          steps and continued, one is killed (SIGKILL) and started again
  k = n   one rank takes 5 times as long for the whole run

A time is the median from the start of a step to the start of the next on rank 0, after 4 steps to
warm up; the ratios are to the calm run. identical is 1 when in each run the parameters, buffers,
optimizer and schedule of all ranks are bit-identical at the end, also those of ranks that missed
steps or were started again.

What can go wrong: on a busy machine the calm run's step, which waits for the slowest of 8 ranks, is
longer than the pad, which makes both ratios smaller; the column shows it.
"""

import report

DESCRIPTION = "step time with a slow, a stopped and a killed rank of 8, k = 6 and k = n"

CPU_SHARE = 5  # the pad is at least this many times the CPU time of a step


def add_options(parser):
    parser.add_argument("--seconds", type=float, default=0.4, metavar="S",
                        help="fixed time of a step's compute (default 0.4)")
    parser.add_argument("--steps", type=int, default=20, metavar="N",
                        help="measured steps of the calm run, half of them with k = n (default 20)")


def measure(stragglers, lab, name, options, policy, slow, steps):
    """(median step in s, CPU of a step in s, what the ranks say at the end)."""
    build = report.build_dir()
    with stragglers.Training(lab, name, options.seconds, policy, slow, build) as training:
        if name == "k6":
            ends = stragglers.eventful(training)
        else:
            training.await_step(stragglers.WARM_UP_STEPS + 1 + steps, timeout=300)
            ends = training.finish()
        return training.step_seconds(), training.cpu_seconds(), ends


def run(options):
    import lab as lab_module
    import stragglers
    n = stragglers.WORLD_SIZE
    runs = {}
    try:
        with lab_module.Lab(hosts=n) as lab:
            lab.start_appliance(report.build_dir())
            for name, policy, slow, steps in (
                    ("calm", stragglers.fixed(n), False, options.steps),
                    ("k6", stragglers.fixed(6, "requeue"), True, options.steps),
                    ("kn", stragglers.fixed(n), True, max(5, options.steps // 2))):
                runs[name] = measure(stragglers, lab, name, options, policy, slow, steps)
    except (lab_module.LabError, AssertionError) as error:
        raise report.BenchError(str(error)) from error
    calm_s = runs["calm"][0]
    rows = []
    for name, (step_s, cpu_s, ends) in runs.items():
        rows.append([name, f"{step_s * 1e3:.1f}", f"{step_s / calm_s:.3f}", f"{cpu_s * 1e3:.1f}",
                     sum(end["missed"] for end in ends), sum(end["resyncs"] for end in ends),
                     "yes" if stragglers.identical(ends) else "NO"])
    report.table(["run", "step ms", "ratio", "CPU ms", "missed", "resyncs", "identical"], rows)
    cpu_s = max(cpu for _, cpu, _ in runs.values())
    if cpu_s * CPU_SHARE > options.seconds:
        raise report.BenchError(
            f"a step takes {cpu_s * 1e3:.0f} ms of CPU here, so --seconds {options.seconds:g} is "
            f"less than {CPU_SHARE} times as long: give --seconds {cpu_s * CPU_SHARE * 1.2:.2f}")
    same = all(stragglers.identical(ends) for _, _, ends in runs.values())
    report.result("straggler", k6_step_ratio=runs["k6"][0] / calm_s,
                  kn_step_ratio=runs["kn"][0] / calm_s, identical=int(same))
