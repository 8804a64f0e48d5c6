"""The site of `make docs`: its pages exist, their links hold, their commands and their Python run. Without mkdocs."""

import doctest
import importlib.util
import inspect
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib.figure
import pytest
import yaml

import depthmup as dm
from depthmup.cli import verbs
from depthmup.models import MODELS
from depthmup.sweep import SweepResult
from tests.test_readme import run

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if DOCS / "results" not in path.parents)
TEXTS = [ROOT / "README.md", *(DOCS / page for page in PAGES)]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
BESIDE = ["CHANGELOG.md", "CONTRIBUTING.md"]  # pages of the site that stand in the root: docs/extra/root_pages.py

# The Python of a page and what it must have done: {page: (number of blocks, check of its names)}.
PYTHON = {
    "api/core.md": (8, lambda n: n["report"].slopes and n["ntk"]["all"].shape == (16, 16)),
    "api/fit.md": (6, lambda n: n["found"].verdict == "does not transfer" and abs(n["law"].exponent + 1) < 0.01),
    "api/theory.md": (2, lambda n: n["lazy"].train.shape == (10, 4)),
    "api/sweep.md": (1, lambda n: n["result"].page.exists()),
    "api/models.md": (3, lambda n: set(n["unrolled"]) > {"block_0", "block_3"}),
    "guide/linen.md": (1, lambda n: n["value"] < 0.1),  # of log 10 at the start
    "guide/equinox.md": (1, lambda n: n["value"] < 0.1),
    "guide/haiku.md": (1, lambda n: 1 < n["value"] < 10),
    "guide/optuna-wandb.md": (3, lambda n: n["losses"][-1] < 0.1 and len(n["study"].trials) == 20),
    "guide/devices.md": (
        3,
        lambda n: n["value"] < 10 and n["params"]["params"]["embed"]["kernel"].sharding.mesh.size == 8,
    ),
    "guide/from-completep.md": (1, lambda n: "branch factor 0.25 inside down_*" in str(n["m"].explain())),
}
# Packages that a page needs and that depthmup does not install.
NEEDS = {"guide/haiku.md": ("haiku",), "guide/optuna-wandb.md": ("optuna", "wandb")}
# Python that needs a finished sweep, a checkpoint or arrays of the reader, and so does not run.
ILLUSTRATES = ("large-run.md", "laws.md", "performance.md", "sweeps.md", "training.md")


def files_of(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else files_of(value)


def outside_code(text):
    """A page without its blocks and spans of code."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    text = re.sub(r"(?<=\n\n)(?: {4}[^\n]*\n+)+", "", text)
    return re.sub(r"`[^`]*`", "", text)


def slug(heading):
    """The anchor of a heading, as mkdocs and code hosts make it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())


def anchors(text):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def links(text):
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"\s*\n\s*", "", outside_code(text)))


def broken(path, text):
    """The relative links and images of a page whose file or heading does not exist."""
    dead_links = []
    for link in links(text):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        if not file.is_file() or (anchor and anchor not in anchors(file.read_text())):
            dead_links.append(link)
    return dead_links


def commands(text):
    """The arguments of every `python main.py ...` of a page, without comments."""
    text = text.replace("\\\n", " ")
    for line in re.findall(r"python main\.py +([^`\n]*)", text):
        if "--config=" in line and "..." not in line and "[" not in line:
            yield shlex.split(line.split("  #")[0].split("      (")[0].split(" (")[0].rstrip("').,;:"), posix=False)


def wrong_command(words):
    """What is not there in a command: a verb, a config, a family of models. None if all is."""
    verb = words[0] if not words[0].startswith("--") else "train"
    config = next(word for word in words if word.startswith("--config=")).removeprefix("--config=")
    file, _, family = config.partition(":")
    if verb not in verbs.VERBS:
        return verb
    if "NAME" not in file and not (ROOT / file).is_file():
        return file
    return family if family and family not in MODELS else None


def test_the_navigation_names_the_pages_that_exist():
    text = (ROOT / "mkdocs.yml").read_text()
    made = [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]  # by docs/extra/notebooks.py
    assert sorted(files_of(yaml.safe_load(text)["nav"])) == sorted([*BESIDE, *PAGES, *made])


@pytest.mark.parametrize("path", [*TEXTS, *(ROOT / name for name in BESIDE)], ids=lambda path: path.name)
def test_links_and_images_exist(path):
    assert broken(path, path.read_text()) == []


