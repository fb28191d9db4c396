//! `lab bench --repeat`: what a record measured, measured again.

use std::path::Path;

use clap::Parser;
use lab_records::record::{Machine, Measurement, Of, Run};

use super::Arguments;
use crate::failure::Failure;
use crate::{commands::against::Then, versions};

/// What decides what is measured, as a record keeps it.
#[derive(Debug, Parser)]
#[command(name = "bench", no_binary_name = true)]
struct Kept {
    #[command(flatten)]
    arguments: Arguments,
}

/// A record that is measured again.
pub(super) struct Repeat {
    run: Run,
    /// Those of its command, with where to write and what to print from the new one.
    pub(super) arguments: Arguments,
}

impl Repeat {
    /// Reads the record, and tells the command that is run.
    ///
    /// # Errors
    /// It is no record, or none of its versions is there any more.
    pub(super) fn read(path: &Path, given: &Arguments) -> Result<Self, Failure> {
        let run = Run::read(path)?;
        let command =
            if run.command.is_empty() { command_from_results(&run)? } else { run.command.clone() };
        let kept = Kept::try_parse_from(&command).map_err(|error| {
            let said = error.to_string();
            let first = said.lines().next().unwrap_or_default();
            Failure::Usage(format!("{}: command '{}': {first}", path.display(), command.join(" ")))
        })?;
        note!("lab bench {}", command.join(" "));
        let arguments = Arguments {
            repeat: None,
            record: given.record,
            dry_run: given.dry_run,
            out: given.out.clone(),
            wide: given.wide,
            ..kept.arguments
        };
        Ok(Self { run, arguments })
    }

    /// The record's lines, to hold new ones against.
    pub(super) fn recorded(&self) -> Then {
        Then::of(&self.run)
    }

    /// What the record measured, and where.
    pub(super) fn print_recorded(&self) {
        let Run { commit, date, device, results, .. } = &self.run;
        say!("{date}, {}, driver {}, commit {}:", device.gpu, device.driver, &commit[..12]);
        super::print_results(results, self.arguments.wide);
    }

    /// What is another machine now: `driver: 580.1 then, 590.2 now`.
    pub(super) fn differences(&self, now: &Machine) -> Vec<String> {
        let then = &self.run.device;
        let [before, after] = [then, now].map(|machine| {
            [
                ("GPU", machine.gpu.clone()),
                ("driver", machine.driver.clone()),
                ("NVRTC", machine.nvrtc.clone()),
                ("clock", format!("{} MHz", machine.clock_mhz)),
                ("memory's clock", format!("{} MHz", machine.memory_clock_mhz)),
            ]
        });
        let pairs = before.into_iter().zip(after).filter(|(then, now)| then != now);
        pairs.map(|((what, then), (_, now))| format!("{what}: {then} then, {now} now")).collect()
    }
}

/// The command of a record that keeps none: its family, its versions that are still there, and its problem if it has one alone.
fn command_from_results(run: &Run) -> Result<Vec<String>, Failure> {
    let own: Vec<&Measurement> = run.results.iter().filter(|m| m.of == Of::Version).collect();
    let mut families = distinct(own.iter().map(|m| m.family.as_str()));
    let mut command = Vec::new();
    if let (Some(family), 0) = (families.next(), families.count()) {
        command.push(family.to_owned());
        let names = distinct(own.iter().map(|m| m.version.as_str()));
        let (known, gone): (Vec<_>, Vec<_>) =
            names.partition(|name| versions().any(|v| v.info().full_name() == **name));
        if known.is_empty() {
            let gone = gone.join(", ");
            return Err(Failure::Refused(format!(
                "none of its versions is there any more: {gone}"
            )));
        }
        for name in gone {
            note!("{name} is not there any more");
        }
        command.extend(known.into_iter().flat_map(|name| ["--version".into(), name.to_owned()]));
        let mut shapes = distinct(own.iter().map(|m| m.shape.as_str()));
        if let (Some(shape), 0) = (shapes.next(), shapes.count()) {
            command.extend(["--shape".into(), shape.to_owned()]);
        }
    }
    command.extend(run.in_turns.then(|| "--in-turns".to_owned()));
    Ok(command)
}

