"""Opens every page of the built book in headless Chromium, as its readers do: a desktop in the light
theme, a phone in the dark one. Fails on an error in the console, on a request that leaves the
machine or finds nothing, on an image that did not load, on equations that were left as source, do
not parse, have no size or come in another font than theirs, and on text wider than the screen.

    pages.py DIRECTORY [--pictures DIRECTORY]

With --pictures it also stores a PNG of each.
"""

import argparse
import functools
import http.server
import pathlib
import shutil
import sys
import threading

from playwright.sync_api import sync_playwright

SCREENS = {
    "desktop": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}

# What the page itself knows: images, equations, and what sticks out of a screen.
LOOK = """() => {
// Browsers show what lacks an argument, or has one too many, in whatever way.
const parts = {mfrac: 2, mroot: 2, msub: 2, msup: 2, munder: 2, mover: 2, msubsup: 3, munderover: 3};
const malformed = math => [...math.querySelectorAll(Object.keys(parts).join())]
    .some(e => e.children.length !== parts[e.localName]);
return {
    images: [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src),
    source: [...document.querySelectorAll('code.language-math, code.language-latex')]
        .map(e => e.textContent),
    bad: [...document.querySelectorAll('math')]
        .filter(e => !e.getBoundingClientRect().width || !e.getBoundingClientRect().height
            || e.querySelector('merror') || !e.closest('.equation') || malformed(e))
        .map(e => e.outerHTML),
    equations: document.querySelectorAll('math').length,
    font: [...document.fonts].some(f => f.family.includes('STIX') && f.status === 'loaded'),
    wide: document.documentElement.scrollWidth - window.innerWidth,
    widest: [...document.querySelectorAll('main *')]
        .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1
            && !e.closest('pre, .table-wrapper, svg, math'))
        .map(e => e.outerHTML.slice(0, 80))[0] ?? '',
    text: document.querySelector('main')?.innerText.trim().length ?? 0,
}}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def problems_of(page, site, name, picture):
    found = []

    def on_console(message):
        if message.type in ("error", "warning"):
            found.append(f"console: {message.text}")

    def on_request(request):
        if not request.url.startswith((site, "data:", "blob:")):
            found.append(f"asks for {request.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: found.append(f"error: {error}"))
    page.on("request", on_request)
    page.on("response", lambda r: r.ok or found.append(f"status {r.status}: {r.url}"))
    page.goto(site + name)
    page.wait_for_load_state("networkidle")
    seen = page.evaluate(LOOK)
    found += [f"image not loaded: {src}" for src in seen["images"]]
    found += [f"equation left as source: {text[:60]}" for text in seen["source"]]
    found += [f"equation not shown: {html[:160]}" for html in seen["bad"]]
    if seen["equations"] and not seen["font"]:
        found.append("equations without their font")
    if seen["wide"] > 0:
        found.append(f"{seen['wide']} px wider than the screen: {seen['widest']}")
    if not seen["text"]:
        found.append("an empty page")
    if picture:
        page.screenshot(path=picture)
    return found


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("book", type=pathlib.Path)
    arguments.add_argument("--pictures", type=pathlib.Path)
    arguments = arguments.parse_args()
    # toc.html is the frame of the table of contents for readers without scripts.
    pages = sorted(p for p in arguments.book.rglob("*.html") if p.name != "toc.html")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not pages or not chromium:
        sys.exit(f"pages: {len(pages)} in {arguments.book}; Chromium: {chromium}")
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    serve = functools.partial(Quiet, directory=arguments.book)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_port}/"
    failed = False
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for screen, settings in SCREENS.items():
            for path in pages:
                context = browser.new_context(**settings)
                picture = arguments.pictures and arguments.pictures / f"{path.stem}-{screen}.png"
                name = path.relative_to(arguments.book).as_posix()
                for problem in problems_of(context.new_page(), site, name, picture):
                    print(f"{path.name} ({screen}): {problem}")
                    failed = True
                context.close()
        browser.close()
    print(f"{len(pages)} pages on {len(SCREENS)} screens")
    sys.exit(failed)


if __name__ == "__main__":
    main()
