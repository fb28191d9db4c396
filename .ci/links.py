"""Links of the built book and of README pages: files, directories and #anchors. Links to other sites are not followed.

    links.py PATH…

PATH is a page of Markdown, or a directory of HTML, all of whose pages and style sheets are read. No link of these may
leave the directory, which may be read elsewhere. `print.html` holds every other page once more: of that, only the links
to it count.
"""

import functools
import html.parser
import os
import pathlib
import re
import sys
import urllib.parse

# What a tag fetches or leads to.
LEADS = {"href", "src", "poster", "data", "action"}
FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1[`~]* *$", re.MULTILINE | re.DOTALL)
# [text](target "title") and ![text](target), then [name]: target.
INLINE = re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+[\"'(][^)]*)?\)")
DEFINED = re.compile(r"^ {0,3}\[[^\]^]+\]:\s*<?([^\s>]+)", re.MULTILINE)
URL = re.compile(r"url\(\s*[\"']?([^\"')]*)|@import\s+[\"']([^\"']*)")


class Page(html.parser.HTMLParser):
    """The links and the anchors of HTML."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.style = [], set(), False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.style = tag == "style"
        for name, value in attributes:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            if name in LEADS and tag != "base":
                self.links.append(value or "")
            if name == "srcset":
                self.links += [part.split()[0] for part in (value or "").split(",") if part.strip()]
            if name == "style":
                self.links += urls(value or "")

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        if self.style:
            self.links += urls(data)
            self.style = False


def urls(style):
    return [a or b for a, b in URL.findall(style)]


class Markdown(Page):
    """Those of Markdown: headings are anchors, named as GitHub does."""

    def __init__(self, text):
        text = FENCE.sub("", text)
        headings = re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE)
        prose = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
        super().__init__(prose)
        self.links += INLINE.findall(prose) + DEFINED.findall(prose)
        for heading in headings:
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
            slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            number = 0
            while (slug if not number else f"{slug}-{number}") in self.anchors:
                number += 1
            self.anchors.add(slug if not number else f"{slug}-{number}")


class Style:
    """Those of a style sheet."""

    def __init__(self, text):
        self.links, self.anchors = urls(text), set()


KINDS = {".html": Page, ".md": Markdown, ".css": Style}


@functools.cache
def read(path):
    """What a file leads to and what leads into it; None where that is not known."""
    kind = KINDS.get(path.suffix)
    return kind and kind(path.read_text())


def wrong(path, link, within):
    """What is wrong with a link of a file, or None. Those of a directory of HTML stay within it."""
    target, _, anchor = link.partition("#")
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", link):
        return None
    target = urllib.parse.unquote(target.partition("?")[0])
    to = (path.parent / target).resolve() if target else path
    if target.startswith("/"):
        return "leads out of the project"
    if not to.exists():
        return "leads nowhere"
    if within and not to.is_relative_to(within):
        return "leads out of the directory"
    known = read(to) if to.is_file() else None
    if anchor and known and urllib.parse.unquote(anchor) not in known.anchors:
        return "has no such anchor"
    return None


def main():
    found, pages, links = [], 0, 0
    for given in map(pathlib.Path, sys.argv[1:]):
        within = given.resolve() if given.is_dir() else None
        files = [p for p in sorted(given.rglob("*")) if p.suffix in (".html", ".css")] if within else [given]
        for path in (file.resolve() for file in files if file.name != "print.html"):
            pages += 1
            for link in dict.fromkeys(read(path).links):
                links += 1
                if problem := wrong(path, link, within):
                    found.append(f"{os.path.relpath(path)}: {link} {problem}")
    print("\n".join([*found, f"{links} links of {pages} files, {len(found)} wrong"]))
    sys.exit(bool(found) or not links)


if __name__ == "__main__":
    main()
