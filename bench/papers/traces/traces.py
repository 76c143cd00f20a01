"""Reads the models of this folder: parameter tensors in forward order, and their share of compute.

Pure but for reading the CSV files. Used by the benches that replay a model's traffic.
"""
import csv
import os
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
ELEM_BYTES = 4  # float32
# A backward pass computes the gradients of inputs and of weights: two products for forward's one.
FORWARD_SHARE = 1 / 3


class TraceError(Exception):
    """There is no such model; the message names those that there are."""


@dataclass(frozen=True)
class Tensor:
    index: int
    name: str
    shape: tuple
    elem_count: int
    fwd_macs: int

    @property
    def bytes(self):
        return self.elem_count * ELEM_BYTES


def models():
    return sorted(name[:-4] for name in os.listdir(HERE) if name.endswith(".csv"))


def load(model):
    """The model's tensors, in forward order."""
    path = os.path.join(HERE, model + ".csv")
    if not os.path.exists(path):
        raise TraceError(f"no trace of a model {model!r}; there are {', '.join(models())}")
    with open(path, newline="", encoding="ascii") as file:
        return [Tensor(int(row["idx"]), row["name"],
                       tuple(int(dimension) for dimension in row["shape"].split("x")),
                       int(row["numel"]), int(row["fwd_macs"]))
                for row in csv.DictReader(file)]


def total_bytes(tensors):
    return sum(tensor.bytes for tensor in tensors)


def compute_times(tensors, total_s):
    """(forward, backward) seconds of each tensor's layer, in forward order; they sum to total_s.

    Proportional to the MACs; a third is the forward pass. A tensor without MACs takes no time.
    """
    macs = sum(tensor.fwd_macs for tensor in tensors)
    shares = [tensor.fwd_macs / macs for tensor in tensors]
    return ([total_s * FORWARD_SHARE * share for share in shares],
            [total_s * (1 - FORWARD_SHARE) * share for share in shares])
