"""What a call asks for: flags, one config, one of nine verbs. A wrong one is an error before JAX is imported."""

from __future__ import annotations

import difflib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from absl import flags
from ml_collections import config_flags
from ml_collections.config_flags import tuple_parser

from depthmup import bucket, cli_flags, find_config

if TYPE_CHECKING:
    from depthmup.settings import Settings


def parse_command(argv: Sequence[str]) -> Sequence[str]:
    """Define and parse the flags; returns the other arguments. A mistake ends the command with one line.

    ml_collections reads a config file when its flag is defined.
    """
    try:
        argv = find_config.paths(argv)
        config_flags.DEFINE_config_file("config", find_config.find("digits"), "", sys_argv=argv)
        flags.DEFINE_string("workdir", None, "")
        for name, flag in cli_flags.FLAGS.items():
            if flag.kind == "config_file":
                config_flags.DEFINE_config_file(name, None, flag.words, sys_argv=argv)
            else:
                getattr(flags, f"DEFINE_{flag.kind}")(name, flag.default, flag.words)
        rest = flags.FLAGS(argv)
        flags.FLAGS.config.keys()  # raises for a file that cannot be read
        return rest
    except (KeyError, AttributeError) as error:
        # The key, perhaps with 'Did you mean "X" instead of "Y"'; but the config file may have such an error itself.
        words = re.findall(r"\w+", str(error).replace("\\n", " "))
        paths = (argument.lstrip("-").split("=")[0].split(".") for argument in argv)
        path = next((path for path in paths if words and words[0] in path), None)
        if path is None:
            fail(f"{type(error).__name__} in the config file: {error}")
        from depthmup.names import unknown_key

        near = words[4] if words[1:4] == ["Did", "you", "mean"] else None
        fail(str(unknown_key(".".join(path[: path.index(words[0])]), words[0], near)))
    except (flags.Error, TypeError, ValueError, OSError) as error:
        cause: BaseException = error
        while "Traceback (most recent call last)" in str(cause) and cause.__context__:  # ml_collections adds it
            cause = cause.__context__
        if "get_config() takes 0 positional arguments" in str(cause):
            fail("this config takes nothing behind a colon; the family of models stands behind default:")
        fail(str(cause))
    except (Exception, SystemExit) as error:
        fail(f"{type(error).__name__} in the config file: {error}")


class _Values(flags.ArgumentParser):
    """The parser of a list in a config, `--config.sweep.depths="(2,4)"`. If a call gives a list twice, the last one
    counts, as with every flag: ml_collections would join the lists of its `TupleParser` and of a subclass."""

    def parse(self, argument: Any) -> tuple[Any, ...]:
        values: tuple[Any, ...] = tuple_parser.TupleParser().parse(argument)
        if values != (argument,) or not isinstance(argument, str):
            return values
        words = [word.strip() for word in argument.split(",") if word.strip()]  # names without quotes, or nothing
        return tuple(words) if all(map(str.isidentifier, words)) else values


config_flags.register_flag_parser_for_type(tuple, _Values())


