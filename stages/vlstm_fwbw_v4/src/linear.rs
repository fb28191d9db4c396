//! Linear attention with a scalar decay, and mLSTMsig without a normaliser, forward and backward: the walks of [`crate::TOGETHER`] with other gates and no normaliser.

use lab_device::{DType, Device, KernelSource};
use lab_families::gdn::{self, BackwardSlots, Slots, sizes_of};
use lab_families::packed::PackedSlot;
use lab_harness::compare::unit;
use lab_harness::plan::Scope;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Version, arguments,
};
use vlstm_fw_v4::{
    LinearForward, WEIGHTS, has_weights, linear_bench_shapes, linear_test_shapes, panels,
};

use crate::{Room, SIDE, blocks, instance, kernels, late_units};

/// Walks for the gradients, whose weights are at most 1, or given, and which have no n.
#[derive(Debug)]
pub struct Linear {
    info: Info,
    forward: &'static vlstm_fw_v4::Linear,
    gates: &'static str,
}

const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

static DIMS: [Dim; 6] = gdn::dims([
    [1, 8, 65535],
    [2, 32, 65535],
    [1, 1, 65535],
    [70, 4096, 1 << 24],
    [64, 128, 128],
    [64, 64, 256],
]);

static LAST_STATE: [Output; 1] = [Output {
    name: "CN",
    bounds: &[(F16, 1.2e-3), (BF16, 9e-3)],
    elements: &[(F16, unit::F16), (BF16, unit::BF16)],
}];

static FIRST_GRADIENT: [Output; 1] = [Output {
    name: "dC0",
    bounds: &[(F16, 1.2e-3), (BF16, 9e-3)],
    elements: &[(F16, unit::F16), (BF16, unit::BF16)],
}];

// k·dk over the weight.
static WEIGHT_GRADIENT: [Output; 1] = [Output {
    name: "dw",
    bounds: &[(F16, 1e-3), (BF16, 8e-3)],
    elements: &[(F16, unit::F16), (BF16, unit::BF16)],
}];

const LAST: Setting = gdn::last_state(&LAST_STATE);
const FIRST: Setting = gdn::state_grad(&FIRST_GRADIENT);

static SETTINGS: &[Setting] = &[gdn::SCALE, LAST, FIRST, gdn::weight_grad(&WEIGHT_GRADIENT)];

/// Decays in place of gates, and no normaliser.
pub static DECAY: Linear = Linear {
    info: Info {
        stage: "vlstm_fwbw_v4",
        name: "v5_decay",
        family: &gdn::LINEAR_FORWARD_BACKWARD,
        parent: Some("v1_together"),
        change: "decays for gates and no normaliser: the forward pass leaves the weights, and the gradient of g is the sum itself",
        dtypes: &[F16, BF16],
        dims: &DIMS,
        settings: SETTINGS,
        inputs: gdn::LINEAR_BACKWARD_INPUTS,
        // As those of the vLSTM: weights, states, pairs and results are rounded once each. Of dq and dk no element has a tenth of what
        // the sums of absolute values would allow.
        outputs: &[
            Output {
                name: "h",
                bounds: &[(F16, 1e-3), (BF16, 8e-3)],
                elements: &[(F16, unit::F16), (BF16, unit::BF16)],
            },
            Output {
                name: "dq",
                bounds: &[(F16, 1e-3), (BF16, 8e-3)],
                elements: &[(F16, 0.3 * unit::F16), (BF16, 0.3 * unit::BF16)],
            },
            Output {
                name: "dk",
                bounds: &[(F16, 1e-3), (BF16, 8e-3)],
                elements: &[(F16, 0.3 * unit::F16), (BF16, 0.3 * unit::BF16)],
            },
            Output {
                name: "dv",
                bounds: &[(F16, 1e-3), (BF16, 8e-3)],
                elements: &[(F16, 0.6 * unit::F16), (BF16, 0.6 * unit::BF16)],
            },
            Output {
                name: "dg",
                bounds: &[(F16, 2e-3), (BF16, 1.2e-2)],
                elements: &[(F16, 1.5 * unit::F16), (BF16, 1.5 * unit::BF16)],
            },
        ],
    },
    forward: &vlstm_fw_v4::DECAY,
    gates: "Decay",
};

static PACKED_DIMS: [Dim; 6] = gdn::packed_dims([
    [4, 8, 65535],
    [2, 32, 65535],
    [1, 1, 65535],
    [300, 16384, 1 << 24],
    [64, 128, 128],
    [64, 64, 256],
]);

