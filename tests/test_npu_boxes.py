"""Operators for the detection of objects: each against loops in float64, gradients, op-plugin's numbers, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from descend.npu.composed import memory  # noqa: E402
from descend.npu.composed.detection import box_codes, box_overlaps, deformable, roi, rotated_boxes, suppression  # noqa: E402
from test_npu_composed import FLOATS, near, refused  # noqa: E402

Tensor = Any


def edges(box: Tensor, trans: bool) -> list[Tensor]:
    x, y, w, h = box
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2] if trans else [x, y, w, h]


def overlap(kind: str, one: Tensor, other: Tensor, trans: bool, mode: int = 0) -> Tensor:
    """Of two boxes. As the formulas of the papers have it, but for the numbers that keep a divisor from 0."""
    small = 1e-16 if kind == "giou" else 1e-9
    (a1, b1, a2, b2), (c1, d1, c2, d2) = edges(one, trans), edges(other, trans)
    common = (min(a2, c2) - max(a1, c1)).clamp(min=0) * (min(b2, d2) - max(b1, d1)).clamp(min=0)
    tall = 0 if kind == "giou" else small
    first, second = (a2 - a1) * (b2 - b1 + tall), (c2 - c1) * (d2 - d1 + tall)
    both = (second if mode else first + second - common) + small
    width, height = max(a2, c2) - min(a1, c1), max(b2, d2) - min(b1, d1)
    if kind == "giou":
        return common / both - (width * height - both) / (width * height)
    apart = ((a1 + a2 - c1 - c2) ** 2 + (b1 + b2 - d1 - d2) ** 2) / 4
    result = common / both - apart / (width**2 + height**2 + small)
    if kind == "ciou":
        angle = ((c2 - c1) / (d2 - d1 + small)).atan() - ((a2 - a1) / (b2 - b1 + small)).atan()
        v = 4 / math.pi**2 * angle**2
        result = result - v * (v / (1 + small - common / both + v)).detach()
    return result


def boxes(count: int, dtype: Any, trans: bool) -> Tensor:
    low, size = torch.rand(2, count) * 3, torch.rand(2, count) * 3 + 0.5
    return torch.cat((low, size if trans else low + size)).to(dtype)


def call(kind: str, *args: Any, **options: Any) -> Tensor:
    result = getattr(box_overlaps, "_npu_ciou" if kind == "ciou" else f"npu_{kind}")(*args, **options)
    return result[0] if kind == "ciou" else result


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["giou", "diou", "ciou"])
@pytest.mark.parametrize(
    ("trans", "cross", "mode"), [(True, False, 0), (False, False, 1), (True, True, 0), (False, True, 1)]
)
def test_overlaps(dtype: Any, kind: str, trans: bool, cross: bool, mode: int) -> None:
    if kind == "giou" and (not trans or cross or mode):
        return
    a, b = boxes(5, dtype, trans), boxes(3 if cross else 5, dtype, trans)
    one, other = a.double().T, b.double().T
    pairs = [[overlap(kind, x, y, trans, mode) for x in one] for y in other]
    wanted = torch.tensor(pairs) if cross else torch.stack([pairs[i][i] for i in range(5)]).unsqueeze(0)
    got = call(kind, a, b, trans=trans, is_cross=cross, mode=mode)
    near(got, wanted.T if kind == "giou" else wanted.double(), size=1.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["giou", "diou", "ciou"])
def test_gradients_of_overlaps(dtype: Any, kind: str) -> None:
    torch.manual_seed(0)  # random edges of 16 bits are sometimes equal, and there a gradient has no definition
    a, b, dy = boxes(6, dtype, True), boxes(6, dtype, True), torch.randn(6).to(dtype)
    leaves = [t.double().requires_grad_() for t in (a, b)]
    pairs = zip(leaves[0].T, leaves[1].T, strict=True)
    wanted = torch.autograd.grad(torch.stack([overlap(kind, x, y, True) for x, y in pairs]), leaves, dy.double())
    shaped = dy.unsqueeze(1) if kind == "giou" else dy.unsqueeze(0)
    middle = (None,) if kind == "ciou" else ()
    got = getattr(box_overlaps, f"npu_{kind}_backward")(shaped, a, b, *middle, True, False, 0)
    for one, other in zip(got, wanted, strict=True):
        near(one, other, size=4.0)


def test_overlaps_of_unlike_dtypes_are_in_the_narrower() -> None:
    a, b = boxes(4, torch.float32, True), boxes(4, torch.float16, True)
    assert box_overlaps.npu_giou(a, b, True).dtype == torch.float16
    assert {t.dtype for t in box_overlaps.npu_giou_backward(torch.ones(4, 1), a, b, True)} == {torch.float16}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", [0, 1])
def test_iou_of_boxes_that_are_wider(dtype: Any, mode: int) -> None:
    a, b = boxes(5, dtype, False).T, boxes(3, dtype, False).T
    wanted = torch.zeros(3, 5, dtype=torch.float64)
    for i, (c1, d1, c2, d2) in enumerate(b.double()):
        for j, (a1, b1, a2, b2) in enumerate(a.double()):
            common = max(0, float(min(a2, c2) - max(a1, c1))) * max(0, float(min(b2, d2) - max(b1, d1)))
            own, its = (a2 - a1 + 0.01) * (b2 - b1 + 0.01), (c2 - c1 + 0.01) * (d2 - d1 + 0.01)
            wanted[i, j] = common / (its if mode else own + its - common)
    near(box_overlaps.npu_iou(a, b, mode), wanted)


def test_iou_has_the_numbers_of_op_plugin() -> None:
    a = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]).half()
    assert (
        box_overlaps.npu_ptiou(a, a[:2], 1).tolist() == torch.tensor([[0.9902, 0, 0], [0, 0.9902, 0]]).half().tolist()
    )
    assert box_overlaps.npu_ptiou(a, a[:2]).tolist() == torch.tensor([[0.9805, 0, 0], [0, 0.9805, 0]]).half().tolist()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_codes_of_boxes(dtype: Any) -> None:
    anchors, given = (boxes(7, dtype, False).T.contiguous() for _ in range(2))
    means, stds = [0.1, -0.1, 0.2, 0.0], [0.5, 0.5, 0.25, 2.0]
    wanted = []
    for (x1, y1, x2, y2), (u1, v1, u2, v2) in zip(anchors.double(), given.double(), strict=True):
        w, h, w2, h2 = x2 - x1 + 1, y2 - y1 + 1, u2 - u1 + 1, v2 - v1 + 1
        d = [(u1 + u2 - x1 - x2) / 2 / w, (v1 + v2 - y1 - y2) / 2 / h, (w2 / w).log(), (h2 / h).log()]
        wanted.append([(float(n) - mean) / std for n, mean, std in zip(d, means, stds, strict=True)])
    code = box_codes.npu_bounding_box_encode(anchors, given, *means, *stds)
    near(code, torch.tensor(wanted, dtype=torch.float64), size=4.0)
    if dtype is torch.float64:
        back = box_codes.npu_bounding_box_decode(anchors, code, *means, *stds, (100, 100), 1e-3)
        near(back, given)
    low = box_codes.npu_bounding_box_decode(anchors, torch.full_like(code, -9), *means, *stds, (3, 2), 0.1)
    assert low.min() == 0
    high = box_codes.npu_bounding_box_decode(anchors, torch.full_like(code, 9), *means, *stds, (3, 2), 0.1)
    assert high[:, 2:].tolist() == [[1, 2]] * 7


def test_codes_have_the_numbers_of_op_plugin() -> None:
    rois, deltas = torch.tensor([[1.0, 2, 3, 4], [3, 4, 5, 6]]), torch.tensor([[5.0, 6, 7, 8], [7, 8, 9, 6]])
    decoded = box_codes.npu_bounding_box_decode(rois, deltas, 0, 0, 0, 0, 1, 1, 1, 1, (10, 10), 0.1)
    near(decoded, torch.tensor([[2.5, 6.5, 9, 9], [9, 9, 9, 9]]).double())
    encoded = box_codes.npu_bounding_box_encode(rois, deltas, 0, 0, 0, 0, 0.1, 0.1, 0.2, 0.2)
    assert encoded[1, 3].isnan()
    torch.manual_seed(1234)
    anchors, given = torch.rand(2, 4), torch.rand(2, 4)
    code = box_codes.npu_yolo_boxes_encode(anchors, given, torch.tensor([2, 2], dtype=torch.int32))
    wanted = [[0.7921727, 0.5314963, -0.74224466, -13.815511], [0.7360072, 0.58343244, 4.3334002, -0.51378196]]
    near(code, torch.tensor(wanted).double())
    ones = torch.ones(5)
    anchor = torch.tensor([44.2877, 9.1412, 88.7575, 25.8879, 64.8047]).view(1, 5, 1)
    box = torch.tensor([39.1763, 0.9838, 78.1028, 29.5997, 51.5907]).view(1, 5, 1)
    turned = box_codes.npu_rotated_box_encode(anchor, box, ones)
    torch.testing.assert_close(
        turned.flatten(), torch.tensor([-0.1773, -0.1327, -0.1331, 0.5358, -0.8643]), atol=1e-4, rtol=0
    )
    near(box_codes.npu_rotated_box_decode(anchor, turned, ones), box.double(), size=10.0)
    halves = torch.full((5,), 0.5)
    near(box_codes.npu_rotated_box_encode(anchor, box, halves), turned.double() / 2)


def test_anchors_that_answer_for_boxes() -> None:
    given = torch.tensor([[0.0, 0, 2, 2], [5, 1, 7, 3], [90, 90, 99, 99], [-9, -9, -5, -5]])
    flags = box_codes.npu_anchor_response_flags(given, [3, 4], [2, 2], 2).view(3, 4, 2)
    wanted = torch.zeros(3, 4, dtype=torch.uint8)
    wanted[0, 0] = wanted[1, 3] = wanted[2, 3] = 1
    assert torch.equal(flags, wanted.unsqueeze(-1).expand(3, 4, 2))
    overlaps = torch.tensor([[0.9, 0.2, 0.3, 0.3], [0.1, 0.6, 0.4, 0.4]])
    most, of = overlaps.max(0)
    by_box, best = overlaps.max(1)
    answers = torch.tensor([1, 0, 1, 1], dtype=torch.uint8)
    args = (torch.zeros(4), overlaps, answers, most, of.int(), by_box, best.int(), 2)
    for place in (-1, 4):
        wrong = (*args[:6], torch.tensor([0, place], dtype=torch.int32), 2, 0.35, 0.1, False)
        refused("must be from 0 to 3, of anchors", box_codes.npu_grid_assign_positive, *wrong)
    assert box_codes.npu_grid_assign_positive(*args, 0.35, 0.7, True).tolist() == [1, 0, 2, 2]
    assert box_codes.npu_grid_assign_positive(*args, 0.95, 0.5, False).tolist() == [1, 0, 0, 0]
    equal = (*args[:5], torch.tensor([0.9, 0.4]), torch.tensor([0, 3], dtype=torch.int32), 2)
    assert box_codes.npu_grid_assign_positive(*equal, 0.95, 0.1, True).tolist() == [1, 0, 2, 2]
    assert box_codes.npu_grid_assign_positive(*equal, 0.95, 0.1, False).tolist() == [1, 0, 0, 2]


def kept(given: Tensor, order: list[int], threshold: float) -> list[int]:
    """By the definition: those that no kept one overlaps."""
    found: list[int] = []
    for at in order:

        def common(other: int, at: int = at) -> float:
            low = torch.maximum(given[at, :2], given[other, :2])
            return float((torch.minimum(given[at, 2:], given[other, 2:]) - low).clamp(min=0).prod())

        def area(which: int) -> float:
            return float((given[which, 2:] - given[which, :2]).prod())

        if all(common(other) / (area(at) + area(other) - common(other)) <= threshold for other in found):
            found.append(at)
    return found


def test_suppression() -> None:
    given, scores = boxes(40, torch.float32, False).T.contiguous(), torch.rand(40)
    order = [i for i in scores.argsort(descending=True).tolist() if scores[i] > 0.3]
    wanted = kept(given.double(), order, 0.4)
    limits = (torch.tensor(0.4), torch.tensor(0.3))
    turned = given[:, [2, 1, 0, 3]]
    for boxes_ in (given, turned):
        which, count = suppression.npu_nms_v4(boxes_, scores, 40, *limits)
        assert which.tolist() == wanted + [0] * (40 - len(wanted))
        assert (count.item(), count.dtype, which.dtype) == (len(wanted), torch.int32, torch.int32)
    assert suppression.npu_nms_v4(given, scores, 2, *limits)[0].tolist() == wanted[:2]
    rows = torch.cat((given, scores.unsqueeze(1)), 1)[scores.argsort(descending=True)]
    out, numbers, mask = suppression.npu_nms_with_mask(rows, 0.4)
    assert torch.equal(out, rows)
    assert numbers.tolist() == list(range(40))
    assert mask.nonzero().flatten().tolist() == kept(rows[:, :4].double(), list(range(40)), 0.4)
    assert mask.dtype == torch.uint8


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_suppression_of_classes(shared: bool, dtype: Any) -> None:
    images, count, classes = 2, 12, 3
    given = torch.stack([boxes(count * (1 if shared else classes), dtype, False).T for _ in range(images)])
    given = given.view(images, count, -1, 4)
    scores = torch.rand(images, count, classes).to(dtype)
    out, best, labels, counts = suppression.npu_batch_nms(given, scores, 0.2, 0.5, 4, 7)
    for image in range(images):
        found = []
        for label in range(classes):
            own = given[image, :, 0 if shared else label].double()
            points = scores[image, :, label].double()
            order = [i for i in points.argsort(descending=True, stable=True).tolist() if points[i] > 0.2]
            found += [(float(points[i]), label, own[i]) for i in kept(own, order, 0.5)[:4]]
        found = sorted(found, key=lambda each: -each[0])[:7]
        assert counts[image] == len(found)
        assert best[image].tolist() == [each[0] for each in found] + [0] * (7 - len(found))
        assert labels[image].tolist() == [each[1] for each in found] + [0] * (7 - len(found))
        assert torch.equal(out[image, : len(found)].double(), torch.stack([each[2] for each in found]))
    assert (out.dtype, counts.dtype) == (dtype, torch.int32)


def pixel(x: Tensor, image: int, y: Tensor, x_: Tensor) -> Tensor:
    """Of all channels, between the four nearest pixels of which those outside are 0."""
    height, width = x.shape[2:]
    total = x.new_zeros(x.shape[1])
    top, left = math.floor(y.detach()), math.floor(x_.detach())
    for row, of_row in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, of_column in ((left, 1 - (x_ - left)), (left + 1, x_ - left)):
            if 0 <= row < height and 0 <= column < width:
                total = total + x[image, :, row, column] * of_row * of_column
    return total


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", [0, 1, 3])
@pytest.mark.parametrize("samples", [0, 1, 2])
def test_roi_align(dtype: Any, mode: int, samples: int) -> None:
    x, scale, pooled = torch.randn(2, 3, 5, 6).to(dtype), 0.5, (2, 3)
    rois = torch.tensor([[0, 1.0, 2, 8, 7], [1, -3, -4, 5, 5], [1, 9, 6, 20, 14], [0, 3, 3, 3.5, 4]]).to(dtype)
    leaf = x.double().requires_grad_()
    rows = []
    for number, x1, y1, x2, y2 in rois.double().tolist():
        shift = 0.5 if mode == 3 else 0
        left, top = x1 * scale - shift, y1 * scale - shift
        right, bottom = ((edge + (mode == 1)) * scale - shift for edge in (x2, y2))
        w, h = (max(right - left, 1), max(bottom - top, 1)) if mode == 0 else (right - left, bottom - top)
        down, across = (samples or math.ceil(size / of) for size, of in zip((h, w), pooled, strict=True))
        for i in range(pooled[0]):
            for j in range(pooled[1]):
                total = leaf.new_zeros(3)
                for k in range(down):
                    for m in range(across):
                        y = top + (i + (k + 0.5) / down) * h / pooled[0]
                        z = left + (j + (m + 0.5) / across) * w / pooled[1]
                        if -1 <= y <= 5 and -1 <= z <= 6:
                            at = (min(max(y, 0.0), 4.0), min(max(z, 0.0), 5.0))
                            total = total + pixel(
                                leaf, int(number), *(torch.tensor(each, dtype=torch.float64) for each in at)
                            )
                rows.append(total / (down * across))
    wanted = torch.stack(rows).view(len(rois), *pooled, 3).permute(0, 3, 1, 2)
    got = roi.npu_roi_align(x, rois, scale, *pooled, samples, mode)
    near(got, wanted.detach())
    dy = torch.randn(wanted.shape).to(dtype)
    (dx,) = torch.autograd.grad(wanted, leaf, dy.double())
    near(roi.npu_roi_alignbk(dy, rois, x.shape, pooled[1], pooled[0], scale, samples, mode), dx, size=1.0)


def test_roi_align_has_the_gradient_of_op_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rois = torch.arange(1.0, 37).view(1, 1, 6, 6), torch.tensor([[0, -2.0, -2, 22, 22]])
    for largest in (memory.NUMBERS, 1):
        monkeypatch.setattr(memory, "NUMBERS", largest)
        out = roi.npu_roi_align(x, rois, 0.25, 3, 3, 2, 0)
        assert out.flatten().tolist() == [4.5, 6.5, 8.5, 16.5, 18.5, 20.5, 28.5, 30.5, 32.5]
        dx = roi.npu_roi_alignbk(out, rois, x.shape, 3, 3, 0.25, 2)
        edge = torch.tensor([1.0786, 1.0557, 1.4942, 1.5248, 1.9226, 2.4709])
        torch.testing.assert_close(dx[0, 0, 0], edge, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ps_roi_pooling(dtype: Any) -> None:
    size, outputs, scale = 2, 3, 0.5
    x = torch.randn(2, outputs * size**2, 5, 6).to(dtype)
    rois = (
        torch.tensor([[[0.0, 1, 2, 8, 7], [1, 0, 0, 5, 4]], [[1, 3, 3, 3, 3], [7, 90, 90, 95, 95]]])
        .transpose(1, 2)
        .to(dtype)
    )
    leaf = x.double().requires_grad_()
    wanted = torch.zeros(4, outputs, size, size, dtype=torch.float64)
    for n, (number, x1, y1, x2, y2) in enumerate(rois.double().transpose(1, 2).reshape(4, 5).tolist()):
        left, top, right, bottom = (v * scale for v in (round(x1), round(y1), round(x2) + 1, round(y2) + 1))
        w, h = max(right - left, 0.1) / size, max(bottom - top, 0.1) / size
        for i in range(size):
            for j in range(size):
                rows = range(*(min(max(v, 0), 5) for v in (math.floor(top + i * h), math.ceil(top + (i + 1) * h))))
                columns = range(*(min(max(v, 0), 6) for v in (math.floor(left + j * w), math.ceil(left + (j + 1) * w))))
                for d in range(outputs):
                    places = [leaf[int(number), (d * size + i) * size + j, a, b] for a in rows for b in columns]
                    if places:
                        wanted[n, d, i, j] = torch.stack(places).mean()
    near(roi.npu_ps_roi_pooling(x, rois, scale, size, outputs), wanted.detach())
    dy = torch.randn(wanted.shape).to(dtype)
    (dx,) = torch.autograd.grad(wanted, leaf, dy.double())
    near(roi.npu_ps_roi_pooling_backward(dy, rois, scale, size, outputs, [5, 6]), dx)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("modulated", [True, False])
@pytest.mark.parametrize("parts", [(1, 1), (2, 2), (1, 4)])
def test_deformable_conv2d(dtype: Any, modulated: bool, parts: tuple[int, int]) -> None:
    groups, moved = parts
    kernel, stride, padding, dilation = (2, 3), (1, 1, 2, 1), (1, 0, 1, 2), (1, 1, 1, 2)
    x, weight = torch.randn(2, 4, 4, 5).to(dtype), torch.randn(2, 4 // groups, *kernel).to(dtype)
    height, width, bias = 2, 4, torch.randn(2).to(dtype)
    planes = 3 if modulated else 2
    offset = (torch.randn(2, planes * moved * 6, height, width) * 2).to(dtype)
    offset[0, 0, 0, 0], offset[1, 1] = 0, 0
    leaves = [t.double().requires_grad_() for t in (x, weight, offset, bias)]
    moves = leaves[2].view(2, planes, moved, *kernel, height, width)
    rows = []
    for n in range(2):
        for i in range(height):
            for k in range(kernel[0]):
                for j in range(width):
                    for m in range(kernel[1]):
                        values = []
                        for g in range(moved):
                            at = moves[n, :, g, k, m, i, j]
                            y, z = i * 2 - 1 + k + at[1], j - 1 + 2 * m + at[0]
                            own = pixel(leaves[0], n, y, z).view(moved, -1)[g]
                            values.append(own * at[2] if modulated else own)
                        rows.append(torch.cat(values))
    samples = torch.stack(rows).view(2, height * kernel[0], width * kernel[1], 4).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.conv2d(samples, leaves[1], leaves[3], kernel, groups=groups)
    options = (kernel, stride, padding, dilation, groups, moved, modulated)
    got, sampled = deformable.npu_deformable_conv2d(x, weight, offset, bias, *options)
    assert got.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    near(got, wanted.detach(), size=10.0)
    near(sampled, samples.detach(), size=10.0)
    dy = torch.randn(wanted.shape).to(dtype)
    gradients = torch.autograd.grad(wanted, leaves, dy.double())
    found = deformable.npu_deformable_conv2dbk(x, dy, sampled, weight, offset, *options)
    for one, other in zip(found, gradients, strict=True):
        near(one, other, size=20.0)


def turned(count: int, dtype: Any) -> Tensor:
    return torch.cat(
        (torch.rand(1, count, 2) * 4, torch.rand(1, count, 2) * 3 + 0.5, torch.rand(1, count, 1) * 360), -1
    ).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_areas_of_turned_boxes(dtype: Any) -> None:
    """Against the share of points that lie in both boxes, and for what is known exactly."""
    a, b = turned(4, dtype), turned(3, dtype)
    got = rotated_boxes.npu_rotated_overlaps(a, b)
    grid = torch.cartesian_prod(*[(torch.arange(1000).double() + 0.5) / 100 - 3] * 2)

    def inside(box: Tensor) -> Tensor:
        x, y, w, h, angle = box.double()
        c, s = torch.deg2rad(angle).cos(), torch.deg2rad(angle).sin()
        dx, dy = grid[:, 0] - x, grid[:, 1] - y
        return ((dx * c + dy * s).abs() < w / 2) & ((dy * c - dx * s).abs() < h / 2)

    shares = torch.tensor([[float((inside(p) & inside(q)).sum()) / 1e4 for q in b[0]] for p in a[0]])
    assert float((got[0].double() - shares).abs().max()) < 0.05
    areas = a[0, :, 2:4].double().prod(-1)
    near(rotated_boxes.npu_rotated_overlaps(a, a)[0].diagonal(), areas, size=4.0)
    near(rotated_boxes.npu_rotated_iou(a, a)[0].diagonal(), torch.ones(4).double())
    common = rotated_boxes.npu_rotated_overlaps(a.double(), b.double())[0]
    own, its = areas.unsqueeze(1), b[0, :, 2:4].double().prod(-1)
    near(rotated_boxes.npu_rotated_iou(a, b)[0], common / (own + its - common))
    near(rotated_boxes.npu_rotated_iou(a, b, mode=1)[0], common / its)


def test_turned_boxes_by_their_corners() -> None:
    a, b = turned(5, torch.float64), turned(4, torch.float64)
    cornered = [
        torch.cat((t[..., :2] - t[..., 2:4] / 2, t[..., :2] + t[..., 2:4] / 2, -t[..., 4:]), -1) for t in (a, b)
    ]
    near(rotated_boxes.npu_rotated_overlaps(*cornered, True), rotated_boxes.npu_rotated_overlaps(a, b))
    negative = a * torch.tensor([1.0, 1, -1, -1, 1]).double()
    near(rotated_boxes.npu_rotated_overlaps(negative, b), rotated_boxes.npu_rotated_overlaps(a, b))
    straight = torch.tensor([[[0.0, 0, 2, 2, 0], [1, 0, 2, 2, 90], [0, 0, 2, 2, 45], [9, 9, 1, 1, 0], [0, 0, 0, 2, 0]]])
    octagon = 8 * (math.sqrt(2) - 1)
    got = rotated_boxes.npu_rotated_overlaps(straight, straight)[0]
    near(got[0], torch.tensor([4, 2, octagon, 0, 0]).double())
    assert rotated_boxes.npu_rotated_iou(straight, straight)[0, 4].tolist() == [0.0] * 5


def test_suppression_of_turned_boxes() -> None:
    given, scores = turned(12, torch.float32)[0], torch.rand(12)
    iou = rotated_boxes.npu_rotated_iou(given[None].double(), given[None].double())[0]
    wanted: list[int] = []
    for at in scores.argsort(descending=True).tolist():
        if scores[at] > 0.2 and all(iou[at, other] <= 0.3 for other in wanted):
            wanted.append(at)
    which, count = rotated_boxes.npu_nms_rotated(given, scores, 0.3, 0.2)
    assert which.tolist() == wanted
    assert (count.tolist(), which.dtype, count.dtype) == ([len(wanted)], torch.int32, torch.int32)
    assert rotated_boxes.npu_nms_rotated(given, scores, 0.3, 0.2, 2)[0].tolist() == wanted[:2]
    refused("self is of shape [12, 4]", rotated_boxes.npu_nms_rotated, given[:, :4], scores, 0.3)
    refused("scores is of shape [3]", rotated_boxes.npu_nms_rotated, given, scores[:3], 0.3)
    refused("mode is 2", rotated_boxes.npu_nms_rotated, given, scores, 0.3, mode=2)
    refused("query_boxes is of shape [12, 5]", rotated_boxes.npu_rotated_overlaps, given[None], given)
    refused(
        "is_cross, v_threshold and e_threshold is False, 0.0 and 0.0",
        rotated_boxes.npu_rotated_iou,
        given[None],
        given[None],
        is_cross=False,
    )
    refused("mode is 2", rotated_boxes.npu_rotated_iou, given[None], given[None], mode=2)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_boxes_that_are_nowhere(number: float) -> None:
    """Of NaN, or infinite: they have no points, and answer for no cell."""
    x, rois = torch.rand(1, 2, 5, 5), torch.tensor([[0.0, number, 0, 3, 3], [0, 1, 1, 3, 3]])
    for mode in (0, 1, 3):
        got = roi.npu_roi_align(x, rois, 1.0, 2, 2, 2, mode)
        assert not got[0].any()
        assert torch.equal(got[1:], roi.npu_roi_align(x, rois[1:], 1.0, 2, 2, 2, mode))
        dx = roi.npu_roi_alignbk(torch.ones(2, 2, 2, 2), rois, x.shape, 2, 2, 1.0, 2, mode)
        near(dx, roi.npu_roi_alignbk(torch.ones(1, 2, 2, 2), rois[1:], x.shape, 2, 2, 1.0, 2, mode).double())
    given = torch.tensor([[number, 0, -number, 2], [4, 4, 5, 5]])
    assert box_codes.npu_anchor_response_flags(given, [3, 3], [2, 2], 1).tolist() == [0] * 8 + [1]


def test_deformable_conv2d_of_strided_offsets_and_of_no_images() -> None:
    x, weight = torch.rand(2, 4, 5, 5), torch.rand(3, 4, 3, 3)
    offset = torch.rand(2, 5, 5, 27).permute(0, 3, 1, 2)
    same: tuple[Any, ...] = ([3, 3], [1] * 4, [1] * 4)
    wanted = deformable.npu_deformable_conv2d(x, weight, offset.contiguous(), None, *same)
    got = deformable.npu_deformable_conv2d(x, weight, offset, None, *same)
    assert all(map(torch.equal, got, wanted))
    dy = torch.rand(2, 3, 5, 5)
    gradients = deformable.npu_deformable_conv2dbk(x, dy, got[1], weight, offset, *same)
    others = deformable.npu_deformable_conv2dbk(x, dy, got[1], weight, offset.contiguous(), *same)
    assert all(map(torch.equal, gradients, others))
    none = deformable.npu_deformable_conv2d(x[:0], weight, offset[:0], None, *same)
    assert [t.shape for t in none] == [(0, 3, 5, 5), (0, 4, 15, 15)]
    assert roi.npu_roi_align(x[:, :0], torch.zeros(1, 5), 1.0, 2, 2, 2, 0).shape == (1, 0, 2, 2)


def test_refusals_of_boxes() -> None:
    four, rows = torch.rand(4, 3), torch.rand(3, 4)
    refused("npu_iou: bboxes is of shape [4, 3]", box_overlaps.npu_iou, four, rows)
    refused("mode is 2", box_overlaps.npu_iou, rows, rows, 2)
    refused("bboxes is torch.int64", box_overlaps.npu_iou, rows.long(), rows)
    refused("npu_giou: trans, is_cross or mode is False, False, 0", box_overlaps.npu_giou, four, four)
    refused("npu_diou: self is of shape [3, 4]", box_overlaps.npu_diou, rows, rows)
    refused("gtboxes is of shape [4, 2], but must have the shape of self", box_overlaps.npu_diou, four, four[:, :2])
    refused("mode is 3", box_overlaps._npu_ciou, four, four, mode=3)
    backward = box_overlaps.npu_ciou_backward
    refused("trans, is_cross or mode is True, True, 0", backward, four[:1], four, four, None, True)
    refused("grad is of shape [2]", backward, torch.ones(2), four, four, None, True, False)
    ten = (0, 0, 0, 0, 1, 1, 1, 1)
    refused("ground_truth_box is of shape [2, 4]", box_codes.npu_bounding_box_encode, rows, rows[:2], *ten)
    refused("rois is of shape [4, 3]", box_codes.npu_bounding_box_decode, four, four, *ten, [9, 9], 0.1)
    refused("max_shape is [9]", box_codes.npu_bounding_box_decode, rows, rows, *ten, [9], 0.1)
    refused("wh_ratio_clip is 0", box_codes.npu_bounding_box_decode, rows, rows, *ten, [9, 9], 0)
    refused("stride is torch.int64", box_codes.npu_yolo_boxes_encode, rows, rows, torch.ones(3).long())
    refused("stride is of shape [2]", box_codes.npu_yolo_boxes_encode, rows, rows, torch.ones(2).int())
    refused("self is of shape [4, 3]", box_codes.npu_anchor_response_flags, four, [2, 2], [1, 1], 1)
    refused("stride is [0, 1]", box_codes.npu_anchor_response_flags, rows, [2, 2], [0, 1], 1)
    refused("featmap_size is [2]", box_codes.npu_anchor_response_flags, rows, [2], [1, 1], 1)
    refused("num_base_anchors is 0", box_codes.npu_anchor_response_flags, rows, [2, 2], [1, 1], 0)
    refused("self is of shape [3, 4]", box_codes.npu_rotated_box_encode, rows, rows, torch.ones(5))
    assign = box_codes.npu_grid_assign_positive
    two = torch.zeros(2)
    refused("self is of shape [3, 4]", assign, rows, rows, two, two, two, two, two, 1, 0.5, 0.5, True)
    refused("overlaps is of shape [3, 4]", assign, two, rows, two, two, two, two, two, 1, 0.5, 0.5, True)
    refused(
        "max_overlaps is of shape [3]", assign, two, rows[:, :2], two, torch.ones(3), two, two, two, 1, 0.5, 0.5, True
    )
    limits = (torch.tensor(0.5), torch.tensor(0.5))
    refused("scores is of shape [2]", suppression.npu_nms_v4, rows, two, 1, *limits)
    refused("self is of shape [4, 3]", suppression.npu_nms_v4, four, two, 1, *limits)
    refused("max_output_size is -1", suppression.npu_nms_v4, rows, torch.ones(3), -1, *limits)
    for size in (float("nan"), float("inf")):
        refused(f"max_output_size is {size}", suppression.npu_nms_v4, rows, torch.ones(3), size, *limits)
    refused("iou_threshold is of shape [2]", suppression.npu_nms_v4, rows, torch.ones(3), 1, torch.ones(2), limits[1])
    refused("input is of shape [3, 4]", suppression.npu_nms_with_mask, rows, 0.5)
    many, points = torch.rand(1, 3, 1, 4), torch.rand(1, 3, 2)
    refused("transpose_box is True", suppression.npu_batch_nms, many, points, 0.5, 0.5, 1, 1, False, True)
    refused("scores is of shape [3, 2]", suppression.npu_batch_nms, many, points[0], 0.5, 0.5, 1, 1)
    refused("self is of shape [1, 3, 4]", suppression.npu_batch_nms, many[:, :, 0], points, 0.5, 0.5, 1, 1)
    refused("max_total_size is 0", suppression.npu_batch_nms, many, points, 0.5, 0.5, 1, 0)
    refused("must have a class or more", suppression.npu_batch_nms, many, points[..., :0], 0.5, 0.5, 1, 1)


def test_refusals_of_parts() -> None:
    x, rois = torch.randn(1, 4, 5, 5), torch.tensor([[0.0, 1, 1, 3, 3]])
    refused("self is of shape [4, 5, 5]", roi.npu_roi_align, x[0], rois, 1.0, 2, 2, 2, 0)
    refused("rois is of shape [1, 4]", roi.npu_roi_align, x, rois[:, 1:], 1.0, 2, 2, 2, 0)
    refused("rois is of images 1 to 1, but must be of images 0 to 0", roi.npu_roi_align, x, rois + 1, 1.0, 2, 2, 2, 0)
    refused("roi_end_mode is 2", roi.npu_roi_align, x, rois, 1.0, 2, 2, 2, 2)
    refused("sample_num is -1", roi.npu_roi_align, x, rois, 1.0, 2, 2, -1, 0)
    refused("pooled_height and pooled_width is 0 and 2", roi.npu_roi_align, x, rois, 1.0, 0, 2, 2, 0)
    refused("xdiff_shape is [4, 5, 5]", roi.npu_roi_alignbk, x, rois, [4, 5, 5], 2, 2, 1.0, 2)
    refused("self is of shape [1, 4, 5, 5]", roi.npu_roi_alignbk, x, rois, x.shape, 2, 2, 1.0, 2)
    packed = rois.view(1, 5, 1)
    refused("self is of shape [1, 4, 5, 5]", roi.npu_ps_roi_pooling, x, packed, 1.0, 2, 2)
    refused("rois is of shape [1, 5]", roi.npu_ps_roi_pooling, x, rois, 1.0, 2, 1)
    refused("rois is of images 1 to 1", roi.npu_ps_roi_pooling, x, packed + 1, 1.0, 2, 1)
    refused("input_size is [5]", roi.npu_ps_roi_pooling_backward, x, packed, 1.0, 2, 1, [5])
    refused("output_grad is of shape [1, 4, 5, 5]", roi.npu_ps_roi_pooling_backward, x, packed, 1.0, 2, 1, [5, 5])
    weight, offset = torch.randn(2, 4, 3, 3), torch.randn(1, 27, 5, 5)
    convolve = deformable.npu_deformable_conv2d
    same = ([3, 3], [1] * 4, [1] * 4)
    refused("input is of shape [4, 5, 5]", convolve, x[0], weight, offset, None, *same)
    refused("stride is [1, 1]", convolve, x, weight, offset, None, [3, 3], [1, 1], [1] * 4)
    refused("groups is 3", convolve, x, weight, offset, None, *same, groups=3)
    refused("deformable_groups is 3", convolve, x, weight, offset, None, *same, deformable_groups=3)
    refused("weight is of shape [2, 4, 3, 3]", convolve, x, weight, offset, None, [3, 2], [1] * 4, [1] * 4)
    refused("offset is of shape [1, 27, 5, 5]", convolve, x, weight, offset, None, *same, modulated=False)
    backward = deformable.npu_deformable_conv2dbk
    refused("grad_output is of shape [1, 4, 5, 5]", backward, x, x, x, weight, offset, *same)
    refused("offset_out is of shape [1, 4, 5, 5]", backward, x, x[:, :2], x, weight, offset, *same)


def test_detection_on_the_device() -> None:
    npu = pytest.importorskip("torch_npu")
    a, b = (boxes(4, torch.float64, True).npu().requires_grad_() for _ in range(2))
    for overlap_ in (npu.npu_giou, npu.npu_diou):
        assert torch.autograd.gradcheck(lambda a, b, f=overlap_: f(a, b, trans=True, is_cross=False), (a, b))
    assert npu.npu_ciou(a, b, trans=True, is_cross=False, atan_sub_flag=True).requires_grad
    (da,) = torch.autograd.grad(npu.npu_ciou(a, b, trans=True, is_cross=False).sum(), a)
    wanted = box_overlaps.npu_ciou_backward(
        torch.ones(1, 4).double(), a.detach().cpu(), b.detach().cpu(), None, True, False
    )
    assert torch.equal(da.cpu(), wanted[0])
    flat = torch.rand(1, 3, 5).npu()
    assert npu.npu_rotated_overlaps(flat, flat).shape == npu.npu_rotated_iou(flat, flat).shape == (1, 3, 3)
    assert npu.npu_nms_rotated(flat[0], flat[0, :, 0].contiguous(), 0.5)[1].shape == (1,)
    assert npu.npu_iou(a.T, b.T).shape == npu.npu_ptiou(a.T, b.T).shape == (4, 4)
    x = torch.randn(1, 8, 5, 5, dtype=torch.float64).npu().requires_grad_()
    rois = torch.tensor([0, 0.2, 0.3, 4, 3.5]).double().view(1, 5, 1).npu()
    assert torch.autograd.gradcheck(lambda x: npu.npu_ps_roi_pooling(x, rois, 1.0, 2, 2), (x,))
    weight = torch.randn(2, 8, 3, 3, dtype=torch.float64).npu().requires_grad_()
    offset = (torch.rand(1, 27, 5, 5, dtype=torch.float64) * 0.9 + 0.05).npu().requires_grad_()
    bias = torch.randn(2, dtype=torch.float64).npu().requires_grad_()

    def convolve(x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor) -> Tensor:
        return npu.npu_deformable_conv2d(x, weight, offset, bias, [3, 3], [1] * 4, [1] * 4)[0]

    assert torch.autograd.gradcheck(convolve, (x, weight, offset, bias), fast_mode=True)


@pytest.mark.filterwarnings("ignore")
def test_modules_of_contrib_on_the_device() -> None:
    """Their gradients are those of the operators: a step of each changes the loss as its gradient says."""
    npu = pytest.importorskip("torch_npu")
    from torch_npu.contrib import function, module

    features = torch.randn(1, 4, 8, 8).npu().requires_grad_()
    rois = torch.tensor([[0, 1.0, 1, 6, 7], [0, 2, 0, 5, 4]]).npu()
    out = module.ROIAlign((2, 2), 1.0, 2)(features, rois)
    (dx,) = torch.autograd.grad(out.square().sum(), features)
    moved = module.ROIAlign((2, 2), 1.0, 2)(features + 1e-3 * dx, rois).square().sum() - out.square().sum()
    assert abs(float(moved / (1e-3 * dx.square().sum())) - 1) < 0.01
    layer = module.ModulatedDeformConv(4, 2, 3, 1, 1).npu()
    plain = torch.nn.functional.conv2d(features, layer.weight / 2, padding=1)
    torch.testing.assert_close(layer(features), plain, atol=1e-4, rtol=1e-4)
    layer(features).sum().backward()
    assert float(layer.conv_offset.weight.grad.abs().sum()) > 0
    assert module.PSROIPool(2, 2, 1.0, 2, 1)(features, rois.T.unsqueeze(0)).shape == (2, 1, 2, 2)
    given = torch.tensor([[0.0, 0, 4, 4], [1, 1, 5, 5]]).npu()
    assert function.npu_iou(given, given, mode="iou").shape == (2, 2)
    assert function.npu_bbox_coder_encode_xyxy2xywh(given, given).abs().max() == 0
    near(function.npu_bbox_coder_decode_xywh2xyxy(given, torch.zeros_like(given)).cpu(), given.double().cpu())
    stride = torch.tensor([2, 2], dtype=torch.int32).npu()
    assert function.npu_bbox_coder_encode_yolo(given, given, stride)[:, :2].unique().tolist() == [0.5]
    assert function.npu_single_level_responsible_flags([4, 4], given, [2, 2], 3).shape == (48,)
    kept, labels = function.npu_multiclass_nms(given, torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.3, 0.2]]).npu(), max_num=4)
    assert kept.shape == (4, 5)
    assert labels.shape == (4,)
    which, count = npu.npu_nms_v4(
        given, torch.tensor([0.3, 0.9]).npu(), 2, torch.tensor(0.9).npu(), torch.tensor(0.1).npu()
    )
    assert (which.tolist(), int(count)) == ([1, 0], 2)
    assert npu.npu_nms_with_mask(torch.cat((given, given[:, :1]), 1), 0.5)[2].tolist() == [1, 1]
