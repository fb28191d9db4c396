//! A forward pass and its backward pass, from a plan of both.

use lab_device::Device;
use lab_harness::{Error, Plan, Request, Version};

/// A plan of both passes, or of the forward pass alone, and what has made it.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// `vlstm_fwbw_v4:v1_together`.
    pub(crate) version: String,
    /// `eps=1e-6` and so on.
    pub(crate) options: Vec<String>,
    /// The gradients from above, by their names in the plan.
    pub(crate) upstream: Vec<&'static str>,
    pub(crate) plan: Plan,
}

/// A plan of both passes, cut where a gradient from above is first needed.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) version: String,
    pub(crate) options: Vec<String>,
    pub(crate) forward: Plan,
    pub(crate) backward: Plan,
}

impl Made {
    /// The plan of a version, whose options these are.
    pub(crate) fn by(
        version: &dyn Version,
        device: &Device,
        request: &Request<'_>,
        options: Vec<String>,
    ) -> Result<Self, Error> {
        let plan = version.plan(device, request)?;
        let info = version.info();
        Ok(Self { version: info.full_name(), options, upstream: info.upstream(), plan })
    }

    /// Its two passes; the plan itself where that cannot be.
    pub(crate) fn cut(self) -> Result<Cut, Box<Self>> {
        match self.plan.split_before(&self.upstream) {
            Some([forward, backward]) => {
                let Self { version, options, .. } = self;
                Ok(Cut { version, options, forward, backward })
            }
            None => Err(Box::new(self)),
        }
    }

    /// The same of a version that always can be cut.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn cut_in_two(self) -> Result<Cut, Error> {
        self.cut().map_err(|whole| {
            Error::bad("version", "a forward pass before its backward pass", whole.version)
        })
    }

    /// The backward pass alone, for a plan that takes what is saved from another.
    pub(crate) fn backward(self) -> Self {
        let upstream = self.upstream.clone();
        match self.cut() {
            Ok(Cut { version, options, backward, .. }) => {
                Self { version, options, upstream, plan: backward }
            }
            Err(whole) => *whole,
        }
    }
}
