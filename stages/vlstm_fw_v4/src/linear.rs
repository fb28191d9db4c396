//! Linear attention with a scalar decay, and mLSTMsig without a normaliser, by the walk of [`ROLES`]: the same kernel with other
//! gates and no normaliser.

use lab_device::{DType, Device, Instance, KernelSource, LaunchPromise};
use lab_families::gdn::{self, Slots, sizes_of};
use lab_families::packed::{PackedSlot, room_for_parts};
use lab_harness::compare::unit;
use lab_harness::plan::{Scope, Slot};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Version, arguments,
};

use crate::{ROLES, SIDE, WEIGHTS, blocks_of, kernels, panels, saved_words};

/// A walk over chunks whose weights are at most 1, or given, and which has no n.
#[derive(Debug)]
pub struct Linear {
    info: Info,
    gates: &'static str,
}

static DIMS: [Dim; 6] = gdn::dims([
    [1, 8, 65535],
    [2, 32, 65535],
    [1, 1, 65535],
    [150, 4096, 1 << 24],
    [64, 128, 128],
    [64, 64, 1024],
]);

// As of the vLSTM: v times its weight is rounded once, the weight before it.
static LAST_STATE: [Output; 1] = [Output {
    name: "CN",
    bounds: &[(DType::F16, 1.2e-3), (DType::BF16, 9e-3)],
    elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
}];

/// Heads of V that a block walks at once, where they share keys.
pub(crate) const TOGETHER: Setting = Setting::choice(
    "together",
    "heads of V with up to 64 columns that one block walks, where they share keys; auto: two where heads are more than multiprocessors",
    &["auto", "1", "2"],
);

static SETTINGS: &[Setting] = &[gdn::SCALE, gdn::last_state(&LAST_STATE), TOGETHER];

/// Decays in place of gates, and no normaliser.
pub static DECAY: Linear = Linear {
    info: Info {
        stage: "vlstm_fw_v4",
        name: "v5_decay",
        family: &gdn::LINEAR_FORWARD,
        parent: Some("v1_roles"),
        change: "gates and normaliser are types: with decays for gates nothing needs m, and without a normaliser nothing needs n",
        dtypes: &[DType::F16, DType::BF16],
        dims: &DIMS,
        settings: SETTINGS,
        inputs: gdn::LINEAR_INPUTS,
        // Weights, v times its weight, C and h itself are rounded once each.
        outputs: &[Output {
            name: "h",
            bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
            elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
        }],
    },
    gates: "Decay",
};

static PACKED_DIMS: [Dim; 6] = gdn::packed_dims([
    [4, 8, 65535],
    [2, 32, 65535],
    [1, 1, 65535],
    [300, 16384, 1 << 24],
    [64, 128, 128],
    [64, 64, 1024],
]);

/// Sigmoid gates, and no normaliser.
pub static SIGMOID: Linear = Linear {
    info: Info {
        name: "v6_sigmoid",
        family: &gdn::SIGMOID_FORWARD,
        parent: Some("v5_decay"),
        change: "gates as the vLSTM's, but a sigmoid for the input gate, made where they are scanned",
        inputs: gdn::SIGMOID_INPUTS,
        ..DECAY.info
    },
    gates: "Sigmoid",
};

/// Decays, of sequences of unlike lengths.
pub static PACKED_DECAY: Linear = Linear {
    info: Info {
        name: "v7_packed_decay",
        family: &gdn::PACKED_LINEAR_FORWARD,
        parent: None,
        change: "as v5_decay, of sequences one behind the other: a tile ends where its sequence ends",
        dims: &PACKED_DIMS,
        inputs: gdn::PACKED_LINEAR_INPUTS,
        ..DECAY.info
    },
    gates: "Decay",
};

/// Sigmoid gates, of sequences of unlike lengths.
pub static PACKED_SIGMOID: Linear = Linear {
    info: Info {
        name: "v8_packed_sigmoid",
        family: &gdn::PACKED_SIGMOID_FORWARD,
        change: "as v6_sigmoid, of sequences one behind the other",
        inputs: gdn::PACKED_SIGMOID_INPUTS,
        ..PACKED_DECAY.info
    },
    gates: "Sigmoid",
};

