"""`Loop`: trains a model so that all replicas apply every step's average once and in order.

Between two steps the loop decides what this rank does next: apply a step that it has missed, fetch
another rank's state, give its own, or compute a gradient.
"""

import logging
import sys
import threading
import weakref

from sluice import _torch_share, _torch_state, errors
from sluice._torch_parts import Replaced

_log = logging.getLogger("sluice")
_POLL_S = 0.02  # between looks at who wants a state, while the others finish


def _listed(value):
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _tell_of_no_finish(rank, step):
    if getattr(sys, "last_value", None) is None:  # else an error says more
        _log.warning(
            "rank %d ends, and left its Loop in step %d without finish(): the others went on "
            "without it, and their parameters differ from this rank's", rank, step)


class Loop:
    """Drives the training of a model on a sluice.torch.solo_group().

        loop = sluice.torch.Loop(attachment, optimizer, scheduler)
        for step in loop.steps(1000):
            inputs, targets = next(batches)
            loss_function(model(inputs), targets).backward()
        evaluate(model)

    attachment  what sluice.torch.attach() has returned.
    optimizer   one, or a list; over this model's parameters. The loop runs it, for steps that this
                rank has computed and for steps that it has missed. A call of optimizer.step() in
                the body raises InvalidArgument, as does AMP's GradScaler.
    scheduler   one, or a list, or None: its step() follows each optimizer step.
    update      function called as update(step) in place of both, with the averaged gradients in the
                parameters' .grad (None where no rank had one): for clipping, for a scheduler with
                another period, ... Its effect must be equal on all ranks.
    extra       further objects with state_dict() and load_state_dict() that belong to a replica,
                such as an average of the weights that `update` keeps.
    share       where the factor k/n of a step with k of the n live ranks is applied, so that a rate
                that suits all ranks suits every k. 'gradient': in the averages. 'rate': each
                optimizer's lr is multiplied by StepReport.share, k/n of the step's first chunk that
                any rank is in, while its step() runs; schedules and state_dict() never see that.
                Default with late="requeue": 'rate' for optimizers that ignore the scale of
                gradients (Adam and its kin in torch.optim), 'gradient' for the others, and one line
                of the logger 'sluice' says so. Default otherwise: no factor. With the default
                torch.optim.SGD with momentum, Adam and AdamW also make up for the lateness of
                gradients, at a rate multiplied by sqrt(k/n) (Kosson et al., 2021): late gradients
                and momentum diverge at rates at which either alone does not. A late gradient counts
                at the rate of the step which takes it.

    At the start of each body .grad is None, and the model has the parameters after step - 1. The
    body runs forward and backward, at most one of them outside of model.no_sync(). Without a
    backward this rank contributes nothing to the step, but takes part in it. A gradient that comes
    too late is dropped, or goes into a later step (late="requeue").

    Parameters, buffers, optimizers, schedulers and `extra` are bit-identical on all ranks that have
    applied the same steps, including ranks that missed steps, fell out of the appliance's window or
    were started again. This needs the same version of torch and the same number of threads on all
    ranks. Each rank has its own random numbers.

    A rank that has fallen too far behind, or has come back, takes all of this state from a peer. A
    peer gives it between two of its steps, at the cost of one copy. The state travels as plain
    values and not as pickle, so it can break the training but not run code.

    Use from one thread. Errors of the job come out of backward(), or of the loop itself.
    """

    def __init__(self, attachment, optimizer, scheduler=None, *, update=None, extra=(),
                 share=None):
        if not hasattr(attachment, "detach"):
            raise errors.InvalidArgument(
                f"a Loop needs what attach() has returned, not a {type(attachment).__name__}: "
                "Loop(sluice.torch.attach(model), optimizer)")
        self._attachment = attachment
        self._optimizers = _listed(optimizer)
        self._schedulers = _listed(scheduler)
        self._extra = _listed(extra)
        self._update = update or self._default_update
        self._total = None
        self._in_body = False
        self._due = False  # a body has been given out, and its step is not applied
        self._missing = False  # the step under way is one that this rank does not compute
        self._closed = False
        self._untold = None  # what is told at the end unless finish() is called
        self._share = 1.0  # k/n of the step that is being applied
        self.applied = 0  # the last step that is in the parameters
        self.missed = 0  # steps that this rank has applied without computing
        self.resyncs = 0  # states that it has taken from a peer
        if attachment.job is None:  # SLUICE_DISABLE: DDP averages by itself
            self._solo = False
            return
        if not hasattr(attachment, "replica"):
            raise errors.InvalidArgument(
                "this model's process group is not a solo_group(): wrap it with "
                "DistributedDataParallel(net, process_group=sluice.torch.solo_group()) to use a "
                "Loop, or run the optimizer yourself")
        if attachment.loop is not None:
            raise errors.InvalidArgument("this model has a Loop already")
        self._solo = True
        _torch_state.encode(self._tree())  # says now what could not be sent later
        where = _torch_share.places(self._optimizers, share, attachment.job.policy.averaging)
        for one, place in zip(self._optimizers, where):
            self._guard(one, place)
            if place:
                attachment.average_by("weight" if _torch_share.in_rate(place) else "world", one)
        if any(where) and attachment.job.rank == 0:
            _log.warning(_torch_share.describe(self._optimizers, where))
        attachment.follow(self._optimizers)
        attachment.loop = self

    # ---- for the user ----

    def steps(self, total=None):
        """Yields the number of each step that this rank is to compute, from 1, and then calls
        finish().

        total  steps to apply on this replica, whoever computed them; equal on all ranks. None:
               until the caller leaves the loop, for example at the end of its data, and calls
               finish().

        A missed step is applied without a pass of the body, so numbers may be skipped. With `prune`
        the gradient for the last step takes all residuals along. Epochs belong inside one loop.

        Blocks in between. Raises InvalidArgument after finish(), and on all ranks, before the first
        step is applied, when they were given different totals.
        """
        if self._closed:
            raise errors.InvalidArgument(
                f"the training was finished after step {self.applied}: run all epochs in one loop, "
                "for example steps(epochs * batches)")
        self._total = total
        if not self._solo:
            while total is None or self.applied < total:
                yield from self._plain_step()
            return
        self._attachment.plan(total)
        while self._prepare():
            self._in_body = self._attachment.accepting = True
            try:
                yield self.applied + 1
            except GeneratorExit:
                if self._untold is None:
                    self._untold = weakref.finalize(
                        self, _tell_of_no_finish, self._attachment.job.rank, self.applied + 1)
                raise
            finally:
                self._in_body = self._attachment.accepting = False
            self.update()
        self.finish()

    def update(self):
        """Completes the step now: waits for it, if the body ran no backward, and applies it.
        steps() calls it after each body. A body may call it to read the result; then no part of the
        step may follow.
        """
        if not self._due:
            return
        self._in_body = self._attachment.accepting = False
        if not self._attachment.submitted:
            self._attachment.submit_nothing()
        self._apply()

    def finish(self):
        """Ends the training of this rank, which has no more data. All ranks call it, instead of
        DDP's join(); steps(total) calls it.

        The rank goes on applying steps of ranks that still have data, up to `total` or the first
        step to which no rank contributed. So all replicas end with the same step. Then it waits for
        all live ranks, and gives its state to those that need one. Blocks until then; may be called
        again. detach() or the end of the process then leaves the job.
        """
        if self._closed or not self._solo:
            return
        self.update()
        self._attachment.finished = True
        while self._prepare():
            self._attachment.submit_nothing()
            self._apply()
        self._close()

    # ---- steps ----

    def _default_update(self, _step):
        for optimizer in self._optimizers:
            optimizer.step()
        for scheduler in self._schedulers:
            scheduler.step()

    def _plain_step(self):
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        yield self.applied + 1
        self.applied += 1
        self._update(self.applied)

    def _prepare(self):
        """Brings this replica up to date; False when there is no further step."""
        attachment = self._attachment
        while not (self._total is not None and self.applied >= self._total):
            if attachment.all_finished:
                return False
            if self._turn() == "compute":
                if self.applied + 1 == self._total and attachment.job.pruned:
                    attachment.flush_residuals()
                attachment.clear()
                self._due = True
                return True
        return False

    def _apply(self):
        """Applies the submitted step's result to this replica, or the state that came instead."""
        self._due = False
        while self._turn() not in ("apply", "load"):
            pass

    def _turn(self):
        """Does what this rank has to do next, except computing a gradient; returns what it was."""
        attachment = self._attachment
        turn = attachment.job.next_turn()
        if turn.kind == "catch_up":
            attachment.catch_up()
            self._missing = True
        elif turn.kind == "apply":
            self._share = attachment.job.report(turn.step).share
            self._apply_step()
            self.missed += self._missing
            self._missing = False
        elif turn.kind == "save":
            self.serve()
        elif turn.kind == "load":
            self._load(turn)
            self._missing = False
        return turn.kind

    def _apply_step(self):
        attachment = self._attachment
        attachment.check_plan()
        attachment.place_gradients()
        self._update(self.applied + 1)
        attachment.agree()
        self.applied += 1

    def _guard(self, optimizer, place):
        """Makes step() in the body an error, because missed steps would not have it. Elsewhere
        step() runs with k/n at `place`."""
        original = optimizer.step

        def step(_self, *arguments, **options):
            if self._in_body:
                raise errors.InvalidArgument(
                    "optimizer.step() in the body of a sluice.torch.Loop: the loop runs it, also "
                    "for steps that this rank has missed. Leave it out; GradScaler cannot be used; "
                    "for clipping and the like give the Loop update=...")
            with _torch_share.around(place, optimizer, self._share):
                return original(*arguments, **options)

        Replaced(optimizer, step=step)

    # ---- states ----

    def _tree(self):
        return {"applied": self.applied, "all_finished": self._attachment.all_finished,
                "replica": self._attachment.replica.tree(),
                "optimizers": [one.state_dict() for one in self._optimizers],
                "schedulers": [one.state_dict() for one in self._schedulers],
                "extra": [one.state_dict() for one in self._extra]}

    def serve(self):
        """Gives this rank's state to a peer that needs it. Runs between steps, and while this
        rank waits for a step; the state is then that of the step before."""
        job = self._attachment.job
        if job.state_wanted() is None:
            return
        try:
            job.send_state(_torch_state.encode(self._tree()), self.applied)
        except errors.InvalidArgument:
            # The awaited step may have ended meanwhile: its state is given once it is applied.
            if job.stats()["steps_done"] <= self.applied:
                raise

    def _load(self, state):
        """Applies another rank's state, which Job.next_turn() returned."""
        attachment = self._attachment
        tree = _torch_state.decode(state.data)
        if tree["applied"] != state.step:
            raise errors.Internal(
                f"a state of step {tree['applied']} was sent as one of step {state.step}")
        attachment.replica.load(tree["replica"])
        for kind, mine in (("optimizers", self._optimizers), ("schedulers", self._schedulers),
                           ("extra", self._extra)):
            if len(mine) != len(tree[kind]):
                raise errors.InvalidArgument(
                    f"this rank's Loop has {len(mine)} {kind}, that of the rank which sent its "
                    f"state {len(tree[kind])}: start all ranks with the same script")
            for one, saved in zip(mine, tree[kind]):
                one.load_state_dict(saved)
        attachment.clear()
        attachment.all_finished = tree["all_finished"]
        self.applied = state.step
        self.resyncs += 1

    def _close(self):
        """Waits until all live ranks are at the end, and gives states meanwhile. It waits twice:
        a rank that came back during the first wait takes part in the second."""
        outcome = []

        def meet():
            try:
                self._attachment.job.barrier()
                self._attachment.job.barrier()
            except BaseException as error:  # noqa: BLE001 - raised below
                outcome.append(error)

        thread = threading.Thread(target=meet, name="sluice-finish", daemon=True)
        thread.start()
        while thread.is_alive():
            self.serve()
            thread.join(_POLL_S)
        self._closed = True
        if self._untold is not None:
            self._untold.detach()
        if outcome:
            raise outcome[0]
