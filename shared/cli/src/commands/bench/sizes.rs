//! `--shape` and `--up-to`: the sizes of the problems that are asked for.

use lab_harness::{Dims, Error, Version};

use super::asked::Asked;
use crate::failure::Failure;

/// What at least one of the versions is timed on, or takes; without a shape, no size is asked for.
pub(super) fn asked(
    shape: Option<&str>,
    up_to: Option<&str>,
    chosen: &[&'static dyn Version],
) -> Result<Vec<Dims>, Failure> {
    let Some(text) = shape else { return Ok(vec![Dims::default()]) };
    let first = Dims::parse(text)?;
    let all = match up_to {
        Some(last) => doubled(&first, last, chosen)?,
        None => vec![first],
    };
    if Asked::of(&all, chosen).is_some() {
        return Ok(all);
    }
    let of_version = |v: &&dyn Version| {
        v.info().dtypes.iter().flat_map(|t| v.bench_shapes(*t)).collect::<Vec<_>>()
    };
    let mut known: Vec<Dims> = chosen.iter().flat_map(of_version).collect();
    known.dedup();
    let known: Vec<String> = known.iter().map(Dims::to_string).collect();
    let expected = format!("sizes of one of {}", known.join(", or "));
    Err(Error::bad("shape", expected, format!("'{text}'")).into())
}

/// The problem, and again with the named size doubled, as long as it is not above the last one. Each is one that some version takes.
fn doubled(
    first: &Dims,
    last: &str,
    chosen: &[&'static dyn Version],
) -> Result<Vec<Dims>, Failure> {
    let refuse =
        |expected: String| -> Failure { Error::bad("up-to", expected, format!("'{last}'")).into() };
    let parsed = Dims::parse(last).ok().filter(|dims| dims.iter().count() == 1);
    let named = parsed.as_ref().and_then(|dims| dims.iter().next());
    let Some((name, last)) = named else { return Err(refuse("NAME=SIZE".into())) };
    let Some(least) = first.find(name) else {
        let names: Vec<&str> = first.iter().map(|(name, _)| name).collect();
        return Err(refuse(format!("a size of --shape: {}", names.join(", "))));
    };
    if least == 0 || least > last {
        return Err(refuse(format!("{name} of --shape, {least}, or more")));
    }
    let sizes = std::iter::successors(Some(least), |size| size.checked_mul(2));
    let all = sizes.take_while(|size| *size <= last).map(|size| {
        let mut dims = first.clone();
        dims.set(name, size);
        dims
    });
    let all: Vec<Dims> = all.collect();
    for dims in &all {
        // The first one says what is wrong of a problem that nobody takes.
        let mut taken = chosen.iter().map(|version| {
            let whole = version.info().complete(dims)?;
            if whole == *dims {
                return Ok(());
            }
            let name = version.info().full_name();
            Err(Error::bad("shape", format!("all sizes of {name}"), format!("'{dims}'")))
        });
        let first = taken.next().unwrap_or(Ok(()));
        if let Err(error) = first
            && !taken.any(|version| version.is_ok())
        {
            return Err(error.into());
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shape: &str, up_to: &str) -> Result<Vec<String>, String> {
        let all = asked(Some(shape), Some(up_to), vlstm_fw_v4::STAGE.versions);
        let texts = |all: Vec<Dims>| all.iter().map(|dims| format!("{}", dims.get("S"))).collect();
        all.map(texts).map_err(|failure| failure.message().to_owned())
    }

    #[test]
    fn a_size_is_doubled_up_to_the_last() {
        const SHAPE: &str = "B=1,NH=16,S=1024,DHQK=128,DHHV=256";
        assert_eq!(of(SHAPE, "S=8192").unwrap(), ["1024", "2048", "4096", "8192"]);
        assert_eq!(of(SHAPE, "S=5000").unwrap(), ["1024", "2048", "4096"]);
        assert_eq!(of(SHAPE, "S=1024").unwrap(), ["1024"]);
        for (shape, up_to, expected) in [
            (SHAPE, "S", "up-to: expected NAME=SIZE, got 'S'"),
            (SHAPE, "S=2048,B=2", "up-to: expected NAME=SIZE"),
            (
                SHAPE,
                "T=2048",
                "up-to: expected a size of --shape: B, DHHV, DHQK, NH, S, got 'T=2048'",
            ),
            (SHAPE, "S=1000", "up-to: expected S of --shape, 1024, or more, got 'S=1000'"),
            ("S=1024", "S=2048", "shape: expected all sizes of vlstm_fw_v4:"),
            (SHAPE, "B=100000", "dimension B: expected"),
        ] {
            let said = of(shape, up_to).unwrap_err();
            assert!(said.contains(expected), "{shape} {up_to}: {said}");
        }
    }
}
