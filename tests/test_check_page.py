"""``descend check --html``: the page, as a browser shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("matplotlib")

from cli_calls import descend_command, fails, ok, write_judged
from descend import reference, tensors
from descend.cli.profile import Profile
from msprobe_dumps import bfloat16, call, write_dump

AWKWARD = "Module.<script>document.title='no'</script> & \"ä 层\" <img src=x onerror=alert(1)>.npu_rms_norm"
DRAWN = """image => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const halves = [0, 0];
    for (let i = 0; i < pixels.length; i += 4) {
        const blueOrRed = Math.abs(pixels[i] - pixels[i + 2]) > 90 && pixels[i + 3] > 90;
        halves[(i / 4) % canvas.width < 0.62 * canvas.width ? 0 : 1] += blueOrRed;
    }
    return halves;
}"""
"""How many coloured pixels the left plot of a picture has, and how many the right one."""


OUTSIDE = """source => {
    const holder = document.createElement("div");
    holder.innerHTML = atob(source.split(",")[1]).replace(/^[^]*?<svg/, "<svg");
    document.body.append(holder);
    const frame = holder.firstChild.getBoundingClientRect();
    const texts = [...holder.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    const apart = (a, b) => a.right < b.left || b.right < a.left || a.bottom < b.top || b.bottom < a.top;
    const wrong = [];
    texts.forEach(([words, box], i) => {
        const inside = box.left >= frame.left && box.right <= frame.right && box.bottom <= frame.bottom;
        if (!inside || box.width < 1) wrong.push(words);
        for (const [other, place] of texts.slice(i + 1)) if (!apart(box, place)) wrong.push(words + " on " + other);
    });
    holder.remove();
    return texts.length > 8 ? wrong : ["few words"];
}"""
"""The words in a picture that are cut off or lie on each other."""


@pytest.fixture
def look(browser, request):
    """Opens a page that must not say anything on the console, nor ask for anything but itself."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    said = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else said.append(asked.url))

    def at(path):
        tab.goto(path.as_uri())
        tab.wait_for_function("[...document.images].every(image => image.complete)")
        tab.screenshot(path=path.with_suffix(".png"), full_page=True)
        return tab

    yield at
    assert said == []
    tab.close()


def names(tab):
    return [cell.inner_text() for cell in tab.locator("tbody tr td:first-child").all()]


@pytest.fixture
def dumped(tmp_path):
    """A step with tensors of many kinds: large, empty, exact, wrong, infinite, missing, with an awkward name."""
    rng = np.random.default_rng(5)
    ones = np.ones(64, np.float32)

    def rms_norm(x, change=lambda y: y):
        scale = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
        y = change((x * scale).astype(x.dtype))
        return call([x, ones], [y, scale.astype(np.float32)])

    def spoiled(*places, value=0.0):
        def change(y):
            for place in places:
                y[place] = value
            return y

        return change

    x = rng.standard_normal((40, 64), dtype=np.float32)
    calls = {
        "NPU.npu_rms_norm.0.forward": rms_norm(x),
        "NPU.npu_rms_norm.1.forward": rms_norm(x.astype(bfloat16)),
        "NPU.npu_rms_norm.2.forward": rms_norm(rng.standard_normal((4000, 64), np.float32), spoiled((3000, 7))),
        "NPU.npu_rms_norm.3.forward": rms_norm(x, spoiled((2, 3), (30, 3), value=np.nan)),
        "NPU.npu_rms_norm.4.forward": rms_norm(x[:0]),
        "NPU.npu_rms_norm.5.forward": rms_norm(np.zeros((3, 64), np.float32)),
        f"{AWKWARD}.0.forward": rms_norm(x[:1]),
        "Tensor.<b>add</b>.0.forward": call([x], [x]),
    }
    process = write_dump(tmp_path / "dump" / "step0" / "rank0", calls)
    (process / "dump_tensor_data" / "NPU.npu_rms_norm.0.forward.output.1.npy").write_bytes(b"<i>no</i>")
    return tmp_path / "dump"


def test_every_plot_is_drawn_within_its_place(dumped, tmp_path, capsys, look):
    text = fails(capsys, "check", dumped, "--html", tmp_path / "page.html", "--most", "0", status=1)
    tab = look(tmp_path / "page.html")
    assert tab.title() == f"descend check {dumped}"
    shown = names(tab)
    assert len(shown) == 14
    assert all(any(name.split()[0] in line for line in text.splitlines()) for name in shown)
    images = tab.locator("img").all()
    assert len(images) == 14 - 3  # two tensors without elements, and one that cannot be read
    for image in images:
        box = image.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280
        assert box["width"] > 900
        assert 150 < box["height"] < 400
        left, right = image.evaluate(DRAWN)
        assert min(left, right) > 20
        assert image.evaluate(f"image => ({OUTSIDE})(image.src)") == []
    body = tab.locator("body").inner_text()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for words in (
        "11 of 14 tensors pass the single benchmark.",
        "Not judged, because descend check cannot compute them: 1 Tensor.<b>add</b>.",
        f"step0/rank0/{AWKWARD}.0.forward.output.0",
        "largest error at [3000, 7]: 0, golden ",
        "largest error at [2, 3]: nan, golden ",
        "FAIL: 2 infinite or NaN, not the same on both sides",
        "is not a readable .npy file",
    ):
        assert words in body
    assert tab.locator("b, i, h1 script, h2 script, td script").count() == 0


def test_the_table_is_worst_first_and_sorts(dumped, tmp_path, capsys, look):
    fails(capsys, "check", dumped, "--html", tmp_path / "page.html", status=1)
    tab = look(tmp_path / "page.html")
    first = names(tab)
    verdicts = [cell.inner_text()[:4] for cell in tab.locator("tbody tr td:last-child").all()]
    assert verdicts == ["FAIL"] * 3 + ["pass"] * 11
    assert first[0].endswith("NPU.npu_rms_norm.0.forward.output.1") or "npu_rms_norm.3" in first[0]

    def column(name):
        """The numbers of a column in the order of the rows, after a click on its name."""
        header = tab.get_by_role("button", name=name, exact=True)
        header.click()
        place = header.evaluate("button => button.parentElement.cellIndex")
        keys = [row.locator("td").nth(place).get_attribute("data-key") for row in tab.locator("tbody tr").all()]
        return [float(key.replace("Infinity", "inf")) for key in keys if key]

    falling = column("RMSE")
    assert falling == sorted(falling, reverse=True)
    rising = column("RMSE")
    assert rising == sorted(rising)
    falling = column("of allowed")
    assert falling == sorted(falling, reverse=True)
    tab.get_by_role("button", name="tensor").click()
    assert names(tab) == sorted(first, reverse=True)
    tab.locator("tbody a").first.click()
    section = tab.locator(f"section{tab.evaluate('location.hash')}")
    assert section.locator("h2").inner_text() == names(tab)[0]
    assert 0 <= section.bounding_box()["y"] < 900


def test_pages_of_files_and_of_two_folders(tmp_path, capsys, look):
    judged = write_judged(tmp_path)
    third = ("--third-party", judged / "good.npz")
    fails(
        capsys, "check", judged / "bad.npz", judged / "golden.npz", *third, "--html", tmp_path / "files.html", status=1
    )
    tab = look(tmp_path / "files.html")
    assert names(tab) == ["dx", "dgamma"]
    assert tab.locator("img").count() == 2
    header = tab.locator("thead").inner_text().split()
    assert header.count("ratio") == 3
    for run, shift in (("npu", 1), ("cpu", 0)):
        x = np.linspace(1, 2, 12).reshape(3, 4)
        write_dump(tmp_path / run, {"Tensor.add.0.forward": call([x + shift, np.arange(9) + shift], [x > 0, x + 1j])})
    text = fails(capsys, "check", tmp_path / "npu", tmp_path / "cpu", "--html", tmp_path / "two.html", status=1)
    tab = look(tmp_path / "two.html")
    assert names(tab)[-1] == "Tensor.add.0.forward.output.0"
    assert tab.locator("img").count() == 3
    for image in tab.locator("img").all():
        assert min(image.evaluate(DRAWN)) > 20
    body = tab.locator("body").inner_text()
    assert "9 integers differ" in body
    assert "The precision standard has no threshold for complex128" in body
    assert "1 of 4 tensors pass" in text


def test_the_worst_ones_are_plotted(dumped, tmp_path, capsys, look):
    fails(capsys, "check", dumped, "--html", tmp_path / "page.html", "--plots", "2", status=1)
    tab = look(tmp_path / "page.html")
    assert len(names(tab)) == 14
    assert [heading.inner_text()[12:] for heading in tab.locator("h2").all()] == [
        "NPU.npu_rms_norm.3.forward.output.0",
        "NPU.npu_rms_norm.2.forward.output.0",
    ]
    assert "Plots are of the 2 worst of them; --plots 0 draws all." in tab.locator("body").inner_text()
    assert os.path.getsize(tmp_path / "page.html") < 150_000


@pytest.mark.parametrize("size", [1, 7, 399, 400, 401, 1000, 300_000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_thinning_keeps_the_worst_of_each_stretch(size, order):
    rng = np.random.default_rng(size)
    golden = rng.uniform(1, 2, (size, 3))
    actual = np.array(golden * (1 + 1e-6 * rng.standard_normal(golden.shape)), order=order)
    place = (size // 3, 2)
    actual[place] = 5
    profile = Profile.of(actual, golden, np.float32)
    errors = (np.abs(actual - golden) / (golden + 1e-7)).ravel()
    assert profile.elements == 3 * size
    assert len(profile.positions) <= 400
    assert profile.positions[profile.errors.argmax()] == place[0] * 3 + place[1]
    np.testing.assert_allclose(profile.errors, errors[profile.positions], rtol=1e-12)
    stretch = -(-3 * size // 400)
    padded = np.pad(errors, (0, -errors.size % stretch)).reshape(-1, stretch)
    np.testing.assert_allclose(profile.errors, padded.max(1), rtol=1e-12)
    assert profile.counts.sum() + profile.exact == 3 * size
    assert profile.worst.startswith(f"[{size // 3}, 2]: 5, golden 1.")


def test_a_profile_counts_what_is_exact_and_what_is_infinite():
    golden = np.array([1.0, 2.0, np.nan, np.inf, 3.0, 4.0])
    profile = Profile.of(np.array([1.0, 2.5, np.nan, 7.0, np.inf, 4.0]), golden, np.float32)
    assert (profile.exact, profile.mismatches, profile.counts.sum()) == (3, 2, 1)
    np.testing.assert_array_equal(np.isinf(profile.errors), [False, False, False, True, True, False])
    assert profile.worst == "[3]: 7, golden inf"
    empty = Profile.of(np.empty((0, 3)), np.empty((0, 3)), np.float32)
    assert (empty.elements, empty.errors.size, empty.worst) == (0, 0, "")


def test_a_page_that_cannot_be_written_is_said_before_anything_is_computed(tmp_path, capsys):
    judged = write_judged(tmp_path)
    for path, sentence in (
        (tmp_path, f"{tmp_path} cannot be written: Is a directory."),
        ("/dev/null", "/dev/null cannot be written: it is no regular file."),
        (tmp_path / "no" / "page.html", f"The folder {tmp_path}/no does not exist."),
    ):
        text = fails(capsys, "check", judged / "good.npz", judged / "golden.npz", "--html", path)
        assert text == f"descend: {sentence}\n"


def test_without_matplotlib(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None; from descend.cli import main;"
        "sys.exit(main(['check', 'good.npz', 'golden.npz', *sys.argv[1:]]))"
    )
    judged = write_judged(tmp_path)
    run = [sys.executable, "-c", code]
    assert subprocess.run(run, cwd=judged, capture_output=True).returncode == 0
    done = subprocess.run([*run, "--html", "page.html"], cwd=judged, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ('descend: The page needs matplotlib, which is not installed: pip install "descend[html]"\n')


def test_no_file_name_breaks_a_page(tmp_path, look):
    os.mkdir(tmp_path / os.fsdecode(b"\xff folder"))
    file = tmp_path / os.fsdecode(b"\xff folder") / "golden $x ${y}.npz"
    tensors.write(file, {"a$b": np.ones(3)})
    ok("check", file, file, "--html", tmp_path / "page.html")
    tab = look(tmp_path / "page.html")
    assert "golden $x ${y}.npz" in tab.title()
    assert names(tab) == ["a$b"]


def test_no_name_in_a_dump_breaks_a_page(tmp_path, look):
    x = np.ones((2, 4), np.float32)
    y, rstd = (array.astype(np.float32) for array in reference.rms_norm(x, x[0]))
    process = write_dump(tmp_path / "rank0", {"NPU.npu_rms_norm.0.forward": call([x, x[0]], [y, rstd])})
    content = json.loads((process / "dump.json").read_text())
    content["data"] = {"A.\ud800.\u202e.npu_rms_norm.0.forward": content["data"]["NPU.npu_rms_norm.0.forward"]}
    (process / "dump.json").write_text(json.dumps(content))
    assert descend_command("check", tmp_path, "--html", tmp_path / "page.html").returncode == 0
    assert names(look(tmp_path / "page.html")) == [
        f"rank0/A.?.\u202e.npu_rms_norm.0.forward.output.{i}" for i in (0, 1)
    ]


def test_verdicts_are_printed_though_the_page_cannot_be_written(tmp_path, capsys, monkeypatch):
    judged = write_judged(tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    text = fails(capsys, "check", judged / "good.npz", judged / "golden.npz", "--html", tmp_path / "page.html")
    assert "2 of 2 tensors pass" in text
    assert text.endswith(f"descend: {tmp_path}/page.html cannot be written: No space left on device.\n")
    assert not list(tmp_path.glob("*.part"))
