"""The command that main.py and the installed `depthmup` share: flags, one config, one of eight verbs."""

from __future__ import annotations

import functools
import re
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
from absl import app, flags, logging
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from depthmup import find_config, interrupt
from depthmup.backend import out_of_memory, prepare_cpu

HELP = """One entry, one config, eight verbs.

{program} [train | sweep | check | calibrate | explain | grow | plan] --config=digits --workdir=DIR
          [--config.key=value ...]
{program} compare DIR DIR ... [--workdir=OUT]

--config takes the path of a config file, or the name of a config that ships with depthmup:
{names}.
default:FAMILY is the default config of another family of models: default:vit.

One TPU pod or several GPU hosts: the same command on each, with --distributed (docs/pods.md).
"""
OPTIONS = {
    "average": "calibrate",
    "profile": "train",
    "dry_run": "sweep",
    "yes": "sweep",
    "launcher": "sweep",
    "shard": "sweep",
    "tables": "sweep",
    "diff": "explain",
    "json": "explain",
    "step": "explain",
    "width": "grow",
    "depth": "grow",
    "batch_size": "grow",
    "epochs": "grow",
    "batch_rule": "grow",
    "topology": "plan",
    "sweep": "plan",
}


def parse(argv: Sequence[str]) -> Sequence[str]:
    """Flags, with a mistake in them as one line (a config flag is read when it is defined)."""
    try:
        argv = find_config.paths(argv)
        config_flags.DEFINE_config_file(
            "config",
            find_config.find("digits"),
            "Config file, or the name of a shipped one; --config.key=value overrides.",
            sys_argv=argv,
        )
        flags.DEFINE_string(
            "workdir",
            None,
            "Where results go; sweep needs it, check draws and train writes there; compare: its page.",
        )
        flags.DEFINE_bool("profile", False, "train: write a trace of some steps to WORKDIR/profile.")
        flags.DEFINE_string(
            "average", "arithmetic", "calibrate: of the layers: arithmetic, geometric, harmonic or sum."
        )
        flags.DEFINE_bool("dry_run", False, "sweep: say what it would cost, by steps measured here, and train nothing.")
        flags.DEFINE_bool("yes", False, "sweep, also with --dry_run: allow more than sweep.max_trials trials.")
        flags.DEFINE_string("launcher", "local", "sweep: local, or ray, a cluster (RAY_ADDRESS).")
        flags.DEFINE_string("shard", "0/1", "sweep: only part i of n, as i/n from 0/n; without it, all parts' results.")
        flags.DEFINE_bool(
            "tables", False, "sweep: print optima, edges and rules at every size, as the report has them."
        )
        config_flags.DEFINE_config_file(
            "diff", None, "explain: a second config; what differs; --diff.key=value overrides.", sys_argv=argv
        )
        flags.DEFINE_bool("json", False, "explain: print JSON.")
        flags.DEFINE_integer("step", None, "explain: the learning rates at this step of the schedule.")
        flags.DEFINE_integer("width", None, "grow: of the larger run.")
        flags.DEFINE_integer("depth", None, "grow: of the larger run.")
        flags.DEFINE_integer("batch_size", None, "grow: of the larger run; as in the config without it.")
        flags.DEFINE_float("epochs", None, "grow: the length of the larger run; as in the config without it.")
        flags.DEFINE_string("batch_rule", None, "grow: how hyperparameters follow both (docs/batch.md).")
        flags.DEFINE_string("topology", None, "plan: a TPU slice, such as v5e:4x4; without it, this machine.")
        flags.DEFINE_bool("sweep", False, "plan: of the sweep instead of one training.")
        flags.DEFINE_bool(
            "distributed", False, "This process is one of several; found in the environment if not below."
        )
        flags.DEFINE_string("coordinator", None, "HOST:PORT of the first process, for --distributed.")
        flags.DEFINE_integer("processes", None, "Number of processes, for --distributed.")
        flags.DEFINE_integer("process", None, "Number of this process, from 0, for --distributed.")
        for flag in flags.FLAGS.flags_by_module_dict()[__name__]:  # --help shows the flags of the file that was started
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
        rest = _parsed(argv)
        flags.FLAGS.config.keys()  # a file that cannot be read says so only now
        return rest
    except (KeyError, AttributeError) as error:
        # The key, perhaps with 'Did you mean "X" instead of "Y"'; but the config file may have such an error itself.
        words = re.findall(r"\w+", str(error).replace("\\n", " "))
        if not words or not any(words[0] in argument for argument in argv):
            fail(f"{type(error).__name__} in the config file: {error}")
        near = (
            f"; did you mean {words[4]!r}?" if words[1:4] == ["Did", "you", "mean"] else " (configs/default.py has all)"
        )
        fail(f"unknown config key {words[0]!r}{near}")
    except (flags.Error, TypeError, ValueError, OSError) as error:
        cause: BaseException = error
        while "Traceback (most recent call last)" in str(cause) and cause.__context__:  # which ml_collections adds
            cause = cause.__context__
        fail(str(cause))
    except Exception as error:
        fail(f"{type(error).__name__} in the config file: {error}")


