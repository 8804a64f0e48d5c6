"""The command, which main.py and the installed `depthmup` share: a call becomes a verb, and an error one line."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Sequence

from depthmup import cli_flags
from depthmup.interrupt import KEPT, watch


def main(program: str = "depthmup") -> None:
    """Run the command and leave the process with its exit status. program: what the user typed before the verb.

    The core alone, installed without the extra `run`, has no command but `law` and says so.
    """
    watch()
    words = sys.argv[1:]
    try:
        if cli_flags.verb_of(words) == "law":
            from depthmup.cli import law

            sys.exit(law.run_law(program, words))
        from absl import app, logging

        from depthmup.cli.arguments import parse_command
    except ModuleNotFoundError as error:
        from depthmup.names import install  # loads NumPy

        print(f"error: {program} needs {error.name}: {install('run')}", file=sys.stderr)
        sys.exit(2)
    if cli_flags.asks_for_help(words):
        print(cli_flags.help_text(program, words))
        sys.exit(0)
    logging.set_verbosity(logging.WARNING)
    # Orbax logs a failure four times, each with its traceback. `run_verb` prints one line.
    logging.get_absl_handler().addFilter(lambda record: "orbax" not in record.pathname)
    app.run(functools.partial(run_verb, program=program), flags_parser=parse_command)


def run_verb(argv: Sequence[str], program: str) -> None:
    """Run the verb of a call. program: what the user typed before the verb; a workdir and its report keep it."""
    from absl import flags

    from depthmup.cli.arguments import call_of, check_learning_rate, fail, join

    try:
        verb, workdir, options = call_of(argv[1:])
    except ValueError as error:
        fail(str(error))
    from depthmup.backend import out_of_memory, prepare_cpu

    prepare_cpu()
    join()
    import jax

    from depthmup.cli import verbs
    from depthmup.settings import from_config
    from depthmup.train.stop import Stopped
    from depthmup.train.workdir import NotSaved, WorkdirError
    from depthmup.trials.workers import WorkersLost

    command = f"{program} {shlex.join(sys.argv[1:])}"
    try:
        settings = from_config(flags.FLAGS.config)
        if verb in ("train", "calibrate", "explain") or (verb == "grow" and not workdir):
            check_learning_rate(settings)
        status = verbs.VERBS[verb](settings, workdir, command, **options)
    except (ValueError, WorkdirError) as error:
        fail(str(error))
    except (NotSaved, WorkersLost) as error:
        print("error:", error, file=sys.stderr)
        status = 1
    except OSError as error:  # a full disk, a folder that cannot be written
        fail(f"{type(error).__name__}: {error}")
    except jax.errors.JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        fail(
            "out of memory: choose a smaller model.width, model.depth or data.batch_size, or more parallel.devices, or "
            "split the state over them (parallel.mesh)"
        )
    except Stopped as stopped:
        if jax.process_index() == 0:
            print(stopped, file=sys.stderr)
        status = 128 + stopped.signal
    except KeyboardInterrupt:
        print(f"interrupted: {KEPT}", file=sys.stderr)
        status = 130
    sys.exit(status)
