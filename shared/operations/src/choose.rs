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

macro_rules! candidates {
    ($($stage:ident: $($version:ident $([$n:literal])?),+;)+) => {
        &[$($(Candidate { version: &$stage::$version$([$n])?, stage: &$stage::STAGE }),+),+]
    };
}

static FORWARD: &[Candidate] = candidates! {
    vlstm_fw_v4: SEGMENTED, ROLES, WIDE, STEPS;
    vlstm_fw_v3: LONG, CHUNKS;
    vlstm_fw_v1: ONLINE;
};

static GRADIENTS: &[Candidate] = candidates! {
    vlstm_fwbw_v4: SEGMENTED, TOGETHER, WIDE, WALKS;
    vlstm_fwbw_v3: CARRIED, TOGETHER, LONG, CHUNKS;
    vlstm_fwbw_v1: AHEAD, TWINS, ROWS;
    vlstm_fwbw_v0: FLAGS, GRID_SYNC;
};

/// Of sequences of unlike lengths, one behind the other.
static PACKED_FORWARD: &[Candidate] = candidates! {
    vlstm_fw_v4: PACKED;
};

static PACKED_GRADIENTS: &[Candidate] = candidates! {
    vlstm_fwbw_v4: PACKED;
};

static STEP: &[Candidate] = candidates! {
    vlstm_step: SLICES, PACKS, RING, SIMPLE;
};

impl Pass {
    /// The pass of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn of_name(name: &str) -> Result<Self, Error> {
        match name {
            "forward" => Ok(Self::Forward),
            "gradients" => Ok(Self::Gradients),
            "step" => Ok(Self::Step),
            _ => Err(Error::bad("pass", "forward, gradients or step", name)),
        }
    }

    /// Its versions, those first that a GPU should run: the fastest of the records in `benches/history`, then those
    /// that take more sizes and types, or run on older GPUs.
    pub fn candidates(self) -> &'static [Candidate] {
        match self {
            Self::Forward => FORWARD,
            Self::Gradients => GRADIENTS,
            Self::Step => STEP,
        }
    }

    /// Those that take sequences of unlike lengths, with the tensor `cu_seqlens`, which no other takes.
    pub fn packed_candidates(self) -> &'static [Candidate] {
        match self {
            Self::Forward => PACKED_FORWARD,
            Self::Gradients => PACKED_GRADIENTS,
            Self::Step => &[],
        }
    }

    /// Those for tensors of these shapes.
    fn candidates_for(self, shapes: &Shapes) -> &'static [Candidate] {
        if shapes.contains_key("cu_seqlens") { self.packed_candidates() } else { self.candidates() }
    }

    /// The same in the order of the emulator's time.
    fn on_emulator(self, shapes: &Shapes) -> Vec<&'static Candidate> {
        let mut all: Vec<_> = self.candidates_for(shapes).iter().collect();
        all.sort_by_key(|c| {
            let name = c.version.info().full_name();
            EMULATED_FIRST.iter().position(|first| *first == name).unwrap_or(EMULATED_FIRST.len())
        });
        all
    }
}

/// What the emulator takes the least time for at heads of 32 to 256 columns and some hundred positions, the first that
/// suits: without a state all pairs, one thread a pair; with one the walks, whose launches are fewest.
const EMULATED_FIRST: &[&str] = &[
    "vlstm_fw_v1:online",
    "vlstm_fw_v4:v1_roles",
    "vlstm_fw_v3:v0_chunks",
    "vlstm_fwbw_v0:flags",
    "vlstm_fwbw_v1:ahead",
    "vlstm_fwbw_v4:v1_together",
    "vlstm_fwbw_v3:v0_chunks",
    "vlstm_step:v0_simple",
];

/// The version that runs a pass on a device, for tensors of these shapes and under these options, each `name=value`:
/// the first of [`Pass::candidates`] that takes all of it, or the one of this name.
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
    let order: Vec<&'static Candidate> = match device.kind() {
        DeviceKind::Cuda => pass.candidates_for(shapes).iter().collect(),
        DeviceKind::Emulator => pass.on_emulator(shapes),
    };
    choose_among(&order, device, shapes, options, name)
}

