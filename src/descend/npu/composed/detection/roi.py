"""Parts of feature maps in a fixed size: npu_roi_align, npu_ps_roi_pooling, and their gradients.

    roi_align: a result is the mean of sample_num x sample_num points of its bin, interpolated between the four nearest;
               a point beyond the map by more than 1 is 0
    ps_roi:    result (d, i, j) is the mean of channel (d * group_size + i) * group_size + j over bin (i, j)

roi_end_mode of roi_align: 0, the box as it is, at least 1 wide and high; 1, x2 + 1 and y2 + 1; 3, the box moved by half
a pixel of the map, as torchvision's aligned=True. The box of ps_roi goes from round(x1) to round(x2) + 1.

Documents: torch_npu.npu_roi_align, npu_ps_roi_pooling, torch_npu.contrib.module.ROIAlign; MindSpore's ROIAlign for the
modes; R-FCN's pooling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from descend.npu.composed.arithmetic import check_float, check_shape, wide
from descend.npu.composed.memory import row_blocks
from descend.npu.composed.refusal import refuse


def npu_roi_align(
    self: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int,
    roi_end_mode: int,
) -> Tensor:
    """[R, C, pooled_height, pooled_width] of the map ``self`` [N, C, H, W]; ``rois`` [R, 5]: number, x1, y1, x2, y2."""
    operator = "npu_roi_align"
    check_float(operator, self=self, rois=rois)
    if self.dim() != 4:
        refuse(operator, "self", f"of shape {list(self.shape)}", "must be of shape [N, C, H, W]")
    x, pooled = wide(self), (pooled_height, pooled_width)
    _check_align(operator, rois, list(self.shape), pooled, sample_num, roi_end_mode)
    table = x.permute(0, 2, 3, 1).flatten(0, 2)
    result = x.new_zeros(len(rois), pooled_height * pooled_width, x.shape[1])
    if not result.numel():
        return result.view(len(rois), x.shape[1], *pooled).to(_narrow(self, rois))
    for which, at, weight in _points(rois, list(self.shape), spatial_scale, pooled, sample_num, roi_end_mode, x.dtype):
        bags = torch.nn.functional.embedding_bag(at, table, per_sample_weights=weight, mode="sum")
        result[which] = bags.view(len(which), -1, x.shape[1])
    shaped = result.transpose(1, 2).reshape(len(rois), x.shape[1], *pooled)
    return shaped.to(_narrow(self, rois))


def _narrow(self: Tensor, rois: Tensor) -> torch.dtype:
    return torch.float16 if torch.float16 in (self.dtype, rois.dtype) else self.dtype


def npu_roi_alignbk(
    self: Tensor,
    rois: Tensor,
    xdiff_shape: Sequence[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int,
    roi_end_mode: int | None = None,
) -> Tensor:
    """The gradient of the map, of shape ``xdiff_shape``, from that of the result. Without roi_end_mode it is 1."""
    operator = "npu_roi_alignbk"
    check_float(operator, self=self, rois=rois)
    if len(xdiff_shape) != 4:
        refuse(operator, "xdiff_shape", list(xdiff_shape), "must be four numbers, N, C, H and W")
    shape, pooled = list(xdiff_shape), (pooled_height, pooled_width)
    mode = 1 if roi_end_mode is None else roi_end_mode
    _check_align(operator, rois, shape, pooled, sample_num, mode)
    channels = shape[1]
    check_shape(operator, "self", self, [len(rois), channels, *pooled], "the result")
    dy = wide(self).flatten(2).transpose(1, 2)
    dx = dy.new_zeros(shape[0] * shape[2] * shape[3], channels)
    for which, at, weight in _points(rois, shape, spatial_scale, pooled, sample_num, mode, dy.dtype):
        bags = dy[which].reshape(-1, channels)
        for part in row_blocks(len(at), at.shape[1] * channels):
            terms = weight[part].unsqueeze(-1) * bags[part].unsqueeze(1)
            dx.index_add_(0, at[part].flatten(), terms.flatten(0, 1))
    return dx.view(shape[0], shape[2], shape[3], channels).permute(0, 3, 1, 2).contiguous().to(self.dtype)


def _check_align(
    operator: str, rois: Tensor, shape: list[int], pooled: tuple[int, int], sample_num: int, roi_end_mode: int
) -> None:
    if rois.dim() != 2 or rois.shape[1] != 5:
        refuse(operator, "rois", f"of shape {list(rois.shape)}", "must be of shape [R, 5]")
    _check_numbers(operator, rois[:, 0], shape[0])
    if len(rois) and not (shape[2] and shape[3]):
        refuse(operator, "the map", f"of shape {shape}", "must not be empty")
    if min(pooled) < 1:
        refuse(operator, "pooled_height and pooled_width", f"{pooled[0]} and {pooled[1]}", "must be at least 1")
    if sample_num < 0:
        refuse(operator, "sample_num", sample_num, "must be at least 0")
    if roi_end_mode not in (0, 1, 3):
        refuse(operator, "roi_end_mode", roi_end_mode, "must be 0, 1 or 3")


def _check_numbers(operator: str, numbers: Tensor, images: int) -> None:
    if len(numbers) and not (float(numbers.min()) > -1 and float(numbers.max()) < images):
        got = f"of images {float(numbers.min()):g} to {float(numbers.max()):g}"
        refuse(operator, "rois", got, f"must be of images 0 to {images - 1}")


def _points(
    rois: Tensor,
    shape: list[int],
    scale: float,
    pooled: tuple[int, int],
    sample_num: int,
    mode: int,
    dtype: torch.dtype,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Boxes with as many points each: which, and for each of their bins the rows of the map's pixels, and weights."""
    boxes, (height, width) = rois.to(dtype), shape[2:]
    shift = 0.5 if mode == 3 else 0
    begins = boxes[:, 1:3] * scale - shift
    sizes = (boxes[:, 3:] + (mode == 1)) * scale - shift - begins
    if mode == 0:
        sizes = sizes.clamp(min=1)
    bins = sizes / sizes.new_tensor([pooled[1], pooled[0]])
    counts = torch.full_like(bins, sample_num).long() if sample_num else bins.ceil().long().clamp(min=0)
    images = rois[:, 0].long()
    for across, down in counts.unique(dim=0).tolist():
        every = (counts == counts.new_tensor([across, down])).all(1).nonzero().flatten()
        if not across or not down:
            continue
        for part in row_blocks(len(every), 4 * across * down * pooled[0] * pooled[1]):
            which = every[part]
            x, of_x = _line(begins[which, 0], bins[which, 0], pooled[1], across, width)
            y, of_y = _line(begins[which, 1], bins[which, 1], pooled[0], down, height)
            first = images[which].view(-1, 1, 1, 1, 1) * (height * width)
            at = first + y[:, :, None, :, None] * width + x[:, None, :, None, :]
            weight = of_y[:, :, None, :, None] * of_x[:, None, :, None, :] / (across * down)
            yield which, at.flatten(0, 2).flatten(1), weight.flatten(0, 2).flatten(1)


