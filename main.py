"""One entry, one config file, eight verbs: the command `depthmup`, from the repository.

python main.py [train | sweep | check | calibrate | explain | grow | plan] --config=configs/digits.py --workdir=DIR
               [--config.key=value ...]
python main.py compare DIR DIR ... [--workdir=OUT]
"""

from depthmup.__main__ import main

if __name__ == "__main__":
    main("python main.py")
