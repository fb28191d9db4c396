"""Above each piece of code that the book includes stands the file that it is of.

    included.py [--write]

Fails where the line is missing or names another file; with --write it writes them.
"""

import pathlib
import re
import sys

PAGES = pathlib.Path(__file__).parent.parent / "book" / "src"
LINE = r'(?:^<p class="file">[^\n]*</p>\n\n)?'
FENCE = re.compile(LINE + r"(^```(?:cpp|rust|python)[^\n]*\n(.*?)^```$)", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"\{\{#include ([^:}]+)(?::[\w-]+)?\}\}")


def named(fence):
    """The block with its files above it; as it is where it holds text of its own."""
    block, inside = fence.groups()
    files = list(dict.fromkeys(path.replace("../../", "") for path in INCLUDE.findall(inside)))
    if not files or INCLUDE.sub("", inside).strip():
        return fence[0]
    return f'<p class="file">{" · ".join(files)}</p>\n\n{block}'


def main():
    wrong = []
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        right = FENCE.sub(named, text)
        if right != text and "--write" in sys.argv:
            page.write_text(right)
        elif right != text:
            wrong.append(page.name)
    if wrong:
        sys.exit(f"included: the files of included code are not named in {', '.join(wrong)}; --write names them")


if __name__ == "__main__":
    main()