/// Sigmoid gates, and no normaliser.
pub static SIGMOID: Linear = Linear {
    info: Info {
        name: "v6_sigmoid",
        family: &gdn::SIGMOID_FORWARD_BACKWARD,
        parent: Some("v5_decay"),
        change: "gates as the vLSTM's, but a sigmoid for the input gate, and its derivative where gradients are added up",
        settings: &[gdn::SCALE, LAST, FIRST],
        inputs: gdn::SIGMOID_BACKWARD_INPUTS,
        outputs: &[
            DECAY.info.outputs[0],
            DECAY.info.outputs[1],
            DECAY.info.outputs[2],
            DECAY.info.outputs[3],
            Output {
                name: "di",
                bounds: &[(F16, 1e-3), (BF16, 8e-3)],
                elements: &[(F16, unit::F16), (BF16, unit::BF16)],
            },
            Output { name: "df", ..DECAY.info.outputs[4] },
        ],
        ..DECAY.info
    },
    forward: &vlstm_fw_v4::SIGMOID,
    gates: "Sigmoid",
};

/// Decays, of sequences of unlike lengths.
pub static PACKED_DECAY: Linear = Linear {
    info: Info {
        name: "v7_packed_decay",
        family: &gdn::PACKED_LINEAR_FORWARD_BACKWARD,
        parent: None,
        change: "as v5_decay, of sequences one behind the other: a tile ends where its sequence ends",
        dims: &PACKED_DIMS,
        inputs: gdn::PACKED_LINEAR_BACKWARD_INPUTS,
        ..DECAY.info
    },
    forward: &vlstm_fw_v4::PACKED_DECAY,
    gates: "Decay",
};

