//! The registry of all stages, and who answers to a name: what the tool, its pages and the benchmarks go by.

#![forbid(unsafe_code)]

use lab_checker::words;
use lab_device::{DType, KernelSource};
use lab_harness::suite::Suite;
use lab_harness::{Choice, Error, Stage, Version};

/// Every stage, in the order of the story.
pub static STAGES: &[&Stage] = &[
    &playg::STAGE,
    &matmul::STAGE,
    &qkv_v0::STAGE,
    &qkv_v1::STAGE,
    &qkv_v2::STAGE,
    &vlstm_fw_v0::STAGE,
    &vlstm_fw_v1::STAGE,
    &vlstm_fw_v2::STAGE,
    &vlstm_fw_v3::STAGE,
    &vlstm_fw_v4::STAGE,
    &vlstm_step::STAGE,
    &vlstm_fwbw_v0::STAGE,
    &vlstm_fwbw_v1::STAGE,
    &vlstm_fwbw_v2::STAGE,
    &vlstm_fwbw_v3::STAGE,
    &vlstm_fwbw_v4::STAGE,
    &gdn_fw::STAGE,
    &gdn_step::STAGE,
    &gdn_fwbw::STAGE,
    &lstm_fused::STAGE,
    &slstm_fused::STAGE,
    &mlp_fused::STAGE,
    &attention::STAGE,
    &passes::STAGE,
    &decode::STAGE,
];

/// What stands on the stages: its checks belong to theirs, and some have kernels of their own.
pub static MODELS: &[&Suite] =
    &[&lab_operations::SUITE, &lab_lstm::SUITE, &lab_mlp::SUITE, &lab_lm::SUITE];

/// All versions of all stages.
pub fn versions() -> impl Iterator<Item = &'static dyn Version> {
    STAGES.iter().flat_map(|s| s.versions.iter().copied())
}

/// Every kernel file of the stages, the models, the corpus and the checks of a device.
pub fn kernels() -> impl Iterator<Item = &'static KernelSource> {
    let of_stages = STAGES.iter().flat_map(|s| s.kernels);
    let of_models = MODELS.iter().flat_map(|m| m.kernels);
    let others = [lab_harness::device_checks::kernels::KERNELS, lab_corpus::kernels::KERNELS];
    of_stages.chain(of_models).chain(others.into_iter().flatten()).copied()
}

/// What stands on the stages under this name, and has kernels of its own: `lab-lstm`.
pub fn model(name: &str) -> Option<&'static Suite> {
    MODELS.iter().copied().find(|m| m.name == name && !m.kernels.is_empty())
}

/// The stage of this name.
///
/// # Errors
/// There is none; the message lists those there are.
pub fn stage(name: &str) -> Result<&'static Stage, Error> {
    STAGES.iter().copied().find(|s| s.name == name).ok_or_else(|| {
        // Behind the stages, for who has left out the stage of a version.
        let versions: Vec<String> = versions().map(|v| v.info().full_name()).collect();
        let stages: Vec<&str> = STAGES.iter().map(|s| s.name).collect();
        let known: Vec<&str> =
            stages.iter().copied().chain(versions.iter().map(String::as_str)).collect();
        let near = words::near(&known, name);
        let known = if near.is_empty() { stages } else { near };
        let expected = words::known_names(&known, name, "lab list");
        Error::Bad { what: "stage".into(), expected, got: format!("'{name}'") }
    })
}

/// The versions that `STAGE[:VERSION]` names: one, or all of a stage; or those of a family that no stage is named as.
///
/// # Errors
/// No such stage, version or family; the message lists those there are.
pub fn named(name: &str) -> Result<Vec<&'static dyn Version>, Error> {
    let (stage, version) = match name.split_once(':') {
        Some((stage, version)) => (stage, Some(version)),
        None => (name, None),
    };
    let of_family = || versions().filter(|v| v.info().family.name() == name).collect::<Vec<_>>();
    let found = match self::stage(stage) {
        Ok(found) => found,
        Err(_) if !of_family().is_empty() => return Ok(of_family()),
        Err(unknown) => return Err(unknown),
    };
    let Some(version) = version else { return Ok(found.versions.to_vec()) };
    match found.versions.iter().find(|v| v.info().name == version) {
        Some(one) => Ok(vec![*one]),
        None => {
            let all: Vec<_> = found.versions.iter().map(|v| v.info().name).collect();
            let what = format!("version of {stage}");
            let expected = words::known_names(&all, version, &format!("lab list {stage}"));
            Err(Error::Bad { what, expected, got: format!("'{version}'") })
        }
    }
}

