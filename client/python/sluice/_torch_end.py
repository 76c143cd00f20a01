"""`End`: what the ranks of a solo_group() tell each other about the end of training, in every
step.

A small tensor of the job says whether a rank has more data, and the `total` of its Loop.steps().
Replicas with different totals would stop at different steps and wait for each other. The tensor is
averaged as all others are, so it costs no round trip. Each of its numbers is a mean over the ranks
in the step.
"""

import torch

_DIGITS = 8  # of base 16: sums of their squares over 1,024 ranks are exact in float32
_ELEMS = 3 + 3 * _DIGITS
_FINISHED, _TOLD, _FIRST = 0, 1, 2  # _FIRST: rank 0 is in the step and has told its total
_TOLD_DIGITS, _SQUARES, _FIRST_DIGITS = (slice(3 + at * _DIGITS, 3 + (at + 1) * _DIGITS)
                                        for at in range(3))
_SAME = 2.0 ** -11  # one of 1,024 ranks that differs by 1 moves a mean by twice as much

SPEC = ("sluice.end", _ELEMS, "float32", True)


def _digits(total):
    number = 0 if total is None else int(min(total, 2 ** 32 - 2)) + 1
    return [number >> 4 * place & 15 for place in range(_DIGITS)]


def _shown(total):
    return f"steps({total})"


class End:
    """The tensor of one rank. It is filled before a step and read after it."""

    def __init__(self, rank):
        self.values = torch.zeros(_ELEMS)
        self._rank = rank
        self._total = None
        self._told = False

    def tell(self, total):
        """Notes the total of this rank; the other ranks learn it from the next step on."""
        self._total, self._told = total, True

    def fill(self, finished):
        numbers = [0.0] * _ELEMS
        numbers[_FINISHED] = float(finished)
        if self._told:
            numbers[_TOLD] = 1.0
            digits = numbers[_TOLD_DIGITS] = _digits(self._total)
            numbers[_SQUARES] = [digit * digit for digit in digits]
            if self._rank == 0:
                numbers[_FIRST] = 1.0
                numbers[_FIRST_DIGITS] = digits
        self.values.copy_(torch.tensor(numbers))

    def all_finished(self):
        return self.values[_FINISHED].item() == 1.0

    def disagreement(self):
        """Both totals in words if a rank in the step has another total than this rank, else
        None. All ranks of a step with different totals get a text."""
        told = self.values[_TOLD].item()
        if not self._told or told == 0:
            return None
        mine = _digits(self._total)
        means = [value / told for value in self.values[_TOLD_DIGITS].tolist()]
        squares = [value / told for value in self.values[_SQUARES].tolist()]  # 19 and 21 mean 20
        if all(abs(mean - digit) < _SAME and abs(square - digit * digit) < _SAME
               for mean, square, digit in zip(means, squares, mine)):
            return None
        return (f"{_shown(self._total)} on rank {self._rank}, {self._others(told, means, mine)}: "
                "give all ranks the same number of steps, or call steps() without one everywhere "
                "and finish() when the data is used up")

    def _others(self, told, means, mine):
        first = self.values[_FIRST].item()
        if first != 0 and self._rank != 0:
            digits = [round(value / first) for value in self.values[_FIRST_DIGITS].tolist()]
            if digits != mine:
                return f"{_shown(self._number(digits))} on rank 0"
        if first != 0 and round(told / first) == 2:  # this one and another one
            digits = [round(2 * mean) - digit for mean, digit in zip(means, mine)]
            return f"{_shown(self._number(digits))} on the other rank of the step"
        return "another number on a rank of the step"

    @staticmethod
    def _number(digits):
        number = sum(digit << 4 * place for place, digit in enumerate(digits))
        return None if number == 0 else number - 1
