"""The verbs and flags of the command, and the text of its help. Nothing here needs JAX or absl.

A flag is a row of FLAGS and an argument of its verb in cli/verbs.py.
"""

from __future__ import annotations

import ast
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from depthmup import find_config

PROGRAMS = "depthmup", "python main.py"  # what a command may begin with
WIDTH = 100  # columns of a help
HELP = frozenset(("--help", "-help", "-h", "-?", "--helpshort", "--helpfull", "--helpxml"))


class Verb(NamedTuple):
    """does: what the verb does, in a line. more: what else a user must know. workdir: the meaning of --workdir; "" if
    the verb does not use it. words: what follows the verb in the place of a config; "" for a verb of a config."""

    does: str
    more: str
    workdir: str
    example: str
    words: str = ""


VERBS = {
    "train": Verb(
        "train one network; the verb of a call without one",
        "The same command with the same --workdir goes on after Ctrl-C or a kill. The exit status is 1 if the loss "
        "diverges.",
        "metrics and checkpoints go there; without it nothing is kept",
        "train --config=digits --config.optimizer.learning_rate=0.25 --workdir=runs/digits",
    ),
    "sweep": Verb(
        "train at all learning rates, depths and widths; say whether the best rate transfers",
        "It writes report.html. The same command goes on after Ctrl-C or a kill, and trains what is missing.",
        "trials and the report go there",
        "sweep --config=transfer --workdir=runs/digits_transfer",
    ),
    "tune": Verb(
        "train what tells most of a large run; say its learning rate, and what that may cost",
        "The base is the config's network, its learning rate the first guess. Ctrl-C ends it with the answer as it "
        "stands; the same command goes on, also with more budget. The end is the command of the large run.",
        "trials, choices and the report go there",
        "tune --config=text_gpt --target=width=256,depth=16,epochs=0.5 --budget=10min --workdir=runs/tune",
    ),
    "check": Verb(
        "check that features move alike at all widths and depths (coordinate check)",
        "It checks the config's model with each optimizer of check.optimizers. The exit status is 0 for ok, 1 for not "
        "ok, 3 for undecided.",
        "a plot for each optimizer goes there",
        "check --config=digits --workdir=runs/check",
    ),
    "calibrate": Verb(
        "predict the learning rate of a depth that was not tuned, by several rules",
        "It takes optimizer.learning_rate as the best one at parameterization.base_depth, and measures a gradient and "
        "a jvp at both depths.",
        "",
        "calibrate --config=digits --depth=32",
    ),
    "explain": Verb(
        "print role, init, learning rate and decay of every parameter of the model",
        "",
        "",
        "explain --config=default:vit --diff=default:vit --diff.model.depth=12",
    ),
    "grow": Verb(
        "print the command that trains a larger network with what was tuned",
        "With --workdir it takes the settings and the best learning rate of that sweep, and prints its verdict; "
        "otherwise it takes those of --config.",
        "of a finished sweep",
        "grow --workdir=runs/digits_transfer --config.optimizer.name=adam --width=512 --depth=32",
    ),
    "plan": Verb(
        "say what train or sweep takes on a TPU slice or on this machine: memory, largest batch",
        "The exit status is 1 if it does not fit.",
        "",
        "plan --config=imagenet_vit --topology=v5e:4x4",
    ),
    "compare": Verb(
        "write a page that compares the finished sweeps in several workdirs",
        "It takes the settings from the workdirs. --config.data.data_dir is needed for sweeps of a folder of images.",
        "the page goes there; without it into the first DIR",
        "compare runs/a runs/b --workdir=runs/a_and_b",
        "DIR DIR ...",
    ),
    "law": Verb(
        "say which learning rate a large run wants, from a table of trainings",
        "TABLE.csv has a row for each training: its sizes, learning rate and loss, and if known seed, diverged, "
        "optimizer, parameterization. It needs NumPy, SciPy and Matplotlib alone.",
        "",
        "law runs.csv --target=parameters=7e9,tokens=2e12,batch_size=1024 --report=law.html",
        "TABLE.csv",
    ),
}
WRITE = ("train", "sweep", "tune", "check", "compare")  # verbs that write into the workdir
IN_BUCKET = ("train", "sweep", "compare")  # those of them whose workdir may be in a bucket


class Flag(NamedTuple):
    """A flag besides --config and --workdir. verbs: the verbs that take it. value: a word for its value in the help; ""
    for a switch. words: its meaning."""

    verbs: tuple[str, ...]
    kind: Literal["bool", "string", "integer", "float", "config_file"]
    value: str
    words: str
    default: str | None = None


