//! Which version runs a call.

use lab_device::{Device, DeviceKind, KernelSource};
use lab_harness::{Error, Options, Request, Shapes, Stage, Version};

use crate::RecurrentCell;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// q, k, v, i, f and a state → h, m, n and a state: of the family `vlstm_fw`.
    Forward,
    /// The same and dh → all gradients: of the family `vlstm_fwbw`.
    Gradients,
    /// One position, behind a state that is updated where it lies: of the family `vlstm_step`.
    Step,
    /// q, k, v, g, beta and a state → h and a state: of the family `gdn_fw`.
    Delta,
    /// The same and dh → all gradients: of the family `gdn_fwbw`.
    DeltaGradients,
    /// One position of the gated delta rule, behind a state that is updated where it lies: of the family `gdn_step`.
    DeltaStep,
    /// q, k, v, g and a state → h and a state: of the family `linear_fw`.
    Linear,
    /// The same and dh → all gradients: of the family `linear_fwbw`.
    LinearGradients,
    /// One position of linear attention, behind a state that is updated where it lies: of the family `linear_step`.
    LinearStep,
    /// q, k, v, i, f and a state → h and a state, of sigmoid gates without a normaliser: of the family `sigmoid_fw`.
    Sigmoid,
    /// The same and dh → all gradients: of the family `sigmoid_fwbw`.
    SigmoidGradients,
    /// One position of it, behind a state that is updated where it lies: of the family `sigmoid_step`.
    SigmoidStep,
}

/// A version, and the stage that it is of.
#[derive(Clone, Copy)]
pub struct Candidate {
    /// The version.
    pub version: &'static dyn Version,
    stage: &'static Stage,
}

impl Candidate {
    /// As [`needed_arch`].
    fn needs(&self, device: &Device) -> Option<&'static str> {
        needed_arch(self.version, self.stage, device)
    }
}

/// What a version of a stage needs in place of this device's architecture, as NVRTC names that; `None` where it runs there,
/// as everything does on the emulator, whose architecture has no name.
pub fn needed_arch(version: &dyn Version, stage: &Stage, device: &Device) -> Option<&'static str> {
    let own = version.sources();
    let all: &[&'static KernelSource] = if own.is_empty() { stage.kernels } else { &own };
    let arch = &device.facts().arch;
    all.iter().find(|source| !source.runs_on(arch)).map(|source| source.least_arch)
}

/// Stages whose versions operations choose from, each in the order that its versions say: [`Version::preference`].
static STAGES: &[&Stage] = &[
    &vlstm_fw_v1::STAGE,
    &vlstm_fw_v3::STAGE,
    &vlstm_fw_v4::STAGE,
    &vlstm_fwbw_v0::STAGE,
    &vlstm_fwbw_v1::STAGE,
    &vlstm_fwbw_v3::STAGE,
    &vlstm_fwbw_v4::STAGE,
    &vlstm_step::STAGE,
    &lstm_fused::STAGE,
    &slstm_fused::STAGE,
    &attention::STAGE,
    &gdn_fw::STAGE,
    &gdn_fwbw::STAGE,
    &gdn_step::STAGE,
];

/// The versions of a family, in the order that they prefer on this kind of device.
fn candidates(family: &str, kind: DeviceKind) -> Vec<Candidate> {
    let all = STAGES
        .iter()
        .flat_map(|&stage| stage.versions.iter().map(move |&version| Candidate { version, stage }));
    let of_family = all.filter(|c| c.version.info().family.name() == family);
    let mut placed: Vec<(u32, Candidate)> =
        of_family.filter_map(|c| Some((c.version.preference()?.on(kind), c))).collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, candidate)| candidate).collect()
}

impl Pass {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Forward,
        Self::Gradients,
        Self::Step,
        Self::Delta,
        Self::DeltaGradients,
        Self::DeltaStep,
        Self::Linear,
        Self::LinearGradients,
        Self::LinearStep,
        Self::Sigmoid,
        Self::SigmoidGradients,
        Self::SigmoidStep,
    ];

    /// Its name, as other languages ask for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Gradients => "gradients",
            Self::Step => "step",
            Self::Delta => "delta",
            Self::DeltaGradients => "delta_gradients",
            Self::DeltaStep => "delta_step",
            Self::Linear => "linear",
            Self::LinearGradients => "linear_gradients",
            Self::LinearStep => "linear_step",
            Self::Sigmoid => "sigmoid",
            Self::SigmoidGradients => "sigmoid_gradients",
            Self::SigmoidStep => "sigmoid_step",
        }
    }

    /// The pass of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn of_name(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|pass| pass.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::bad("pass", format!("one of {known}"), name)
        })
    }

    /// Its family, and that of sequences of unlike lengths.
    fn families(self) -> [&'static str; 2] {
        match self {
            Self::Forward => ["vlstm_fw", "vlstm_fw_packed"],
            Self::Gradients => ["vlstm_fwbw", "vlstm_fwbw_packed"],
            Self::Step => ["vlstm_step", "vlstm_step_packed"],
            Self::Delta => ["gdn_fw", "gdn_fw_packed"],
            Self::DeltaGradients => ["gdn_fwbw", "gdn_fwbw_packed"],
            Self::DeltaStep => ["gdn_step", "gdn_step_packed"],
            Self::Linear => ["linear_fw", "linear_fw_packed"],
            Self::LinearGradients => ["linear_fwbw", "linear_fwbw_packed"],
            Self::LinearStep => ["linear_step", "linear_step_packed"],
            Self::Sigmoid => ["sigmoid_fw", "sigmoid_fw_packed"],
            Self::SigmoidGradients => ["sigmoid_fwbw", "sigmoid_fwbw_packed"],
            Self::SigmoidStep => ["sigmoid_step", "sigmoid_step_packed"],
        }
    }

    /// Its versions, those first that a GPU should run.
    pub fn candidates(self) -> Vec<Candidate> {
        candidates(self.families()[0], DeviceKind::Cuda)
    }

    /// Those that take sequences of unlike lengths, with the tensor `cu_seqlens`, which no other takes.
    pub fn packed_candidates(self) -> Vec<Candidate> {
        candidates(self.families()[1], DeviceKind::Cuda)
    }
}

