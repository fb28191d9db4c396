"""LinkChecker over the built book and the README pages: files, directories and #anchors.

Links to other sites are not followed. LinkChecker started by root becomes the user `nobody`, who
may not read a clone in root's home; what is checked here is the project's own, so it stays root.
"""

import pathlib
import sys

import linkcheck.command.linkchecker as command

command.drop_privileges = lambda: None
config = pathlib.Path(__file__).with_name("linkchecker.ini")
sys.argv[1:1] = ["--no-status", f"--config={config}"]
command.linkchecker()
