"""The workloads' networks in torch, with our names, so that weights can be exchanged."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.benchmarks.workloads import CNN_OPTIONS, Workload


class MLP(nn.Module):
    """784-200-200-10 and similar."""

    def __init__(self, sizes, classes):
        super().__init__()
        self.depth = len(sizes) - 1
        for i in range(self.depth):
            setattr(self, f"dense{i + 1}", nn.Linear(sizes[i], sizes[i + 1]))
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x):
        for i in range(self.depth):
            x = F.relu(getattr(self, f"dense{i + 1}")(x))
        return self.head(x)


class CNN(nn.Module):
    """Convolutions, 2x2 pools after the last or each, dense layers."""

    def __init__(self, shape, classes, **options):
        super().__init__()
        o = CNN_OPTIONS | options
        (height, width, channels), kernel, dense = shape, o["kernel"], o["dense"]
        self.depth, self.rate = len(o["widths"]), o["dropout"]
        self.pooled = range(self.depth) if o["pool"] == "each" else (self.depth - 1,)
        for i, features in enumerate(o["widths"]):
            setattr(self, f"conv{i + 1}", nn.Conv2d(channels, features, kernel))
            height, width, channels = height - kernel + 1, width - kernel + 1, features
            if i in self.pooled:
                height, width = height // 2, width // 2
        self.size = height, width, channels
        self.layers = ["dense"] if len(dense) == 1 else [f"dense{i + 1}" for i in range(len(dense))]
        sizes = (height * width * channels, *dense, classes)
        for i, name in enumerate((*self.layers, "head")):
            setattr(self, name, nn.Linear(sizes[i], sizes[i + 1]))

    def forward(self, x):
        for i in range(self.depth):
            x = F.relu(getattr(self, f"conv{i + 1}")(x))
            x = F.max_pool2d(x, 2) if i in self.pooled else x
        x = F.dropout(x.flatten(1), self.rate, self.training)
        for name in self.layers:
            x = F.relu(getattr(self, name)(x))
        return self.head(F.dropout(x, self.rate, self.training))


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.changes = stride > 1 or channels != width
        if self.changes:
            self.shortcut, self.shortcut_norm = nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (self.shortcut_norm(self.shortcut(x)) if self.changes else x))


class ResNet(nn.Module):
    """ResNet-8 and ResNet-10."""

    def __init__(self, channels, classes, stages, stem="cifar"):
        super().__init__()
        kernel, stride, self.pooled = (7, 2, True) if stem == "imagenet" else (3, 1, False)
        self.stem, self.stem_norm = nn.Conv2d(channels, 64, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(64)
        self.stages, channels = stages, 64
        for stage in range(stages):
            setattr(self, f"stage{stage + 1}_block1", Block(channels, 64 << stage, 2 if stage else 1))
            channels = 64 << stage
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.stem_norm(self.stem(x)))
        x = F.max_pool2d(x, 3, 2, 1) if self.pooled else x
        for stage in range(self.stages):
            x = getattr(self, f"stage{stage + 1}_block1")(x)
        return self.head(x.mean((2, 3)))


class Prompted(nn.Module):
    """A frozen transformer; prompts and head are trained."""

    def __init__(self, shape, classes, *, patch, width, depth, heads, prompts):
        super().__init__()
        self.patch, self.depth, self.heads = patch, depth, heads
        side = shape[0] // patch
        sizes = {"patch_in": (patch * patch * shape[2], width), "place": (1 + side * side, width), "first": (width,)}
        for i in range(depth):
            sizes |= {f"qkv{i}": (width, 3 * width), f"out{i}": (width, width)}
            sizes |= {f"up{i}": (width, 4 * width), f"down{i}": (4 * width, width)}
        for name, size in sizes.items():
            self.register_buffer(name, torch.randn(size) / math.sqrt(size[0]))
        self.prompt = nn.Parameter(torch.randn(prompts, width) / math.sqrt(prompts))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        b, c, h, _ = x.shape
        side, width = h // self.patch, self.prompt.shape[1]
        x = x.reshape(b, c, side, self.patch, side, self.patch).permute(0, 2, 4, 3, 5, 1).reshape(b, side * side, -1)
        x = x @ self.patch_in + self.place[1:]
        first = (self.first + self.place[0]).expand(b, 1, width)
        x = torch.cat([first, self.prompt.expand(b, -1, -1), x], 1)
        for i in range(self.depth):
            qkv = (F.layer_norm(x, (width,)) @ getattr(self, f"qkv{i}")).reshape(b, -1, 3, self.heads, width // self.heads)
            y = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
            x = x + y.transpose(1, 2).reshape(b, -1, width) @ getattr(self, f"out{i}")
            x = x + F.gelu(F.layer_norm(x, (width,)) @ getattr(self, f"up{i}"), approximate="tanh") @ getattr(self, f"down{i}")
        return self.head(F.layer_norm(x[:, 0], (width,)))


def build(workload: Workload) -> nn.Module:
    """Returns the workload's network."""
    if workload.model == "mlp":
        return MLP((math.prod(workload.shape), *workload.options["widths"]), workload.classes)
    if workload.model == "cnn":
        return CNN(workload.shape, workload.classes, **workload.options)
    if workload.model == "prompts":
        return Prompted(workload.shape, workload.classes, **workload.options)
    return ResNet(workload.shape[2], workload.classes, {"resnet8": 3, "resnet10": 4}[workload.model], **workload.options)


def tensors(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the data, images as [channels, H, W]."""
    x, y = workload.data()
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if x.ndim == 4 else x
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))


def from_ours(model: nn.Module, arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns a state dict from our arrays, named like "stem/kernel" and "stem_norm/mean"."""
    names = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    state = dict(model.state_dict())
    for path, found in arrays.items():
        array = found
        module, _, leaf = path.rpartition("/")
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif array.ndim == 2 and isinstance(model, CNN) and module == model.layers[0]:
            array = array.reshape(*model.size, -1).transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
        elif array.ndim == 2:
            array = array.T
        state[f"{module.replace('/', '.')}.{names[leaf]}"] = torch.from_numpy(np.ascontiguousarray(array))
    return state


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, batches: Any, lr: float) -> None:
    """Runs plain SGD over batches."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    for rows in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def shuffled(rows: torch.Tensor, workload: Workload) -> Any:
    """Returns the batches of one client's round."""
    for _ in range(workload.epochs):
        yield from rows[torch.randperm(len(rows))].split(workload.batch)