/// The version that runs a pass on a device, for tensors of these shapes and under these options, each `name=value`:
/// the first of its versions, in the order that they prefer there, that takes all of it, or the one of this name.
///
/// # Errors
/// The name is no candidate's; or none takes the call: what the one of that name, or else each of them, says.
pub fn choose(
    pass: Pass,
    device: &Device,
    shapes: &Shapes,
    options: &[String],
    name: Option<&str>,
) -> Result<&'static dyn Version, Error> {
    let family = pass.families()[usize::from(shapes.contains_key("cu_seqlens"))];
    choose_of(family, device, shapes, options, name)
}

/// The same for softmax attention: its forward pass alone, or with the gradients. Packed sequences have a tensor `cu_seqlens`.
///
/// # Errors
/// As [`choose`].
pub fn choose_attention(
    gradients: bool,
    device: &Device,
    shapes: &Shapes,
    options: &[String],
    name: Option<&str>,
) -> Result<&'static dyn Version, Error> {
    let family = match (shapes.contains_key("cu_seqlens"), gradients) {
        (false, false) => "attention",
        (false, true) => "attention_fwbw",
        (true, false) => "attention_packed",
        (true, true) => "attention_fwbw_packed",
    };
    choose_of(family, device, shapes, options, name)
}

/// The same for one position over a cache.
///
/// # Errors
/// As [`choose`].
pub fn choose_attention_step(
    device: &Device,
    shapes: &Shapes,
    options: &[String],
    name: Option<&str>,
) -> Result<&'static dyn Version, Error> {
    choose_of("attention_step", device, shapes, options, name)
}

/// The same for a recurrence.
pub(crate) fn choose_recurrent(
    cell: RecurrentCell,
    gradients: bool,
    device: &Device,
    shapes: &Shapes,
    name: Option<&str>,
) -> Result<&'static dyn Version, Error> {
    let family = match (cell, gradients) {
        (RecurrentCell::Lstm, false) => "lstm_fw",
        (RecurrentCell::Lstm, true) => "lstm",
        (RecurrentCell::Slstm, false) => "slstm_fw",
        (RecurrentCell::Slstm, true) => "slstm",
        (RecurrentCell::Gru, _) => {
            let of_network = "a cell that versions are of: a GRU is a network of one layer";
            return Err(Error::bad("cell", of_network, "a GRU"));
        }
    };
    choose_of(family, device, shapes, &[], name)
}

