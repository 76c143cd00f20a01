"""Sluice for Lightning: `Trainer(strategy="ddp", callbacks=[sluice.lightning.Sluice()])`."""

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

import sluice.torch


class Sluice(Callback):
    """attach() when training starts, detach() when it ends; the arguments are those of attach().

    overlap   True: overlap() with the trainer's one optimizer instead; give the Trainer
              strategy=DDPStrategy(gradient_as_bucket_view=True).
    """

    def __init__(self, address=None, *, overlap=False, **options):
        self._address, self._overlap, self._options = address, overlap, options

    def on_train_start(self, trainer, module):
        join, optimizer = sluice.torch.attach, []
        if self._overlap:
            join, optimizer = sluice.torch.overlap, trainer.optimizers[:1]
        self.attachment = join(trainer.strategy.model, *optimizer, self._address, **self._options)
        self.attachment.follow(trainer.optimizers,
                               getattr(trainer.precision_plugin, "scaler", None))

    def on_train_end(self, trainer, module):
        self.attachment.detach()
