"""Which tests a change can reach, and which are left out."""

import pytest

from tests import mutants, slow_cases
from tests.reach import Repository, part

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def here():
    return Repository()


def test_every_planted_fault_reaches_the_tests_that_see_it(here):
    """The faults were seen by running: (file, file of tests) of each is a fact that the texts must agree with."""
    facts = {(fault.file, test.partition("::")[0]) for fault in mutants.faults() for test in fault.tests}
    assert [fact for fact in sorted(facts) if fact[0] not in here.reached(fact[1])] == []


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("tests/wrong_calls.toml", "tests/test_wrong_calls.py"),  # TOML
        ("tests/golden/vit.npz", "tests/test_parity.py"),  # a golden file
        ("docs/theory.md", "tests/test_documents.py"),
        ("docs/your-model.md", "tests/test_site.py"),
        ("README.md", "tests/test_readme.py"),
        ("depthmup/report/report.html.jinja", "tests/test_report.py"),
        ("depthmup/cli/verbs.py", "tests/test_main.py"),  # a child process
        ("depthmup/train/loop.py", "tests/test_stream.py"),  # a program in a string
        ("depthmup/reading/source.py", "tests/foreign/test_slopes.py"),  # whose setups another file may have cached
        ("configs/transfer.py", "tests/test_configs.py"),  # a name that is put together
        ("experiments/paper_b/dispute.py", "tests/test_paper_b.py"),
        ("tests/tiny.py", "tests/test_sweep.py"),
        ("requirements.txt", "tests/test_moments.py"),
    ],
)
def test_reached(here, file, test):
    assert file in here.reached(test)


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("depthmup/plan/slices.py", "tests/foreign/test_models.py"),
        ("depthmup/theory/predictor.py", "tests/test_own_model.py"),
        ("depthmup/theory/predictor.py", "tests/test_sweep.py"),
        ("depthmup/plan/slices.py", "tests/test_fit.py"),
        ("docs/theory.md", "tests/test_fit.py"),
    ],
)
def test_not_reached(here, file, test):
    assert file not in here.reached(test)


FILES = {
    "depthmup/__init__.py": "",
    "depthmup/api.py": "from depthmup.models import net as public\nfrom depthmup.rules import rule\n",
    "depthmup/models/__init__.py": "from depthmup.models.nets import net\nfrom depthmup.models.other import other\n",
    "depthmup/models/nets.py": "def net():\n    pass\n\ndef lazy():\n    from depthmup import late\n    late.run()\n",
    "depthmup/models/other.py": "import flax\nfrom depthmup import deep\n\nclass M(flax.Module):\n"
    "    def build(self):\n        return deep.x\n\nother = 1\n",
    "depthmup/deep.py": "x = 1\n",
    "depthmup/late.py": "def run():\n    pass\n",
    "depthmup/rules.py": "from depthmup import deep\n\ndef rule():\n    return deep.x\n",
    "docs/page.md": "",
    "main.py": "import depthmup.late\n\nx = 1\n",
}


@pytest.mark.parametrize(
    ("test", "reached"),
    [
        ("import depthmup as dm\ndm.public()", {"depthmup/models/nets.py"}),
        ("from depthmup import public\nx = public", {"depthmup/models/nets.py"}),
        ("from depthmup.models import net\nnet()", {"depthmup/models/nets.py"}),
        ("from depthmup.models.nets import lazy\nlazy()", {"depthmup/models/nets.py", "depthmup/late.py"}),
        ("from depthmup.models import nets\ngetattr(nets, 'lazy')()", {"depthmup/models/nets.py", "depthmup/late.py"}),
        ("from depthmup import rules\nx = rules", {"depthmup/rules.py"}),  # whose function is not used
        ("from depthmup import rules\nrules.rule()", {"depthmup/rules.py", "depthmup/deep.py"}),
        # Flax may call `build`, which nothing here names
        ("from depthmup.models import other\nother.M", {"depthmup/models/other.py", "depthmup/deep.py"}),
        ("def test():\n    run('import depthmup.late as late\\nlate.run()')", {"depthmup/late.py"}),
        ("def test(x):\n    run(f'from depthmup import late\\nlate.run({x})')", {"depthmup/late.py"}),
        ("def test(m):\n    m.setattr('depthmup.rules.rule', 3)", {"depthmup/rules.py", "depthmup/deep.py"}),
        ("def test():\n    run(['main.py'])", {"main.py", "depthmup/late.py"}),
        ("import importlib\nimportlib.import_module(f'depthmup.models.{x}')", {"depthmup/models/nets.py",
         "depthmup/models/other.py", "depthmup/models/__init__.py"}),
        ("open('docs/page.md')", {"docs/page.md"}),
        ("ROOT / 'docs'", {"docs/page.md"}),
        ("ROOT.rglob('*.md')", {"docs/page.md"}),
        ("x = 1", set()),
    ],
)  # fmt: skip
def test_texts(tmp_path, test, reached):
    for name, text in {**FILES, "tests/test_a.py": test}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = Repository(tmp_path).reached("tests/test_a.py")
    assert {file for file in files if not file.endswith("__init__.py")} - {"tests/test_a.py"} >= {
        file for file in reached if not file.endswith("__init__.py")
    }
    modules = {file for file in files if not file.endswith(("__init__.py", "api.py"))} - {"tests/test_a.py"}
    assert modules == {file for file in reached if not file.endswith("__init__.py")}