def _line(begin: Tensor, bin: Tensor, pooled: int, count: int, extent: int) -> tuple[Tensor, Tensor]:
    """Of each box and bin along one direction: the pixels [R, pooled, 2 * count] around its points, and weights."""
    steps = torch.arange(pooled * count).to(begin.dtype).view(pooled, count)
    places = begin.view(-1, 1, 1) + (steps + 0.5) / count * bin.view(-1, 1, 1)
    inside = (places >= -1) & (places <= extent)
    places = places.masked_fill(~inside, 0).clamp(0, extent - 1)  # of a box that is NaN or infinite, too
    low = places.floor()
    part = places - low
    pixels = torch.stack((low, (low + 1).clamp(max=extent - 1)), -1).long()
    weights = torch.stack((1 - part, part), -1) * inside.unsqueeze(-1)
    return pixels.flatten(2), weights.flatten(2)


def npu_ps_roi_pooling(self: Tensor, rois: Tensor, spatial_scale: float, group_size: int, output_dim: int) -> Tensor:
    """[B * R, output_dim, group_size, group_size], of the map ``self`` [B, output_dim * group_size^2, H, W].

    ``rois`` [B, 5, R]: number of the image, x1, y1, x2, y2.
    """
    operator = "npu_ps_roi_pooling"
    check_float(operator, self=self, rois=rois)
    if self.dim() != 4 or self.shape[1] != output_dim * group_size**2:
        rule = f"must be of shape [B, {output_dim * group_size**2}, H, W], by output_dim and group_size"
        refuse(operator, "self", f"of shape {list(self.shape)}", rule)
    images, down, across = _bins(operator, rois, spatial_scale, group_size, list(self.shape), wide(self).dtype)
    maps: Tensor = wide(self).unflatten(1, (output_dim, group_size, group_size))
    result = maps.new_zeros(len(images), output_dim, group_size, group_size)
    for image in range(len(maps)):
        own = images == image
        result[own] = torch.einsum("dijhw,rih,rjw->rdij", maps[image], down[own], across[own])
    return result.to(self.dtype)


