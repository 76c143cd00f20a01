"""`StepEngine`: what every way to train has.

A step has four parts. The values of a unit are ready and are submitted; their result is waited for;
it is handed over to the optimizer or to the parameters. A policy says what a unit is, and when:

    policy            unit         submitted in          waited for               handed over to
    Attachment        the step     backward              at the end of backward   DDP
    Overlap           a parameter  backward              in a forward, before use its part of step()
    SoloAttachment    the step     backward or the Loop  between steps            the Loop's update
    StaleSynchronous  a layer      step() or backward    before its forward       the parameters

The switch averages over the ranks that are in the step, and in a store its optimizer runs, or the
workers' do. What is submitted and not handed over is pending: its memory is the library's.
"""

import contextlib

from sluice import errors
from sluice._torch_dynamo import unseen


class Hook:
    """A module's hook that stays behind when the module is copied or pickled."""

    def __init__(self, function):
        self._function = function

    def __call__(self, *arguments):
        return self._function(*arguments)

    def __reduce__(self):
        return _no_hook, ()


def _no_hook():
    return _nothing


def _nothing(*_arguments):
    return None


class StepEngine:
    """One model's steps. Use from the thread that trains.

    A policy has _leave_in_order() and _abandon(kind, value, trace) for the end, and where a unit is
    less than the step also _is_due(unit): submitted, and can be handed over; _wait(units): until
    their results are here, returns them and other due ones whose results are here too;
    _hand_over(units): the results of all of these are here.
    """

    def __init__(self):
        self._failure = None  # an error after which there is no step any more
        self._ended = False
        self._handles = []  # of hooks on the model

    def _complete(self, units):
        """Brings those of these units up to date that are due."""
        due = [unit for unit in units if self._is_due(unit)]
        if due:
            self._hand_over(self._wait(due))

    @contextlib.contextmanager
    def _failing(self):
        """Around a call whose error ends the training: all later ones raise it again."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except errors.Error as error:
            self._failure = error
            raise

    def _on(self, register, function):
        """Has function(*arguments) called by a hook of a module. Compilers do not see it."""
        self._handles.append(register(Hook(unseen(function))))

    def _release(self):
        """Lets go of the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self._ended:
            return
        if kind is None:
            self._leave_in_order()
            return
        self._ended = True
        self._release()
        self._abandon(kind, value, trace)
