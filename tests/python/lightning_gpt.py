"""The GPT for Lightning, and its texts, another one for each rank."""

import gpt
import lightning
import torch


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = gpt.GPT()

    def training_step(self, batch, _index):
        return self.net(*batch)

    def configure_optimizers(self):
        return gpt.adamw(self.net)


class Text(torch.utils.data.IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        return ((tokens[0], targets[0]) for tokens, targets in gpt.batches(10 + self.rank))


def fit(trainer, module, rank):
    trainer.fit(module, torch.utils.data.DataLoader(Text(rank), batch_size=4))
