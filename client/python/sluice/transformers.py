"""Sluice for transformers: `class Trainer(sluice.transformers.Sluice, transformers.Trainer)`."""

import sluice.torch


class Sluice:
    """Goes before transformers.Trainer in the list of bases. Attaches the DDP model at its first
    step; the address and the other options are those of the environment (SLUICE_ADDRESS, ...)."""

    attachment = None

    def training_step(self, model, *arguments, **options):
        if self.attachment is None:
            self.attachment = sluice.torch.attach(model)
            self.attachment.follow(self.optimizer, self.accelerator.scaler)
        return super().training_step(model, *arguments, **options)

    def train(self, *arguments, **options):
        try:
            return super().train(*arguments, **options)
        finally:
            attachment, self.attachment = self.attachment, None
            if attachment is not None:
                attachment.detach()
