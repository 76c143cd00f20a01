"""Sluice for transformers: `class Trainer(sluice.transformers.Sluice, transformers.Trainer)`."""
import contextlib

import sluice.torch


class Sluice:
    """Goes before transformers.Trainer in the list of bases. Attaches the DDP model at its first
    step; the address and the other options are those of the environment (SLUICE_ADDRESS, ...)."""

    def train(self, *arguments, **options):
        self.attachment = None
        with contextlib.ExitStack() as self._exit:
            return super().train(*arguments, **options)

    def training_step(self, model, *arguments, **options):
        if self.attachment is None:
            self.attachment = sluice.torch.attach(model)
            self._exit.callback(self.attachment.detach)
            self.attachment.follow(self.optimizer, self.accelerator.scaler)
        return super().training_step(model, *arguments, **options)
