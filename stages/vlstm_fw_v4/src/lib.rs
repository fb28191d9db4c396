//! `vlstm_fw_v4`: the vLSTM's forward pass in one walk over chunks, with the state on the chip.
//!
//! The equations are those of `lab_reference::vlstm`, by chunks of 64 positions. A block walks a head, for 64 or 128
//! columns of V: their part of the state stays in its registers, as the accumulators of wgmma.

mod checks;

use lab_device::{DType, Device, Instance, Kernel, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::plan::Scope;
use lab_harness::qkv::{self, sizes};
use lab_harness::vlstm::StateSlots;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Request, Setting, Stage, Version, arguments, vlstm,
};

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A walk over chunks.
#[derive(Debug)]
pub struct Walk {
    info: Info,
    source: &'static KernelSource,
    kernel: &'static str,
    segments: bool,
}

/// Positions of a chunk, and columns of a panel of a matrix.
const SIDE: usize = 64;

/// Bytes of the kernels' struct `Before`.
const BEFORE: usize = 16;

/// More keys than 128 leave no registers for the state; take `vlstm_fw_v3`.
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 4, 65535],
    [2, 16, 65535],
    [150, 2048, 1 << 24],
    [64, 128, 128],
    [64, 256, 1024],
]);

/// Of what is f32 in runs of every type.
const fn in_f32(bound: f64) -> [(DType, f64); 2] {
    [(DType::F16, bound), (DType::BF16, bound)]
}

// C: α v is rounded once, α before it; n has α to twice the bits.
static LAST_STATE: &[Output] = &[
    Output { name: "CN", bounds: &[(DType::F16, 1.2e-3), (DType::BF16, 9e-3)] },
    Output { name: "nN", bounds: &[(DType::F16, 2e-6), (DType::BF16, 1e-5)] },
    Output { name: "mN", bounds: &in_f32(1.4e-7) },
];

static SETTINGS: &[Setting] = &[vlstm::EPSILON, vlstm::last_state(LAST_STATE)];

/// Of few heads, into how many segments each is cut.
const SEGMENTS: Setting = Setting::choice(
    "segments",
    "parts of a sequence that are walked at once; auto: as many as fill the GPU",
    &["auto", "1", "2", "3", "4", "6", "8", "12", "16", "32"],
);

static SEGMENT_SETTINGS: &[Setting] = &[vlstm::EPSILON, vlstm::last_state(LAST_STATE), SEGMENTS];

const INFO: Info = Info {
    stage: "vlstm_fw_v4",
    name: "v0_steps",
    family: &vlstm::FORWARD,
    parent: Some("v1_long"),
    change: "the state stays in registers, as accumulators of wgmma; one block walks a head",
    // B of a product is transposed where it lies, which wgmma does for halves alone.
    dtypes: &[DType::F16, DType::BF16],
    dims: &DIMS,
    settings: SETTINGS,
    inputs: vlstm::FORWARD_INPUTS_WITH_STATE,
    // h: the weights, α, α v, C and h itself are rounded once each.
    outputs: &[
        Output { name: "h", bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)] },
        Output { name: "m", bounds: &in_f32(1.4e-7) },
        Output { name: "n", bounds: &[(DType::F16, 1e-6), (DType::BF16, 5e-6)] },
    ],
};

/// One step after the other.
pub static STEPS: Walk =
    Walk { info: INFO, source: &kernels::V0_STEPS, kernel: "vlstm_fw_steps", segments: false };

/// Each at its own pace.
pub static ROLES: Walk = Walk {
    info: Info {
        name: "v1_roles",
        parent: Some("v0_steps"),
        change: "rings between the roles: tiles, gates and scores are made ahead of the state",
        ..INFO
    },
    source: &kernels::V1_ROLES,
    kernel: "vlstm_fw_roles",
    segments: false,
};