/// The one version that `STAGE[:VERSION]` or a family's name means. A stage or family stands for its last version that takes
/// this type, or else the first one's first, and runs on this architecture; all its versions must compute the
/// same, or those of the family that it is named after: vlstm_fw of vlstm_fw_v4.
///
/// # Errors
/// As [`named`]; also a stage of several families and named after none, which needs a version.
pub fn named_one(name: &str, dtype: Option<DType>, arch: &str) -> Result<Choice, Error> {
    let mut all = named(name)?;
    let family = |v: &dyn Version| v.info().family.name();
    if all.iter().any(|v| family(*v) != family(all[0])) {
        let names: Vec<_> = all.iter().map(|v| v.info().full_name()).collect();
        let of_stage = name.rsplit_once("_v").map_or(name, |(of_stage, _)| of_stage);
        all.retain(|v| family(*v) == of_stage);
        if all.is_empty() {
            return Err(Error::Bad {
                what: "version".into(),
                expected: names.join(", "),
                got: format!("'{name}'"),
            });
        }
    }
    let wanted = dtype.unwrap_or(all[0].info().dtypes[0]);
    let last = *all.last().expect("a stage has versions");
    Ok(Choice::of(&all, wanted, arch).unwrap_or(Choice { version: last, better: None }))
}

/// As [`named_one`]; a stage alone stands for a version that also takes the problem, as `fits` says, if one does.
///
/// # Errors
/// As there.
pub fn named_for(
    name: &str,
    dtype: Option<DType>,
    arch: &str,
    fits: impl Fn(&dyn Version) -> bool,
) -> Result<Choice, Error> {
    let first = named_one(name, dtype, arch)?;
    if name.contains(':') || fits(first.version) {
        return Ok(first);
    }
    let family = first.version.info().family.name();
    let mut others = named(name)?;
    others.retain(|v| v.info().family.name() == family && fits(*v));
    let wanted = dtype.unwrap_or(first.version.info().dtypes[0]);
    Ok(Choice::of(&others, wanted, arch).unwrap_or(first))
}

/// The text of a kernel file of the stages and models, or of a header that one includes, by its path in the repository.
pub fn source(file: &str) -> Option<&'static str> {
    // What was built in another directory may have its places from there.
    let at = ["/stages/", "/shared/cuda/", "/shared/models/"].iter().find_map(|p| file.rfind(p));
    let file = at.map_or(file, |at| &file[at + 1..]);
    let of_stages = STAGES.iter().map(|s| (format!("stages/{}/", s.name), s.kernels));
    let of_models = MODELS.iter().map(|m| (format!("{}/", m.home), m.kernels));
    let all: Vec<(String, &[&KernelSource])> = of_stages.chain(of_models).collect();
    let kernel = all.iter().find_map(|(home, kernels)| {
        let own = file.strip_prefix(home.as_str())?;
        kernels.iter().find(|k| k.file == own)
    });
    if let Some(kernel) = kernel {
        return Some(kernel.source);
    }
    all.iter().find_map(|(home, kernels)| {
        let own = format!("{home}kernels/");
        let name = file.strip_prefix("shared/cuda/").or_else(|| file.strip_prefix(&own))?;
        let mut headers = kernels.iter().flat_map(|k| k.headers);
        headers.find(|h| h.0 == name).map(|h| h.1)
    })
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn a_file_is_found_wherever_it_was_built() {
        for file in [
            "stages/playg/kernels/softmax.cu",
            "shared/cuda/lab/reduce.cuh",
            "shared/models/lstm/kernels/head.cu",
            "stages/passes/kernels/strip.cuh",
        ] {
            let own = source(file);
            assert!(own.is_some_and(|text| !text.is_empty()), "{file}");
            assert_eq!(source(&format!("/elsewhere/lab/{file}")), own);
        }
        assert_eq!(source("/elsewhere/softmax.cu"), None);
    }
}
