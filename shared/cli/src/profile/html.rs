//! The kernel's source with what each line asks of the memory system, as a page of one file.

use lab_device::emulator::{Counts, Line};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::picture::{WIDTH, px};
use super::{Place, Report, excess, number, ratio, said, unit};
use super::{banks, sectors};

const HEAD: &str = "<meta charset=\"utf-8\"/><meta name=\"viewport\" \
                    content=\"width=device-width, initial-scale=1\"/>";

/// The page: no scripts, nothing from elsewhere.
pub(crate) fn page(report: &Report<'_>, caveat: &str) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (PreEscaped(HEAD))
                title { "Profile of " (report.title()) }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body {
                (hatch())
                main {
                    h1 { "Profile of " (report.info.full_name()) }
                    p.run { (report.dims) " · " (report.dtype) " · seed " (report.seed) }
                    p.change { (report.info.change) }
                    p.caveat { (caveat) }
                    @if !report.passed() {
                        p.wrong { "The result of this run is WRONG: it is not within its bounds." }
                    }
                    (totals(report))
                    (key())
                    @for file in report.files() { (listing(report, file)) }
                    (nsight(report))
                }
            }
        }
    };
    page.into_string()
}

/// The pattern of what is wasted, so that it does not hang on colour alone.
fn hatch() -> Markup {
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" {
            defs {
                pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
                    patternTransform="rotate(45)" {
                    rect.ground width="6" height="6" {}
                    rect.stripe width="2.4" height="6" {}
                }
            }
        }
    }
}

fn totals(report: &Report<'_>) -> Markup {
    let (flops, least) = (report.cost.flops, report.cost.bytes);
    html! {
        div.scroll {
            table.totals {
                thead {
                    tr {
                        th scope="col" { "operation" }
                        @for heading in ["requests", "cost", "ideal", "ratio", "worst conflict", "bytes", "bytes / request"] {
                            th.n scope="col" { (heading) }
                        }
                    }
                }
                tbody {
                    @for (operation, c) in report.totals() {
                        tr {
                            th scope="row" { (operation.name()) }
                            td.n { (number(c.requests)) }
                            @if unit(operation).is_empty() {
                                td colspan="6" {
                                    @if c.flops > 0 { (number(c.flops)) " flops" }
                                }
                            } @else {
                                td.n { (number(c.cost)) " " small { (unit(operation)) } }
                                td.n { (number(c.ideal)) }
                                td.n { (times(&c)) }
                                td.n { @if c.degree > 1 { (c.degree) "-way" } @else if c.degree == 1 { "none" } }
                                td.n { (number(c.bytes)) }
                                td.n { (format!("{:.1}", c.bytes as f64 / c.requests as f64)) }
                            }
                        }
                    }
                }
            }
        }
        p.note {
            "As declared: " (number(flops as u64)) " flops and " (number(least as u64))
            " bytes that must move, " (format!("{:.3}", flops / least.max(1.0)))
            " flops a byte; lanes ask global memory for " (number(report.global_bytes())) " bytes."
            @if report.profile.left_out > 0 {
                " " (number(report.profile.left_out)) " accesses were left out: too many between two barriers."
            }
        }
    }
}

/// `8.00×`, and whether that is good; in words, not by colour alone.
fn times(counts: &Counts) -> Markup {
    let class = if excess(counts) > 0 { "over" } else { "fine" };
    html! {
        @if let Some(ratio) = ratio(counts) {
            span class=(class) { (format!("{ratio:.2}×")) }
        }
    }
}

fn key() -> Markup {
    html! {
        ul.key {
            li { span.swatch.asked {} "needed: the least for as many different bytes" }
            li { span.swatch.over {} "excess: sectors or wavefronts beyond that" }
            li { "Bars: a line’s share of all global sectors or of all shared wavefronts." }
            li { "Open a line’s figures for a picture of its worst access." }
        }
    }
}