/// Each once, in the order in which they come.
fn distinct<'a>(all: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let mut seen = Vec::new();
    all.filter(move |name| {
        let is_new = !seen.contains(name);
        seen.extend(is_new.then_some(*name));
        is_new
    })
}

impl Arguments {
    /// What decides what is measured, as it is typed behind `lab bench`.
    pub(super) fn command(&self) -> Vec<String> {
        let mut command: Vec<String> = self.family.iter().cloned().collect();
        let mut option = |name: &str, value: Option<String>| {
            command.push(name.to_owned());
            command.extend(value);
        };
        self.shape.iter().for_each(|shape| option("--shape", Some(shape.clone())));
        self.dtype.iter().for_each(|name| option("--dtype", Some(name.clone())));
        self.version.iter().for_each(|name| option("--version", Some(name.clone())));
        self.judged_on.iter().for_each(|shape| option("--judged-on", Some(shape.clone())));
        self.peers.iter().for_each(|path| option("--peers", Some(path.display().to_string())));
        if self.runs != super::RUNS {
            option("--runs", Some(self.runs.to_string()));
        }
        if self.in_turns {
            option("--in-turns", None);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPED: &str = "matmul --shape G=1,K=128,M=128,N=128 --dtype bf16 --version v1_tiled --version v6_turns --judged-on \
                         G=1,K=64,M=64,N=64 --peers benches/peers --runs 7 --in-turns";

    fn parsed(typed: &str) -> Arguments {
        Kept::try_parse_from(typed.split_whitespace()).unwrap().arguments
    }

    #[test]
    fn a_command_is_what_was_typed() {
        assert_eq!(parsed(TYPED).command().join(" "), TYPED);
        assert_eq!(parsed("").command(), [""; 0]);
        // Where it is written and what is printed is no part of it.
        assert_eq!(parsed("lstm --record --out elsewhere --wide").command(), ["lstm"]);
    }

    #[test]
    fn a_record_is_repeated_by_its_command_or_by_its_lines() {
        let records = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/history");
        let path = Path::new(records).join("20261123T174204Z-nvidia-h200-5599a56664e7.json");
        let read = |path: &Path| Repeat::read(path, &parsed("--record --out elsewhere"));
        let old = read(&path).unwrap();
        let command = old.arguments.command();
        assert_eq!(command[..3], ["matmul", "--version", "matmul:v0_naive"]);
        assert!(old.arguments.record && old.arguments.out == Path::new("elsewhere"));
        assert!(!command.contains(&"--shape".to_owned()), "it has many: {command:?}");
        assert!(old.differences(&old.run.device).is_empty());
        let other = Machine { nvrtc: "99.0".into(), ..old.run.device.clone() };
        assert_eq!(old.differences(&other), ["NVRTC: 13.0 then, 99.0 now"]);

        let directory = tempfile::tempdir().unwrap();
        let command = TYPED.split_whitespace().map(str::to_owned).collect();
        let name = Run { command, ..old.run.clone() }.write(directory.path()).unwrap();
        assert_eq!(
            read(&directory.path().join(name)).unwrap().arguments.command().join(" "),
            TYPED
        );

        let command = vec!["matmul".into(), "--unknown".into()];
        let name = Run { command, ..old.run.clone() }.write(directory.path()).unwrap();
        let refused = read(&directory.path().join(name)).map(|_| ()).unwrap_err();
        assert!(refused.message().contains("command 'matmul --unknown': "), "{refused:?}");

        let mut gone = old.run;
        gone.results.truncate(1);
        gone.results[0].version = "matmul:v99_gone".into();
        let name = gone.write(directory.path()).unwrap();
        let refused = read(&directory.path().join(name)).map(|_| ()).unwrap_err();
        assert!(refused.message().ends_with("any more: matmul:v99_gone"), "{refused:?}");
    }
}
