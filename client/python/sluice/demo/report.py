"""What the demonstration shows at its end: the table, the loss curves, the RESULT line."""

import itertools

LEAST_ACCURACY = 0.95
MOST_DIFFERENCE = 0.01
_HEADER_BYTES = 14 + 20 + 8  # Ethernet, IPv4, UDP


def mean_losses(results):
    """The loss of each step, as the mean over the ranks that computed it; None where none did."""
    rows = itertools.zip_longest(*(r["losses"] for r in results))
    known = ([loss for loss in row if loss is not None] for row in rows)
    return [sum(row) / len(row) if row else None for row in known]


def last_loss(results):
    return next(loss for loss in reversed(mean_losses(results)) if loss is not None)


def steps_per_s(results):
    return results[0]["steps"] / max(r["seconds"] for r in results)


def identical(results):
    return len({r["sha256"] for r in results}) == 1


def wire_totals(results):
    """(packets, bytes with headers, retransmissions) of all ranks, both directions."""
    stats = [r["stats"] for r in results if r["stats"]]
    packets = sum(s["packets_sent"] + s["packets_received"] for s in stats)
    payload = sum(s["bytes_sent"] + s["bytes_received"] for s in stats)
    return packets, payload + packets * _HEADER_BYTES, sum(s["retransmissions"] for s in stats)


def table(ours, theirs):
    """Rows of (what, Sluice, Gloo); without `theirs` Gloo's column is empty."""
    packets, wire_bytes, again = wire_totals(ours)

    def other(text):
        return text(theirs) if theirs else "-"

    rows = [
        ("test accuracy", f"{ours[0]['accuracy']:.4f}", other(lambda r: f"{r[0]['accuracy']:.4f}")),
        ("last training loss", f"{last_loss(ours):.5f}", other(lambda r: f"{last_loss(r):.5f}")),
        ("steps per second", f"{steps_per_s(ours):.1f}", other(lambda r: f"{steps_per_s(r):.1f}")),
        ("MB on the wire", f"{wire_bytes / 1e6:.1f}", "-"),
        ("packets", f"{packets}", "-"),
        ("retransmissions", f"{again}", "-"),
    ]
    for mine in ours:
        if "missed" in mine:
            rows.append((f"steps that rank {mine['rank']} only applied", f"{mine['missed']}", "-"))
    for rank, mine in enumerate(ours):
        rows.append((f"model of rank {mine['rank']}, sha256", mine["sha256"][:16],
                     other(lambda r, rank=rank: r[rank]["sha256"][:16])))
    return rows


def why_hashes_differ(ours, theirs):
    """A paragraph for those who compare the columns; empty where there is nothing to explain."""
    if not theirs or ours[0]["sha256"] == theirs[0]["sha256"]:
        return ""
    cause = ("the appliance adds what comes first first and divides the sum, DDP over Gloo divides "
             "each gradient and adds around a ring. Rounding of float32 depends on that order")
    if "missed" in ours[0]:
        cause = "the appliance's steps are complete without the ranks that are late"
    return (f"The columns' hashes differ: {cause}.\nWithin a column they are equal: all ranks hold "
            "the same bits.")


def print_table(rows):
    widths = [max(len(row[column]) for row in rows + [("", "Sluice", "Gloo")])
              for column in range(3)]
    def line(row):
        return "  ".join((row[0].ljust(widths[0]), *(row[c].rjust(widths[c]) for c in (1, 2))))
    print()
    print(line(("", "Sluice", "Gloo")))
    print("-" * (sum(widths) + 4))
    for row in rows:
        print(line(row))
    print()


def draw(path, ours, theirs):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for results, name, style in ((theirs, "Gloo", "--"), (ours, "Sluice", "-")):
        if not results:
            continue
        losses = [float("nan") if loss is None else loss for loss in mean_losses(results)]
        axes.plot(range(1, len(losses) + 1), losses, style, linewidth=1.4,
                  label=f"{name}: accuracy {results[0]['accuracy']:.4f}")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {len(ours)} ranks")
    axes.set_title("Digits: gradients summed by the switch, and by Gloo")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def failures(ours, theirs):
    """Why the demonstration has failed, line by line; empty if it has not."""
    found = []
    mine = ours[0]["accuracy"]
    if mine < LEAST_ACCURACY:
        found.append(f"accuracy {mine:.4f} is below {LEAST_ACCURACY}")
    if theirs and abs(mine - theirs[0]["accuracy"]) > MOST_DIFFERENCE:
        found.append(f"accuracy {mine:.4f} differs from Gloo's {theirs[0]['accuracy']:.4f} by more "
                     "than one point")
    if not identical(ours):
        found.append("the ranks ended with different models")
    # A rank that was started again has not seen all steps.
    if not all(r["stats"].get("steps_done", 0) >= (1 if "missed" in r else r["steps"])
               for r in ours):
        found.append("not every step went through the appliance")
    return found


def conclude(ours, theirs, why, picture, trace):
    """Prints everything; returns the exit status. Without `theirs`, `why` says how Gloo ended."""
    print_table(table(ours, theirs))
    print(why_hashes_differ(ours, theirs) if theirs else f"the training over Gloo ended: {why}")
    print(f"loss curves: {picture}")
    print(f"where a step's time goes: {trace}; open it in https://ui.perfetto.dev")
    problems = failures(ours, theirs)
    for problem in problems:
        print(f"FAILED: {problem}")
    accuracy, rate = ((f"{theirs[0]['accuracy']:.4f}", f"{steps_per_s(theirs):.1f}") if theirs
                      else ("none", "none"))
    print(f"RESULT demo accuracy={ours[0]['accuracy']:.4f} "
          f"gloo_accuracy={accuracy} ranks_identical={int(identical(ours))} "
          f"steps_per_s={steps_per_s(ours):.1f} gloo_steps_per_s={rate}")
    return 1 if problems else 0
