"""Faults that `make mutants` plants can be planted, in the code of today and for tests of today."""

from collections import Counter

import pytest

from tests.mutants import LEFT_OUT, ROOT, faults, made, nearest
from tests.reach import Repository


def test_planted_faults_fit_the_code():
    assert max(Counter(fault.name for fault in faults()).values()) == 1
    texts = {fault.name: (ROOT / fault.file).read_text().count(fault.old) for fault in faults()}
    assert [name for name, count in texts.items() if count != 1] == []
    tests = sorted({test.partition("[")[0] for fault in faults() for test in fault.tests})
    named = ((file, name.split("::")[-1]) for file, _, name in (test.partition("::") for test in tests))
    assert [test for test in named if not (ROOT / test[0]).read_text().count(test[1])] == []


def test_the_nearest_tests(tmp_path):
    """Those that import a file themselves, before those that reach it by fewer files, before those that reach more."""
    texts = {
        "depthmup/__init__.py": "",
        "depthmup/rule.py": "x = 1\n",
        "depthmup/net.py": "from depthmup.rule import x\n\nnet = x\n",
        "tests/test_net.py": "from depthmup.net import net\n\nassert net\n",
        "depthmup/other.py": "y = 1\n",
        "tests/test_rule.py": "from depthmup.other import y\nfrom depthmup.net import net\n"
        "from depthmup.rule import x\n\nassert net == x == y\n",
        "tests/test_main.py": "import main\n\nassert main.x\n",
        "tests/test_none.py": "x = 1\n",
        "main.py": "from depthmup.net import net\n\nx = net\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    tests = ["tests/test_rule.py", "tests/test_net.py", "tests/test_main.py"]
    assert nearest(["depthmup/rule.py"], Repository(tmp_path)) == tests


@pytest.mark.parametrize(
    ("operator", "made"),
    [
        ("core/ReplaceBinaryOperator_Add_Sub", True),
        ("core/ReplaceBinaryOperator_Add_Mul", False),
        ("core/ReplaceBinaryOperator_BitOr_Add", False),
        ("core/ReplaceComparisonOperator_Lt_LtE", True),
        ("core/ReplaceComparisonOperator_Lt_Gt", False),
        ("core/ReplaceAndWithOr", True),
        ("core/NumberReplacer", True),
    ],
)
def test_operators(operator, made):
    assert (LEFT_OUT.match(operator) is None) == made


def test_faults_of_lines():
    pytest.importorskip("cosmic_ray")
    names = [fault.name for fault in made("depthmup/schedules.py")]
    assert any(name.endswith("return rising / SCHEDULES[schedule](done)") for name in names)
    assert not any("(jax.Array ->" in name for name in names)
