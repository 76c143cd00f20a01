"""Writes the generated part of the page: fewer tables than the terminal's, and the plot."""
from papers import paper

from . import bench, in_namespaces, settings

SHAPE_HEADERS = ["(n,k)", "servers", "switches", "of a Fat-Tree's", *settings.MODES]
OTHERS_SHOWN = (("uniform", 3, 2, settings.MEGABYTES), ("uniform", 10, 3, 258))
SIZES_SHOWN = {"lenet5": (16, 256, 1024), "vgg19": (1, 8, 32)}  # the plot has all


def shape_rows(results):
    """Uniform gradients, over production objects, or by slices what is too big for them: the
    theory's P/C, and the time for one of the theory's."""
    shapes = [(shape, settings.MEGABYTES) for shape in settings.SHAPES]
    shapes += [(shape, megabytes) for shape, megabytes in settings.BIG_SHAPES.items()
               if shape[0] ** shape[1] > settings.MOST_PLAYED]
    out = []
    for (ports, levels), megabytes in shapes:
        servers = ports ** levels
        count = settings.switches(ports, levels)
        row = [f"({ports},{levels})", servers, count,
               f"{count / settings.fat_tree_switches(ports, servers):.1f}"]
        for mode in settings.MODES:
            setting = settings.Setting("uniform", ports, levels, mode, megabytes,
                                       by_slices=servers > settings.MOST_PLAYED)
            row.append(f"{setting.share:.3f}, "
                       f"{bench.against_theory(setting, results.of[setting]):.3f}")
        out.append(row)
    return out


def lab_rows(results):
    """For one of the theory's: the simulator's and the lab's time, by mode."""
    def cell(setting):
        return ", ".join(f"{ratio:.3f}" for ratio in
                         in_namespaces.against_theory(setting, results.lab[setting]))
    return [[f"({one.ports},{one.levels}) {one.what}", one.mbps, cell(one),
             cell(one._replace(mode="aggregated"))]
            for one in results.lab if one.mode == "plain"]


def reduction_rows(results):
    """By how many per cent a job is over sooner; the lab's in brackets."""
    def cell(model, size, mode, shape):
        by_source = {source: bench.reductions(results, model, mode, each, source)
                     for each, source in bench.JOBS if each == shape}
        lab = by_source.get("lab")
        return (f"{100 * by_source['simulator'][size]:.1f}"
                + (f" ({100 * lab[size]:.1f})" if lab else ""))
    return [[model, size, *(cell(model, size, mode, shape)
                            for shape in settings.MODEL_SHAPES for mode in settings.MODES)]
            for model, sizes in SIZES_SHOWN.items() for size in sizes]


def plot(results, folder):
    figure, axes = paper.figure_of(1, len(settings.SUB_MINIBATCHES), (11, 4), sharey=True)
    for axis, model in zip(axes, settings.SUB_MINIBATCHES):
        for mode in settings.MODES:
            for (shape, source), line in bench.JOBS.items():
                points = bench.reductions(results, model, mode, shape, source)
                axis.plot([str(size) for size in points],
                          [100 * value for value in points.values()], line,
                          label=f"{shape}, {mode}, {source}",
                          color=f"C{settings.MODES.index(mode)}")
        axis.axhline(56.4, linestyle=":", color="grey", label="published, at most, on (3, 2)")
        axis.set_title(model)
        axis.set_xlabel("sub-minibatch a GPU")
    axes[0].set_ylabel("job sooner over, %")
    axes[0].legend(fontsize=7)
    paper.save(figure, folder, "reductions.png")


def write(results, folder):
    reductions_of = [f"({ports},{levels}) {mode}" for ports, levels in settings.MODEL_SHAPES
                     for mode in settings.MODES]
    text = ("## Results\n\nTheory, of P/C, and time for one of the theory's; above "
            f"{settings.MOST_PLAYED} servers by slices (a job has 1,024 at most):\n\n" +
            paper.markdown(SHAPE_HEADERS, shape_rows(results)) +
            "\nMilliseconds, and those of other ways, by slices:\n\n" +
            paper.markdown(bench.OTHER_HEADERS,
                           bench.other_rows(results, OTHERS_SHOWN, ratios=False)) +
            "\nSimulator and lab, for one of the theory's time:\n\n" +
            paper.markdown(["gradient", "Mb/s", *settings.MODES], lab_rows(results)) +
            "\nA job is over sooner by, %, with the simulator's steps (the lab's):\n\n" +
            paper.markdown(["model", "images a GPU", *reductions_of], reduction_rows(results)) +
            "\n![reductions](reductions.png)\n")
    paper.replace_generated(folder, text)
    plot(results, folder)
