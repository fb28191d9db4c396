"""Opens every page of the built book in headless Chromium, as its readers do: a desktop in the light
theme, a phone in the dark one. Fails on an error in the console, on a request that leaves the
machine or finds nothing, on an image that did not load, on equations that were left as source, do
not parse, have no size or come in another font than theirs, and on text wider than the screen.

Figures that move it steps through, by keys and by buttons, in each theme, and looks at their stills: without
scripts and on paper. At each step their buttons and the current line must be on the screen.

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

# What the page itself knows of its images and equations.
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
    text: document.querySelector('main')?.innerText.trim().length ?? 0,
}}"""

# The first element that sticks out of the screen, unless a frame around it scrolls: the page itself hides what does.
WIDE = """() => {
const framed = e => e.localName !== 'main' && (getComputedStyle(e).overflowX === 'auto'
    ? e.getBoundingClientRect().right <= window.innerWidth + 1 : framed(e.parentElement));
const wide = [...document.querySelectorAll('main *')]
    .find(e => e.getBoundingClientRect().right > window.innerWidth + 1 && !framed(e));
return wide?.outerHTML.slice(0, 80);
}"""

# Of a figure that moves: what it shows at each step, from the first by a key to the last; the steps whose buttons, or
# whose line, are not on the screen; and the text in it that is hard to read on its ground.
STEPS = """(figure, steps) => {
const stage = figure.querySelector('.stage'), head = figure.querySelector('.head'), seen = [], lost = [];
const current = name => [...figure.querySelectorAll(`.scene ${name}, .scene${name}`)].filter(e => e.checkVisibility());
const onScreen = (e, top) => {
    const box = e.getBoundingClientRect(), list = e.closest('.listing')?.getBoundingClientRect();
    return box.top >= Math.max(top, list?.top ?? 0) - 1 && box.bottom <= Math.min(innerHeight, list?.bottom ?? innerHeight) + 1;
};
for (let step = 1; step <= steps; step++) {
    const lines = current(".line.now"), now = lines.length ? lines : [...current(".now"), ...current(".busy")];
    // The first step is where a reader has scrolled to.
    if (step > 1 && !onScreen(figure.querySelector('.controls'), 0)) lost.push(`${step}, its buttons`);
    if (step > 1 && now.length && !now.some(e => onScreen(e, head.getBoundingClientRect().bottom)))
        lost.push(`${step}, its line`);
    const shown = [...figure.querySelectorAll('.scene, .says')].map(e => e.outerHTML).join('');
    seen.push([figure.querySelector('.where').textContent, shown]);
    stage.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
}
const where = seen.findIndex(([at], n) => at !== `${n + 1} / ${steps}`);
return {wrong: where < 0 ? null : seen[where][0], pictures: new Set(seen.map(([, shown]) => shown)).size, lost};
}"""
FAINT = """figure => {
const parts = text => {
    const numbers = text.match(/-?[\\d.]+/g).map(Number);
    const [r, g, b] = text.startsWith('color(') ? numbers.slice(0, 3).map(n => 255 * n) : numbers;
    return [r, g, b, numbers[3] ?? 1];
};
const over = ([r, g, b, a], under) => [r, g, b].map((c, n) => c * a + under[n] * (1 - a));
const ground = e => e ? over(parts(getComputedStyle(e).backgroundColor), ground(e.parentElement)) : [255, 255, 255];
const light = rgb => {
    const [r, g, b] = rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
};
// What is not to be read now: a button that does nothing, a step that has not come, a lane in its colour.
return [...figure.querySelectorAll('*')]
    .filter(e => e.checkVisibility() && !e.closest('svg, :disabled, .ahead, .lanes')
        && [...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.textContent.trim()))
    .map(e => [e, light(over(parts(getComputedStyle(e).color), ground(e))), light(ground(e))])
    .filter(([, a, b]) => Math.max(a, b) / Math.min(a, b) < 4.5)
    .map(([e]) => e.outerHTML.slice(0, 80));
}"""
THEMES = ["light", "rust", "coal", "navy", "ayu"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def end_headers(self):
        # What pages have in common is fetched once.
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()


class Visit:
    """A browser's page that goes from one page of the book to the next: a new one for each takes twice as long."""

    def __init__(self, context, site):
        self.page, self.site, self.found = context.new_page(), site, []
        self.page.on("console", self.on_console)
        self.page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        self.page.on("request", self.on_request)
        self.page.on("response", lambda r: r.ok or self.found.append(f"status {r.status}: {r.url}"))

    def on_console(self, message):
        if message.type in ("error", "warning"):
            self.found.append(f"console: {message.text}")

    def on_request(self, request):
        if not request.url.startswith((self.site, "data:", "blob:")):
            self.found.append(f"asks for {request.url}")


def problems_of(visit, name, picture):
    page = visit.page
    visit.found = found = []
    page.goto(visit.site + name)
    # What scripts ask for when the page is there: fonts, and whatever comes in the first two frames.
    page.evaluate("async () => { await document.fonts.ready; for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame); }")
    seen = page.evaluate(LOOK)
    found += [f"image not loaded: {src}" for src in seen["images"]]
    found += [f"equation left as source: {text[:60]}" for text in seen["source"]]
    found += [f"equation not shown: {html[:160]}" for html in seen["bad"]]
    if seen["equations"] and not seen["font"]:
        found.append("equations without their font")
    if wide := page.evaluate(WIDE):
        found.append(f"wider than the screen: {wide}")
    if not seen["text"]:
        found.append("an empty page")
    if picture:
        page.screenshot(path=picture)
    # print.html has all figures once more.
    problems, figures = moving(page) if name != "print.html" else ([], 0)
    found += problems
    return found, figures


def steps_through(page, figure):
    """What is wrong with a figure that moves."""
    found = []

    def expect(true, what):
        if not true:
            found.append(what)

    stage, where = figure.locator(".stage"), figure.locator(".where")
    here = page.url
    versions = figure.locator(".versions button")
    for version in range(max(1, versions.count())):
        if versions.count():
            versions.nth(version).click()
            expect(versions.nth(version).get_attribute("aria-pressed") == "true", "a version is not chosen")
        last = int(where.inner_text().split("/")[1])
        stage.focus()
        seen = figure.evaluate(STEPS, last)
        expect(seen["wrong"] is None, f"ArrowRight leads to {seen['wrong']}")
        expect(not seen["lost"], f"not on the screen at step {', '.join(seen['lost'][:1])}, and {len(seen['lost'])} in all")
        expect(seen["pictures"] == last > 1, f"{last} steps, {seen['pictures']} pictures")
        for key, step in [("ArrowLeft", last - 1), ("Home", 1), ("ArrowRight", 2), ("End", last)]:
            page.keyboard.press(key)
            expect(where.inner_text() == f"{step} / {last}", f"{key} leads to {where.inner_text()}")
        if version > 0:
            continue
        # From the end it begins anew; it stops where it is told to.
        page.keyboard.press(" ")
        # Whatever step it has come to by the time that somebody looks.
        page.wait_for_function(
            "([e, end]) => e.textContent !== end", arg=[where.element_handle(), f"{last} / {last}"], timeout=30000
        )
        page.keyboard.press(" ")
        expect(figure.locator("[aria-label=Play]").count() == 1, "the space bar does not stop it")
        # By the keyboard: a page that scrolls under the mouse has let clicks miss.
        for label in ("First step", "Step forward", "Last step", "Step back"):
            figure.get_by_label(label).press("Enter")
        expect(where.inner_text() == f"{last - 1} / {last}", f"buttons lead to {where.inner_text()}")
    # Without the focus the arrows step the figure in the middle of the screen, and turn no page.
    page.evaluate("document.activeElement.blur()")
    stage.evaluate("stage => stage.scrollIntoView({block: 'center'})")
    now, last = map(int, where.inner_text().split("/"))
    page.keyboard.press("ArrowLeft")
    expect(where.inner_text() == f"{max(1, now - 1)} / {last}", f"without the focus ArrowLeft leads to {where.inner_text()}")
    expect(page.url == here, f"its keys lead to {page.url}")
    expect(figure.locator("button:not([aria-label])").count() == 0, "a button without a label")
    stage.focus()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    expect(outline == "solid", f"the focus does not show: {outline}")
    root = page.locator("html")
    before = root.get_attribute("class")
    for theme in THEMES:
        root.evaluate(f"(e, all) => {{ e.classList.remove(...all); e.classList.add('{theme}'); }}", THEMES)
        for faint in figure.evaluate(FAINT)[:3]:
            found.append(f"hard to read in theme {theme}: {faint}")
    root.evaluate("(e, before) => { e.className = before; }", before)
    wide = page.evaluate(WIDE)
    expect(not wide, f"wider than the screen: {wide}")
    page.emulate_media(media="print")
    expect(not figure.locator(".controls").is_visible(), "buttons on paper")
    expect(figure.locator("table").first.is_visible(), "no still on paper")
    page.emulate_media(media="screen")
    return found


def moving(page):
    """The problems of the figures that move on a page that is open, and how many there are."""
    page.emulate_media(reduced_motion="reduce")
    figures = page.locator("figure.moving").all()
    problems = []
    for number, figure in enumerate(figures, 1):
        found = steps_through(page, figure)
        times = "f => [...f.querySelectorAll('*')].map(e => getComputedStyle(e).transitionDuration)"
        if any(time != "0s" for time in figure.evaluate(times)):
            found.append("moves by itself where that is not wanted")
        problems += [f"figure {number}: {problem}" for problem in found]
    page.emulate_media(reduced_motion="no-preference")
    return problems, len(figures)


def without_scripts(browser, site, names):
    """The pages one of whose figures that move has no still then."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    lacking = []
    for name in names:
        page.goto(site + name)
        figures = page.locator("figure.moving").all()
        if not all(figure.locator(".still table").first.is_visible() for figure in figures):
            lacking.append(name)
    context.close()
    return lacking


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
    failed, figures = False, {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for screen, settings in SCREENS.items():
            context = browser.new_context(**settings)
            visit = Visit(context, site)
            for path in pages:
                picture = arguments.pictures and arguments.pictures / f"{path.stem}-{screen}.png"
                name = path.relative_to(arguments.book).as_posix()
                problems, figures[name] = problems_of(visit, name, picture)
                for problem in problems:
                    print(f"{path.name} ({screen}): {problem}")
                    failed = True
            context.close()
        for name in without_scripts(browser, site, [name for name, count in figures.items() if count]):
            print(f"{name}: no still without scripts")
            failed = True
        browser.close()
    print(f"{len(pages)} pages on {len(SCREENS)} screens, {sum(figures.values())} figures stepped through")
    if not any(figures.values()):
        sys.exit("pages: no figure that moves")
    sys.exit(failed)


if __name__ == "__main__":
    main()
