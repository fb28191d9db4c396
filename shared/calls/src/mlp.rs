//! Training steps of the bigram language model, on parameters that are updated where they lie.

use lab_device::{DType, Device, DeviceKind};
use lab_harness::{Error, Options, Plan, Request, Shape, Shapes, Version};
use lab_operations::choose::needed_arch;
use mlp_fused::{Fused, STAGE, Sizes};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    /// Steps of a run, N.
    pub steps: usize,
    /// Pairs of a step, B.
    pub batch: usize,
    /// Of the model: V, E and H.
    pub sizes: Sizes,
    /// Of what the products by w2 are made; where it is not said, f32, or what the version that is named makes them of.
    pub products: Option<DType>,
    /// The learning rate of a version that has it in its launches; of others it is not looked at, they have an input
    /// `rates`.
    pub lr: f64,
}

/// Its versions, in the order that they prefer on this kind of device; not those that are only run by their name.
pub fn versions(kind: DeviceKind) -> Vec<&'static Fused> {
    let place = |version: &'static Fused| Some((version.preference()?.on(kind), version));
    let mut all: Vec<_> = mlp_fused::VERSIONS.into_iter().filter_map(place).collect();
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, version)| version).collect()
}

impl Training {
    /// The shapes of its tensors, as the family has them.
    fn shapes(&self) -> Shapes {
        let ids = Shape { dtype: DType::I64, sizes: vec![self.steps, self.batch] };
        let named = lab_reference::mlp::Parameters::NAMES.into_iter().zip(self.sizes.shapes());
        let parameters =
            named.map(|(name, sizes)| (name.to_owned(), Shape { dtype: DType::F32, sizes }));
        parameters.chain(["tokens", "targets"].map(|name| (name.to_owned(), ids.clone()))).collect()
    }

    /// The first version that takes it, or the one of this name, and its plan: see [`Fused::plan_in_place`].
    ///
    /// # Errors
    /// The name is no version's of these products; or none takes it: what the one of that name, or else each, says. What
    /// the device says of the kernels.
    pub(crate) fn plan(
        &self,
        device: &Device,
        name: Option<&str>,
    ) -> Result<(&'static Fused, Options, Plan), Error> {
        let products = match (self.products, name) {
            (None, None) => Some(DType::F32),
            (given, _) => given,
        };
        let suits = |v: &&Fused| products.is_none_or(|dtype| v.operand_dtype(DType::F32) == dtype);
        let of_products: Vec<&Fused> = versions(device.kind()).into_iter().filter(suits).collect();
        if let Some(name) = name {
            let found = of_products.iter().find(|v| v.info().full_name() == name);
            let known = || {
                let all: Vec<_> = of_products.iter().map(|v| v.info().full_name()).collect();
                let expected = match products {
                    Some(dtype) => {
                        format!("auto or one of {} for products in {dtype}", all.join(", "))
                    }
                    None => format!("auto or one of {}", all.join(", ")),
                };
                Error::bad("version", expected, format!("'{name}'"))
            };
            let version = found.ok_or_else(known)?;
            return self.plan_of(version, device);
        }
        let mut reasons = Vec::new();
        for version in of_products {
            match self.plan_of(version, device) {
                Err(error @ (Error::Bad { .. } | Error::Tensor { .. })) => {
                    reasons.push((version.info().full_name(), error));
                }
                planned => return planned,
            }
        }
        Err(Error::NoVersion { reasons })
    }

    fn plan_of(
        &self,
        version: &'static Fused,
        device: &Device,
    ) -> Result<(&'static Fused, Options, Plan), Error> {
        let info = version.info();
        let options = Options::parse(&[format!("lr={:?}", self.lr)], info)?;
        let request = Request::new(info, self.shapes(), &options)?;
        if let Some(needed) = needed_arch(version, &STAGE, device) {
            let expected = format!("a GPU of {needed} for {}", info.full_name());
            return Err(Error::bad("device", expected, device.name()));
        }
        let plan = version.plan_in_place(device, &request)?;
        Ok((version, options, plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        batch: usize,
        hidden: usize,
        products: Option<DType>,
        name: Option<&str>,
    ) -> Result<String, String> {
        let sizes = Sizes { vocabulary: 30, embedding: 8, hidden };
        let training = Training { steps: 2, batch, sizes, products, lr: 0.1 };
        let planned = training.plan(&Device::emulator().unwrap(), name);
        planned.map(|(v, ..)| v.info().full_name()).map_err(|e| e.to_string())
    }

    #[test]
    fn by_pairs_products_and_name() {
        let of = |batch, products| chosen(batch, 12, products, None).unwrap();
        assert_eq!(of(1, None), "mlp_fused:v0_sample");
        assert_eq!(of(9, Some(DType::F32)), "mlp_fused:v1_batch");
        assert_eq!(of(9, Some(DType::BF16)), "mlp_fused:v1_tensor");
        for version in versions(DeviceKind::Cuda) {
            let name = version.info().full_name();
            assert_eq!(chosen(1, 12, None, Some(&name)).unwrap(), name);
        }
        let said = chosen(9, 12, Some(DType::F32), Some("mlp_fused:v3_wgmma")).unwrap_err();
        let expected = "version: expected auto or one of mlp_fused:v0_sample, mlp_fused:v1_batch, ";
        assert!(said.starts_with(expected) && said.contains(" for products in f32, got"), "{said}");
    }

    #[test]
    fn where_none_suits_each_says_why() {
        let said = chosen(9, 5000, None, None).unwrap_err();
        assert_eq!(said.lines().count(), 1 + 4, "{said}");
        let said = chosen(9, 14, None, Some("mlp_fused:v1_recomputed")).unwrap_err();
        let expected = "tensor 'w1': expected a multiple of 4 hidden units, for mlp_fused:v1_recomputed, got 14";
        assert_eq!(said, expected);
    }
}
