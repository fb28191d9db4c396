//! `lab bench --repeat`: what a record measured, measured again.

use std::path::Path;

use clap::Parser;
use lab_device::DType;
use lab_harness::{Dims, Version};
use lab_records::launch_cost;
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
    /// Of a record that keeps no command: what its lines are of.
    pub(super) lines: Option<Recorded>,
}

/// Versions, each on the problems that a record has of it.
#[derive(Clone)]
pub(super) struct Recorded {
    problems: Vec<(&'static dyn Version, DType, Dims)>,
    /// Whether it has what a launch costs.
    pub(super) has_launch: bool,
}

impl Recorded {
    /// What a record measured that is still there; what is gone is said.
    ///
    /// # Errors
    /// A shape or a type that cannot be read; nothing is left.
    fn of(run: &Run) -> Result<Self, Failure> {
        let own: Vec<&Measurement> = run.results.iter().filter(|m| m.of == Of::Version).collect();
        let has_launch = own.iter().any(|m| m.family == launch_cost::FAMILY);
        let (mut problems, mut gone) = (Vec::new(), Vec::new());
        for m in own.into_iter().filter(|m| m.family != launch_cost::FAMILY) {
            let Some(version) = versions().find(|v| v.info().full_name() == m.version) else {
                gone.push(m.version.as_str());
                continue;
            };
            let dtype = m.dtype.parse().map_err(|message| {
                Failure::Usage(format!("{} of a record: {message}", m.version))
            })?;
            problems.push((version, dtype, Dims::parse(&m.shape)?));
        }
        gone.dedup();
        if problems.is_empty() && !has_launch {
            return Err(Failure::Refused(format!(
                "none of its versions is there any more: {}",
                gone.join(", ")
            )));
        }
        gone.iter().for_each(|name| note!("{name} is not there any more"));
        Ok(Self { problems, has_launch })
    }

    /// Its versions, each once, in the order in which the tool has them.
    pub(super) fn versions(&self) -> Vec<&'static dyn Version> {
        let has = |name: String| self.problems.iter().any(|p| p.0.info().full_name() == name);
        versions().filter(|v| has(v.info().full_name())).collect()
    }

    /// Those of a version in a type.
    pub(super) fn problems(&self, version: &dyn Version, dtype: DType) -> Vec<Dims> {
        let name = version.info().full_name();
        let own = self.problems.iter().filter(|p| p.1 == dtype && p.0.info().full_name() == name);
        own.map(|p| p.2.clone()).collect()
    }
}

impl Repeat {
    /// Reads the record, and tells the command that is run.
    ///
    /// # Errors
    /// It is no record, or none of its versions is there any more.
    pub(super) fn read(path: &Path, given: &Arguments) -> Result<Self, Failure> {
        let run = Run::read(path)?;
        let lines = run.command.is_empty().then(|| Recorded::of(&run)).transpose()?;
        let kept = Kept::try_parse_from(&run.command).map_err(|error| {
            let said = error.to_string();
            let first = said.lines().next().unwrap_or_default();
            let command = run.command.join(" ");
            Failure::Usage(format!("{}: command '{command}': {first}", path.display()))
        })?;
        match &lines {
            None if given.dry_run => {} // which tells the command itself
            None => note!("lab bench {}", run.command.join(" ")),
            Some(_) => note!("it keeps no command: each version on the problems that it has of it"),
        }
        let arguments = Arguments {
            repeat: None,
            record: given.record,
            dry_run: given.dry_run,
            out: given.out.clone(),
            wide: given.wide,
            in_turns: kept.arguments.in_turns || (lines.is_some() && run.in_turns),
            ..kept.arguments
        };
        Ok(Self { run, arguments, lines })
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

impl Arguments {
    /// What decides what is measured, as it is typed behind `lab bench`.
    pub(super) fn command(&self) -> Vec<String> {
        let mut command: Vec<String> = self.family.iter().cloned().collect();
        let mut option = |name: &str, value: Option<String>| {
            command.push(name.to_owned());
            command.extend(value);
        };
        self.shape.iter().for_each(|shape| option("--shape", Some(shape.clone())));
        self.up_to.iter().for_each(|last| option("--up-to", Some(last.clone())));
        self.dtype.iter().for_each(|name| option("--dtype", Some(name.clone())));
        self.version.iter().for_each(|name| option("--version", Some(name.clone())));
        self.judged_on.iter().for_each(|shape| option("--judged-on", Some(shape.clone())));
        self.peers.iter().for_each(|path| option("--peers", Some(path.display().to_string())));
        self.library.iter().for_each(|name| option("--library", Some(name.clone())));
        if self.runs != super::RUNS {
            option("--runs", Some(self.runs.to_string()));
        }
        if self.in_turns {
            option("--in-turns", None);
        }
        if self.launched {
            option("--launched", None);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPED: &str = "matmul --shape G=1,K=128,M=128,N=128 --up-to M=512 --dtype bf16 --version v1_tiled --version \
                         v6_turns --judged-on G=1,K=64,M=64,N=64 --peers benches/peers --library torch --library jax --runs 7 \
                         --in-turns --launched";

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
        let lines = old.lines.as_ref().expect("it keeps no command");
        assert_eq!(lines.versions()[0].info().full_name(), "matmul:v0_naive");
        assert!(old.arguments.record && old.arguments.out == Path::new("elsewhere"));
        // Each version on the problems that the record has of it, and on no other.
        let measured = old.run.results.iter().filter(|m| m.of == Of::Version).count();
        let planned = |v: &dyn Version| -> usize {
            v.info().dtypes.iter().map(|dtype| lines.problems(v, *dtype).len()).sum()
        };
        assert_eq!(lines.versions().into_iter().map(planned).sum::<usize>(), measured);
        assert!(!lines.has_launch);
        let launches =
            read(&Path::new(records).join("20261122T081115Z-nvidia-h200-6f42fa1fa91b.json"));
        let launches = launches.unwrap().lines.unwrap();
        assert!(launches.has_launch && launches.versions().is_empty());
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