def npu_ps_roi_pooling_backward(
    output_grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    group_size: int,
    output_dim: int,
    input_size: Sequence[int],
) -> Tensor:
    """The gradient of the map; ``input_size`` is its height and width."""
    operator = "npu_ps_roi_pooling_backward"
    check_float(operator, output_grad=output_grad, rois=rois)
    if len(input_size) != 2:
        refuse(operator, "input_size", list(input_size), "must be two numbers, height and width")
    shape = [len(rois), output_dim * group_size**2, *input_size]
    images, down, across = _bins(operator, rois, spatial_scale, group_size, shape, wide(output_grad).dtype)
    check_shape(operator, "output_grad", output_grad, [len(images), output_dim, group_size, group_size], "the result")
    dy = wide(output_grad)
    dx = dy.new_zeros(len(rois), output_dim, group_size, group_size, *input_size)
    for image in range(len(rois)):
        own = images == image
        dx[image] = torch.einsum("rdij,rih,rjw->dijhw", dy[own], down[own], across[own])
    return dx.view(shape).to(output_grad.dtype)


def _bins(
    operator: str, rois: Tensor, scale: float, group_size: int, shape: list[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each box its image, and the weights of the rows [B * R, group_size, H] and columns of its bins."""
    if rois.dim() != 3 or rois.shape[1] != 5 or len(rois) != shape[0]:
        refuse(operator, "rois", f"of shape {list(rois.shape)}", f"must be of shape [{shape[0]}, 5, R]")
    if not 0 < group_size < 128:
        refuse(operator, "group_size", group_size, "must be from 1 to 127")
    boxes = rois.to(dtype).transpose(1, 2).flatten(0, 1)
    begins, ends = boxes[:, 1:3].round() * scale, (boxes[:, 3:].round() + 1) * scale
    bins = (ends - begins).clamp(min=0.1) / group_size
    across, down = (_spans(begins[:, i], bins[:, i], group_size, shape[3 - i]) for i in (0, 1))
    seen = (across.sum((1, 2)) > 0) & (down.sum((1, 2)) > 0)
    images = boxes[:, 0].long()
    _check_numbers(operator, boxes[seen, 0], shape[0])
    return images, down, across


def _spans(begin: Tensor, bin: Tensor, count: int, extent: int) -> Tensor:
    """[R, count, extent]: the weights of the pixels that bins cover."""
    steps = torch.arange(count).to(begin.dtype)
    low = (begin.unsqueeze(1) + steps * bin.unsqueeze(1)).floor().clamp(0, extent).unsqueeze(-1)
    high = (begin.unsqueeze(1) + (steps + 1) * bin.unsqueeze(1)).ceil().clamp(0, extent).unsqueeze(-1)
    pixels = torch.arange(extent)
    covered = ((pixels >= low) & (pixels < high)).to(begin.dtype)
    return covered / covered.sum(-1, keepdim=True).clamp(min=1)
