"""No page of the built book is longer than a quarter of an hour's reading.

    words.py DIRECTORY [--all]

Counts the words of each page's text and tables, without code, drawings and equations, and fails where there are more than 3,500.
The appendices may be longer: nobody reads them from end to end. --all prints the counts.
"""

import html.parser
import pathlib
import sys

MOST = 3500
LONG = {"appendix.html", "records.html"}
# What mdBook writes beside the pages.
NOT_PAGES = {"print.html", "toc.html", "404.html", "index.html"}


class Words(html.parser.HTMLParser):
    APART = {"pre", "svg", "math", "script", "style"}

    def __init__(self):
        super().__init__()
        self.is_main, self.apart, self.count = False, 0, 0

    def handle_starttag(self, tag, attributes):
        self.is_main |= tag == "main"
        self.apart += tag in self.APART

    def handle_endtag(self, tag):
        self.is_main &= tag != "main"
        self.apart -= tag in self.APART

    def handle_data(self, data):
        if self.is_main and not self.apart:
            self.count += len(data.split())


def words(path):
    page = Words()
    page.feed(path.read_text())
    return page.count


def main():
    pages = [p for p in pathlib.Path(sys.argv[1]).glob("*.html") if p.name not in NOT_PAGES]
    counts = sorted((words(page), page.name) for page in pages)
    if not counts:
        sys.exit(f"words: {sys.argv[1]}: expected the pages of a book, got none")
    if "--all" in sys.argv:
        for count, name in counts:
            print(f"{count:6} {name}")
    long = [f"{name}: {count} words" for count, name in counts if count > MOST and name not in LONG]
    print(f"{len(counts)} pages, the longest of {max(c for c, name in counts if name not in LONG)} words")
    if long:
        sys.exit(f"words: expected at most {MOST} on a page, got " + "; ".join(long))


if __name__ == "__main__":
    main()