/// Few heads.
pub static PARTS: Walk = Walk {
    info: Info {
        name: "v2_segments",
        parent: Some("v1_roles"),
        change: "few heads: several blocks walk one, each from the state that it joins of parts",
        settings: SEGMENT_SETTINGS,
        ..INFO
    },
    source: &kernels::V2_SEGMENTS,
    kernel: "vlstm_fw_segments",
    segments: true,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fw_v4",
    teaches: "a recurrence whose state never leaves the registers, and who waits for whom",
    versions: &[&STEPS, &ROLES, &PARTS],
    kernels: kernels::KERNELS,
    version_checks: checks::VERSION_CHECKS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

/// Panels of a tensor: 64 of its columns, a chunk of positions.
fn panels(
    dtype: DType,
    columns: usize,
    positions: usize,
    heads: usize,
) -> Result<TensorMap, Error> {
    let map = TensorMap::new(dtype, &[columns, positions, heads], &[SIDE, SIDE, 1])?;
    Ok(map.swizzle(Swizzle::Bytes128))
}

impl Version for Walk {
    fn info(&self) -> &Info {
        &self.info
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        match self.segments {
            true => vec![self.source, ROLES.source],
            false => vec![self.source],
        }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 16, 16],
            // A chunk; one and a bit, one less a bit.
            [1, 1, 64, 64, 64],
            [1, 1, 65, 48, 16],
            [1, 1, 63, 112, 80],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 16, 64],
            [1, 2, 70, 128, 48],
            [2, 2, 9, 16, 208],
            // Several chunks; more than there are places for, and than warps that scan gates.
            [1, 2, 200, 64, 144],
            [1, 1, 130, 128, 256],
            [1, 1, 600, 16, 16],
            [1, 1, 560, 128, 128],
        ]
        .map(sizes)
        .to_vec()
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::wide_bench_shapes(&self.info, dtype)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let segments = match self.segments {
            true => self.segments(request, device.facts().multiprocessors as usize)?,
            false => 1,
        };
        let version = if self.segments && segments == 1 { &ROLES } else { self };
        let dtype = request.dtype;
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, dhqk, dhhv] = qkv::of(&request.dims);
        let (heads, chunks) = (b * nh, s.div_ceil(SIDE));
        let chunks_each = chunks.div_ceil(segments);

        let mut plan = Plan::new(device);
        let [q, k, v, i_gate, f_gate] = request.inputs(&mut plan, ["q", "k", "v", "i", "f"]);
        let h = plan.output("h", dtype, &[b, nh, s, dhhv]);
        let [m_out, n_out] = ["m", "n"].map(|name| plan.output(name, DType::F32, &[b, nh, s]));
        let StateSlots { given, wanted, first, last } = vlstm::state_slots(&mut plan, request);
        let ([c0, n0, m0], [c_n, n_n, m_n]) = (first, last);
        let keys = panels(dtype, dhqk, s, heads)?;
        let values = panels(dtype, dhhv, s, heads)?;
        let [q, k] = [q, k].map(|slot| slot.loaded_by(keys));
        let (v, h) = (v.loaded_by(values), h.stored_by(values));
        let log2_scale = -0.5 * (dhqk as f64).log2();
        let mut scope = Scope::new()
            .with(arguments![q, k, v, h, i_gate, f_gate, m_out, n_out])
            .with(arguments![C0: c0, n0, m0, CN: c_n, nN: n_n, mN: m_n, given, wanted])
            .with(arguments![S: s, dhqk, dhhv, segments, chunks_each, log2_scale, eps]);
        if version.segments {
            let instance = version.instance("vlstm_fw_parts", request);
            let parts = heads * (segments - 1);
            let columns = dhhv.div_ceil(SIDE * instance.size("GROUPS")) * instance.size("GROUPS");
            let cells = parts * columns * SIDE * instance.size("KEY");
            let c_part = plan.scratch(DType::F32, cells);
            let n_part = plan.scratch(DType::F32, parts * instance.size("KEY"));
            let behind = plan.records("Before", BEFORE, parts);
            scope = scope.with(arguments![C_part: c_part, n_part, behind]);
            let kernel = device.load(instance)?;
            let launch = launch(&kernel, &instance, parts, dhhv)?;
            plan.launch_in(&scope, &kernel, launch, [])?;
        }
        let instance = version.instance(version.kernel, request);
        let kernel = device.load(instance)?;
        let launch = launch(&kernel, &instance, heads * segments, dhhv)?;
        plan.launch_in(&scope, &kernel, launch, [])?;
        Ok(plan)
    }
}

/// A block for each walk and slice of V.
fn launch(
    kernel: &Kernel,
    instance: &Instance,
    walks: usize,
    dhhv: usize,
) -> Result<Launch, Error> {
    let all = walks * dhhv.div_ceil(SIDE * instance.size("GROUPS"));
    let blocks = i32::try_from(all).map_err(|_| {
        Error::bad("B NH slices of V", format!("at most {}, one a block", i32::MAX), all)
    })?;
    Ok(Launch::of([blocks as u32, 1, 1], kernel.block()?))
}

impl Walk {
    /// The first that has room for the keys, and, of 64 keys, with one warpgroup where values need no more.
    fn instance(&self, kernel: &str, request: &Request<'_>) -> Instance {
        let [.., dhqk, dhhv] = qkv::of(&request.dims);
        let fits = |i: &Instance| {
            i.has("T", request.dtype.cpp())
                && dhqk <= i.size("KEY")
                && (i.size("GROUPS") > 1 || dhhv <= SIDE)
        };
        self.source.instances(kernel).find(fits).expect("DHQK of a checked problem")
    }

    /// Into how many segments each head is cut, none of them empty.
    fn segments(&self, request: &Request<'_>, multiprocessors: usize) -> Result<usize, Error> {
        let [b, nh, s, _, dhhv] = qkv::of(&request.dims);
        let chunks = s.div_ceil(SIDE);
        let asked = match request.options().text(&self.info, SEGMENTS.name) {
            "auto" => {
                let groups = self.instance(self.kernel, request).size("GROUPS");
                segments_for(b * nh * dhhv.div_ceil(SIDE * groups), chunks, multiprocessors)
            }
            text => text.parse().expect("one of the choices"),
        };
        if asked > chunks {
            let expected = format!("at most {chunks}: the sequence has so many chunks of {SIDE}");
            return Err(Error::bad("--set segments", expected, asked));
        }
        Ok(chunks.div_ceil(chunks.div_ceil(asked)))
    }
}

/// As many as make a block for each multiprocessor, of four chunks at least: a part costs a launch, and the state's way
/// to memory and back.
fn segments_for(blocks: usize, chunks: usize, multiprocessors: usize) -> usize {
    (multiprocessors / blocks).min(chunks / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_heads_are_cut() {
        assert_eq!(segments_for(256, 32, 132), 1);
        assert_eq!(segments_for(128, 32, 132), 1);
        assert_eq!(segments_for(32, 16, 132), 4);
        assert_eq!(segments_for(8, 128, 132), 16);
        assert_eq!(segments_for(1, 3, 132), 1);
    }
}
