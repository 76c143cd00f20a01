"""The data sets, each from a seed, and how the training set is dealt to the workers.

`digits` is scikit-learn's: 1,797 handwritten digits, for tests. `generated` is the judged one: 8 x
8 images of ten classes, each a random smooth prototype, shifted, scaled, mixed with another
class's, under pixel noise; one training label in ten is drawn at random, the 10,000 test labels are
right. `generated-1024` has an eighth of its images for training. Judged seeds and the seeds that
were used to see that the task is well posed come from different families.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from .models import CLASSES, SIDE

JUDGED_FAMILY = 7000   # the judged seeds 0.. are 7000..
REHEARSAL_FAMILY = 1000  # never in a table

TRAIN_COUNT = 8192
TEST_COUNT = 10_000
LABEL_NOISE = 0.1
PIXEL_NOISE = 0.6
GRATING_NOISE = 0.3
MIXED_IN = 0.3  # at most, of the other class's prototype


@dataclass
class Task:
    """Images [count, SIDE, SIDE] float32 with mean 0 and deviation 1, labels int64."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def _standardised(train, train_labels, test, test_labels):
    mean, deviation = train.mean(), train.std()
    return Task((train - mean) / deviation, train_labels, (test - mean) / deviation, test_labels)


def digits(seed):
    from sklearn.datasets import load_digits
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    images = torch.from_numpy(data.images[order].astype(np.float32))
    labels = torch.from_numpy(data.target[order].astype(np.int64))
    return _standardised(images[:1280], labels[:1280], images[1280:], labels[1280:])


def generated(seed, family=JUDGED_FAMILY, train_count=TRAIN_COUNT):
    generator = torch.Generator().manual_seed(family + seed)

    def uniform(count, low, high):
        return low + (high - low) * torch.rand(count, generator=generator)

    margin = SIDE + 2
    coarse = torch.randn(CLASSES, 1, 5, 5, generator=generator)
    prototypes = F.interpolate(coarse, size=(margin, margin), mode="bicubic",
                               align_corners=True)[:, 0]

    def shifted(labels):
        """The prototype of each label, moved by up to one pixel in both directions."""
        count = len(labels)
        moves = torch.randint(3, (2, count), generator=generator)
        rows = moves[0].reshape(-1, 1, 1) + torch.arange(SIDE).reshape(1, -1, 1)
        columns = moves[1].reshape(-1, 1, 1) + torch.arange(SIDE).reshape(1, 1, -1)
        return prototypes[labels.reshape(-1, 1, 1), rows, columns]

    def sample(count):
        labels = torch.randint(CLASSES, (count,), generator=generator)
        others = (labels + torch.randint(1, CLASSES, (count,), generator=generator)) % CLASSES
        images = shifted(labels) * uniform(count, 0.7, 1.3).reshape(-1, 1, 1)
        images += shifted(others) * uniform(count, 0, MIXED_IN).reshape(-1, 1, 1)
        images += PIXEL_NOISE * torch.randn(images.shape, generator=generator)
        return images, labels

    train, train_labels = sample(train_count)
    test, test_labels = sample(TEST_COUNT)
    wrong = torch.rand(train_count, generator=generator) < LABEL_NOISE
    noise = torch.randint(CLASSES, (train_count,), generator=generator)
    return _standardised(train, torch.where(wrong, noise, train_labels), test, test_labels)


def gratings(seed, family=9000):
    """Ten orientations of stripes of any width and phase: made after every rule was frozen."""
    generator = torch.Generator().manual_seed(family + seed)
    rows, columns = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)),
                                   indexing="ij")

    def sample(count):
        labels = torch.randint(CLASSES, (count,), generator=generator)
        angle = (labels * math.pi / CLASSES).reshape(-1, 1, 1)
        draw = torch.rand(3, count, 1, 1, generator=generator)
        waves = torch.sin((0.8 + 0.8 * draw[0]) * (rows * angle.sin() + columns * angle.cos())
                          + 2 * math.pi * draw[1]) * (0.7 + 0.6 * draw[2])
        noise = torch.randn(waves.shape, generator=generator)
        return waves + GRATING_NOISE * noise, labels

    return _standardised(*sample(TRAIN_COUNT), *sample(TEST_COUNT))


def load(name, seed):
    if name == "digits":
        return digits(seed)
    if name == "gratings":
        return gratings(seed)
    if name == "generated-1024":
        return generated(seed, train_count=1024)
    return generated(seed, JUDGED_FAMILY if name == "generated" else REHEARSAL_FAMILY)


class Shards:
    """Each worker's part of the training set, and the batches that it draws from it.

    Unskewed: dealt at random. Skewed: one half of each part is its slice of the training set
    sorted by label, the other half is dealt at random.
    """

    def __init__(self, task, workers, batch, skewed, seed):
        random = np.random.default_rng([seed, 1])
        order = random.permutation(len(task.train_labels))
        size = len(order) // workers
        dealt = order[:size * workers]
        if skewed:
            half = len(order) // 2
            first = dealt[:half]
            first = first[np.argsort(task.train_labels.numpy()[first], kind="stable")]
            parts = zip(np.array_split(first, workers), np.array_split(dealt[half:], workers))
            self.parts = [np.concatenate(part) for part in parts]
        else:
            self.parts = np.array_split(dealt, workers)
        self._batch = batch
        self._random = [np.random.default_rng([seed, 2, rank]) for rank in range(workers)]
        self._order = [None] * workers
        self._at = [0] * workers
        self.drawn = [0] * workers  # batches

    def next_batch(self, rank):
        """Indices of the worker's next batch; a new order at each pass over its part."""
        part = self.parts[rank]
        self.drawn[rank] += 1
        if self._order[rank] is None or self._at[rank] + self._batch > len(part):
            self._order[rank] = self._random[rank].permutation(part)
            self._at[rank] = 0
        self._at[rank] += self._batch
        return self._order[rank][self._at[rank] - self._batch:self._at[rank]]
