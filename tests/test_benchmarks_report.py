"""The benchmark's command, its files, and the document that it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import __main__, compare, frameworks, limit, machine, report, session
from benchmarks.results import HINDRANCES, ONE_THREAD, Report, Result, SmallCall
from rich.console import Console
from typer.testing import CliRunner

from benchmark_cases import PYTORCH, THREADS, hurried, made, own_product, timing  # noqa: F401
from pages import is_gradient


def test_interrupted_runs_keep_what_they_have(monkeypatch, tmp_path):
    true_run = session.run

    def run(operator, shape, *rest):
        if shape == (2, 16):
            raise KeyboardInterrupt
        return true_run(operator, shape, *rest)

    monkeypatch.setattr(session, "run", run)
    path = tmp_path / "figures.json"
    arguments = ["--op", "rms_norm_grad", "--shape", "4x8", "--shape", "2x16", "--dtype", "float32", "--peers", "none"]
    outcome = CliRunner().invoke(__main__.app, [*arguments, "--seconds", "0.01", "--json", str(path)])
    assert outcome.exit_code == 130, outcome.output
    assert [result.shape for result in Report.load(path).results] == [[4, 8]]


def test_the_command_measures_draws_and_compares(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(frameworks, "LIBRARIES", PYTORCH)
    path = tmp_path / "figures.json"
    arguments = ["--op", "rms_norm_grad", "--shape", "4x8", "--shape", "8x64", "--seconds", "0.01"]
    docs = tmp_path / "docs"
    outcome = CliRunner().invoke(__main__.app, [*arguments, "--json", str(path), "--report", str(docs)])
    assert outcome.exit_code == 0, outcome.output
    assert "rms_norm_grad, bfloat16" in outcome.output
    assert "a small call" in outcome.output

    document = json.loads(path.read_text())
    assert len(document["results"]) == 6
    assert {"cpu", "cores", "isa", "caches", "versions", "date"} <= set(document["machine"])
    assert document["results"][0]["threads"] == THREADS
    assert {"share", "ratios"} <= set(document["results"][0]["summary"])
    pictures = [docs / "benchmarks" / name for name in ("rms_norm_grad.svg", "errors.svg")]
    assert all(picture.read_text().startswith("<?xml") for picture in pictures)
    page = (docs / "benchmarks.md").read_text()
    assert "`./dev bench --grid quick --op rms_norm_grad --shape 4x8 --shape 8x64 --seconds 0.01 --peers all`" in page
    assert str(tmp_path) not in page
    assert "![rms_norm_grad](benchmarks/rms_norm_grad.svg)" in page

    again = tmp_path / "again"
    published = docs / "benchmarks" / "benchmarks.json"
    outcome = CliRunner().invoke(__main__.app, ["--report-from", str(published), "--report", str(again)])
    assert outcome.exit_code == 0, outcome.output
    for name in ("benchmarks.md", "benchmarks/benchmarks.json", "benchmarks/errors.svg"):
        assert (again / name).read_text() == (docs / name).read_text()
    outcome = CliRunner().invoke(__main__.app, ["--compare", str(path), str(path)])
    assert outcome.exit_code == 0, outcome.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--op", "no_such"],
        ["--dtype", "int8"],
        ["--shape", "4by8"],
        ["--op", "rms_norm", "--shape", "4"],
        ["--op", "rms_norm", "--shape", "0x4"],
        ["--op", "rms_norm", "--shape", "-4x4"],
        ["--shape", "4x8"],  # of all operators
        ["--seconds", "-1"],
        ["--minutes", "-1"],
        ["--report-from", "no.json"],
        ["--resume", "no.json"],
        ["--compare", "no.json", "no.json"],
    ],
)
def test_wrong_arguments_are_refused(arguments, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(__main__, "perform", None)
    assert CliRunner().invoke(__main__.app, arguments).exit_code == 2


def test_autograd_is_measured_on_shapes_that_it_has(monkeypatch, capsys):
    from benchmarks import autograd

    monkeypatch.setattr(sys, "argv", ["autograd", "--op", "rms_norm", "--shape", "7x7"])
    with pytest.raises(SystemExit, match="2"):
        autograd.main()
    assert "no such shape: 7x7; there are 8x64, " in capsys.readouterr().err


def test_norms_are_measured_with_descend_and_without(monkeypatch, capsys):
    pytest.importorskip("torch")
    from benchmarks import enabled

    ways = []
    arguments = ["--shape", "1x8", "--dtype", "mixed", "--seconds", "0", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["enabled", *arguments])
    monkeypatch.setattr(enabled, "best", lambda steps, seconds, calls, before: [before(0), before(1), [2.0, 3.5]][2])
    monkeypatch.setattr(enabled, "switch", ways.append)
    assert enabled.main() == 1  # 1.5 us more
    out = capsys.readouterr().out
    assert out.count("mixed     1x8") == 6
    assert ways == 2 * ([0, 1] + 3 * [0, 1]) + [0]
    assert "the most that a call with Descend takes longer: 1.50 us" in out
    compiled: list[Any] = []
    monkeypatch.setattr(enabled.torch, "compile", lambda function: compiled.append(function) or function)
    monkeypatch.setattr(sys, "argv", ["enabled", *arguments, "--compile", "between"])
    assert enabled.main() == 1
    assert capsys.readouterr().out.count("mixed     1x8") == 4
    assert len({function.__code__ for function in compiled}) == 4
    monkeypatch.setattr(sys, "argv", ["enabled", "--shape", "7x7"])
    with pytest.raises(SystemExit, match="2"):
        enabled.main()
    assert "no such shape: 7x7; there are 1x8, " in capsys.readouterr().err


def test_calls_take_turns():
    pytest.importorskip("torch")
    from benchmarks import autograd

    seen: list[object] = []
    times = autograd.best([lambda: seen.append("a"), lambda: seen.append("b")], 0, 2, seen.append)
    assert seen == 5 * [0, "a", "a", 1, "b", "b"]
    assert all(0 < t < 1e6 for t in times)


def test_no_minutes_are_no_time(monkeypatch, tmp_path):
    monkeypatch.setattr(session, "run", None)
    arguments = ["--op", "rms_norm", "--shape", "4x8", "--peers", "none", "--json", str(tmp_path / "figures.json")]
    assert CliRunner().invoke(__main__.app, [*arguments, "--minutes", "0"]).exit_code == 0


def test_the_figures_of_a_resumed_run_go_where_they_are_told(monkeypatch, tmp_path):
    monkeypatch.setattr(__main__, "perform", lambda measured, work, teams, figures, *_: told.append(figures))
    told: list[Path] = []
    Report(machine.describe(), "quick").save(tmp_path / "old.json")
    arguments = ["--op", "rms_norm", "--shape", "4x8", "--peers", "none"]
    resume = ["--resume", str(tmp_path / "old.json")]
    for more in ([], resume, [*resume, "--json", str(tmp_path / "new.json")]):
        assert CliRunner().invoke(__main__.app, [*arguments, *more]).exit_code == 0
    assert told == [__main__.SAVED, tmp_path / "old.json", tmp_path / "new.json"]


def test_a_report_survives_the_disk(tmp_path):
    written = Report({"cpu": "a"}, "quick", [made(1e-3)], [SmallCall("op", [8], "float32", "y", {"y": timing(1.0)})])
    written.save(tmp_path / "deep" / "figures.json")
    assert Report.load(tmp_path / "deep" / "figures.json") == written
    (tmp_path / "other.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="format"):
        Report.load(tmp_path / "other.json")


def test_the_document_names_what_falls_short(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import document

    machine_ = {**machine.describe(), "cpu": "A"}
    slow, noisy, fine = made(4e-3), made(2.5e-3, size=300 << 10, lives="L2"), made(1e-3, threads=2)
    slow.shape, noisy.shape = [1, 64], [2, 64]
    fine.descend[ONE_THREAD] = timing(0.9e-3, 0.9e-3)
    page = document.text(Report(machine_, "sweep", [slow, noisy, fine], planned=3, commands=["./dev bench"]), [])
    assert (
        "| rms_norm_grad | 1 × 64 | float32 | 1 | 1 GiB | 4 ms | 0.25 of the limit, slower than PyTorch: 0.75 |" in page
    )
    assert "| points of 256 KiB or more, rows of 16 or more, below 0.5 of the limit | none | 2 | 3 |" in page
    assert "| points slower than a peer | none | 1 | 3 |" in page
    assert "| points where more threads are slower than one | none | 1 | 1 |" in page
    assert "| share of the limit beyond the cache, median | 0.90 | 0.62 | 2 |" in page
    assert "All problems" in page
    with pytest.raises(ValueError, match="nothing was measured"):
        document.write(Report(machine_, "sweep"), tmp_path)


def test_the_readmes_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import document, plot

    works = __main__.plan([__main__.load(name) for name in __main__.OPERATORS], __main__.Grid.picture, [], ["float32"])
    committed = Report.load(__main__.DOCS / "benchmarks" / "bars.json")
    names = [operator.name for operator, _, _ in works]
    assert names == [result.operator for result in committed.results]
    assert [list(shape) for _, shape, _ in works] == [result.shape for result in committed.results]
    assert all(map(is_gradient, names))
    assert len({operator.picture for operator, _, _ in works}) == len(names)
    faster, slower = made(2e-3), made(1e-3)
    slower.operator = "layer_norm_backward"
    report_ = Report({**machine.describe(), "cpu": "A"}, "picture", [faster, slower])
    figures, picture = document.write_bars(report_, tmp_path)
    assert Report.load(figures) == report_
    assert "</svg>" in picture.read_text()
    first, second = plot.bars(report_).axes
    assert [axis.get_title(loc="left").split(",")[0] for axis in (first, second)] == ["RMS norm", "Layer norm"]
    (peer,) = slower.peers
    ratio = slower.ratio(peer)
    assert sorted(bar.get_width() for bar in second.patches) == pytest.approx(sorted([1.0, ratio]))
    assert {text.get_text() for text in second.texts} == {
        f"{1e3 * slower.seconds:.3g} ms",
        f"{1e3 * slower.seconds * ratio:.3g} ms    {ratio:.1f} times as long",
    }


def test_the_document_says_where_the_time_goes(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import document

    slow, slower, near_by = made(2.5e-3, triad=0.5e-3), made(4e-3), made(1e-3, size=300 << 10, lives="L2")
    slower.dtype = "bfloat16"
    for result, core in ((slow, 2e-3), (slower, 1e-3), (near_by, 0.42e-3)):
        result.core = timing(core, core)
    report_ = Report({**machine.describe(), "cpu": "A"}, "sweep", [slow, slower, near_by], planned=3)
    page = document.text(report_, [])
    assert "| operator | dtype | L2 | memory |" in page
    assert "| rms_norm_grad | float32 | 0.42 | 0.80 |\n|  | bfloat16 | - | 0.25 |" in page
    assert page.index("## Where the time goes") < page.index("## Where it falls short")
    assert f"| arithmetic | 1 | {HINDRANCES['arithmetic']} |\n| neither | 1 | {HINDRANCES['neither']} |" in page
    assert "| memory | 1 |" not in page  # near_by reaches what is asked of it
    # side by side: of 2.5 ms the rows take 2, of 4 ms memory and the rows 1 each; near_by's memory takes all of 1 ms
    assert "| beyond the caches | 2 | 0.23 | 0.62 | 0.90 |\n| within them | 1 | 1.00 | 1.00 | 0.70 |" in page
    assert "| time | what is missed | core | memory | held back by |" in page
    assert "| 2.5 ms | 0.20 of the limit | 0.80 | 0.20 | arithmetic |" in page
    assert "| 4 ms | 0.25 of the limit, slower than PyTorch: 0.75 | 0.25 | 0.25 | neither |" in page

    path = tmp_path / "figures.json"
    report_.save(path)
    assert document.text(Report.load(path), []) == page
    older = json.loads(path.read_text())
    for entry in older["results"]:
        del entry["core"]
    path.write_text(json.dumps(older))
    loaded = Report.load(path)
    assert [result.core for result in loaded.results] == [None, None, None]
    page = document.text(loaded, [])
    assert "Where the time goes" not in page
    assert "| time | what is missed |\n" in page
    assert "| 2.5 ms | 0.20 of the limit |\n" in page
    slower.core = None  # a file that older code began and this one went on with
    assert "slower than PyTorch: 0.75 | - | 0.25 | - |" in document.text(report_, [])


def apart(seconds: float, *ways: float) -> Result:
    result = made(seconds, threads=2)
    result.handover = timing(*ways)
    return result


def test_processors_together_and_apart(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import document

    near_by, far, unseen = apart(1.25e-3, 50e-9, 0.0, 70e-9), apart(2e-3, 190e-9, 190e-9), apart(2e-3, 0.0, 0.0)
    assert (near_by.way, near_by.apart) == (pytest.approx(60e-9), False)
    assert (far.way, far.apart) == (pytest.approx(190e-9), True)
    assert (unseen.way, unseen.apart, made(1e-3).apart) == (None, None, None)
    near_by.dtype, unseen.dtype = "bfloat16", "float16"
    report_ = Report({**machine.describe(), "cpu": "A"}, "sweep", [near_by, far, unseen, made(4e-3)], planned=4)
    page = document.text(report_, [])
    assert "| together | 1 | 60 ns | 1074 GB/s | 0.80 | - |\n| apart | 1 | 190 ns | 1074 GB/s | 0.50 | - |" in page
    assert report.moved(report_)[0].startswith("The processors shared no cache for 1 of 2 problems: a line took 190 ns")
    path = tmp_path / "figures.json"
    report_.save(path)
    loaded = Report.load(path)
    assert [result.way for result in loaded.results] == [result.way for result in report_.results]
    older = Report(report_.machine, "sweep", [made(4e-3)])
    assert report.moved(older) == []
    assert "together and apart" not in document.text(older, [])


def test_a_limit_that_moved_is_no_regression():
    together, moved = Report({}, "quick", [apart(1e-3, 50e-9)]), Report({}, "quick", [apart(1.5e-3, 190e-9)])
    with pytest.raises(ValueError, match=r"shared a cache in only one of the files: 1$"):
        compare.compare(together, moved)
    other = made(1e-3)
    other.dtype = "bfloat16"
    for one in (together, moved):
        one.results.append(other)
    (change,) = compare.compare(together, moved)
    assert change.dtype == "bfloat16"
    assert compare.remarks(together, moved) == [
        "Not compared, since the processors shared a cache in only one of the files: 1."
    ]
    assert len(compare.compare(together, together)) == 2
    assert len(compare.compare(moved, moved)) == 2
    older = Report({}, "quick", [made(1.5e-3, threads=2)])  # does not tell
    assert compare.compare(older, moved)[0].regressed is False


def test_the_way_between_processors_is_measured(monkeypatch):
    monkeypatch.undo()
    if THREADS < 2:
        assert limit.handover_seconds() == 0
        return
    way = next(filter(None, (limit.handover_seconds() for _ in range(200))))  # 0: others were at work
    assert 1e-9 < way < 10e-6


def test_a_part_is_not_published_unasked(monkeypatch, tmp_path):
    monkeypatch.setattr(__main__, "DOCS", tmp_path / "docs")
    arguments = ["--op", "rms_norm", "--shape", "4x8", "--dtype", "float32", "--seconds", "0.01", "--peers", "none"]
    arguments += ["--json", str(tmp_path / "figures.json")]
    assert CliRunner().invoke(__main__.app, arguments).exit_code == 0
    assert not (tmp_path / "docs").exists()
    pytest.importorskip("matplotlib")
    assert CliRunner().invoke(__main__.app, [*arguments, "--publish"]).exit_code == 0
    assert (tmp_path / "docs" / "benchmarks.md").exists()


def test_a_regression_is_found(tmp_path):
    before, after = Report({}, "quick", [made(1.0e-3)]), Report({}, "quick", [made(1.3e-3)])
    (change,) = compare.compare(before, after)
    assert change.regressed
    assert not compare.compare(after, before)[0].regressed
    # a slower moment of the machine: everything took longer, the triad too
    assert not compare.compare(before, Report({}, "quick", [made(1.5e-3, triad=1.5e-3)]))[0].regressed
    # medians of noisy rounds: two slow ones of five are no regression, and neither is what the spread explains
    noisy = made(1.0e-3)
    noisy.descend["out"] = timing(1.0e-3, 1.6e-3, 1.0e-3, 1.7e-3, 1.02e-3)
    noisy.triad, noisy.empty = timing(*[1e-3] * 5), timing(*[0.0] * 5)
    assert not compare.compare(before, Report({}, "quick", [noisy]))[0].regressed
    # another number of threads is another problem; without common problems there is nothing to compare
    with pytest.raises(ValueError, match="no problem in common"):
        compare.compare(before, Report({}, "quick", [made(1.0e-3, threads=2)]))
    for name, result in (("before", before), ("after", after)):
        result.save(tmp_path / name)
    other = made(1.0e-3)
    other.dtype = "bfloat16"
    Report({"cpu": "B", "date": "x"}, "full", [made(1.0e-3), other]).save(tmp_path / "other")
    outcome = CliRunner().invoke(__main__.app, ["--compare", str(tmp_path / "before"), str(tmp_path / "other")])
    assert outcome.exit_code == 0, outcome.output
    assert "only one of the files has them: 1." in outcome.output
    assert "They differ in cpu: None before, B after." in outcome.output
    assert "date" not in outcome.output
    for text in ("", "[]", "{}", '{"format": 1}'):
        (tmp_path / "broken").write_text(text)
        outcome = CliRunner().invoke(__main__.app, ["--compare", str(tmp_path / "before"), str(tmp_path / "broken")])
        assert outcome.exit_code == 2  # 1 is a regression
    for names, code in ((("before", "after"), 1), (("after", "before"), 0)):
        outcome = CliRunner().invoke(__main__.app, ["--compare", *(str(tmp_path / name) for name in names)])
        assert outcome.exit_code == code, outcome.output


@pytest.mark.parametrize("width", [160, 80])
def test_tables_name_what_was_missed(width):
    console = Console(record=True, width=width)
    machine = {"cpu": "A", "isa": "AVX2", "cores": 2, "caches": {"L3": 1 << 25}, "versions": {}, "date": "today"}
    small = SmallCall("rms_norm_grad", [8, 64], "float32", "y", {"y": timing(1e-6), "out, NumPy": timing(2e-6)})
    timed, untimed = made(4e-3), made(4e-3)
    timed.core = timing(3.32e-3, 3.32e-3)
    report.show(Report(machine, "quick", [timed, untimed], [small]), console)
    text = " ".join(console.export_text().split())
    assert "4 × 64" in text
    assert text.count("0.25 │ 0.83 │") == 1
    assert text.count("0.25 │ - │") == 1
    assert text.count("GB/s") == 1
    assert "…" not in text
    assert "slower than PyTorch" in text
    assert "2.00 times the yardstick" in text
    assert report.duration(1.5e-6) == "1.5 µs"
