"""The documents' tables and pictures come from committed rows."""

import itertools
import json
import re

import pandas
import pytest

from depthmup.files import digest
from depthmup.report.curves import judge
from depthmup.train.workdir import CHECKSUM
from depthmup.trials.config_study import ConfigStudy
from experiments import choose, documents, published
from experiments.documents import PUBLISHED
from experiments.published import RESULTS


@pytest.fixture(scope="module")
def sweeps():
    return {name: documents.read(name) for name in PUBLISHED}


NUMBER = re.compile(r"(\d+\.\d+)")


def differences(rendered: str, text: str) -> list[tuple[str, str]]:
    """Lines that differ by more than the last digit of a decimal, which another processor may round otherwise."""

    def near(one: str, other: str) -> bool:
        if one == other or not (NUMBER.fullmatch(one) and NUMBER.fullmatch(other)):
            return one == other
        digits = {len(number.partition(".")[2]) for number in (one, other)}
        return len(digits) == 1 and abs(float(one) - float(other)) < 1.5 * 10.0 ** -digits.pop()

    lines = itertools.zip_longest(rendered.splitlines(), text.splitlines(), fillvalue="")
    parts = ((pair, [NUMBER.split(line) for line in pair]) for pair in lines)
    return [
        pair for pair, (a, b) in parts if not all(itertools.starmap(near, itertools.zip_longest(a, b, fillvalue="")))
    ]


def test_only_last_digits_may_differ():
    text = "| adamw | 3.8% [2.4, 6.2] |\n| 12 |"
    assert differences("| adamw | 3.8% [2.4, 6.3] |\n| 12 |", text) == []
    for old, new in (("6.2", "6.4"), ("6.2", "6.25"), ("12", "13"), (", 6.2", ""), ("adamw", "muon")):
        assert len(differences(text.replace(old, new), text)) == 1


@pytest.mark.parametrize("document", documents.DOCUMENTS)
def test_the_numbers_in_the_documents_are_those_of_the_rows(document, sweeps):
    text = (documents.ROOT / document).read_text()
    assert differences(documents.rendered(text, sweeps), text) == []
    if document not in ("docs/laws.md", "docs/guide/choose.md"):
        return  # other rows
    sweep = sweeps["digits_transfer"]
    without = judge(sweep.rows[sweep.rows["seed"] != 0], ConfigStudy(sweep.settings))
    other = documents.rendered(text, {**sweeps, "digits_transfer": sweep._replace(curves=without)})
    assert other != text


def test_every_cost_is_that_of_the_verdicts():
    """A percentage that a sentence calls a cost is made from rows (a test above says that it is what they give)."""
    for path in (documents.ROOT / "README.md", *(documents.ROOT / "docs").rglob("*.md")):
        if path.is_relative_to(RESULTS) or path.name in ("results.md", "predictions.md"):
            continue  # their numbers are made from rows, whole
        text = documents.COST.sub("", documents.BLOCK.sub("", path.read_text()))
        costs = re.findall(r"\bcosts? (?:at most |surely )*\.?\d[\d.]*%.{0,20}", text)
        assert costs == [], path


def test_numbers_of_the_disputes_stand_on_the_pages_that_they_link_to():
    docs = documents.ROOT / "docs"
    rows = [line for line in (docs / "disputes.md").read_text().splitlines() if "](" in line and line.startswith("|")]
    for row in rows:
        linked = "".join((docs / page).read_text() for page in re.findall(r"\]\((\w+\.md)", row))
        intervals = re.findall(r"[+-]?[\d.]+%? \[[^\]]*\d\](?!\()", row)
        assert [number for number in intervals if number not in linked] == [], row
    assert len(rows) > 8


def test_the_readme_counts_the_predictions():
    lines = (documents.ROOT / "docs" / "predictions.md").read_text()
    counts = re.search(r"before the rows: (\d+) hit .*?, (\d+) missed .*?, (\d+) undecided", lines).groups()
    readme = " ".join((documents.ROOT / "README.md").read_text().split())
    assert "{} were right, {} wrong, {} undecided".format(*counts) in readme


def test_tables_that_are_not_known(sweeps):
    for block, wrong in (("digits_transfer: tables", "tables"), ("digit: answers over depth", "digit")):
        with pytest.raises(KeyError, match=wrong):
            documents.rendered(f"<!-- {block} -->\n<!-- end -->", sweeps)


