"""The networks, run for many workers at once, each with its own parameters and its own batch.

A worker's parameters are one flat row. All workers of a call go through one grouped convolution a
layer (one group a worker), so a gradient costs little more than its arithmetic and every worker's
gradient comes out on its own, as its row, which is what the switch must be given. `large` stands
in for VGG-16: 3x3 convolutions, pooling and two dense layers that hold most of the parameters.
`small` stands in for SqueezeNet: two fire modules with bypass and a classifier. `residual` stands
in for ResNet-50: two blocks of two 3x3 convolutions with bypass and a classifier. All halve the
image in their first convolution, have no normalisation layers, and ELU where the originals have
ReLU: in layers as narrow as these, stale gradients leave ReLU units dead.
"""
import math

import torch
import torch.nn.functional as F

CLASSES = 10
SIDE = 8  # images are SIDE x SIDE, one channel
EVAL_BATCH = 500
WIDTH = 16  # channels of the small network

# (name, outputs, inputs, kernel): a dense layer is a convolution that covers its whole input.
LARGE = [("conv1", 8, 1, 3), ("conv2", 16, 8, 3), ("conv3", 16, 16, 3), ("dense1", 96, 16, 2),
         ("dense2", CLASSES, 96, 1)]
SMALL = [("conv1", WIDTH, 1, 3),
         ("squeeze1", 8, WIDTH, 1), ("wide1", WIDTH // 2, 8, 3), ("point1", WIDTH // 2, 8, 1),
         ("squeeze2", 8, WIDTH, 1), ("wide2", WIDTH // 2, 8, 3), ("point2", WIDTH // 2, 8, 1),
         ("classes", CLASSES, WIDTH, 2)]
RESIDUAL = [("conv1", 8, 1, 3), *((f"conv{number}", 8, 8, 3) for number in range(2, 6)),
            ("classes", CLASSES, 8, 2)]


class Network:
    """Shapes and the forward pass of one architecture; parameters are passed in."""

    def __init__(self, name):
        self.name = name
        self.layers = {"large": LARGE, "small": SMALL, "residual": RESIDUAL}[name]
        self.parameter_count = sum(self.layer_sizes())

    def layer_sizes(self):
        """Parameters of each layer, in the order of a flat row."""
        return [out * (inputs * kernel * kernel + 1) for _, out, inputs, kernel in self.layers]

    def initial(self, seed):
        """He initialisation, one flat row."""
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for _, out, inputs, kernel in self.layers:
            fan_in = inputs * kernel * kernel
            parts.append(torch.randn(out * fan_in, generator=generator) * math.sqrt(2 / fan_in))
            parts.append(torch.zeros(out))
        return torch.cat(parts)

    def _split(self, rows):
        """Flat rows [workers, parameters] as grouped (weight, bias) of each layer."""
        layers, at = {}, 0
        workers = rows.shape[0]
        for name, out, inputs, kernel in self.layers:
            size = out * inputs * kernel * kernel
            weight = rows[:, at:at + size].reshape(workers * out, inputs, kernel, kernel)
            bias = rows[:, at + size:at + size + out].reshape(workers * out)
            layers[name] = (weight, bias)
            at += size + out
        return layers

    def logits(self, rows, images):
        """images [batch, workers, SIDE, SIDE] -> logits [batch, workers, CLASSES]."""
        layers, groups = self._split(rows), rows.shape[0]

        def conv(name, x, padding=0, stride=1):
            weight, bias = layers[name]
            return F.conv2d(x, weight, bias, padding=padding, stride=stride, groups=groups)

        def dense(name, x):  # [batch, workers * inputs] -> [batch, workers, outputs]
            weight, bias = layers[name]
            x = x.reshape(x.shape[0], groups, -1).transpose(0, 1)
            weight = weight.reshape(groups, -1, x.shape[2]).transpose(1, 2)
            return torch.baddbmm(bias.reshape(groups, 1, -1), x, weight).transpose(0, 1)

        def fire(x, number):
            squeezed = F.elu(conv(f"squeeze{number}", x))
            wide = F.elu(conv(f"wide{number}", squeezed, padding=1))
            point = F.elu(conv(f"point{number}", squeezed))
            batch, _, height, width = wide.shape
            both = [y.reshape(batch, groups, -1, height, width) for y in (wide, point)]
            return x + torch.cat(both, dim=2).reshape(batch, -1, height, width)

        def block(x, number):
            inner = F.elu(conv(f"conv{number}", x, padding=1))
            return F.elu(x + conv(f"conv{number + 1}", inner, padding=1))

        x = F.elu(conv("conv1", images, padding=1, stride=2))
        if self.name == "large":
            x = F.max_pool2d(F.elu(conv("conv2", x, padding=1)), 2)
            x = F.elu(conv("conv3", x, padding=1))
            return dense("dense2", F.elu(conv("dense1", x)))
        if self.name == "residual":
            return dense("classes", block(F.max_pool2d(block(x, 2), 2), 4))
        x = fire(F.max_pool2d(fire(x, 1), 2), 2)
        return dense("classes", x)

    def gradients(self, rows, images, labels):
        """The gradient of each worker's mean loss: rows like `rows`."""
        rows = rows.detach().requires_grad_(True)
        logits = self.logits(rows, images)
        batch, workers, classes = logits.shape
        total = F.cross_entropy(logits.reshape(-1, classes), labels.reshape(-1), reduction="sum")
        return torch.autograd.grad(total / batch, rows)[0]

    @torch.no_grad()
    def accuracy(self, parameters, images, labels):
        """Share of images [count, SIDE, SIDE] that one set of parameters classifies right."""
        rows, right = parameters.unsqueeze(0), 0
        for at in range(0, len(images), EVAL_BATCH):
            logits = self.logits(rows, images[at:at + EVAL_BATCH].unsqueeze(1))[:, 0]
            right += int((logits.argmax(dim=1) == labels[at:at + EVAL_BATCH]).sum())
        return right / len(images)