/// Sigmoid gates, of sequences of unlike lengths.
pub static PACKED_SIGMOID: Linear = Linear {
    info: Info {
        name: "v8_packed_sigmoid",
        family: &gdn::PACKED_SIGMOID_FORWARD_BACKWARD,
        parent: None,
        change: "as v6_sigmoid, of sequences one behind the other",
        dims: &PACKED_DIMS,
        inputs: gdn::PACKED_SIGMOID_BACKWARD_INPUTS,
        ..SIGMOID.info
    },
    forward: &vlstm_fw_v4::PACKED_SIGMOID,
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
        use kernels::{FORGET, GRADIENTS, SUM_HEADS};
        vec![&GRADIENTS, &FORGET, &SUM_HEADS]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        // Keys that three heads share; anchors of wide values.
        linear_test_shapes(&self.info, [[1, 3, 1, 70, 128, 48], [1, 1, 1, 330, 80, 256]])
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        linear_bench_shapes(&self.info, dtype)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let sharing = gdn::group_of(dims)?;
        let [b, nh, nkv, s, dhqk, dhhv] = sizes_of(dims);
        let heads = b * nh;
        let packed = gdn::packed_sequences(dims);
        let sequences = packed.unwrap_or(1);
        let Room { chunks, stretches, anchors } = Room::of(s, packed);
        let scale = gdn::scale_of(&self.info, request.options(), dhqk);
        let gradients = instance(&kernels::GRADIENTS, "vlstm_gradients", dtype, |i| {
            dhqk <= i.size("DHQK") && dhhv <= i.size("DHHV") && i.has("NORMALIZER", "None")
        });
        let room = ["DHQK", "DHHV"].map(|name| gradients.size(name));
        // 64s of columns that one block has, and blocks of a head.
        let value_width = if room[0] == 128 { 2 } else { 1 };
        let key_width = if room == [64, 64] || room[1] == 256 { 1 } else { 2 };
        let key_blocks = dhqk.div_ceil(SIDE * key_width);
        let value_blocks = dhhv.div_ceil(SIDE * value_width);
        let of_head = 2 * key_blocks + value_blocks;
        let (key_panels, value_panels) = (key_blocks * key_width, value_blocks * value_width);

        let mut plan = Plan::new(device);
        let slots = BackwardSlots::new(&mut plan, request)?;
        let BackwardSlots { forward: mut of_forward, dh, of_rows, of_gates, last, first } = slots;
        // The gradient of g at the sequence's end is <CN, dCN>.
        if last.1 && !of_forward.last.1 {
            let states = heads * sequences;
            of_forward.last = (plan.scratch(DType::F32, states * dhqk * dhhv), true);
        }
        let Slots { q, k, v, g, beta, first: (c0, given), last: (c_n, _), packed, .. } = of_forward;
        let PackedSlot { cu_seqlens, .. } = packed;
        let is_packed = packed.sequences.is_some();
        let weighed = has_weights(request);
        // As many panels of a state as the walks back take it to have.
        let columns = [room[0], SIDE * value_panels];
        let [weights, reverse] = [(); 2].map(|()| plan.records("Weights", WEIGHTS, heads * chunks));
        let forward = LinearForward {
            slots: of_forward,
            dims,
            dtype,
            columns,
            scale,
            weighed,
            together: 1,
            anchors,
            left: Some([weights, reverse]),
        };
        let saved = self.forward.add_forward(&mut plan, kernels::PROMISE, forward)?;

        let ([dq, dk, dv], [dg, d_weight]) = (of_rows, of_gates);
        let weight_wanted = self.gates == "Sigmoid" || request.text("weight_grad") == "yes";
        // What the last launch asks of weights is whether their gradient is wanted.
        let of_forget = arguments![weighed: weight_wanted];
        // Of each head of V, where several share those of Q and K.
        let [dq_own, dk_own] = match sharing {
            1 => [dq, dk],
            _ => [(); 2].map(|()| plan.scratch(dtype, heads * s * dhqk)),
        };
        let [q_dq, k_dk] = [(); 2].map(|()| plan.scratch(DType::F32, key_panels * heads * s));
        let parts_of_dot = 4 * value_panels;
        let products = plan.scratch(DType::F32, heads * (anchors + 2 * sequences) * parts_of_dot);
        // What only n and segments have.
        let [n0, dn0, n_n, d_n_n, saved_n, saved_dn] =
            [(); 6].map(|()| plan.scratch(DType::F32, 1));
        let [parts, n_parts, gammas] = [(); 3].map(|()| plan.scratch(DType::F32, 1));
        let of_keys = panels(dtype, dhqk, s, b * nkv, None)?;
        let [of_rows, of_values] =
            [dhqk, dhhv].map(|columns| panels(dtype, columns, s, heads, None));
        let (of_rows, of_values) = (of_rows?, of_values?);
        let scope = Scope::new()
            .with(arguments![q: q.loaded_by(of_keys), k: k.loaded_by(of_keys)])
            .with(arguments![v: v.loaded_by(of_values), dh: dh.loaded_by(of_values)])
            .with(arguments![dq: dq_own.stored_by(of_rows), dk: dk_own.stored_by(of_rows)])
            .with(arguments![dv: dv.stored_by(of_values), f: g, df: dg, i: beta, di: d_weight])
            .with(arguments![saved, forward: weights, reverse, q_dq, k_dk, products])
            .with(arguments![parts, n_parts, gammas, cu_seqlens])
            .with(arguments![saved_n, saved_dn, n0, dn0, nN: n_n, dnN: d_n_n])
            .with(arguments![C0: c0, CN: c_n, dCN: last.0, dC0: first.0, given])
            .with(arguments![given_last: last.1, wanted: first.1, packed: is_packed])
            .with(arguments![through_n: false, heads, sequences, chunks, stretches, anchors])
            .with(arguments![parts_of_dot, slices: key_panels, keys: room[0], S: s, dhqk, dhhv])
            .with(arguments![segments: 1, chunks_each: chunks, only: -1, sharing])
            .with(arguments![late: late_units(device, of_head)]);

        let forget = kernels::FORGET.instances("vlstm_anchored_forget");
        let forget = forget.into_iter().find(|i| i.has("GATES", self.gates)).expect("one");
        for (what, instance, count, own) in [
            ("B NH slices of the gradients", gradients, heads * sequences * of_head, arguments![]),
            ("B NH stretches of S", forget, (heads * stretches).div_ceil(4), of_forget),
        ] {
            let kernel = device.load(instance)?;
            let launch = lab_device::Launch::of([blocks(what, count)?, 1, 1], kernel.block()?);
            plan.launch_in(&scope, &kernel, launch, own)?;
        }
        if sharing > 1 {
            let kernel =
                device.load(instance(&kernels::SUM_HEADS, "vlstm_sum_heads", dtype, |_| true))?;
            let pairs_of_head = s * dhqk / 2;
            let grid = blocks("B NKV S DHQK", (b * nkv * pairs_of_head).div_ceil(256))?;
            let launch = lab_device::Launch::of([grid, 2, 1], kernel.block()?);
            let own =
                arguments![dq_own, dk_own, dq, dk, pairs_of_head, key_heads: b * nkv, sharing];
            plan.launch_in(&Scope::new(), &kernel, launch, own)?;
        }
        Ok(plan)
    }
}