def cells(path, kind):
    """The cells of a notebook, each as text."""
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_have_links_that_exist_and_outputs_of_all_cells(path):
    """`docs/extra/notebooks.py` executes them; a code host shows their pictures."""
    assert broken(path, "\n\n".join(cells(path, "markdown"))) == []
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert any("image/png" in output.get("data", ()) for output in outputs)
    assert path.stat().st_size < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_run(path, tmp_path, monkeypatch):
    """Without Jupyter: a line that starts with ! is a command of the shell, with {names} filled in. No %pip."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    program, names = f"{sys.executable} -m depthmup", {"__name__": "notebook"}
    for code in cells(path, "code"):
        code = code.replace("\\\n", "")
        shell = re.search(r"^!depthmup (.*)$", code, re.M)
        code = re.sub(r"^(?:!.*|from IPython.*|Image\(.*)$", "", code, flags=re.M)
        code = re.sub(r"^( *)%pip.*$", r"\1pass", code, flags=re.M)
        exec(compile(code, path.name, "exec"), names)
        if shell:
            subprocess.run(f"{program} {shell[1].format(**names)}", shell=True, check=True, cwd=ROOT)
    figures = [value for value in names.values() if isinstance(value, matplotlib.figure.Figure)]
    assert figures


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_number_is_still_to_be_filled_in(path):
    """Words in capitals stand for numbers while a page is written."""
    text = re.sub(r"```.*?```|^ {4,}.*?$|`[^`]*`", "", path.read_text(), flags=re.S | re.M)
    known = {"CIFAR", "YNNPACK", "README", "SIGTERM", "ALBERT", "BLOOM", "ELECTRA", "GEGLU"}
    assert set(re.findall(r"(?<![\w/.-])[A-Z]{5,}(?![\w/.-])", text)) <= known


def test_a_broken_link_is_found():
    page = DOCS / "guide" / "why.md"
    assert broken(page, "[a](choose.md#all-names) [b](nothing.md) ![c](../images/none.png)\n[d](choose.md#none)") == [
        "nothing.md", "../images/none.png", "choose.md#none"
    ]  # fmt: skip
    assert broken(page, "`[a](nothing.md)`\n\n    [b](nothing.md)\n\n```\n[c](nothing.md)\n```\n") == []


def test_commands_exist():
    documented = [(path.name, words) for path in TEXTS for words in commands(path.read_text())]
    assert len(documented) > 10
    assert [(name, words) for name, words in documented if wrong_command(words)] == []


def test_a_wrong_command_is_found():
    for wrong in ("tuna --config=configs/digits.py", "--config=configs/digit.py", "--config=configs/default.py:bert"):
        (words,) = commands(f"python main.py {wrong}\n")
        assert wrong_command(words), wrong


def documented_in(text):
    """The public names of a page of the reference. A function that is named as its module stands there as a.b.b."""
    names = [re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in re.findall(r"^::: (\S+)$", text, re.M)]
    return [re.sub(r"^depthmup\.rules\.(?=\w+$)", "depthmup.", name) for name in names]


def test_every_public_name_is_in_the_reference():
    documented = documented_in("\n".join(page.read_text() for page in (DOCS / "api").glob("*.md")))
    assert len(set(documented)) == len(documented)
    modules = ["depthmup", "depthmup.fit", "depthmup.theory", "depthmup.sweep", "depthmup.models"]
    public = {f"{module}.{name}" for module in modules for name in importlib.import_module(module).__all__}
    public -= {f"depthmup.{name}" for name in ("fit", "testing", "theory")}  # modules, whose names are here themselves
    assert set(documented) == public | {"depthmup.testing.assert_transfers", "depthmup.rules.batch_rules.Run"}


def members_in(text):
    """{name: the members of its entry} of a page of the reference."""
    entries = re.findall(r"^::: (\S+)\n((?:    .*\n)*)", text + "\n", re.M)
    return {name.split(".")[-1]: re.findall(r"^ {8}- (\w+)$", options, re.M) for name, options in entries}


def test_the_reference_has_every_method():
    """Of what `setup`, `explain`, checks and sweeps return."""
    pages = {}
    for page in (DOCS / "api").glob("*.md"):
        pages |= members_in(page.read_text())
    for cls in (dm.Setup, dm.Explanation, dm.CoordinateReport, SweepResult):
        public = {name for name, member in vars(cls).items() if inspect.isfunction(member) and name[0] != "_"}
        assert public <= set(pages[cls.__name__]), cls


def public_functions():
    """{name: function} of what stands in docs/api/, methods too."""
    functions = {}
    for page in (DOCS / "api").glob("*.md"):
        for name, options in re.findall(r"^::: (\S+)\n((?:    .*\n)*)", page.read_text() + "\n", re.M):
            obj = pkgutil.resolve_name(name)
            members = re.findall(r"^ {8}- (\w+)$", options, re.M)
            functions |= {name: obj, **{f"{name}.{member}": vars(obj)[member] for member in members}}
    return {name: inspect.unwrap(value) for name, value in functions.items() if inspect.isfunction(value)}


def test_docstrings_say_what_goes_in_and_what_comes_out():
    """docs/api/core.md says what p, specs and params are."""
    missing = []
    for name, function in public_functions().items():
        doc, signature = inspect.getdoc(function) or "", inspect.signature(function)
        arguments = signature.parameters.keys() - {"self"}
        sections = [*(["Args:"] if arguments else []), *(["Returns"] if signature.return_annotation != "None" else [])]
        missing += [(name, section) for section in sections if not re.search(rf"^{section}", doc, re.M)]
        known = {"p", "specs", "params"}
        missing += [(name, argument) for argument in arguments - known if not re.search(rf"\b{argument}\b", doc)]
    assert missing == []


def test_examples_of_docstrings():
    """Those that are written as sessions of Python."""
    finder, runner, examples = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(), 0
    for name, function in public_functions().items():
        for test in finder.find(function, name, globs={**function.__globals__, "dm": dm}):
            runner.run(test)
            examples += bool(test.examples)
    assert runner.summarize(verbose=False).failed == 0
    assert examples >= 7


def test_markup_of_docstrings_is_shown():
    escape = hook("escape")
    text = 'q = <phi(z)^2>, `a < b*/c`, "*/last/*", 1 < 2, x * y'
    assert escape.escaped(text) == 'q = &lt;phi(z)^2>, `a < b*/c`, "&#42;/last/&#42;", 1 < 2, x * y'


@pytest.mark.parametrize("word", ["FSDP", "bf16", "mixed precision", "RoPE", "GQA", "LoRA", "Cite", "licence", "Slurm"])
def test_what_people_search_for_has_a_heading(word):
    headings = [line for page in PAGES for line in (DOCS / page).read_text().splitlines() if line.startswith("#")]
    assert any(word.lower() in heading.lower() for heading in headings)


def test_no_function_hides_behind_its_module():
    """mkdocstrings takes `::: depthmup.fit.power_law` for the module of the function with this name."""
    names = re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md")), re.M)
    assert [name for name in names if Path(ROOT, *name.split(".")).with_suffix(".py").exists()] == []


def test_every_public_function_has_an_example():
    """In its docstring, or in the Python of its page, which `test_pages` runs. Classes are what functions return."""
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    code = "\n".join(re.findall(r"```python\n(.*?)```", pages, re.S))
    without = [name for name, function in public_functions().items() if ">>>" not in (inspect.getdoc(function) or "")]
    assert [name for name in without if not re.search(rf"\b{name.rpartition('.')[2]}\b", code)] == []


def test_all_python_of_the_pages_is_known():
    """A new page with Python is run by `test_pages`, by test_readme.py, or is named as one that cannot run."""
    blocks = {page: (DOCS / page).read_text().count("```python") for page in PAGES}
    elsewhere = {*ILLUSTRATES, "your-model.md", "limit.md"}
    assert {page: count for page, count in blocks.items() if count and page not in elsewhere} == {
        page: count for page, (count, _) in PYTHON.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON)
def test_pages(page, tmp_path, monkeypatch):
    for package in NEEDS.get(page, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # where a page's pictures and folders land
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    count, done = PYTHON[page]
    names = run(f"docs/{page}", count)
    assert done(names), str(names.get("report"))


def test_messages_in_troubleshooting_are_those_of_the_code():
    """Each heading in quotes has words that some module really says."""
    code = " ".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in Path(dm.__file__).parent.rglob("*.py"))
    headings = re.findall(r'^### "(.*?)"', (DOCS / "guide" / "troubleshooting.md").read_text(), re.M)
    assert len(headings) > 15
    for heading in headings:
        for part in re.split(r"\s*\.\.\.\s*", heading.replace("&lt;", "<")):
            assert part in code, heading


def test_pages_from_the_root():
    """On the site their links start in docs/, and the pages that they name are links."""
    pages = hook("root_pages")
    assert list(pages.PAGES) == BESIDE
    for name in BESIDE:
        text = pages.text_on_the_site((ROOT / name).read_text())
        assert broken(DOCS / name, text) == []
        assert links(text)
        assert not re.search(r"(?<!\[)docs/[\w-]+\.md", outside_code(text))


def test_links_to_notebooks_lead_to_their_pages():
    """All but the button of a page that is a notebook itself."""
    text = "[a](../notebooks/b.ipynb), [c](c.ipynb){.button}"
    assert hook("notebooks").on_page_markdown(text, page=None) == "[a](../notebooks/b.md), [c](c.ipynb){.button}"


def hook(name):
    """The module of a hook of mkdocs."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "extra" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_that_needs_the_network_is_found(tmp_path):
    offline = hook("offline")
    (tmp_path / "page.html").write_text(
        '<script src="extra/a.js"></script><a href="https://a.org">a</a><script async src=https://b.org/b.js></script>'
        '<link rel="stylesheet" href="//c.org/c.css">'
    )
    (tmp_path / "style.css").write_text("a{background:url(data:image/png;base64,xx)} @import 'https://d.org/d.css';")
    assert offline.loaded(tmp_path) == [
        "page.html loads https://b.org/b.js", "page.html loads //c.org/c.css", "style.css loads https://d.org/d.css"
    ]  # fmt: skip


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    site = tmp_path.resolve()
    (site / "a").mkdir()
    (site / "a" / "b.html").write_text('<h2 id="one">1</h2><a href="../c.html#two">2</a><a href=https://a.org>x</a>')
    (site / "c.html").write_text(
        '<a href="a/b.html#one">1</a><a class="logo" href=.>l</a><a href="#top">t</a><a href="n.html">n</a>'
    )
    assert hook("offline").dead(site) == [
        "a/b.html leads to ../c.html#two", "c.html leads to .", "c.html leads to #top", "c.html leads to n.html"
    ]  # fmt: skip
