//! Special registers. PTX ISA, "Special Registers".

/// What a special register holds; `None` of those that there are not.
pub(crate) fn special(name: &str) -> Option<String> {
    let axis = |of: &str| {
        let (own, axis) = name.split_once('.')?;
        (own == of && ["x", "y", "z"].contains(&axis)).then(|| axis.to_owned())
    };
    for (own, variable) in
        [("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim")]
    {
        if let Some(axis) = axis(own) {
            return Some(format!("{variable}.{axis}"));
        }
    }
    let call = match name {
        "laneid" | "warpid" | "nwarpid" | "smid" | "nsmid" | "lanemask_eq" | "lanemask_lt"
        | "lanemask_le" | "lanemask_gt" | "lanemask_ge" => format!("::emu::ptx::{name}()"),
        "clock" | "clock64" => "clock64()".into(),
        "globaltimer" => "__globaltimer()".into(),
        // The address of what a grid meets at, its upper half and its lower.
        "envreg1" => "uint32_t(uint64_t(emu_grid_workspace) >> 32)".into(),
        "envreg2" => "uint32_t(uint64_t(emu_grid_workspace))".into(),
        "dynamic_smem_size" => "emu_dynamic_shared_bytes()".into(),
        "cluster_ctarank" => "emu_coordinate(EMU_CLUSTER_RANK)".into(),
        // Clusters lie along x.
        "clusterid.x" => "(blockIdx.x / emu_coordinate(EMU_CLUSTER_SIZE))".into(),
        "nclusterid.x" => "(gridDim.x / emu_coordinate(EMU_CLUSTER_SIZE))".into(),
        "clusterid.y" => "blockIdx.y".into(),
        "clusterid.z" => "blockIdx.z".into(),
        "nclusterid.y" => "gridDim.y".into(),
        "nclusterid.z" => "gridDim.z".into(),
        "cluster_ctaid.y" | "cluster_ctaid.z" => "0u".into(),
        "cluster_nctaid.y" | "cluster_nctaid.z" => "1u".into(),
        "cluster_ctaid.x" => "emu_coordinate(EMU_CLUSTER_RANK)".into(),
        "cluster_nctaid.x" => "emu_coordinate(EMU_CLUSTER_SIZE)".into(),
        "cluster_nctarank" => "emu_coordinate(EMU_CLUSTER_SIZE)".into(),
        _ => return None,
    };
    Some(call)
}