def _parsed(argv: Sequence[str]) -> Sequence[str]:
    """The arguments that are no flags. It ends the command after --help."""
    try:
        return flags.FLAGS(argv)
    except SystemExit:  # of --help, to which absl gives the status 1
        sys.exit(0)


class _Values(flags.ArgumentParser):
    """A list of a config, `--config.sweep.depths="(2,4)"`. Given again it takes the place of the first, as with every
    flag: the parser of ml_collections, of which this is no subclass, would join the two."""

    def parse(self, argument: Any) -> tuple[Any, ...]:
        return tuple_parser.TupleParser().parse(argument)


config_flags.register_flag_parser_for_type(tuple, _Values())


def fail(message: str) -> NoReturn:
    """One line, and the exit status of a wrong call (1 is that of a run that went wrong)."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def join() -> None:
    """Join the other processes of this run: as the flags say, else as Slurm, a TPU pod, GKE or MPI do, as JAX finds."""
    given = {name: flags.FLAGS[name].value for name in ("coordinator", "processes", "process")}
    if not flags.FLAGS.distributed:
        if any(value is not None for value in given.values()):
            fail("--coordinator, --processes and --process are for --distributed: give that too")
        return
    try:
        jax.distributed.initialize(given["coordinator"], given["processes"], given["process"])
    except (ValueError, RuntimeError) as error:
        fail(f"--distributed: {error} Give --coordinator=HOST:PORT --processes=N --process=I (docs/training.md)")


def main(argv: Sequence[str], program: str) -> None:
    """program: how this was started, for the command that a workdir and its report keep."""
    join()
    from depthmup import verbs
    from depthmup.settings import SettingsError, from_config
    from depthmup.train.stop import Stopped
    from depthmup.train.workdir import WorkdirError

    verb = argv[1] if len(argv) > 1 else "train"
    command = f"{program} {shlex.join(sys.argv[1:])}"
    workdir = Path(flags.FLAGS.workdir) if flags.FLAGS.workdir else None
    try:
        for name in ("workdir", *OPTIONS):
            if flags.FLAGS[name].value == "":
                raise SettingsError(f"--{name}= is empty: give a value, or leave it out")
        if verb not in verbs.VERBS or (len(argv) > 2 and verb != "compare"):
            raise SettingsError(f"verb {' '.join(argv[1:])!r}: give one of {', '.join(verbs.VERBS)}")
        if workdir and any(parent.is_file() for parent in (workdir, *workdir.parents)):
            raise SettingsError(f"--workdir={workdir} is, or is inside, a file: give a folder")
        if verb != "train" and (flags.FLAGS.profile or jax.process_count() > 1):
            raise SettingsError("--profile and --distributed are for train; a sweep has --launcher=ray and --shard")
        options = {name: flags.FLAGS[name].value for name in OPTIONS if not flags.FLAGS[name].using_default_value}
        for name in options:
            if OPTIONS[name] != verb:
                raise SettingsError(f"--{name} is for {OPTIONS[name]}, not for {verb}")
        if verb == "compare":
            options["folders"] = argv[2:]
        status = verbs.VERBS[verb](from_config(flags.FLAGS.config), workdir, command, **options)
    except (ValueError, WorkdirError) as error:
        fail(str(error))
    except OSError as error:  # a full disk, a folder that cannot be written
        fail(f"{type(error).__name__}: {error}")
    except jax.errors.JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        fail("out of memory: choose a smaller model.width, model.depth or data.batch_size, or more parallel.devices")
    except Stopped as stopped:
        if jax.process_index() == 0:
            print(stopped, file=sys.stderr)
        status = 128 + stopped.signal
    except KeyboardInterrupt:
        print("interrupted: what is finished is kept; the same command goes on from there", file=sys.stderr)
        status = 130
    sys.exit(status)


def run(program: str) -> NoReturn:
    """Run the command and leave the process with its exit status. program: what the user typed before the verb."""
    names = textwrap.fill(", ".join(find_config.names()), 100)
    sys.modules["__main__"].__doc__ = HELP.format(program=program, names=names)  # what --help prints
    interrupt.watch()
    prepare_cpu()
    logging.set_verbosity(logging.WARNING)
    # Orbax logs a failure four times, each with its traceback; we say it in one line.
    logging.get_absl_handler().addFilter(lambda record: "orbax" not in record.pathname)
    app.run(functools.partial(main, program=program), flags_parser=parse)
