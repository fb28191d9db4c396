//! A profile on a terminal.

use lab_device::emulator::{Counts, Operation};

use super::{Counted, Place, Report, number, ratio, said, unit};
use crate::table::{bytes, table};

/// Sums by operation, then every line that was counted.
pub(crate) fn print(report: &Report<'_>, device: &str, caveat: &str) {
    println!("{} on {}", report.title(), device);
    println!("{caveat}\n");
    let counted = report.counted();
    print_totals(&counted);
    let (flops, least) = (report.cost.flops, report.cost.bytes);
    println!(
        "As declared: {} flops and {} that must move, {:.3} flops a byte; {:.3} a byte asked of \
         global memory.",
        number(flops as u64),
        bytes(least),
        flops / least.max(1.0),
        flops / (report.global_bytes() as f64).max(1.0),
    );
    let on_tensor_cores = report.profile.total(Operation::TensorCore).flops;
    if on_tensor_cores > 0 {
        println!(
            "On tensor cores: {} flops, {:.2} times those declared; what is more fills tiles up.",
            number(on_tensor_cores),
            on_tensor_cores as f64 / flops.max(1.0)
        );
    }
    print_lines(&counted);
}

/// The same of a kernel of which nothing is declared.
pub(crate) fn print_counted(counted: &Counted<'_>) {
    print_totals(counted);
    print_lines(counted);
}

fn print_totals(counted: &Counted<'_>) {
    let mut rows = table(&[
        "operation",
        ">requests",
        ">cost",
        "",
        ">ideal",
        ">ratio",
        ">worst conflict",
        ">bytes",
        ">bytes / request",
    ]);
    for (operation, c) in counted.totals() {
        let mut cells = vec![operation.name().to_owned(), number(c.requests)];
        cells.extend(costs(operation, &c));
        cells.extend(match unit(operation) {
            "" => [String::new(), String::new()],
            _ => [number(c.bytes), format!("{:.1}", c.bytes as f64 / c.requests as f64)],
        });
        rows.add_row(cells);
    }
    println!("{rows}");
}

fn print_lines(counted: &Counted<'_>) {
    println!(
        "cost: 32-byte sectors in global memory, wavefronts in shared memory; ideal: the fewest \
         for as many different bytes."
    );

    println!("\nBy line; ◀ wastes the most:");
    for file in counted.files() {
        print_file(counted, file);
    }
    let named = counted.totals().into_iter().filter_map(|(o, _)| Some((o, o.nsight()?)));
    println!("\nThe same in Nsight Compute, of a run on a GPU:");
    for (operation, (requests, cost)) in named {
        println!("  {:<14}requests    {requests}", operation.name());
        println!("  {:<14}{:<12}{cost}", "", unit(operation));
    }
    if counted.profile.left_out > 0 {
        println!(
            "{} accesses were left out: too many between two barriers; a smaller --shape counts \
             them all.",
            number(counted.profile.left_out)
        );
    }
}

/// Cost, unit, ideal, ratio, worst conflict.
fn costs(operation: Operation, c: &Counts) -> [String; 5] {
    if unit(operation).is_empty() {
        return [const { String::new() }; 5];
    }
    [
        number(c.cost),
        unit(operation).to_owned(),
        number(c.ideal),
        ratio(c).map_or(String::new(), |r| format!("{r:.2}")),
        match c.degree {
            0 => String::new(),
            1 => "none".to_owned(),
            n => format!("{n}-way"),
        },
    ]
}

/// Each line of source that was counted, and under it what it does.
fn print_file(counted: &Counted<'_>, file: &str) {
    const SHOWN: usize = 108;
    println!("\n{file}");
    let mut last = None;
    for line in &counted.profile.lines {
        let place = Place::of(&line.place);
        if place.file != file {
            continue;
        }
        if last != Some(place.line) {
            let mut source = counted.source_line(&place).unwrap_or_default();
            if source.chars().count() > SHOWN {
                source = source.chars().take(SHOWN - 1).chain(['…']).collect();
            }
            println!("{:>5} │ {source}", place.line);
        }
        last = Some(place.line);
        let (c, requests) = (&line.counts, number(line.counts.requests));
        let head = format!("      │   {:<14}", line.operation.name());
        let [cost, unit, ideal, ratio, degree] = costs(line.operation, c);
        if unit.is_empty() {
            println!("{head}  {}", said(line.operation, c));
            continue;
        }
        let conflict = if c.degree > 1 { format!("  {degree} conflict") } else { String::new() };
        let worst = if counted.worst(line) { " ◀" } else { "" };
        println!(
            "{head}{requests:>9} requests {cost:>11} {unit:<10} for {ideal:>9} {ratio:>7}×{conflict}{worst}"
        );
    }
}