def test_the_evidence_of_the_guide(sweeps):
    """A cell is what the curves of its row say, in the column of their verdict."""
    rows = [line.split(" | ") for line in choose.table(sweeps).splitlines()[2:]]
    evidence = {tuple(row[:2]): [cell.rstrip("| ") for cell in row[3:]] for row in rows}
    curves = {(c.optimizer, c.parameterization, c.axis): c.result for c in sweeps["digits_transfer"].curves}
    adam = curves["adam", "depth_mup", "depth"]
    assert adam.verdict == "undecided"
    assert evidence["| the same (ResidualMLP)", "Adam"] == ["", f"digits ({adam.cost})", "`sp`, `mup`: digits"]
    (patches,) = (c.result for c in sweeps["patches16_simple_resnet"].curves if c.name == "depth_mup")
    assert patches.verdict == "transfers"
    without_norm = evidence["| residual, branches of one layer without a norm (ResidualMLP, SimpleResNet)", "SGD"]
    assert f", patches ({patches.cost})" in without_norm[0]


def test_one_command_makes_all(monkeypatch, capsys):
    """Every document that shows committed rows."""
    made = []
    monkeypatch.setattr(documents, "read", lambda name: name)
    monkeypatch.setattr(documents, "draw_sweep", made.append)
    monkeypatch.setattr(documents, "DOCUMENTS", ())
    monkeypatch.setattr(documents.command, "draw", lambda *papers: made.extend(paper.name for paper in papers))
    monkeypatch.setattr(documents.language, "draw", lambda: made.append("language"))
    monkeypatch.setattr(documents.scaling, "draw", lambda: made.append("scaling"))
    monkeypatch.setattr(documents.jump, "draw", lambda: made.append("jump"))
    monkeypatch.setattr(documents.hundred_million, "draw", lambda: made.append("hundred_million"))
    documents.main([])
    assert made == ["digits_transfer", "language", "scaling", "jump", "hundred_million", "paper_a", "paper_b"]


def test_what_is_committed_is_small():
    for path in RESULTS.iterdir():
        assert path.stat().st_size <= 300_000, path


def test_rows_of_other_settings_are_refused(tmp_path, monkeypatch):
    about = json.loads((RESULTS / "digits_transfer.json").read_text())
    about["settings"]["epochs"] = 3.0
    (tmp_path / "digits_transfer.json").write_text(json.dumps(about))
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    with pytest.raises(
        ValueError, match=r"computed with other settings than its config has: epochs was 3\.0, now it is 4"
    ):
        documents.read("digits_transfer")


def test_rows_take_the_place_of_those_of_their_case(tmp_path):
    """New cases stand last; no other row is touched."""
    path = tmp_path / "rows.parquet"
    for cases, losses in (("abb", (1, 2, 3)), ("cb", (4, 5)), ("aa", (6, 7))):
        published.replace(path, pandas.DataFrame({"case": list(cases), "loss": losses}), ["case"])
    table = pandas.read_parquet(path)
    assert list(zip(table["case"], table["loss"], strict=True)) == [("a", 6), ("a", 7), ("b", 5), ("c", 4)]


def test_publishing_keeps_every_number(tmp_path, monkeypatch, sweeps):
    """Of a finished sweep: losses are float32, so that nothing is lost."""
    sweep = sweeps["patches16_vit"]
    workdir = tmp_path / "sweep"
    workdir.mkdir()
    about = json.loads((RESULTS / "patches16_vit.json").read_text())
    saved = about["settings"]
    (workdir / "settings.json").write_text(json.dumps({**saved, CHECKSUM: digest(saved)}))
    (workdir / "environment.json").write_text("[]")
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    monkeypatch.setattr(published, "load", lambda folder: sweep.rows.assign(extra=1))
    documents.publish("patches16_vit", workdir)
    written = documents.read("patches16_vit").rows
    pandas.testing.assert_frame_equal(written.reset_index(drop=True), sweep.rows.reset_index(drop=True))
    with pytest.raises(ValueError, match="is not the sweep digits_transfer"):
        documents.publish("digits_transfer", workdir)
