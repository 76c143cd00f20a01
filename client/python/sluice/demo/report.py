"""What the demonstration shows at its end: the table, the loss curves, the RESULT line."""

LEAST_ACCURACY = 0.95
MOST_DIFFERENCE = 0.01
_HEADER_BYTES = 14 + 20 + 8  # Ethernet, IPv4, UDP


def mean_losses(results):
    """The loss of each step, as the mean over the ranks."""
    return [sum(losses) / len(losses) for losses in zip(*(r["losses"] for r in results))]


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
    """Rows of (what, Sluice, Gloo)."""
    packets, wire_bytes, again = wire_totals(ours)
    rows = [
        ("test accuracy", f"{ours[0]['accuracy']:.4f}", f"{theirs[0]['accuracy']:.4f}"),
        ("last training loss", f"{mean_losses(ours)[-1]:.5f}", f"{mean_losses(theirs)[-1]:.5f}"),
        ("steps per second", f"{steps_per_s(ours):.1f}", f"{steps_per_s(theirs):.1f}"),
        ("MB on the wire", f"{wire_bytes / 1e6:.1f}", "-"),
        ("packets", f"{packets}", "-"),
        ("retransmissions", f"{again}", "-"),
    ]
    for mine, other in zip(ours, theirs):
        rows.append((f"model of rank {mine['rank']}, sha256", mine["sha256"][:16],
                     other["sha256"][:16]))
    return rows


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
        losses = mean_losses(results)
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
    mine, other = ours[0]["accuracy"], theirs[0]["accuracy"]
    if mine < LEAST_ACCURACY:
        found.append(f"accuracy {mine:.4f} is below {LEAST_ACCURACY}")
    if abs(mine - other) > MOST_DIFFERENCE:
        found.append(f"accuracy {mine:.4f} differs from Gloo's {other:.4f} by more than one point")
    if not identical(ours):
        found.append("the ranks ended with different models")
    if not all(r["stats"].get("steps_done", 0) >= r["steps"] for r in ours):
        found.append("not every step went through the appliance")
    return found


def conclude(ours, theirs, picture, trace):
    """Prints everything; returns the exit status."""
    print_table(table(ours, theirs))
    print(f"loss curves: {picture}")
    print(f"where a step's time goes: {trace}; open it in https://ui.perfetto.dev")
    problems = failures(ours, theirs)
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"RESULT demo accuracy={ours[0]['accuracy']:.4f} "
          f"gloo_accuracy={theirs[0]['accuracy']:.4f} ranks_identical={int(identical(ours))} "
          f"steps_per_s={steps_per_s(ours):.1f} gloo_steps_per_s={steps_per_s(theirs):.1f}")
    return 1 if problems else 0
