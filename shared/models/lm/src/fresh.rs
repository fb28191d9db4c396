//! The state of a sequence that has read nothing, on the device.

use lab_device::Device;
use lab_harness::plan::Plan;
use lab_harness::{Binding, Error};

use crate::decoding::Blocks;
use crate::{Model, Types};

/// The state of one sequence that has read nothing: others become it by a copy on the device.
pub(crate) struct Fresh {
    blocks: Blocks,
    binding: Binding,
}

impl Fresh {
    pub(crate) fn new(device: &Device, model: &Model, types: Types) -> Result<Self, Error> {
        let mut plan = Plan::new(device);
        // What attention has read counts no more: it has room for one token here, which nobody looks at.
        let blocks = Blocks::add(&mut plan, model, types, [1, 1]);
        let mut binding = plan.bind().finish()?;
        blocks.begin(model, 1, &mut binding)?;
        Ok(Self { blocks, binding })
    }

    /// The state, and where its slots are.
    pub(crate) fn states(&self) -> (&Binding, &Blocks) {
        (&self.binding, &self.blocks)
    }
}
