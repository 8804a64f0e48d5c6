"""One entry, one config file, eight verbs: the command `depthmup`, from the repository.

python main.py [train | sweep | check | calibrate | explain | grow | plan] --config=configs/digits.py --workdir=DIR
               [--config.key=value ...]
python main.py compare DIR DIR ... [--workdir=OUT]
"""

import os
import signal

# While Python imports, Ctrl-C ends in a line; then depthmup.interrupt follows.
signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"stopped by SIGINT: nothing was begun\n"), os._exit(130)))

from depthmup.__main__ import main  # noqa: E402

if __name__ == "__main__":
    main("python main.py")
