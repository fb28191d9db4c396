//! What must hold of what one plan has saved and another imports.

use lab_device::{DType, Device};
use lab_families::slstm;
use lab_harness::plan::Slot;
use lab_harness::{Dims, Error, Plan, Problem, Tensors};

use crate::check_data::{drawn_of, inputs};
use crate::gated_delta_checks;
use crate::{
    Attention, AttentionRows, AttentionSizes, Export, GatedDelta, NormalizerGrad, Recurrent,
    RecurrentCell, RecurrentSizes, RecurrentUpstream, Rows, Saved, Sizes, Vlstm, VlstmRows,
};

const SIZES: Sizes = Sizes { batch: 1, heads: 2, positions: 37, keys: 16, values: 32 };

type Import<'a, O> = &'a dyn Fn(&O, &mut Plan, &Export) -> Result<Saved<O>, Error>;
type Backward<'a, O> = &'a dyn Fn(&O, &mut Plan, &Saved<O>) -> Vec<Slot>;

/// An operation as the checks go through it, whatever it is.
struct Passes<'a, O> {
    all: &'a Tensors,
    forward: &'a dyn Fn(&mut Plan) -> (O, Saved<O>),
    import: Import<'a, O>,
    /// Gradients.
    backward: Backward<'a, O>,
}

impl<O> Passes<'_, O> {
    /// Both passes in one plan and in two give the same bits, and a backward pass leaves what is saved as it is.
    fn check(&self, device: &Device, name: &str) {
        let mut plan = Plan::new(device);
        let (operation, saved) = (self.forward)(&mut plan);
        let of_one = (self.backward)(&operation, &mut plan, &saved);
        of_one.iter().for_each(|slot| plan.keep(*slot));
        let mut whole = plan.bind().upload_inputs(self.all).unwrap().finish().unwrap();
        whole.run().unwrap();

        let mut forward = Plan::new(device);
        let (operation, saved) = (self.forward)(&mut forward);
        let export = saved.export(&mut forward).unwrap();
        assert_eq!(export.versions.each_ref().map(String::as_str), saved.versions());
        let mut backward = Plan::new(device);
        let imported = (self.import)(&operation, &mut backward, &export).unwrap();
        let of_two = (self.backward)(&operation, &mut backward, &imported);
        of_two.iter().for_each(|slot| backward.keep(*slot));
        let mut forward = forward.bind().upload_inputs(self.all).unwrap().finish().unwrap();
        let binder = imported.share(backward.bind(), &export, &forward).unwrap();
        let mut backward = binder.upload_inputs(self.all).unwrap().finish().unwrap();
        forward.run().unwrap();
        for turn in 0..2 {
            backward.run().unwrap();
            for (n, (one, two)) in of_one.iter().zip(&of_two).enumerate() {
                let [one, two] = [whole.read(*one).unwrap(), backward.read(*two).unwrap()];
                assert!(one.bytes == two.bytes, "{name}: gradient {n}, run {turn}");
                assert!(one.values().iter().any(|v| *v != 0.0), "{name}: gradient {n}");
            }
        }
    }
}

/// Of the vLSTM by heads and over rows, of attention likewise, of the sLSTM, and of the gated delta rule. Of the LSTM: see the layers of two plans.
pub(crate) fn what_is_saved_is_imported(device: &Device) {
    for dtype in [DType::F32, DType::BF16] {
        of_vlstm(device, dtype);
        of_attention(device, dtype);
        of_slstm(device, dtype);
        of_gated_delta(device, dtype);
    }
    of_vlstm_rows(device);
    of_attention_rows(device);
}

fn of_vlstm(device: &Device, dtype: DType) {
    let all = drawn_of(SIZES, dtype);
    let forward = |plan: &mut Plan| {
        let [q, k, v, i, f] = inputs(plan, &all, ["q", "k", "v", "i", "f"]);
        let vlstm = Vlstm::new(dtype, SIZES, [q, k, v], [i, f]);
        (vlstm, vlstm.add_forward_saving(plan).unwrap().1)
    };
    let backward = |vlstm: &Vlstm, plan: &mut Plan, saved: &Saved| {
        let [dh] = inputs(plan, &all, ["dh"]);
        let g = vlstm.add_backward(plan, saved, dh).unwrap();
        vec![g.q, g.k, g.v, g.i, g.f]
    };
    let (forward, import, backward) = (&forward, &Vlstm::import, &backward);
    Passes { all: &all, forward, import, backward }.check(device, &format!("vLSTM {dtype}"));
}

