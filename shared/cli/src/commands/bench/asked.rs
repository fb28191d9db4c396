//! Which versions and peers are measured on which problems.

use lab_device::DType;
use lab_harness::{Dims, Peer, Version};

use super::repeat::Recorded;

/// The versions of one family, each with its place among all that were chosen.
pub(super) type Family = Vec<(usize, &'static dyn Version)>;

/// The versions of each family, in their order.
pub(super) fn by_family(chosen: &[&'static dyn Version]) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for (place, &version) in chosen.iter().enumerate() {
        let same = |f: &&mut Family| f[0].1.info().family.name() == version.info().family.name();
        match families.iter_mut().find(same) {
            Some(family) => family.push((place, version)),
            None => families.push(vec![(place, version)]),
        }
    }
    families
}

/// What the stages of these versions have beside them.
pub(super) fn peers(
    versions: &[(usize, &'static dyn Version)],
    family: &str,
) -> Vec<&'static dyn Peer> {
    let mut peers: Vec<&'static dyn Peer> = Vec::new();
    for (_, version) in versions {
        let stage = crate::stage(version.info().stage).expect("a version names its own stage");
        let new = |p: &&'static dyn Peer| peers.iter().all(|q| q.info().name != p.info().name);
        let new: Vec<_> = stage.peers_of(family).filter(new).collect();
        peers.extend(new);
    }
    peers
}

/// Whether a problem has these sizes.
fn has_sizes(dims: &Dims, only: &Dims) -> bool {
    only.iter().all(|(name, size)| dims.find(name) == Some(size))
}

/// What `--shape` asks for, or a record that is measured again.
pub(super) enum Asked {
    /// Of the problems that versions are timed on, those that have these sizes.
    Having(Dims),
    /// Problems that no version need be timed on otherwise.
    New(Vec<Dims>),
    /// What a record has of each version.
    Recorded(Recorded),
}

impl Asked {
    /// Sizes that some problem of these versions has, or all sizes of problems that some of them take.
    pub(super) fn of(sizes: &[Dims], versions: &[&dyn Version]) -> Option<Self> {
        let having = match sizes {
            [only] => Some(Self::Having(only.clone())),
            _ => None,
        };
        having.into_iter().chain([Self::New(sizes.to_vec())]).find(|asked| {
            let any = |v: &&dyn Version| {
                v.info().dtypes.iter().any(|t| !asked.problems(*v, *t).is_empty())
            };
            versions.iter().any(any)
        })
    }

    /// The problems of a version and type.
    pub(super) fn problems(&self, version: &dyn Version, dtype: DType) -> Vec<Dims> {
        match self {
            Self::Having(sizes) => {
                let mut all = version.bench_shapes(dtype);
                all.retain(|dims| has_sizes(dims, sizes));
                all
            }
            Self::New(problems) => {
                let taken =
                    |dims: &&Dims| version.info().complete(dims).is_ok_and(|all| all == **dims);
                problems.iter().filter(taken).cloned().collect()
            }
            Self::Recorded(lines) => lines.problems(version, dtype),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_of_several_stages_is_posed_each_problem_once() {
        let all: Vec<_> = crate::versions().collect();
        let families = by_family(&all);
        let of = |family: &str| {
            let found: Vec<_> =
                families.iter().filter(|f| f[0].1.info().family.name() == family).collect();
            assert_eq!(found.len(), 1, "{family}");
            let mut stages: Vec<_> = found[0].iter().map(|v| v.1.info().stage).collect();
            stages.dedup();
            stages
        };
        assert_eq!(
            of("vlstm_fwbw"),
            ["vlstm_fwbw_v0", "vlstm_fwbw_v1", "vlstm_fwbw_v2", "vlstm_fwbw_v3", "vlstm_fwbw_v4"]
        );
        let places = families.iter().flatten().map(|v| v.0);
        assert_eq!(places.max(), Some(all.len() - 1));
    }

    #[test]
    fn what_two_stages_have_beside_them_comes_once() {
        let all: Vec<_> = crate::versions().collect();
        let families = by_family(&all);
        let matmul = families.iter().find(|f| f[0].1.info().family.name() == "matmul").unwrap();
        let twice = [matmul.as_slice(), matmul.as_slice()].concat();
        let names = |versions: &[_]| -> Vec<_> {
            peers(versions, "matmul").iter().map(|p| p.info().name).collect()
        };
        assert!(!names(matmul).is_empty());
        assert_eq!(names(&twice), names(matmul));
    }

    #[test]
    fn a_problem_may_be_one_that_nobody_is_timed_on() {
        let versions = vlstm_fw_v4::STAGE.versions;
        let problems = |shape: &str| {
            let asked = Asked::of(&[Dims::parse(shape).unwrap()], versions)?;
            Some(versions.iter().map(|v| asked.problems(*v, DType::BF16).len()).collect::<Vec<_>>())
        };
        let takers =
            |problems: Option<Vec<usize>>| problems.map(|p| p.iter().filter(|n| **n > 0).count());
        // One of the set; a part of several.
        assert_eq!(takers(problems("B=8,NH=8,S=2048,DHQK=256,DHHV=512")), Some(1));
        assert_eq!(takers(problems("S=1024")), Some(4));
        // A whole one that is not: of all that take it, and of none but those.
        assert_eq!(
            problems("B=1,NH=16,S=65536,DHQK=128,DHHV=256"),
            Some(vec![1, 1, 1, 0, 1, 0, 0, 0, 0])
        );
        assert_eq!(
            problems("B=1,NH=16,S=65536,DHQK=192,DHHV=256"),
            Some(vec![0, 0, 0, 0, 1, 0, 0, 0, 0])
        );
        // Not a whole one; one that nobody takes.
        assert_eq!(problems("S=65536"), None);
        assert_eq!(problems("B=1,NH=16,S=65536,DHQK=512,DHHV=256"), None);
    }
}