impl Version for Linear {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(Preference::new(10))
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![ROLES.source]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        // Keys that two heads share; more chunks than there are places for.
        linear_test_shapes(&self.info, [[1, 2, 1, 70, 128, 48], [1, 1, 1, 560, 128, 128]])
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        linear_bench_shapes(&self.info, dtype)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let mut plan = Plan::new(device);
        gdn::group_of(&request.dims)?;
        let scale = gdn::scale_of(&self.info, request.options(), request.dim("DHQK"));
        let slots = Slots::new(&mut plan, request);
        let (dims, dtype) = (&request.dims, request.dtype);
        let columns = ["DHQK", "DHHV"].map(|name| dims.get(name));
        let weighed = has_weights(request);
        let together = self.heads_together(device, request)?;
        let forward = LinearForward {
            slots,
            dims,
            dtype,
            columns,
            scale,
            weighed,
            together,
            anchors: 0,
            left: None,
        };
        self.add_forward(&mut plan, kernels::PROMISE, forward)?;
        Ok(plan)
    }
}

/// The problems on which the passes of linear attention are tested, forward or both; two of them are a pass's own.
pub fn linear_test_shapes(info: &Info, own: [[usize; 6]; 2]) -> Vec<Dims> {
    let alike = [
        [1, 1, 1, 1, 16, 16],
        // A chunk; one and a bit, one less a bit.
        [1, 1, 1, 64, 64, 64],
        [1, 1, 1, 65, 48, 16],
        [1, 2, 1, 63, 112, 80],
        // Heads that share keys, narrow and wide, of unlike widths.
        [2, 4, 2, 40, 16, 32],
        [2, 2, 2, 9, 16, 208],
        // Several chunks, more than places, and than warps that scan gates; anchors.
        [1, 2, 2, 200, 64, 144],
        [1, 1, 1, 600, 16, 16],
        own[0],
        own[1],
    ];
    gdn::fitting_shapes(info, &alike, &gdn::PACKED_TEST_SHAPES)
}

/// The problems on which they are timed: the two heads of Mamba-2 and of simple GLA, whose keys are shared, and that of the vLSTM. Packed,
/// as many positions in eight sequences and in many.
pub fn linear_bench_shapes(info: &Info, dtype: DType) -> Vec<Dims> {
    let alike = [[8, 32, 1, 4096, 128, 64], [8, 32, 1, 4096, 64, 64], [8, 16, 16, 2048, 128, 256]];
    let packed = [
        [8, 32, 1, 32768, 128, 64],
        [64, 32, 1, 32768, 128, 64],
        [8, 16, 16, 16384, 128, 256],
        [64, 16, 16, 16384, 128, 256],
    ];
    let mut all = gdn::fitting_shapes(info, &alike, &packed);
    if dtype != DType::BF16 {
        all.truncate(1);
    }
    all
}

/// Whether there are input gates, or weights.
pub fn has_weights(request: &Request<'_>) -> bool {
    ["w", "i"].iter().any(|name| request.has(name))
}

/// What the launch of a forward pass is made of.
#[derive(Clone, Copy, Debug)]
pub struct LinearForward<'a> {
    /// Its tensors.
    pub slots: Slots,
    /// Sizes.
    pub dims: &'a Dims,
    /// Of q, k, v and h.
    pub dtype: DType,
    /// For how many columns of q and v the kernel has room: those of the problem, or more.
    pub columns: [usize; 2],
    /// s, above 0.
    pub scale: f64,
    /// As [`has_weights`] says.
    pub weighed: bool,
    /// Heads of V that a block walks: one, or two that share keys, of up to 64 columns, without anchors.
    pub together: usize,
    /// For how many times a head has room for its state, as [`crate::ForBackward::anchors`].
    pub anchors: usize,
    /// Records of [`WEIGHTS`] bytes for the weights of all chunks, of a walk forward and back; the caller has declared them.
    pub left: Option<[Slot; 2]>,
}

