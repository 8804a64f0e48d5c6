"""The command `depthmup`, also `python -m depthmup` and, in the repository, `python main.py`."""

import sys

from depthmup import cli_flags, interrupt


def main(program: str = "depthmup") -> None:
    """Run the command; the core alone, installed without the extra `run`, has no command but `law` and says so."""
    interrupt.watch()
    try:
        if cli_flags.verb_of(sys.argv[1:]) == "law":
            from depthmup.cli import law

            sys.exit(law.run_law(program, sys.argv[1:]))
        from depthmup.cli import command
    except ModuleNotFoundError as error:
        from depthmup.names import install  # loads NumPy

        print(f"error: {program} needs {error.name}: {install('run')}", file=sys.stderr)
        sys.exit(2)
    command.run_command(program)


if __name__ == "__main__":
    main()
