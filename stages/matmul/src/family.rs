//! What every version computes: tensors and sizes, the reference, and what it costs.

use lab_device::DType;
use lab_harness::compare::each;
use lab_harness::suite::VersionCheck;
use lab_harness::{Cost, Dims, Family, Info, Magnitudes, Options, Problem, Reference, Tensors};

use crate::{checks, ladder};

/// C = A B, of any number of matrices.
#[derive(Debug)]
pub(crate) struct Product;

impl Family for Product {
    fn name(&self) -> &'static str {
        "matmul"
    }

    /// Standard normal. The error is measured relative to C, so that no scale would change it; and
    /// C, about √K, stays in the range of f16 for every K there may be.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let [g, m, n, k] = ["G", "M", "N", "K"].map(|d| problem.dims.get(d));
        let all = [("A", problem.normal(0, &[g, m, k])), ("B", problem.normal(1, &[g, k, n]))];
        lab_harness::tensor::tensors(all)
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        _: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let (dims, _) = info.problem_of(inputs).expect("inputs that were checked");
        let [m, n, k] = ["M", "N", "K"].map(|d| dims.get(d));
        let (a, b) = (inputs["A"].values(), inputs["B"].values());
        vec![("C", lab_reference::matmul::matmul(&a, &b, m, n, k))]
    }

    /// |A| |B|.
    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        let absolute = ["A", "B"].map(|name| (name, inputs[name].absolute()));
        each(self.reference(info, &lab_harness::tensor::tensors(absolute), options))
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [g, m, n, k] = ["G", "M", "N", "K"].map(|d| dims.get(d) as f64);
        Cost {
            flops: 2.0 * g * m * n * k,
            bytes: g * (m * k + k * n + m * n) * dtype.size() as f64,
        }
    }

    fn replayed(&self) -> bool {
        false
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        ladder::shapes(info, dtype)
    }

    fn checks(&self) -> &'static [VersionCheck] {
        checks::OF_EACH
    }
}
