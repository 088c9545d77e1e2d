"""The tool that makes deliberate faults: each is one text in one file, and the list fits the sources."""

from __future__ import annotations

import pytest

pytest.importorskip("tomllib")  # new in Python 3.11

from tools import mutate


def test_the_list_fits_the_sources(capsys):
    assert mutate.main(["--check"]) == 0
    assert "faults, each text once in its file" in capsys.readouterr().out


def test_a_fault_changes_one_text(tmp_path):
    source = tmp_path / "a.cpp"
    source.write_text("int one = 1;\nint two = 1;\n")
    assert mutate.Fault("a.cpp", "one = 1", "one = 2", "t").changed(tmp_path) == "int one = 2;\nint two = 1;\n"
    for old, count in ((" = 1", 2), (" = 3", 0)):
        with pytest.raises(SystemExit, match=f"a.cpp has '{old}' {count} times, but must have it once"):
            mutate.Fault("a.cpp", old, "", "t").changed(tmp_path)
    with pytest.raises(SystemExit, match="0 times"):
        mutate.Fault("b.cpp", "one", "two", "t").changed(tmp_path)


def test_lists_that_are_wrong(tmp_path):
    path = tmp_path / "faults.toml"
    path.write_text('[[fault]]\nfile = "a"\nold = "x"\nnew = "x"\ntests = "t"\n')
    with pytest.raises(SystemExit, match="'x' is replaced by itself"):
        mutate.faults(path)
    with pytest.raises(SystemExit, match="no fault of the list has these words"):
        mutate.main(["--check", "no such words"])


@pytest.mark.parametrize(
    ("broken", "noticed", "outcome"),
    [(False, True, "found"), (False, False, "NOT FOUND"), (True, True, "does not compile")],
)
def test_outcomes(monkeypatch, tmp_path, broken, noticed, outcome):
    """Whatever comes out, the file is as it was."""
    source = tmp_path / "a.cpp"
    source.write_text("right")
    seen = []

    def build() -> str:
        seen.append(source.read_text())
        return "error" if broken else ""

    monkeypatch.setattr(mutate, "COPY", tmp_path)
    monkeypatch.setattr(mutate, "build", build)
    monkeypatch.setattr(mutate, "notice", lambda tests: noticed)
    assert mutate.outcome(mutate.Fault("a.cpp", "right", "wrong", "t")) == outcome
    assert seen == ["wrong"]
    assert source.read_text() == "right"
