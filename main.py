"""The command `depthmup`, from the repository: `python main.py --help` says what it does."""

from depthmup.cli.command import main

if __name__ == "__main__":
    main("python main.py")