fn of_attention(device: &Device, dtype: DType) {
    let sizes = AttentionSizes { batch: 1, heads: 2, shared_heads: 1, positions: 37, columns: 32 };
    let problem = Problem::new(Dims::default(), dtype);
    let of_heads = |stream, heads| problem.normal(stream, &[1, heads, 37, 32]);
    let named = [("q", 2), ("k", 1), ("v", 1), ("do", 2)].into_iter().zip(0..);
    let all: Tensors = named.map(|((n, heads), s)| (n.to_owned(), of_heads(s, heads))).collect();
    let forward = |plan: &mut Plan| {
        let attention = Attention::new(dtype, sizes, inputs(plan, &all, ["q", "k", "v"]));
        (attention, attention.add_forward_saving(plan).unwrap().1)
    };
    let backward = |attention: &Attention, plan: &mut Plan, saved: &Saved<Attention>| {
        let [upward] = inputs(plan, &all, ["do"]);
        let g = attention.add_backward(plan, saved, upward).unwrap();
        vec![g.q, g.k, g.v]
    };
    let (forward, import, backward) = (&forward, &Attention::import, &backward);
    Passes { all: &all, forward, import, backward }.check(device, &format!("attention {dtype}"));
}

fn of_gated_delta(device: &Device, dtype: DType) {
    let all = gated_delta_checks::drawn(dtype);
    let forward = |plan: &mut Plan| {
        let [q, k, v, g, beta] = inputs(plan, &all, ["q", "k", "v", "g", "beta"]);
        let delta = GatedDelta::new(dtype, gated_delta_checks::SIZES, [q, k, v], [g, beta]);
        (delta, delta.add_forward_saving(plan).unwrap().1)
    };
    let backward = |delta: &GatedDelta, plan: &mut Plan, saved: &Saved<GatedDelta>| {
        let [dh] = inputs(plan, &all, ["dh"]);
        let by = delta.add_backward(plan, saved, dh).unwrap();
        vec![by.q, by.k, by.v, by.g, by.beta]
    };
    let (forward, import, backward) = (&forward, &GatedDelta::import, &backward);
    Passes { all: &all, forward, import, backward }.check(device, &format!("delta rule {dtype}"));
}

fn of_slstm(device: &Device, dtype: DType) {
    let [steps, batch, heads, units] = [5, 3, 2, 16];
    let all = slstm::inputs(&Problem::new(slstm::sizes([batch, steps, heads, units]), dtype));
    let forward = |plan: &mut Plan| {
        let [x, r, b] = inputs(plan, &all, ["wx", "r", "b"]);
        let columns = 4 * heads * units;
        let slstm = Recurrent {
            cell: RecurrentCell::Slstm,
            dtype,
            sizes: RecurrentSizes { steps, batch, heads, units, columns },
            x,
            parameters: [r, b, b, b],
            state: Some(inputs(plan, &all, ["h0", "c0", "n0", "m0"])),
            versions: [None; 2],
        };
        (slstm, slstm.add_forward_saving(plan).unwrap().1)
    };
    let backward = |slstm: &Recurrent, plan: &mut Plan, saved: &Saved<Recurrent>| {
        let [dy] = inputs(plan, &all, ["dy"]);
        let into = ["r", "b"].map(|name| plan.scratch(dtype, all[name].len()));
        let from = RecurrentUpstream { dy, state: None };
        let g = slstm.add_backward(plan, saved, from, &into).unwrap();
        [&[g.x][..], &into, &g.state].concat()
    };
    let (forward, import, backward) = (&forward, &Recurrent::import, &backward);
    Passes { all: &all, forward, import, backward }.check(device, &format!("sLSTM {dtype}"));
}

/// Columns of one matrix, one part behind the other.
fn parts(of: Slot, starts: [usize; 3], stride: usize) -> [Rows; 3] {
    starts.map(|start| Rows { slot: of.part(start, of.len() - start), stride })
}

fn of_vlstm_rows(device: &Device) {
    let dtype = DType::BF16;
    let Sizes { batch, heads, positions, keys, values } = SIZES;
    if !VlstmRows::takes(device, dtype, SIZES) {
        return;
    }
    let (rows, stride) = (batch * positions, heads * (2 * keys + values));
    let starts = [0, heads * keys, 2 * heads * keys];
    let problem = Problem::new(Dims::default(), dtype);
    let gate = |mean, stream| problem.normal_around(mean, DType::F32, stream, &[heads, rows]);
    let all: Tensors = [
        ("qkv".to_owned(), problem.normal(0, &[rows, stride])),
        ("i".to_owned(), gate(0.0, 1)),
        ("f".to_owned(), gate(3.0, 2)),
        ("dh".to_owned(), problem.normal(3, &[rows, heads * values])),
    ]
    .into();
    let forward = |plan: &mut Plan| {
        let [qkv, i, f] = inputs(plan, &all, ["qkv", "i", "f"]);
        let [q, k, v] = parts(qkv, starts, stride);
        let normalizer_grad = NormalizerGrad::Constant;
        let rows = VlstmRows { dtype, sizes: SIZES, q, k, v, i, f, eps: 1e-6, normalizer_grad };
        (rows, rows.add_forward_saving(plan, [stride; 3]).unwrap().1)
    };
    let import =
        |rows: &VlstmRows, plan: &mut Plan, export: &Export| rows.import(plan, export, [stride; 3]);
    let backward = |of: &VlstmRows, plan: &mut Plan, saved: &Saved<VlstmRows>| {
        let [dh] = inputs(plan, &all, ["dh"]);
        let into = plan.scratch(dtype, rows * stride);
        let gates = of.add_backward(plan, saved, dh, parts(into, starts, stride)).unwrap();
        vec![into, gates.i, gates.f]
    };
    Passes { all: &all, forward: &forward, import: &import, backward: &backward }
        .check(device, "vLSTM over rows");
}

