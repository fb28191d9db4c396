//! How a direction goes through its steps.

use slstm_fused::Slstm;

/// How the forward pass goes through the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A launch a step. In halves each h is rounded to the type before the next step reads it.
    Cell,
    /// A launch for all steps, with the weights in registers and shared memory; up to 256 units, with
    /// layer norm or without.
    Sequence,
    /// A launch for all steps, with the units of a row spread over a cluster of blocks, which up to 256
    /// units keep all weights in registers; up to 768. On a device without clusters as [`Way::Grid`].
    Cluster,
    /// The same with blocks that exchange h through device memory and flags.
    Grid,
    /// As [`Way::Cluster`] with the products on tensor cores, for many rows, in f16 and bf16; up to 768 units,
    /// without peepholes and layer norm. On a device without clusters it is refused. Each h is rounded to
    /// the type, as [`Way::Cell`] rounds it; so is each da, for the products of the way back. In an sLSTM a cluster has a
    /// head of some rows, of up to 256 units.
    Tensor,
    /// The same with the products over all steps by wgmma and TMA, where H is a multiple of 8; where it is even, that
    /// with an x of a multiple of 8 columns.
    TensorProduct,
    /// The same with the products of a step by wgmma, where a cluster has more than four rows and H is a multiple of 8;
    /// forward alone, and back as [`Way::TensorProduct`].
    TensorGroups,
    /// And back by wgmma, likewise: the parts of dh that the blocks of a cluster hand each other are f32,
    /// or, of many rows and of more than 512 units, rounded to the type.
    TensorGroupsBack,
    /// The same, both ways, with blocks of the grid in place of those of a cluster, which hand each other h, da and parts of
    /// dh through device memory; up to 1024 units.
    TensorGrid,
}

impl std::fmt::Display for Way {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(self.name())
    }
}

impl Way {
    /// All of them, in the order of the story.
    pub const ALL: [Self; 9] = [
        Self::Cell,
        Self::Sequence,
        Self::Cluster,
        Self::Grid,
        Self::Tensor,
        Self::TensorProduct,
        Self::TensorGroups,
        Self::TensorGroupsBack,
        Self::TensorGrid,
    ];

    /// As settings and messages have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cell => "cell",
            Self::Sequence => "sequence",
            Self::Cluster => "cluster",
            Self::Grid => "grid",
            Self::Tensor => "tensor",
            Self::TensorProduct => "tensor_product",
            Self::TensorGroups => "tensor_groups",
            Self::TensorGroupsBack => "tensor_groups_back",
            Self::TensorGrid => "tensor_grid",
        }
    }

    /// The version of `slstm_fused` by which an sLSTM goes this way, if there is one.
    pub(crate) fn slstm_version(self) -> Option<&'static Slstm> {
        match self {
            Self::Cell => Some(&slstm_fused::CELL),
            Self::Tensor => Some(&slstm_fused::HEADS),
            _ => None,
        }
    }

    /// Whether the products with h are on tensor cores.
    pub(crate) fn on_tensor_cores(self) -> bool {
        self == Self::Tensor || self.has_products()
    }

    /// Whether the products over all steps are by wgmma and TMA, where the sizes allow it.
    pub fn has_products(self) -> bool {
        matches!(
            self,
            Self::TensorProduct | Self::TensorGroups | Self::TensorGroupsBack | Self::TensorGrid
        )
    }
}