FLAGS = {
    "profile": Flag(("train",), "bool", "", "write a trace of some steps to WORKDIR/profile"),
    "expect": Flag(("train",), "string", "LOW,HIGH", "the loss that grow expects: the end says whether it came out so"),
    "distributed": Flag(("train",), "bool", "", "this process is one of several, started by Slurm, a pod, GKE or MPI"),
    "coordinator": Flag(("train",), "string", "HOST:PORT", "of the first process, for --distributed elsewhere"),
    "processes": Flag(("train",), "integer", "N", "how many there are, for --distributed elsewhere"),
    "process": Flag(("train",), "integer", "I", "the number of this one, from 0, for --distributed elsewhere"),
    "dry_run": Flag(("sweep",), "bool", "", "say what it would cost, by steps measured here, and train nothing"),
    "yes": Flag(("sweep",), "bool", "", "allow more trials than sweep.max_trials, also with --dry_run"),
    "shard": Flag(("sweep",), "string", "I/N", "only part I of N, from 0/N; without it, all parts' results", "0/1"),
    "executor": Flag(
        ("sweep", "tune"), "string", "NAME", "who trains: local, dask, slurm or mpi; without it this process"
    ),
    "workers": Flag(("sweep", "tune"), "integer", "N", "processes of --executor=local, jobs of slurm"),
    "scheduler": Flag(
        ("sweep", "tune"), "string", "ADDRESS", "of --executor=dask: tls://HOST:PORT, or the scheduler's file"
    ),
    "slurm": Flag(
        ("sweep", "tune"), "string", "NAME=VALUE,...", "a job of --executor=slurm: queue, walltime, cores, memory"
    ),
    "insecure": Flag(("sweep", "tune"), "bool", "", "allow a scheduler without TLS, in a network that you trust"),
    "tables": Flag(("sweep",), "bool", "", "print optima, edges and rules at every size, as the report has them"),
    "average": Flag(
        ("calibrate",), "string", "NAME", "of the layers: arithmetic, geometric, harmonic or sum", "arithmetic"
    ),
    "diff": Flag(("explain",), "config_file", "CONFIG", "say what differs from this config; --diff.KEY=VALUE sets it"),
    "json": Flag(("explain",), "bool", "", "print JSON"),
    "step": Flag(("explain",), "integer", "N", "the learning rates at this step of the schedule"),
    "width": Flag(("grow",), "integer", "N", "of the larger network; without it, as tuned"),
    "depth": Flag(("grow", "calibrate"), "integer", "N", "of the larger network; without it, that of the config"),
    "batch_size": Flag(("grow",), "integer", "N", "of the larger run; without it, as tuned"),
    "epochs": Flag(("grow",), "float", "N", "of the larger run; without it, as tuned"),
    "batch_rule": Flag(("grow",), "string", "NAME", "how hyperparameters follow both (docs/batch.md)"),
    "topology": Flag(("plan",), "string", "SLICE", "a TPU slice, such as v5e:4x4; without it, this machine"),
    "sweep": Flag(("plan",), "bool", "", "of the sweep instead of one training"),
    "target": Flag(("tune", "law"), "string", "SIZE=N,...", "of the large run; of a law perhaps its optimizer too"),
    "columns": Flag(("law",), "string", "COLUMN:NAME,...", "what columns are that have unusual names"),
    "candidates": Flag(("law",), "string", "CSV", "trainings that could be made, with a column cost: which come next?"),
    "budget": Flag(("tune", "law"), "string", "N", "of a tune such as 30min; of candidates in the unit of their cost"),
    "tolerance": Flag(("tune", "law"), "string", "PERCENT", "stop where the rate costs at most this (97.5%), as 1%"),
    "hyperparameter": Flag(("tune",), "string", "NAME", "instead of the learning rate, such as weight_decay"),
    "tuned": Flag(("tune",), "string", "DIR", "with --hyperparameter: the workdir of the tune of the learning rate"),
    "report": Flag(("law",), "string", "FILE", "write the picture and the text there, as HTML"),
}
PROCESS = ("distributed", "coordinator", "processes", "process")  # how this process finds the others of its run


def program(command: str) -> str:
    """What a command begins with; of a call from Python the module, which is there wherever the package is."""
    return next((program for program in PROGRAMS if command.startswith(f"{program} ")), "python -m depthmup")


