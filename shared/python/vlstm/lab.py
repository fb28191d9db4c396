"""The tool `lab` of this package: `python -m vlstm.lab check my.cu`, or `lab` where pip puts its commands."""

import signal
import sys

from vlstm import _native

# Another process of the tool.
COMMAND = [sys.executable, "-m", "vlstm.lab"]


def main():
    # As of any command: Python would print a traceback where a pipe is closed or Ctrl-C is pressed.
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    sys.exit(_native.run_lab(COMMAND, sys.argv[1:]))


if __name__ == "__main__":
    main()