fn listing(report: &Report<'_>, file: &str) -> Markup {
    let all = || report.profile.lines.iter().enumerate();
    let at = |row: usize| {
        let here = move |l: &Line| {
            let place = Place::of(&l.place);
            place.file == file && place.line == row
        };
        all().filter(move |(_, l)| here(l)).collect::<Vec<_>>()
    };
    let source = report.source(file);
    html! {
        section {
            h2 { (file) }
            div.listing tabindex="0" aria-label={ "Listing of " (file) } {
                // Without a text, or beyond it, the figures stand by themselves.
                @let count = source.map_or(0, |s| s.lines().count());
                @for (number, line) in all().filter(|(_, l)| {
                    let place = Place::of(&l.place);
                    place.file == file && !(1..=count).contains(&place.line)
                }) {
                    (access(report, line, number))
                }
                @for (index, text) in source.unwrap_or("").lines().enumerate() {
                    @let accesses = at(index + 1);
                    div class=(if accesses.is_empty() { "line" } else { "line counted" }) {
                        span.bars aria-hidden="true" {
                            @for (_, line) in &accesses { (bar(report, line)) }
                        }
                        span.no { (index + 1) }
                        code { (highlight_code(text)) }
                    }
                    @for (number, line) in accesses { (access(report, line, number)) }
                }
            }
        }
    }
}

/// A line's share of the cost: the part that is needed, and the excess.
fn bar(report: &Report<'_>, line: &Line) -> Markup {
    let total = report.total_in_unit_of(line.operation).max(1) as f64;
    let percent = |part: u64| (1000.0 * part as f64 / total).round() / 10.0;
    html! {
        @if !unit(line.operation).is_empty() {
            span.bar {
                span.asked style={ "width:" (percent(line.counts.ideal.min(line.counts.cost))) "%" } {}
                span.over style={ "width:" (percent(excess(&line.counts))) "%" } {}
            }
        }
    }
}

/// The figures of a line, which open into its picture.
fn access(report: &Report<'_>, line: &Line, number_of: usize) -> Markup {
    let figures = figures(report, line);
    html! {
        @match figure(line, number_of) {
            None => div.access { div.figures { (figures) } },
            Some(picture) => {
                // Open where there is most to see.
                @if report.worst(line) {
                    details.access open="" { summary.figures { (figures) } (picture) }
                } @else {
                    details.access { summary.figures { (figures) } (picture) }
                }
            }
        }
    }
}

fn figures(report: &Report<'_>, line: &Line) -> Markup {
    let (c, place) = (&line.counts, Place::of(&line.place));
    let share = 100.0 * c.cost as f64 / report.total_in_unit_of(line.operation).max(1) as f64;
    html! {
        span.operation { (line.operation.name()) }
        @if unit(line.operation).is_empty() {
            span { (said(line.operation, c)) }
        } @else {
            (times(c))
            span { (number(c.cost)) " " (unit(line.operation)) " for " (number(c.ideal)) }
            span { (number(c.requests)) " requests" }
            @if c.degree > 1 { span.over { (c.degree) "-way conflict" } }
            span.dim { (format!("{share:.0}")) " % of all " (unit(line.operation)) }
        }
        span.dim { "column " (place.column) }
        @if report.worst(line) { span.worst { "wastes the most" } }
    }
}

/// Code, and its comment dimmed.
fn highlight_code(text: &str) -> Markup {
    let (code, comment) = text.split_at(text.find("//").unwrap_or(text.len()));
    html! { (code) @if !comment.is_empty() { span.comment { (comment) } } }
}

fn nsight(report: &Report<'_>) -> Markup {
    html! {
        section {
            h2 { "The same in Nsight Compute" }
            p.note { "Of a run on a GPU, " code { "ncu --metrics" } " reads:" }
            dl.metrics {
                @for (operation, names) in report.totals() {
                    @if let Some((requests, cost)) = operation.nsight().filter(|_| names.requests > 0) {
                        dt { (operation.name()) }
                        dd { "requests " code { (requests) } }
                        dd { (unit(operation)) " " code { (cost) } }
                    }
                }
            }
        }
    }
}

/// The worst access of a line as a figure; nothing for a barrier.
fn figure(line: &Line, number: usize) -> Option<Markup> {
    let sample = line.sample.as_ref()?;
    let picture =
        if line.operation.shared() { banks::picture(sample) } else { sectors::picture(sample) };
    let (title, words) = (format!("picture-{number}-title"), format!("picture-{number}-words"));
    Some(html! {
        figure {
            figcaption { b { (picture.title) } ". " (picture.words) }
            div.scroll {
                svg viewBox={ "0 0 " (WIDTH) " " (px(picture.height)) } role="img"
                    aria-labelledby={ (title) " " (words) } {
                    title id=(title) { (picture.title) }
                    desc id=(words) { (picture.words) }
                    (picture.drawing)
                }
            }
        }
    })
}