impl Linear {
    /// Adds the launch of a forward pass to a plan. Whoever calls for it promises that the plan's slots have the elements that the
    /// sizes say. Returns the slot of the states at anchors, as [`crate::Saved::states`].
    ///
    /// # Errors
    /// A scale that is not above 0, NH that is no multiple of NKV, more blocks than a launch can have, or what the device says of
    /// the kernel.
    pub fn add_forward(
        &self,
        plan: &mut Plan,
        _promise: LaunchPromise,
        forward: LinearForward<'_>,
    ) -> Result<Slot, Error> {
        let LinearForward { slots, dims, dtype, columns, scale, weighed, together, anchors, left } =
            forward;
        let leaves = left.is_some();
        let [left, back] =
            left.unwrap_or_else(|| [(); 2].map(|()| plan.records("Weights", WEIGHTS, 1)));
        let Slots { q, k, v, g, beta, h, first: (c0, given), last: (c_n, wanted), packed } = slots;
        let PackedSlot { sequences, cu_seqlens } = packed;
        let sharing = gdn::group_of(dims)?;
        let [b, nh, nkv, s, dhqk, dhhv] = sizes_of(dims);
        let chunks = room_for_parts(s, SIDE, sequences);
        // The kernel has its logarithm.
        if scale.is_nan() || scale <= 0.0 {
            return Err(Error::bad("--set scale", "a positive number, or 0", scale));
        }
        // What only n, m or a backward pass has.
        let [m_out, n_out, n0, m0, n_n, m_n, saved_n, slopes] =
            [(); 8].map(|()| plan.scratch(DType::F32, 1));
        let instance = self.instance(dtype, columns, together);
        let saved = plan.scratch(DType::U32, saved_words(&instance, b * nh * anchors, dhhv, dtype));
        let of_keys = panels(dtype, dhqk, s, b * nkv, None)?;
        let of_values = panels(dtype, dhhv, s, b * nh, None)?;
        let scope = Scope::new()
            .with(arguments![q: q.loaded_by(of_keys), k: k.loaded_by(of_keys)])
            .with(arguments![v: v.loaded_by(of_values), h: h.stored_by(of_values)])
            .with(arguments![f_gate: g, C0: c0, CN: c_n, given, wanted])
            .with(arguments![i_gate: beta, weighed, m_out, n_out, n0, m0, nN: n_n, mN: m_n])
            .with(arguments![saved, saved_n, slopes, anchors])
            .with(arguments![forward: left, reverse: back, chunks, leaves])
            .with(arguments![through_n: false, cu_seqlens, packed: sequences.is_some(), heads: b * nh])
            .with(arguments![S: s, dhqk, dhhv, sharing, log2_scale: scale.log2(), eps: 0.0]);
        let kernel = plan.device().load(instance)?;
        let walks = b * nh / together * sequences.unwrap_or(1);
        let launch = blocks_of(&kernel, &instance, walks, dhhv)?;
        plan.launch_in(&scope, &kernel, launch, arguments![])?;
        Ok(saved)
    }

    /// How many heads of V a block walks.
    fn heads_together(&self, device: &Device, request: &Request<'_>) -> Result<usize, Error> {
        let [b, nh, _, _, _, dhhv] = sizes_of(&request.dims);
        let walks = b * nh * gdn::packed_sequences(&request.dims).unwrap_or(1);
        let takes_two = gdn::group_of(&request.dims)?.is_multiple_of(2) && dhhv <= SIDE;
        match request.text(TOGETHER.name) {
            "2" if !takes_two => {
                let expected = "1, where not an even number of heads share keys, or V has more than 64 columns";
                Err(Error::bad("--set together", expected, 2))
            }
            "2" => Ok(2),
            "auto" if takes_two && walks > device.facts().multiprocessors as usize => Ok(2),
            _ => Ok(1),
        }
    }

    /// The first that has room for the keys, and for no more values than there are.
    fn instance(&self, dtype: DType, [dhqk, dhhv]: [usize; 2], together: usize) -> Instance {
        let heads = |i: &Instance| if i.argument("HEADS").is_some() { i.size("HEADS") } else { 1 };
        let fits = |i: &Instance| {
            i.has("T", dtype.cpp())
                && i.has("GATES", self.gates)
                && heads(i) == together
                && dhqk <= i.size("KEY")
                && (i.size("GROUPS") > 1 || dhhv <= SIDE)
        };
        ROLES.source.instances(ROLES.kernel).find(fits).expect("DHQK of a checked problem")
    }
}