/// The versions of softmax attention, those first that a GPU should run.
static ATTENTION: &[Candidate] = candidates! {
    attention: TURNS, WGMMA, MMA, ONLINE, SCORES;
};

static ATTENTION_GRADIENTS: &[Candidate] = candidates! {
    attention: WGMMA_BACK, MMA_BACK, SCORES_BACK;
};

static PACKED_ATTENTION: &[Candidate] = candidates! {
    attention: PACKED;
};

static PACKED_ATTENTION_GRADIENTS: &[Candidate] = candidates! {
    attention: PACKED_BACK;
};

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
    let all = match (shapes.contains_key("cu_seqlens"), gradients) {
        (false, false) => ATTENTION,
        (false, true) => ATTENTION_GRADIENTS,
        (true, false) => PACKED_ATTENTION,
        (true, true) => PACKED_ATTENTION_GRADIENTS,
    };
    choose_among(&all.iter().collect::<Vec<_>>(), device, shapes, options, name)
}

static ATTENTION_STEP: &[Candidate] = candidates! {
    attention: STEP_SPLIT, STEP;
};

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
    choose_among(&ATTENTION_STEP.iter().collect::<Vec<_>>(), device, shapes, options, name)
}

/// The versions of the LSTM and of the sLSTM, likewise.
static LSTM: &[Candidate] = candidates! {
    lstm_fused: TENSOR, FORWARD[1], FORWARD[0];
};

static LSTM_GRADIENTS: &[Candidate] = candidates! {
    lstm_fused: TENSOR_BACK, SEQUENCE, CELL;
};

static SLSTM: &[Candidate] = candidates! {
    slstm_fused: FORWARD[1], FORWARD[0];
};

static SLSTM_GRADIENTS: &[Candidate] = candidates! {
    slstm_fused: HEADS, CELL;
};

/// The same for a recurrence.
pub(crate) fn choose_recurrent(
    cell: RecurrentCell,
    gradients: bool,
    device: &Device,
    shapes: &Shapes,
    name: Option<&str>,
) -> Result<&'static dyn Version, Error> {
    let all = match (cell, gradients) {
        (RecurrentCell::Lstm, false) => LSTM,
        (RecurrentCell::Lstm, true) => LSTM_GRADIENTS,
        (RecurrentCell::Slstm, false) => SLSTM,
        (RecurrentCell::Slstm, true) => SLSTM_GRADIENTS,
        // A network of one layer, which no version is.
        (RecurrentCell::Gru, _) => &[],
    };
    choose_among(&all.iter().collect::<Vec<_>>(), device, shapes, &[], name)
}

/// The first of these that takes all of it, or the one of this name.
fn choose_among(
    order: &[&'static Candidate],
    device: &Device,
    shapes: &Shapes,
    options: &[String],
    name: Option<&str>,
) -> Result<&'static dyn Version, Error> {
    let suits = |candidate: &Candidate| {
        let info = candidate.version.info();
        let options = Options::parse(options, info)?;
        Request::new(info, shapes.clone(), &options)?;
        match candidate.needs(device) {
            Some(needed) => {
                let expected = format!("a GPU of {needed} for {}", info.full_name());
                Err(Error::bad("device", expected, device.name()))
            }
            None => Ok(candidate.version),
        }
    };
    if let Some(name) = name {
        let found = order.iter().find(|c| c.version.info().full_name() == name);
        let known = || {
            let all: Vec<_> = order.iter().map(|c| c.version.info().full_name()).collect();
            Error::bad("version", format!("auto or one of {}", all.join(", ")), format!("'{name}'"))
        };
        return suits(found.ok_or_else(known)?);
    }
    let mut reasons = Vec::new();
    // A type that only others take says less than a size that one of its own does not.
    let dtype = shapes.get("q").map(|q| q.dtype);
    let takes = |c: &&&Candidate| dtype.is_none_or(|d| c.version.info().dtypes.contains(&d));
    let of_type: Vec<_> = order.iter().filter(takes).collect();
    for candidate in if of_type.is_empty() { order.iter().collect() } else { of_type } {
        match suits(candidate) {
            Ok(version) => return Ok(version),
            Err(error) => reasons.push((candidate.version.info().full_name(), error)),
        }
    }
    Err(Error::NoVersion { reasons })
}

#[cfg(test)]
mod tests {
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
