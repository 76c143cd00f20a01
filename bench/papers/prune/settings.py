"""The settings of the runs: task, network, rules, links. Fixed before the first run."""
from dataclasses import dataclass

TASK = "generated"      # of ../saina: 8 x 8 images of ten classes, noisy labels
OTHER_TASK = "gratings"  # of ../saina, too: stripes of ten orientations, any width and phase
LAYERS = (64, 384, 384, 10)  # a perceptron: all its parameters but 0.4 % are in matrices
WORKERS, BATCH = 8, 32
STEPS, EVALUATE_STEPS = 300, 10
RATE, WARM_UP_STEPS = 0.1, 30  # plain SGD, as ../saina has it; the rate grows over the first steps
SEEDS = (0, 1, 59)  # the last was drawn at random
OTHER_SEEDS = (0, 59)  # of the other task
POINT = 0.01
TEST_IMAGES = 2000  # of the task's 10,000, in an evaluation

# The network stands for one of this many parameters that takes so long for forward and backward:
# links are as much slower as it is smaller.
STANDS_FOR_PARAMETERS = 25_557_032  # ResNet-50
COMPUTE_S = 0.1
LINKS = {"100 Mb/s": 100e6, "1 Gb/s": 1e9}

# In the lab a second of the page is shorter, computing and links alike, so that a link has these.
LAB_RATES_MBPS = {"100 Mb/s": 8, "1 Gb/s": 32}
LAB_SEEDS = (0, 1, 2)  # of dense and the top 1 %; the other rules: the first


@dataclass(frozen=True)
class Rule:
    """How a run prunes: a rule of client/prune/threshold.h, with error feedback or without."""

    name: str
    fraction: float = 0.01
    sigmas: float = 3.0
    warmup_steps: int = 0
    feedback: bool = True

    @property
    def label(self):
        amount = {"static": f" {100 * self.fraction:g} %", "sampled": f" {100 * self.fraction:g} %",
                  "sigma": f" {self.sigmas:g}"}.get(self.name, "")
        return ("dense" if self.name == "off" else
                self.name + amount + (", warm-up" if self.warmup_steps else ""))

    @property
    def key(self):
        return self.label + ("" if self.feedback else ", no feedback")


DENSE = Rule("off")
STATIC = tuple(Rule("static", fraction=fraction) for fraction in (0.1, 0.01, 0.001))
SIGMA = tuple(Rule("sigma", sigmas=sigmas) for sigmas in (1.0, 2.0, 3.0))
STATIC1, DYNAMIC, RAW = STATIC[1], Rule("dynamic"), Rule("dynamic_raw")
PUBLISHED = (*STATIC, *SIGMA, DYNAMIC, RAW)  # each with error feedback and without
OTHERS = (Rule("sampled"), Rule("static", fraction=0.001, warmup_steps=20))
RULES = (DENSE, *PUBLISHED, *OTHERS,
         *(Rule(rule.name, rule.fraction, rule.sigmas, feedback=False) for rule in PUBLISHED))

PAIR = (DENSE, STATIC1)
WITHOUT = tuple(Rule(rule.name, rule.fraction, rule.sigmas, feedback=False)
                for rule in (*STATIC[1:], *SIGMA[1:]))


def trials():
    """(task, seed, rule) in virtual time: all on the first task, without feedback on its first
    seed; on the second task what is published, with feedback."""
    found = [(TASK, seed, rule) for seed in SEEDS for rule in RULES
             if rule.feedback or seed == SEEDS[0]]
    return found + [(OTHER_TASK, seed, rule) for seed in OTHER_SEEDS
                    for rule in (DENSE, *PUBLISHED)]


def lab_trials():
    """(link, seed, rules that take turns): what is judged first, what takes longest last. On the
    slow link 1 sigma takes as long as dense."""
    trials = [(link, seed, PAIR) for seed in LAB_SEEDS for link in LINKS]
    others = tuple(rule for rule in PUBLISHED if rule != STATIC1)
    return trials + [(link, LAB_SEEDS[0], rules) for link, rules in (
        ("1 Gb/s", others), ("100 Mb/s", WITHOUT),
        ("100 Mb/s", tuple(rule for rule in others if rule != SIGMA[0])))]


def lab_key(link, seed, rule_key):
    return f"lab/{link}/{seed}/{rule_key}"


def tensors():
    """(elements, stays dense) in order: a matrix and a bias a layer."""
    return [shape for inputs, outputs in zip(LAYERS, LAYERS[1:])
            for shape in ((inputs * outputs, False), (outputs, True))]


PARAMETERS = sum(count for count, _dense in tensors())


def link_rate(link):
    """Bits a second in virtual time, of a link that is scaled to the network."""
    return LINKS[link] * PARAMETERS / STANDS_FOR_PARAMETERS


def lab_scale(link):
    """Seconds in the lab for one of the page's."""
    return link_rate(link) / (LAB_RATES_MBPS[link] * 1e6)


def step_s(up_bytes, down_bytes, threshold_s, link):
    """Of one step in virtual time: computing, thresholds, then both ways at once (results come
    while later contributions leave)."""
    return COMPUTE_S + threshold_s + 8 * max(up_bytes, down_bytes) / link_rate(link)
