//! What does not fit is refused, before anything is launched, by a message that names it.

use lab_device::{DType, Device};
use lab_harness::{Error, Plan};

use crate::{
    AdamW, CrossEntropy, Dropout, Embedding, GatedHeadNorm, HeadLayout, Progress, RmsNorm, Rope,
    SoftCapGates, SwiGlu,
};

pub(super) fn what_does_not_fit_is_refused_by_name(device: &Device) {
    let mut plan = Plan::new(device);
    let half = DType::BF16;
    let [x, weight] = [800, 20].map(|len| plan.scratch(half, len));
    let tokens = plan.scratch(DType::I32, 40);
    let wide = plan.scratch(half, 9000);
    let floats = plan.scratch(DType::F32, 800);
    let refuse = |what: &str, outcome: Result<(), Error>, said: &str| {
        let error = outcome.expect_err(what).to_string();
        assert!(error.contains(said), "{what}: '{error}' does not say '{said}'");
    };

    let norm = RmsNorm {
        dtype: half,
        rows: 40,
        width: 20,
        eps: 1e-6,
        centered: false,
        x,
        weight,
        added: None,
        y: None,
        sum: None,
    };
    let mut of = |norm: RmsNorm| norm.add_forward(&mut plan).map(|_| ());
    of(norm).unwrap();
    refuse(
        "rows",
        of(RmsNorm { rows: 41, ..norm }),
        "x of rms_norm: expected 820 elements, got 800",
    );
    refuse(
        "type",
        of(RmsNorm { dtype: DType::I32, ..norm }),
        "dtype of rms_norm: expected f32, f16 or bf16",
    );
    refuse(
        "eps",
        of(RmsNorm { eps: -1.0, ..norm }),
        "eps of rms_norm: expected a finite number, 0 or above",
    );
    refuse("none", of(RmsNorm { rows: 0, ..norm }), "rows of rms_norm: expected at least 1, got 0");
    refuse(
        "width",
        of(RmsNorm { rows: 1, width: 9000, x: wide, weight: wide, ..norm }),
        "width of rms_norm: expected at most 8192, got 9000",
    );

    let heads = GatedHeadNorm {
        dtype: half,
        batch: 2,
        heads: 2,
        positions: 20,
        width: 10,
        eps: 1e-6,
        h: x,
        layout: HeadLayout::HeadsFirst,
        ogate: x,
        ogate_stride: 20,
        weight,
        out: None,
    };
    let mut of = |norm: GatedHeadNorm| norm.add_forward(&mut plan).map(|_| ());
    of(heads).unwrap();
    let said = "row stride of ogate of head_norm: expected at least 20, got 19";
    refuse("stride", of(GatedHeadNorm { ogate_stride: 19, ..heads }), said);
    let said = "ogate of head_norm: expected at least 839 elements, got 800";
    refuse("ogate", of(GatedHeadNorm { ogate_stride: 21, ..heads }), said);

    let swiglu = SwiGlu { dtype: half, rows: 20, width: 20, gate_up: x, u: Some(weight) };
    refuse(
        "u",
        swiglu.add_forward(&mut plan).map(|_| ()),
        "u of swiglu: expected 400 elements, got 20",
    );

    let gates = SoftCapGates {
        pre_dtype: DType::F16,
        dtype: half,
        batch: 2,
        positions: 20,
        heads: 10,
        cap: 15.0,
        pre: x,
        stride: 20,
        bias: Some(weight),
        gates: None,
    };
    let mut of = |gates: SoftCapGates| gates.add_forward(&mut plan).map(|_| ());
    of(SoftCapGates { pre_dtype: half, ..gates }).unwrap();
    refuse(
        "pre",
        of(gates),
        "type of pre of soft_cap_gates: expected bf16, as the bias, or f32, got f16",
    );
    refuse(
        "cap",
        of(SoftCapGates { pre_dtype: half, cap: 0.0, ..gates }),
        "expected a finite number above 0",
    );

    let embedding =
        Embedding { dtype: half, rows: 40, vocabulary: 41, width: 20, tokens, weight: x, y: None };
    let said = "weight of embedding: expected 820 elements, got 800";
    refuse("weight", embedding.add_forward(&mut plan).map(|_| ()), said);

    let loss = CrossEntropy {
        dtype: half,
        rows: 40,
        vocabulary: 20,
        stride: 20,
        cap: Some(100.0),
        z_loss: 0.0,
        logits: x,
        targets: tokens,
        row_losses: None,
        loss: None,
    };
    let mut of = |loss: CrossEntropy| loss.add_with_gradient(&mut plan, 1.0, None).map(|_| ());
    of(CrossEntropy { cap: None, ..loss }).unwrap();
    refuse("cap", of(loss), "cap of cross_entropy: expected 1 to 40, or none, got 100");
    let said = "row stride of logits of cross_entropy: expected at least 20, got 19";
    refuse("stride", of(CrossEntropy { cap: None, stride: 19, ..loss }), said);

    let counts = plan.scratch(DType::I64, Progress::COUNTS);
    let numbers = plan.scratch(DType::F64, Progress::NUMBERS);
    let loss = plan.scratch(DType::F64, 1);
    let adamw = AdamW {
        dtype: half,
        parameters: 800,
        decayed: 801,
        betas: [0.9, 0.95],
        eps: 1e-8,
        weight_decay: 0.1,
        max_norm: None,
        scale_doubles_after: None,
        p: floats,
        copy: None,
        g: plan.scratch(DType::F32, 800),
        gradient: DType::F32,
        ranks: 1,
        m: plan.scratch(DType::F32, 800),
        v: plan.scratch(DType::F32, 800),
        rates: plan.scratch(DType::F64, 1),
        loss,
        progress: Progress { counts, numbers },
    };
    let mut of = |adamw: AdamW| adamw.add(&mut plan);
    refuse("decayed", of(adamw), "decayed parameters of adamw: expected at most 800, got 801");
    let adamw = AdamW { decayed: 800, ..adamw };
    refuse("copy", of(adamw), "copy of adamw: expected one of halves, got none");
    let adamw = AdamW { copy: Some(x), ..adamw };
    of(adamw).unwrap();
    refuse(
        "gradients",
        of(AdamW { gradient: DType::F16, ..adamw }),
        "gradients of adamw: expected f32 or bf16, got f16",
    );
    refuse(
        "betas",
        of(AdamW { betas: [1.0, 0.9], ..adamw }),
        "betas of adamw: expected from 0 to below 1",
    );
    let of_two = AdamW { ranks: 2, parameters: 402, decayed: 0, ..adamw };
    let said =
        "parameters of adamw: expected a multiple of 4, with several ranks' gradients, got 402";
    refuse("ranks", of(of_two), said);
    let said = "first element of p of adamw: expected a multiple of 4, got 2";
    let part = AdamW { parameters: 700, decayed: 0, p: floats.part(2, 700), ..adamw };
    refuse("place", of(part), said);

    let table = plan.scratch(DType::F32, 40);
    let rope =
        Rope { dtype: half, batch: 20, positions: 2, heads: 1, width: 20, stride: 20, table };
    let mut of = |rope: Rope| rope.add_forward(&mut plan, x);
    of(rope).unwrap();
    refuse("odd", of(Rope { width: 19, ..rope }), "width of rope: expected an even number, got 19");
    let said = "table of rope: expected 80 elements, got 40";
    refuse("table", of(Rope { batch: 10, positions: 4, ..rope }), said);

    let step = plan.scratch(DType::I64, 1);
    let dropout =
        Dropout { dtype: half, elements: 800, rate: 1.0, seed: 1, stream: 0, step, x, out: None };
    let mut of = |dropout: Dropout| dropout.add_forward(&mut plan).map(|_| ());
    of(Dropout { rate: 0.5, ..dropout }).unwrap();
    refuse("rate", of(dropout), "rate of dropout: expected from 0 to below 1, got 1");
}
