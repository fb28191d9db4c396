//! The model in f64: its loss, and the gradient by each parameter. What the checks hold the kernels against.

use std::collections::BTreeMap;

use lab_harness::Tensors;
use lab_reference::matmul::matmul;
use lab_reference::passes::{CrossEntropy, Norm, embedding, embedding_back, swiglu, swiglu_back};

use crate::Model;

mod mixers;

use mixers::{Mixed, Sequences};

/// Parameters in f64, and their gradients as they come.
struct All {
    norm_eps: f64,
    parameters: BTreeMap<String, Vec<f64>>,
    gradients: BTreeMap<String, Vec<f64>>,
}

impl All {
    fn of(&self, name: &str) -> &[f64] {
        &self.parameters[name]
    }

    fn add(&mut self, name: &str, gradient: &[f64]) {
        let own =
            self.gradients.entry(name.to_owned()).or_insert_with(|| vec![0.0; gradient.len()]);
        own.iter_mut().zip(gradient).for_each(|(own, g)| *own += g);
    }

    /// x Wᵀ.
    fn linear(&self, name: &str, x: &[f64], k: usize) -> Vec<f64> {
        let w = self.of(name);
        let n = w.len() / k;
        matmul(x, &transposed(w, n, k), x.len() / k, n, k)
    }

    /// dy W; dW is added.
    fn linear_back(&mut self, name: &str, x: &[f64], dy: &[f64], k: usize) -> Vec<f64> {
        let rows = x.len() / k;
        let n = dy.len() / rows;
        let dw = matmul(&transposed(dy, rows, n), x, n, k, rows);
        self.add(name, &dw);
        matmul(dy, self.of(name), rows, k, n)
    }

    fn norm(&self, name: &str) -> Norm {
        Norm { weight: self.of(name).to_vec(), eps: self.norm_eps, centered: false }
    }

    fn rms(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.norm(name).forward(x, &vec![0.0; x.len()]).1
    }

    fn rms_back(&mut self, name: &str, x: &[f64], dy: &[f64]) -> Vec<f64> {
        let (dx, dweight) = self.norm(name).backward(x, dy);
        self.add(name, &dweight);
        dx
    }
}

fn transposed(w: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..rows * columns).map(|e| w[e % rows * columns + e / rows]).collect()
}

fn plus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// What a block has read and made.
struct Block {
    x: Vec<f64>,
    y: Vec<f64>,
    mixed: Mixed,
    between: Vec<f64>,
    z: Vec<f64>,
    up: Vec<f64>,
    u: Vec<f64>,
}

/// Rows of two matrices side by side.
fn beside(a: &[f64], b: &[f64], rows: usize) -> Vec<f64> {
    let (a, b) = (a.chunks(a.len() / rows), b.chunks(b.len() / rows));
    a.zip(b).flat_map(|(a, b)| [a, b].concat()).collect()
}

/// Back: the first `width` columns, and the others.
fn apart(both: &[f64], rows: usize, width: usize) -> [Vec<f64>; 2] {
    let rows = both.chunks(both.len() / rows);
    let (a, b): (Vec<_>, Vec<_>) =
        rows.map(|row| (row[..width].to_vec(), row[width..].to_vec())).unzip();
    [a.concat(), b.concat()]
}

/// The model on its way there.
struct Forward {
    all: All,
    blocks: Vec<Block>,
    x: Vec<f64>,
    y: Vec<f64>,
    logits: Vec<f64>,
}