fn of_attention_rows(device: &Device) {
    let dtype = DType::BF16;
    let sizes = AttentionSizes { batch: 1, heads: 2, shared_heads: 1, positions: 37, columns: 48 };
    if !AttentionRows::takes(device, dtype, sizes) {
        return;
    }
    let (rows, stride, starts) = (37, 4 * 48, [0, 2 * 48, 3 * 48]);
    let problem = Problem::new(Dims::default(), dtype);
    let all: Tensors = [
        ("qkv".to_owned(), problem.normal(0, &[rows, stride])),
        ("do".to_owned(), problem.normal(1, &[rows, 2 * 48])),
    ]
    .into();
    let forward = |plan: &mut Plan| {
        let [qkv] = inputs(plan, &all, ["qkv"]);
        let [q, k, v] = parts(qkv, starts, stride);
        let attention = AttentionRows { dtype, sizes, q, k, v, cu_seqlens: None, causal: true };
        (attention, attention.add_forward_saving(plan, [stride; 3]).unwrap().1)
    };
    let import = |attention: &AttentionRows, plan: &mut Plan, export: &Export| {
        attention.import(plan, export, [stride; 3])
    };
    let backward = |of: &AttentionRows, plan: &mut Plan, saved: &Saved<AttentionRows>| {
        let [upward] = inputs(plan, &all, ["do"]);
        let into = plan.scratch(dtype, rows * stride);
        of.add_backward(plan, saved, upward, parts(into, starts, stride)).unwrap();
        vec![into]
    };
    Passes { all: &all, forward: &forward, import: &import, backward: &backward }
        .check(device, "attention over rows");
}

/// What an import says of an export that is of another operation than its own.
pub(crate) fn another_export_is_refused(device: &Device) {
    let dtype = DType::BF16;
    let all = drawn_of(SIZES, dtype);
    let [once, again] = [Some("vlstm_fwbw_v3:v0_chunks"), Some("vlstm_fwbw_v3:v3_carried")];
    let operation = |plan: &mut Plan| {
        let [q, k, v, i, f] = inputs(plan, &all, ["q", "k", "v", "i", "f"]);
        Vlstm { versions: [None, once], ..Vlstm::new(dtype, SIZES, [q, k, v], [i, f]) }
    };
    let mut plan = Plan::new(device);
    let vlstm = operation(&mut plan);
    let (_, saved) = vlstm.add_forward_saving(&mut plan).unwrap();
    let export = saved.export(&mut plan).unwrap();
    let said = |vlstm: Vlstm, export: &Export| {
        vlstm.import(&mut Plan::new(device), export).expect_err("refused").to_string()
    };
    let [own, others] = [once, again].map(Option::unwrap);
    assert_eq!(
        said(Vlstm { versions: [None, again], ..vlstm }, &export),
        format!("version of what is saved: expected {others}, got {own}")
    );
    assert_eq!(
        said(Vlstm { eps: 1e-3, ..vlstm }, &export),
        "options of what is saved: expected eps=0.001, got eps=1e-6"
    );
    let sizes = Sizes { positions: SIZES.positions - 1, ..SIZES };
    assert_eq!(
        said(Vlstm { sizes, ..vlstm }, &export),
        "tensor 'q': expected bf16 [1, 2, 36, 16], got bf16 [1, 2, 37, 16]"
    );
    let mut less = export.clone();
    less.tensors.retain(|tensor| tensor.name != "k");
    assert_eq!(said(vlstm, &less), "tensor 'k': expected bf16 [1, 2, 37, 16], got none");
    let mut more = export.clone();
    let extra = more.tensors.iter().find(|tensor| tensor.name == "q").unwrap().clone();
    more.tensors.push(crate::SavedTensor { name: "C0".into(), ..extra });
    assert_eq!(said(vlstm, &more), "tensor 'C0': expected none, got bf16 [1, 2, 37, 16]");

    let expected = "slot: expected one of this plan, got one of another";
    let mut other = Plan::new(device);
    assert_eq!(saved.export(&mut other).unwrap_err().to_string(), expected);
    let imported = vlstm.import(&mut other, &export).unwrap();
    let forward = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
    // A binder of a plan that has not imported it, and a binding that has not exported it.
    let elsewhere = imported.share(Plan::new(device).bind(), &export, &forward);
    assert_eq!(elsewhere.err().unwrap().to_string(), expected);
    let mut unlike = Plan::new(device);
    unlike.output("h", dtype, &all["v"].shape);
    let elsewhere = imported.share(other.bind(), &export, &unlike.bind().finish().unwrap());
    assert_eq!(elsewhere.err().unwrap().to_string(), expected);
}