@pytest.fixture
def outcomes(pytester):
    """A function that runs all tests with --changed: {outcome: how many}"""
    pytester.makeconftest(
        """
        from tests.reach import Changed

        def pytest_addoption(parser):
            parser.addoption("--changed", action="store_true")

        def pytest_configure(config):
            config.pluginmanager.register(Changed(config))
        """
    )
    return lambda *arguments: pytester.runpytest_inprocess("--changed", *arguments).parseoutcomes()


def test_left_out(pytester, outcomes):
    """What passed with these texts; not what failed, nor what reads a file that was changed since."""
    pytester.makepyfile(
        test_reads="from pathlib import Path\ndef test():\n    assert Path('data.txt').read_text()\n",
        test_fails="from pathlib import Path\ndef test():\n    assert not Path('other.txt').read_text()\n",
        test_skips="import pytest\ndef test():\n    pytest.skip()\n",
    )
    data, other = pytester.path / "data.txt", pytester.path / "other.txt"
    data.write_text("1")
    other.write_text("1")
    assert outcomes() == {"passed": 1, "failed": 1, "skipped": 1}
    assert outcomes() == {"failed": 1, "deselected": 2}
    data.write_text("2")
    assert outcomes() == {"passed": 1, "failed": 1, "deselected": 1}
    other.write_text("")
    assert outcomes() == {"passed": 1, "deselected": 2}
    assert outcomes() == {"deselected": 3}


def test_what_is_written_while_tests_run_counts_as_changed(pytester, outcomes):
    pytester.makepyfile(test_writes="from pathlib import Path\ndef test():\n    Path('data.txt').write_text('1')\n")
    pytester.path.joinpath("data.txt").write_text("1")
    assert outcomes() == outcomes() == {"passed": 1}


def test_some_tests_of_a_file(pytester, outcomes):
    pytester.makepyfile("def test_one():\n    pass\n\ndef test_two():\n    pass\n")
    assert outcomes("-k", "one") == {"passed": 1, "deselected": 1}
    assert outcomes() == {"passed": 1, "deselected": 1}


def test_the_parts_of_ci_are_all_tests():
    tests = list(range(35))
    parts = [part(tests, f"{number}/8") for number in range(8)]
    assert sorted(test for chosen, _ in parts for test in chosen) == tests
    assert {len(chosen) for chosen, _ in parts} == {4, 5}
    for chosen, others in parts:
        assert sorted(chosen + others) == tests
    assert part(tests, "0/1") == (tests, [])
    for text in ("8/8", "-1/8"):
        with pytest.raises(pytest.UsageError, match=f"--part={text} must be I/N, from 0/N to N-1/N"):
            part(tests, text)


def test_the_shortest_case_of_a_test_stays():
    seconds = {"a[x]": 3.0, "a[y]": 0.5, "a[z]": 0.3, "b[x]": 9.0, "b[y]": 4.0, "c": 4.4, "d": 4.6, "e[x]": 6.0}
    assert slow_cases.chosen(seconds) == ["a[x]", "a[y]", "b[x]", "d", "e[x]"]
    assert slow_cases.chosen(dict.fromkeys(("a[x]", "a[y]"), 1.0)) == ["a[y]"]