fn forward(
    model: &Model,
    parameters: &Tensors,
    inputs: &[i64],
    [batch, positions]: [usize; 2],
) -> Forward {
    let parameters = parameters.iter().map(|(name, t)| (name.clone(), t.values())).collect();
    let all = All { norm_eps: model.norm_eps, parameters, gradients: BTreeMap::new() };
    let Model { width, heads, blocks, values, hidden, .. } = *model;
    let rows = batch * positions;
    let of = Sequences { model, batch, positions };

    let mut x = embedding(inputs, all.of("embedding.weight"), width);
    let mut saved = Vec::new();
    for n in 0..blocks {
        let block = format!("backbone.blocks.{n}");
        let [norm, layer] = model.mixers.of_block(n).names();
        let layer = format!("{block}.{layer}");
        let y = all.rms(&format!("{block}.{norm}.weight"), &x);
        let mixed = of.mix(&all, model.mixers.of_block(n), &layer, &y);
        let out = all.linear(&format!("{layer}.out_proj.weight"), mixed.out(), heads * values);
        let between = plus(&out, &x);
        let z = all.rms(&format!("{block}.norm_ffn.weight"), &between);
        let ffn = |name: &str| format!("{block}.ffn.{name}.weight");
        let up = beside(
            &all.linear(&ffn("proj_up_gate"), &z, width),
            &all.linear(&ffn("proj_up"), &z, width),
            rows,
        );
        let u = swiglu(&up, hidden);
        let next = plus(&all.linear(&ffn("proj_down"), &u, hidden), &between);
        saved.push(Block { x, y, mixed, between, z, up, u });
        x = next;
    }
    let y = all.rms("backbone.out_norm.weight", &x);
    let logits = all.linear(model.head(), &y, width);
    Forward { all, blocks: saved, x, y, logits }
}

fn ids(all: &[i32]) -> Vec<i64> {
    all.iter().map(|&id| i64::from(id)).collect()
}

/// The logits behind the last of these tokens, before their cap, which keeps their order.
pub(crate) fn last_logits(model: &Model, parameters: &Tensors, tokens: &[i32]) -> Vec<f64> {
    let logits = forward(model, parameters, &ids(tokens), [1, tokens.len()]).logits;
    logits[logits.len() - model.vocabulary..].to_vec()
}

/// The mean loss of windows \[B, S\], and its gradient by each parameter.
pub(crate) fn loss_and_gradients(
    model: &Model,
    parameters: &Tensors,
    inputs: &[i32],
    targets: &[i32],
    [batch, positions]: [usize; 2],
    z_loss: f64,
) -> (f64, BTreeMap<String, Vec<f64>>) {
    let Model { vocabulary, width, heads, values, hidden, .. } = *model;
    let rows = batch * positions;
    let [inputs, targets] = [inputs, targets].map(ids);
    let of = Sequences { model, batch, positions };

    let Forward { mut all, blocks: saved, x, y, logits } =
        forward(model, parameters, &inputs, [batch, positions]);
    let entropy = CrossEntropy { cap: model.logit_cap().map(f64::from), z_loss };
    let (_, loss, dlogits) = entropy.loss_and_gradient(&logits, &targets, vocabulary);

    let dy = all.linear_back(model.head(), &y, &dlogits, width);
    let mut dx = all.rms_back("backbone.out_norm.weight", &x, &dy);
    for (n, own) in saved.into_iter().enumerate().rev() {
        let block = format!("backbone.blocks.{n}");
        let mixer = model.mixers.of_block(n);
        let [norm, layer] = mixer.names();
        let layer = format!("{block}.{layer}");
        let ffn = |name: &str| format!("{block}.ffn.{name}.weight");
        let du = all.linear_back(&ffn("proj_down"), &own.u, &dx, hidden);
        let [dgate, dup] = apart(&swiglu_back(&own.up, &du, hidden), rows, hidden);
        let dz = plus(
            &all.linear_back(&ffn("proj_up_gate"), &own.z, &dgate, width),
            &all.linear_back(&ffn("proj_up"), &own.z, &dup, width),
        );
        let by_norm = all.rms_back(&format!("{block}.norm_ffn.weight"), &own.between, &dz);
        dx = plus(&dx, &by_norm);
        let out = format!("{layer}.out_proj.weight");
        let dout = all.linear_back(&out, own.mixed.out(), &dx, heads * values);
        let dy = of.mix_back(&mut all, (mixer, &own.mixed), &layer, &own.y, &dout);
        let by_norm = all.rms_back(&format!("{block}.{norm}.weight"), &own.x, &dy);
        dx = plus(&dx, &by_norm);
    }
    let dembedding = embedding_back(&inputs, &dx, vocabulary, width);
    all.add("embedding.weight", &dembedding);
    (loss, all.gradients)
}
