"""`python -m depthmup` is the command `depthmup`."""

from depthmup.cli.command import main

if __name__ == "__main__":
    main()
