"""The documents' tables and pictures come from committed rows."""

import json

import pandas
import pytest

from depthmup.report.curves import judge
from experiments import documents, published
from experiments.documents import PUBLISHED, RESULTS


@pytest.fixture(scope="module")
def sweeps():
    return {name: documents.read(name) for name in PUBLISHED}


@pytest.mark.parametrize("document", documents.DOCUMENTS)
def test_the_numbers_in_the_documents_are_those_of_the_rows(document, sweeps):
    text = (documents.ROOT / document).read_text()
    assert documents.rendered(text, sweeps) == text
    sweep = sweeps["digits_transfer"]
    without = judge(sweep.rows[sweep.rows["seed"] != 0], sweep.settings)
    assert documents.rendered(text, {**sweeps, "digits_transfer": sweep._replace(curves=without)}) != text
    with pytest.raises(KeyError, match="tables"):
        documents.rendered(text.replace(": verdicts -->", ": tables -->"), sweeps)


def test_what_is_committed_is_small():
    """And every picture that a sweep should have is there."""
    for path in RESULTS.iterdir():
        assert path.stat().st_size <= 300_000, path
    for about in PUBLISHED.values():
        for picture in about.pictures.values():
            assert (documents.ROOT / "docs" / "images" / picture).exists()


def test_rows_of_other_settings_are_refused(tmp_path, monkeypatch):
    about = json.loads((RESULTS / "digits_transfer.json").read_text())
    about["settings"]["epochs"] = 3.0
    (tmp_path / "digits_transfer.json").write_text(json.dumps(about))
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    with pytest.raises(
        ValueError, match=r"computed with other settings than its config has: epochs was 3\.0, now it is 2"
    ):
        documents.read("digits_transfer")


def test_publishing_keeps_every_number(tmp_path, monkeypatch, sweeps):
    """Of a finished sweep: losses are float32, so that nothing is lost."""
    sweep = sweeps["patches16_vit"]
    workdir = tmp_path / "sweep"
    workdir.mkdir()
    about = json.loads((RESULTS / "patches16_vit.json").read_text())
    (workdir / "settings.json").write_text(json.dumps(about["settings"]))
    (workdir / "environment.json").write_text("[]")
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    monkeypatch.setattr(published, "load", lambda found: sweep.rows.assign(extra=1))
    documents.publish("patches16_vit", workdir)
    written = documents.read("patches16_vit").rows
    pandas.testing.assert_frame_equal(written.reset_index(drop=True), sweep.rows.reset_index(drop=True))
    with pytest.raises(ValueError, match="is not the sweep digits_transfer"):
        documents.publish("digits_transfer", workdir)
