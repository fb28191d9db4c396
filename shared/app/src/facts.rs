//! What a kernel's body says of the launch that it wants: enough for a first command line.

use std::ops::Range;

use crate::tokens::Tokens;

/// What the body of a kernel uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The dimensions of a block that it asks for: 1 to 3.
    pub block_rank: usize,
    /// The dimensions of the grid that it asks for: 1 to 3.
    pub grid_rank: usize,
    /// It has dynamic shared memory.
    pub dynamic_shared: bool,
    /// It waits for the whole grid.
    pub cooperative: bool,
    /// It has blocks of a cluster.
    pub cluster: bool,
    /// Of each parameter: every use of it begins an assignment to an element, and not to one a block.
    pub written_only: Vec<bool>,
}

impl Facts {
    /// Reads the tokens of a body.
    pub(crate) fn of<'a>(
        tokens: &Tokens<'_>,
        body: Range<usize>,
        parameters: impl Iterator<Item = &'a str>,
    ) -> Self {
        let has = |word: &str| body.clone().any(|i| tokens.at(i) == word);
        let rank = |names: [&str; 2]| {
            let uses = |axis: &str| {
                body.clone().any(|i| {
                    names.contains(&tokens.at(i))
                        && tokens.at(i + 1) == "."
                        && tokens.at(i + 2) == axis
                })
            };
            if uses("z") { 3 } else { 1 + usize::from(uses("y")) }
        };
        Self {
            block_rank: rank(["threadIdx", "blockDim"]),
            grid_rank: rank(["blockIdx", "gridDim"]),
            dynamic_shared: body.clone().any(|i| {
                tokens.at(i) == "extern" && (i..i + 4).any(|j| tokens.at(j) == "__shared__")
            }),
            cooperative: has("this_grid") || has("grid_group"),
            cluster: has("this_cluster") || has("cluster_group"),
            written_only: parameters.map(|name| is_written_only(tokens, &body, name)).collect(),
        }
    }
}

/// `x[i] = …`, wherever the name stands.
fn is_written_only(tokens: &Tokens<'_>, body: &Range<usize>, name: &str) -> bool {
    let mut uses = body
        .clone()
        .filter(|&i| tokens.at(i) == name && !matches!(tokens.at(i.wrapping_sub(1)), "." | "::"));
    let assigns = |i: usize| {
        tokens.at(i + 1) == "["
            && tokens.closing(i + 1).is_some_and(|close| {
                let by_block =
                    (i + 2..close).all(|j| matches!(tokens.at(j), "blockIdx" | "." | "x"));
                tokens.at(close + 1) == "=" && tokens.at(close + 2) != "=" && !by_block
            })
    };
    let first = uses.next();
    first.is_some_and(assigns) && uses.all(assigns)
}
