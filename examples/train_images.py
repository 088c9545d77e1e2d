"""Train a small diffusion network on real photographs, with PyTorch alone and with Descend, side by side.

    python examples/train_images.py
    python examples/train_images.py --dtype bfloat16 --steps 300 --out /tmp/images

A U-Net of group norm, swish and convolutions learns to tell the noise in noisy pieces of two photographs, those that
scikit-learn ships. With Descend, `descend.torch.patch` makes each group norm and the swish after it one operator.
Printed and drawn: both loss curves and how far they are apart, the time of a step, and the shares of it that group norm
and swish take, and convolutions and matrix products. Needs the extra `examples` of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
    from training import (
        OUT,
        AdamW,
        Batch,
        Compiled,
        Dtype,
        Out,
        Precision,
        Seed,
        Settings,
        Size,
        Steps,
        Task,
        Threads,
        compare,
        program,
    )

    import descend.torch
except ModuleNotFoundError as missing:
    raise SystemExit(f'{missing}. What the examples need: pip install "descend[examples]"') from None

SIDE = 32  # pixels of a piece
VALIDATION = 64  # pieces that are not learned from


# --- the model -----------------------------------------------------------------------------------------------------


def norm_swish(channels: int) -> nn.Sequential:
    """Group norm and swish, which `descend.torch.patch` turns into one operator."""
    return nn.Sequential(nn.GroupNorm(8, channels), nn.SiLU())


class ResidualBlock(nn.Module):
    """Two convolutions, each after a norm. The time is added in between, the input at the end."""

    def __init__(self, before: int, after: int, times: int) -> None:
        super().__init__()
        self.first_norm = norm_swish(before)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(times, after)
        self.second_norm = norm_swish(after)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.beside = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[image, before, row, column] and [image, times] to [image, after, row, column]."""
        y = self.first(self.first_norm(x)) + self.time(time)[:, :, None, None]
        return self.beside(x) + self.second(self.second_norm(y))


class UNet(nn.Module):
    """From noisy images and their times to the noise: down to a quarter of the size and up again."""

    def __init__(self, channels: int = 32, times: int = 64) -> None:
        super().__init__()
        c1, c2, c3 = channels, 2 * channels, 3 * channels
        self.register_buffer("frequencies", 1000.0 ** torch.linspace(0, -1, times // 2) * 100, persistent=False)
        self.time = nn.Sequential(nn.Linear(times, times), nn.SiLU())
        self.enter = nn.Conv2d(3, c1, 3, padding=1)
        self.down1, self.down2 = ResidualBlock(c1, c1, times), ResidualBlock(c1, c2, times)
        self.middle1, self.middle2 = ResidualBlock(c2, c3, times), ResidualBlock(c3, c3, times)
        self.up2, self.up1 = ResidualBlock(c3 + c2, c2, times), ResidualBlock(c2 + c1, c1, times)
        self.leave_norm = norm_swish(c1)
        self.leave = nn.Conv2d(c1, 3, 3, padding=1)
        nn.init.zeros_(self.leave.weight)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[image, 3, row, column] and [image] to [image, 3, row, column]."""
        angle = time[:, None] * self.frequencies
        time = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        one = self.down1(self.enter(x), time)
        two = self.down2(functional.avg_pool2d(one, 2), time)
        y = self.middle2(self.middle1(functional.avg_pool2d(two, 2), time), time)
        y = self.up2(torch.cat([functional.interpolate(y, scale_factor=2), two], 1), time)
        y = self.up1(torch.cat([functional.interpolate(y, scale_factor=2), one], 1), time)
        return self.leave(self.leave_norm(y))


def use_descend(model: nn.Module) -> None:
    """The changed line."""
    descend.torch.patch(model)


# --- what it learns ------------------------------------------------------------------------------------------------


def photographs() -> Tensor:
    """[photograph, 3, row, column] from -1 to 1."""
    from sklearn.datasets import load_sample_images

    images = torch.stack([torch.tensor(image) for image in load_sample_images().images])
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def images(batch: int) -> Task:
    """Tell the noise in noisy pieces of photographs; their right quarter is for validation."""
    found = photographs()
    edge = found.shape[-1] * 3 // 4
    known, rest = found[..., :edge], found[..., edge:]

    def draw_from(source: Tensor, count: int, random: torch.Generator) -> Batch:
        """Noisy pieces, their times, the noise."""

        def number(below: int) -> int:
            return int(torch.randint(below, (), generator=random))

        pieces = []
        for _ in range(count):
            row, column = (number(size - SIDE + 1) for size in source.shape[-2:])
            pieces.append(source[number(len(source)), :, row : row + SIDE, column : column + SIDE])
        time, noise = torch.rand(count, generator=random), torch.randn(count, 3, SIDE, SIDE, generator=random)
        signal, strength = mixture(time)
        return signal * torch.stack(pieces) + strength * noise, time, noise

    def loss(model: nn.Module, given: Batch) -> Tensor:
        x, time, noise = given
        dtype = model.leave.weight.dtype
        wide = torch.promote_types(dtype, torch.float32)
        return functional.mse_loss(model(x.to(dtype), time.to(dtype)).to(wide), noise.to(wide))

    validation = draw_from(rest, VALIDATION, torch.Generator().manual_seed(0))
    signal, strength = mixture(validation[1])
    power = (signal * rest.square().mean().sqrt()) ** 2
    return Task(
        name="train_images",
        data="china.jpg (c) danielbuechele, flower.jpg (c) vultilion, both CC BY 2.0, shipped with scikit-learn",
        unit="mean square of what is left of the noise",
        model=UNet,
        use_descend=use_descend,
        operators=operators,
        loss=loss,
        draw=lambda random: draw_from(known, batch, random),
        validation=[validation],
        baselines={
            "no noise": validation[2].square().mean().item(),
            "a multiple of the noisy image": (power / (power + strength**2)).mean().item(),
        },
        learning_rate=2e-3,
    )


def mixture(time: Tensor) -> tuple[Tensor, Tensor]:
    """How much of the image and how much noise there is at a time from 0 to 1; the squares add up to 1."""
    angle = (time * torch.pi / 2)[:, None, None, None]
    return angle.cos(), angle.sin()


def operators(model: nn.Module) -> Mapping[str, Sequence[nn.Module]]:
    """The modules that Descend computes, or PyTorch's at the same places."""
    blocks = [block for block in model.modules() if isinstance(block, ResidualBlock)]
    norms = [norm for block in blocks for norm in (block.first_norm, block.second_norm)]
    return {"group norm + swish": [*norms, model.leave_norm]}


def main(
    steps: Steps = 150,
    seed: Seed = 0,
    dtype: Precision = Dtype.float32,
    batch: Size = 8,
    threads: Threads = 0,
    adam_w: AdamW = False,
    compiled: Compiled = False,
    out: Out = OUT,
) -> None:
    """Train, print, draw."""
    compare(images(batch), Settings(steps, seed, getattr(torch, dtype.value), threads, adam_w, compiled), out)


if __name__ == "__main__":
    program(main)