/// The first version of a family that takes all of it, or the one of this name.
fn choose_of(
    family: &str,
    device: &Device,
    shapes: &Shapes,
    options: &[String],
    name: Option<&str>,
) -> Result<&'static dyn Version, Error> {
    let order = candidates(family, device.kind());
    let suits = |candidate: &Candidate| {
        let info = candidate.version.info();
        let options = Options::parse(options, info)?;
        let dims = Request::new(info, shapes.clone(), &options)?.dims.clone();
        match candidate.needs(device) {
            Some(needed) => {
                let expected = format!("a GPU of {needed} for {}", info.full_name());
                Err(Error::bad("device", expected, device.name()))
            }
            None => Ok((candidate.version, dims)),
        }
    };
    if let Some(name) = name {
        let found = order.iter().find(|c| c.version.info().full_name() == name);
        let known = || {
            let all: Vec<_> = order.iter().map(|c| c.version.info().full_name()).collect();
            Error::bad("version", format!("auto or one of {}", all.join(", ")), format!("'{name}'"))
        };
        return Ok(suits(found.ok_or_else(known)?)?.0);
    }
    let mut reasons = Vec::new();
    // A type that only others take says less than a size that one of its own does not.
    let dtype = shapes.get("q").map(|q| q.dtype);
    let takes = |c: &&Candidate| dtype.is_none_or(|d| c.version.info().dtypes.contains(&d));
    let of_type: Vec<_> = order.iter().filter(takes).collect();
    for candidate in if of_type.is_empty() { order.iter().collect() } else { of_type } {
        match suits(candidate) {
            Ok((version, dims)) if version.is_chosen_for(&dims) => return Ok(version),
            Ok(_) => {}
            Err(error) => reasons.push((candidate.version.info().full_name(), error)),
        }
    }
    Err(Error::NoVersion { reasons })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lab_device::DType;
    use lab_harness::Shape;

    use super::*;

    fn shapes(dtype: DType, [keys, values]: [usize; 2]) -> Shapes {
        let named = |name: &str, dtype, last: &[usize]| {
            (name.to_owned(), Shape { dtype, sizes: [&[1, 2, 40], last].concat() })
        };
        let [q, k] = ["q", "k"].map(|name| named(name, dtype, &[keys]));
        let [i, f] = ["i", "f"].map(|name| named(name, DType::F32, &[]));
        [q, k, named("v", dtype, &[values]), i, f].into()
    }

    fn chosen(shapes: &Shapes, options: &[&str], name: Option<&str>) -> Result<String, String> {
        let device = Device::emulator().unwrap();
        let options: Vec<String> = options.iter().map(|&text| text.to_owned()).collect();
        let version = choose(Pass::Forward, &device, shapes, &options, name);
        version.map(|v| v.info().full_name()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_first_that_takes_sizes_type_and_options() {
        let of =
            |dtype, sizes, options: &[&str]| chosen(&shapes(dtype, sizes), options, None).unwrap();
        assert_eq!(of(DType::F32, [16, 32], &[]), "vlstm_fw_v1:online");
        assert_eq!(of(DType::F16, [128, 32], &["last_state=yes"]), "vlstm_fw_v4:v1_roles");
        assert_eq!(of(DType::F16, [256, 32], &["last_state=yes"]), "vlstm_fw_v3:v0_chunks");
        let mut packed = shapes(DType::F16, [128, 32]);
        for shape in packed.values_mut() {
            *shape = Shape { sizes: [&[1], &shape.sizes[1..]].concat(), ..*shape };
        }
        packed.insert("cu_seqlens".into(), Shape { dtype: DType::I32, sizes: vec![4] });
        assert_eq!(chosen(&packed, &["last_state=yes"], None).unwrap(), "vlstm_fw_v4:v3_packed");
        let by_name = |name| chosen(&shapes(DType::BF16, [16, 16]), &[], Some(name));
        assert_eq!(by_name("vlstm_fw_v4:v2_segments").unwrap(), "vlstm_fw_v4:v2_segments");
        let said = by_name("vlstm_fwbw_v1:ahead").unwrap_err();
        assert!(
            said.starts_with("version: expected auto or one of vlstm_fw_v1:online, "),
            "{said}"
        );
    }

    /// Of two in one place it would be chance which one runs.
    #[test]
    fn no_two_versions_prefer_the_same_place() {
        let families: BTreeSet<&str> = STAGES
            .iter()
            .flat_map(|stage| stage.versions)
            .filter(|version| version.preference().is_some())
            .map(|version| version.info().family.name())
            .collect();
        assert!(families.len() > 10, "{families:?}");
        for family in families {
            for kind in [DeviceKind::Cuda, DeviceKind::Emulator] {
                let all = candidates(family, kind);
                let places = all.iter().map(|c| c.version.preference().map(|p| p.on(kind)));
                assert_eq!(places.collect::<BTreeSet<_>>().len(), all.len(), "{family}, {kind:?}");
            }
        }
    }

    /// A family that has another name than a pass asks for would have no version.
    #[test]
    fn each_pass_has_versions() {
        for pass in Pass::ALL {
            assert!(!pass.candidates().is_empty(), "{pass:?}");
            let steps = [Pass::Step, Pass::DeltaStep, Pass::LinearStep, Pass::SigmoidStep];
            let is_step = steps.contains(&pass);
            assert_eq!(pass.packed_candidates().is_empty(), is_step, "{pass:?}");
            assert_eq!(Pass::of_name(pass.name()).unwrap(), pass);
        }
        for family in [
            ["attention", "attention_fwbw"],
            ["attention_packed", "attention_fwbw_packed"],
            ["lstm", "lstm_fw"],
            ["slstm", "slstm_fw"],
        ] {
            assert!(
                family.iter().all(|f| !candidates(f, DeviceKind::Cuda).is_empty()),
                "{family:?}"
            );
        }
        assert!(!candidates("attention_step", DeviceKind::Cuda).is_empty());
    }

    #[test]
    fn where_none_suits_each_that_takes_the_type_says_why() {
        let said = chosen(&shapes(DType::F32, [24, 16]), &[], None).unwrap_err();
        let expected = "call: expected what a version takes, got what none does\n  vlstm_fw_v1:online: tensor 'q': \
                        expected dimension DHQK: expected a multiple of 16 from 16 to 256, got 24, got f32 [1, 2, 40, 24]";
        assert_eq!(said, expected);
        let said = chosen(&shapes(DType::F64, [16, 16]), &[], None).unwrap_err();
        assert_eq!(said.lines().count(), 1 + Pass::Forward.candidates().len(), "{said}");
    }
}
