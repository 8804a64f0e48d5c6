"""Builds the wheel and the sdist into dist/ and tries the wheel as its users do, outside the repository.

    python -m tests.dist [PYTHON ...]        # make dist; needs the network; python3.11 and python3.12 if none is given

What it checks: what is in both files; their metadata (twine); the core alone, installed into an empty environment, with
the time and size of the installation; the extra `run` in another one, with a small sweep by the name of its config. A
Python that is not here is skipped. The exit status is 1 at the first thing that is wrong.
"""

import argparse
import email
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = {"flax", "jax", "numpy", "optax"}
# What the core does without its extras; infinite depth names the extra that it needs.
USE_THE_CORE = """
import depthmup as dm
import numpy as np

print(dm.__version__, dm.__file__)
dm.parameterization("depth_mup", base_width=64, base_depth=4)
dm.fit.power_law([2, 4, 8], [1.0, 0.5, 0.25])
dm.theory.lazy_kernels(np.eye(2), depth=3, activation="tanh")
try:
    dm.theory.lazy_kernels(np.eye(2), activation="tanh")
except ModuleNotFoundError as error:
    assert ".[theory]" in str(error), error
"""
SWEEP = [
    *("sweep", "--config=digits", "--workdir=sweep", "--config.epochs=0.1", "--config.sweep.seeds=1"),
    *("--config.sweep.depths=(2,)", "--config.sweep.widths=()", "--config.sweep.optimizers=('sgd',)"),
    *("--config.sweep.axes=optimizer.learning_rate = log(0.1, 1, 5)", "--config.model.width=16"),
]


def run(*command, **options):
    """What a command prints; its exit status must be `status`, 0 unless told."""
    status = options.pop("status", 0)
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    text = done.stdout + done.stderr
    check(done.returncode == status, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{text}")
    return text


def check(holds, message):
    if not holds:
        sys.exit(f"error: {message}")


def tracked(*folders):
    """The files of the repository, those that git ignores left out."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders, cwd=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def environment(python, folder):
    """A new environment without packages; its python."""
    run(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python, *requirements):
    """Seconds that it took."""
    start = time.monotonic()
    run(python, "-m", "pip", "install", "--disable-pip-version-check", *requirements)
    return time.monotonic() - start


def build(folder):
    """(wheel, sdist) in dist/, of a copy: what lies about in the working tree is not built in."""
    source, dist = folder / "source", ROOT / "dist"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    tools = environment(sys.executable, folder / "tools")
    install(tools, "build", "twine")
    shutil.rmtree(dist, ignore_errors=True)
    run(tools, "-m", "build", "--outdir", dist, source)  # the wheel is built from the sdist
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    run(tools, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def check_contents(wheel, sdist):
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(file.read(metadata))
    expected = {*tracked("depthmup"), *(f"depthmup/{name}" for name in tracked("configs"))}
    check(inside == expected, f"{wheel.name} lacks or has too much: {sorted(inside ^ expected)}")
    check({"depthmup/py.typed", "depthmup/configs/digits.py"} <= inside, f"{wheel.name} lacks py.typed or digits")
    needs = {re.match(r"[\w-]+", line)[0] for line in about.get_all("Requires-Dist") if "extra ==" not in line}
    check(needs == CORE, f"the core needs {', '.join(sorted(needs))}")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    source = {*tracked("depthmup", "configs", "main.py", "setup.py", "pyproject.toml", "LICENSE", "README.md")}
    check(source <= names, f"{sdist.name} lacks {sorted(source - names)}")
    check(not any(name.startswith("tests") for name in names), f"{sdist.name} has tests")
    for path in (wheel, sdist):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:,.0f} kB")


def check_core(python, wheel, folder):
    """The core alone: how long it takes to install, how large it is, what it does and says."""
    interpreter = environment(python, folder / "core")
    library = Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    before = set(library.iterdir())
    seconds = install(interpreter, wheel)
    sizes = {path.name: size(path) for path in set(library.iterdir()) - before}
    check("configs" not in sizes, "the wheel puts a package called configs into site-packages")
    version = run(interpreter, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    jax = re.search(r"^jax==(.*)$", version, re.M)[1]
    largest = sorted((name for name in sizes if "." not in name), key=lambda name: -sizes[name])[:4]
    packages = len([name for name in sizes if name.endswith(".dist-info")])
    print(
        f"{run(interpreter, '--version').strip()}, jax {jax}: the core installs in {seconds:.0f} s and takes "
        f"{sum(sizes.values()) / 1e6:,.0f} MB, {packages} packages ("
        + ", ".join(f"{name} {sizes[name] / 1e6:,.0f}" for name in largest)
        + f", depthmup {sizes['depthmup'] / 1e6:.1f})"
    )
    run(interpreter, "-c", USE_THE_CORE, cwd=folder)
    message = run(interpreter.with_name("depthmup"), "--help", cwd=folder, status=2)
    check(
        "pip install -e '.[run]'" in message and message.count("\n") == 1,
        f"without the extra the command says {message}",
    )


def size(path):
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_run(python, wheel, folder):
    """The extra run: the command, from a folder outside the repository."""
    interpreter = environment(python, folder / "run")
    seconds = install(interpreter, f"{wheel}[run]")
    command, away = interpreter.with_name("depthmup"), folder / "away"
    away.mkdir()
    listed = run(interpreter, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    check("tensorflow==" not in listed and "tensorflow-cpu==" not in listed, "the extra run installs TensorFlow")
    check("depthmup VERB --config" in run(command, "--help", cwd=away), "--help does not say how to call it")
    start = time.monotonic()
    printed = run(command, *SWEEP, cwd=away)
    check("15 trials in sweep; report: " in printed and (away / "sweep" / "report.html").exists(), printed)
    check("depthmup sweep --config=digits" in (away / "sweep" / "report.html").read_text(), "the report's command")
    print(f"  with the extra run in {seconds:.0f} s; a sweep of 15 trials in {time.monotonic() - start:.0f} s")
    run(command, "explain", "--config=default:vit", "--config.model.depth=2", cwd=away)
    # A config that imports configs.papers, which imports configs.default.
    run(command, "explain", "--config=patches:simple_resnet", cwd=away)
    check("did you mean 'digits'" in run(command, "--config=digit", cwd=away, status=2), "no near name is said")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=["python3.11", "python3.12"], metavar="PYTHON")
    pythons = parser.parse_args().pythons
    with tempfile.TemporaryDirectory(prefix="depthmup-dist-") as temporary:
        wheel, sdist = build(Path(temporary))
        check_contents(wheel, sdist)
        for python in pythons:
            interpreter = shutil.which(python)
            if not interpreter or subprocess.run([interpreter, "--version"], capture_output=True).returncode:
                print(f"{python}: skipped, it is not here")
                continue
            folder = Path(temporary, Path(python).name)
            folder.mkdir()
            check_core(interpreter, wheel, folder)
            check_run(interpreter, wheel, folder)


if __name__ == "__main__":
    main()