def changed(command: str, before: str, verb: str, flags: Mapping[str, object]) -> str:
    """The command with `verb` in the place of the verb `before`, and with flags, {name: value}, at its end.

    Flags of the same names go, and those of `before`: what is trained alone has no workdir of a sweep, and grow reads
    the sweep's settings from it.
    """
    gone = {*flags, *(name for name, flag in FLAGS.items() if before in flag.verbs)}
    gone |= {"workdir"} if verb == "train" else set()
    words, kept = iter(shlex.split(command)), []
    for word in words:
        flag, equals, _ = word.partition("=")
        name = flag.lstrip("-")
        if not word.startswith("-") or not (name in gone or (verb == "grow" and name.startswith("config.sweep."))):
            kept.append(verb if word == before else word)
        elif not equals and (name not in FLAGS or FLAGS[name].kind != "bool"):
            next(words, None)  # --flag value
    return shlex.join([*kept, *(f"--{name}={value}" for name, value in flags.items())])


def pairs(flag: str, text: str | None, between: str) -> dict[str, str]:
    """{name: value} of a flag such as --target=width=2048,depth=48."""
    result = dict[str, str]()
    for part in filter(None, (text or "").split(",")):
        name, separator, value = part.partition(between)
        if not (name and separator and value):
            raise ValueError(f"--{flag} is {FLAGS[flag].value}, got {part!r}")
        result[name.strip()] = value.strip()
    return result


def number(flag: str, text: str, unit: str = "") -> float:
    """The value of a flag, with its unit or without."""
    try:
        return float(text.removesuffix(unit))
    except ValueError:
        raise ValueError(f"--{flag} is {FLAGS[flag].value}, got {text!r}") from None


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether the arguments of a call ask for help. No arguments do, too."""
    return not words or not HELP.isdisjoint(words)


def help_text(program: str, words: Sequence[str]) -> str:
    """The help of the verb among these arguments, or the overview. program: what the user typed before them."""
    verb = verb_of(words)
    return "\n".join(_of_verb(program, verb) if verb else _overview(program))


def verb_of(words: Sequence[str]) -> str | None:
    """The verb among the arguments of a call."""
    return next((word for word in words if word in VERBS), None)


def _overview(program: str) -> list[str]:
    return [
        f"{program} VERB --config=CONFIG --workdir=DIR [--config.KEY=VALUE ...]",
        "",
        f"VERB; `{program} VERB --help` has its flags and an example:",
        *_table({name: verb.does for name, verb in VERBS.items()}),
        "",
        "CONFIG is the path of a config file or the name of a config that ships with depthmup:",
        *_table({name: headline(name) for name in find_config.config_names()}),
        "",
        "KEY is a setting: docs/settings.md and configs/default.py have them all.",
        f"First: {program} {VERBS['sweep'].example}",
    ]


def _of_verb(program: str, name: str) -> list[str]:
    verb = VERBS[name]
    flags = {} if verb.words else {
        "--config=CONFIG": "a path, or the name of a shipped config (digits if not given)",
        "--config.KEY=VALUE": "another value of a setting (docs/settings.md)",
    }  # fmt: skip
    if verb.workdir:
        flags["--workdir=DIR"] = verb.workdir
    for word, flag in FLAGS.items():
        if name in flag.verbs:
            flags[f"--{word}={flag.value}" if flag.value else f"--{word}"] = flag.words
    return [
        f"{' '.join(filter(None, (program, name, verb.words)))} [FLAGS]: {verb.does}",
        *textwrap.wrap(verb.more, WIDTH),
        "",
        *_table(flags),
        "",
        f"Example: {program} {verb.example}",
    ]


def headline(config: str) -> str:
    """The first sentence of a shipped config's docstring."""
    words = ast.get_docstring(ast.parse((find_config.SHIPPED / f"{config}.py").read_text())) or ""
    return " ".join(words.partition("\n\n")[0].split())


def _table(rows: dict[str, str]) -> list[str]:
    """Lines of names and their meanings. A long meaning goes on in the next line, in its own column."""
    left = max(map(len, rows)) + 4
    lines: list[str] = []
    for name, meaning in rows.items():
        wrapped = textwrap.wrap(meaning, WIDTH - left) or [""]
        lines += [f"  {name:{left - 2}}{wrapped[0]}", *(" " * left + line for line in wrapped[1:])]
    return lines
