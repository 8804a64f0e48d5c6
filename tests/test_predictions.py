"""No prediction vanishes: what was committed is in docs/results/predictions.toml, as it was first written.

That docs/predictions.md has the table is among tests/test_documents.py's.
"""

import ast
import hashlib
import re
import subprocess

import pytest

from experiments import predictions
from experiments.output import DISAGREES, Interval
from experiments.published import ROOT

ENTRIES = predictions.read()
# Of the first FIRST entries, with what judges them: new ones stand behind them.
FIRST, DIGEST = 160, "85db2822ccc65741"


def plain(text):
    return " ".join(text.split())


def paragraphs(docstring):
    """The paragraphs and items of a list that predict something of a training."""
    parts, listed = re.split(r"\n\s*\n|\n(?=- )", docstring), False
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        if not part.startswith("- "):
            listed = part.startswith("**Predictions**") and after.startswith("- ")
            if listed:
                continue
        if listed or re.search(
            r"\*\*Predictions?\*\*|\bPredictions?[:,] |\bPredicted before|\bExpect: |\b[Ww]e expect\b", part
        ):
            yield plain(part)


def git(*arguments):
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").rglob("*.py")), ids=lambda path: path.stem)
def test_what_an_experiment_predicts_has_an_entry(path):
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    quotes = [plain(entry.predicted) for entry in ENTRIES]
    assert [part for part in paragraphs(docstring) if not any(quote in part for quote in quotes)] == []


def test_predictions_are_found():
    """Of a list each item; a heading and an outcome are none."""
    items = "**Predictions**, written first.\n\n- One.\n- Two,\n  on two lines."
    text = f"A claim.\n\n{items}\n\nOutcome: as we expected.\n\nExpect: three."
    assert list(paragraphs(text)) == ["- One.", "- Two, on two lines.", "Expect: three."]


def test_no_entry_is_taken_out_or_changed():
    judged = [
        (e.id, e.predicted, e.read_as, e.commit, e.quantity, e.of, list(e.band), e.after_looking, e.came_out, e.answer)
        for e in ENTRIES[:FIRST]
    ]
    assert hashlib.sha256(repr(judged).encode()).hexdigest()[:16] == DIGEST
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("commit", sorted({entry.commit for entry in ENTRIES}))
def test_entries_are_quoted_from_their_commits(commit):
    """And stand before their rows, if they were not chosen after looking."""
    entries = [entry for entry in ENTRIES if entry.commit == commit]
    if any(git("cat-file", "-e", at).returncode for entry in entries for at in (commit, entry.rows or commit)):
        pytest.skip("this clone has not the whole history")
    for entry in entries:
        assert plain(entry.predicted) in plain(git("show", f"{commit}:{entry.module}").stdout), entry.id
        assert git("show", "-s", "--format=%as", commit).stdout.strip() == entry.date
        if entry.rows and not entry.after_looking:
            assert entry.rows != commit, entry.id
            assert git("merge-base", "--is-ancestor", commit, entry.rows).returncode == 0, entry.id


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Interval(0.5, 0.1, 0.9), "surely hit"),
        (Interval(0.5, -0.1, 0.9), "hit"),
        (Interval(1.5, 0.9, 2.0), "missed"),
        (Interval(1.5, 1.1, 2.0), "surely missed"),
        (Interval(0.5, float("nan"), float("nan")), "hit"),
        (Interval(float("nan"), 0.0, 1.0), "undecided"),
    ],
)
def test_a_band(value, expected):
    assert predictions.answer(value, (0.0, 1.0)) == expected


def test_what_is_missing(monkeypatch):
    """Nothing is computed where nothing was trained; a verdict against a predicted transfer is a miss."""
    entry = ENTRIES[0]._replace(quantity="asked", of="it", rows="")
    monkeypatch.setattr(predictions, "QUANTITIES", {"asked": (lambda of: (f"{of} does not", DISAGREES), "", "")})
    assert predictions.outcome(entry) == ("-", "not trained")
    assert predictions.outcome(entry._replace(rows="abc")) == ("it does not", "surely missed")
    assert predictions.written(entry._replace(rows="abc", note="", after_looking=True)).endswith(
        "**after looking** at abc"
    )


def test_counts():
    assert predictions.counts(["hit", "surely hit", "missed", "undecided"]) == (
        "2 hit (1 surely), 1 missed (0 surely), 1 undecided, 0 not trained"
    )