def fail(message: str) -> NoReturn:
    """One line, and the exit status of a wrong call (1 is that of a run that went wrong)."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def call_of(words: Sequence[str]) -> tuple[str, Path | None, dict[str, Any]]:
    """(verb, workdir, options of the verb) from the words and flags of a call.

    Raises ValueError for a call that is wrong with any config. This needs no JAX.
    """
    values, verb = flags.FLAGS, words[0] if words else "train"
    for name in ("workdir", *cli_flags.FLAGS):
        if values[name].value == "":
            raise ValueError(f"--{name}= is empty: give a value, or leave it out")
    if verb not in cli_flags.VERBS or (len(words) > 1 and verb != "compare"):
        near = difflib.get_close_matches(verb, cli_flags.VERBS, n=1)
        meant = f"; did you mean {near[0]!r}?" if near and near[0] != verb else ""
        raise ValueError(f"verb {' '.join(words)!r}: give one of {', '.join(cli_flags.VERBS)}{meant}")
    options = {name: values[name].value for name in cli_flags.FLAGS if not values[name].using_default_value}
    for name in options:
        if verb not in cli_flags.FLAGS[name].verbs:
            raise ValueError(f"--{name} is for {' and '.join(cli_flags.FLAGS[name].verbs)}, not for {verb}")
    process = {name: options.pop(name, None) for name in cli_flags.PROCESS}
    if not process["distributed"] and any(value is not None for value in process.values()):
        raise ValueError("--coordinator, --processes and --process are for --distributed: give that too")
    _check_process(process["coordinator"], process["processes"], process["process"])
    workdir = bucket.folder(values.workdir) if values.workdir else None
    if workdir and verb in cli_flags.WRITE:
        if bucket.in_bucket(workdir) and verb not in cli_flags.IN_BUCKET:
            raise ValueError(f"--workdir={workdir} is for {', '.join(cli_flags.IN_BUCKET)}: give {verb} a local folder")
        check_folder(workdir)
    if verb == "compare":
        options["folders"] = words[1:]
    if verb == "grow":
        options["keep"] = tuple(config_flags.get_override_values(values["config"]))
    return verb, workdir, options


def _check_process(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Raises ValueError for a coordinator or a number at which JAX would wait forever."""
    port = re.fullmatch(r"[^:\s]+:(\d{1,5})|\[.+\]:(\d{1,5})", coordinator or "a:1")
    if port is None or not 0 < int(port[1] or port[2]) < 2**16:
        raise ValueError(f"--coordinator={coordinator} must be HOST:PORT, with a port from 1 to 65535")
    if processes is not None and processes < 1:
        raise ValueError(f"--processes must be at least 1, got {processes}")
    if process is not None and not 0 <= process < (processes or process + 1):
        raise ValueError(f"--process must be from 0 to --processes - 1, got {process}")


def check_folder(path: Path) -> None:
    """Raises ValueError if results cannot be written into this folder, or if it cannot be made. It is not made here."""
    if bucket.in_bucket(path):
        return bucket.check(path)
    try:
        parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    except OSError as error:  # a name that is too long
        raise ValueError(f"--workdir={str(path)[:40]}...: {error.strerror}; give another") from error
    if not parent.is_dir():
        raise ValueError(f"--workdir={path} is, or is inside, a file: give a folder")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".depthmup-", dir=parent))
    except OSError as error:
        raise ValueError(f"--workdir={path}: {parent} cannot be written ({error.strerror}); give another") from error


def check_learning_rate(settings: Settings) -> None:
    """Raises ValueError if a call changes the optimizer and not the learning rate, which is for the config's optimizer.

    Adam and AdamW take the same learning rates.
    """
    name, rate = "config.optimizer.name", "config.optimizer.learning_rate"
    if name not in flags.FLAGS or rate in flags.FLAGS:
        return
    default, chosen = flags.FLAGS[name].default, settings.optimizer.name
    if chosen == default or {chosen, default} == {"adam", "adamw"}:
        return
    grid = settings.sweep.log2_learning_rates.get(chosen)
    usual = f", such as {2 ** (sum(grid) / 2):.2g}, the middle of its grid in a sweep" if grid else ""
    raise ValueError(
        f"--{name}={chosen} needs a --{rate} of its own{usual}; {settings.optimizer.learning_rate:g} is for {default}"
    )


def join() -> None:
    """Join the other processes of this run, by the flags, or as JAX finds them under Slurm, MPI, GKE or on TPU pods."""
    if not flags.FLAGS.distributed:
        return
    import jax

    try:
        jax.distributed.initialize(flags.FLAGS.coordinator, flags.FLAGS.processes, flags.FLAGS.process)
    except (ValueError, RuntimeError) as error:
        fail(f"--distributed: {error} Give --coordinator=HOST:PORT --processes=N --process=I (docs/training.md)")
