//! How many blocks a cluster has: what a launch says, and what a module's kernel asks for.

use crate::given::{BadArgument, split_list};
use crate::rewrite::Kernel;

/// Blocks of a cluster along x, as an expression; none where neither the launch nor the kernel says it.
///
/// # Errors
/// A cluster along y or z; another one than the kernel asks for.
pub(crate) fn along_x(kernel: &Kernel, given: Option<&str>) -> Result<Option<String>, BadArgument> {
    let given = given.map(of_sizes).transpose()?;
    let Some([x, y, z]) = kernel.entry.as_ref().and_then(|entry| entry.required_cluster) else {
        return Ok(given);
    };
    let name = kernel.shown_name();
    if y != 1 || z != 1 {
        let got = format!("{x},{y},{z}, which {name} asks for");
        return Err(BadArgument::new("--cluster", ALONG_X, got));
    }
    // An expression is not computed here.
    let is_other = |given: &String| given.parse().is_ok_and(|given: u32| given != x);
    match given {
        Some(given) if is_other(&given) => {
            Err(BadArgument::new("--cluster", format!("{x}, which {name} asks for"), given))
        }
        _ => Ok(Some(x.to_string())),
    }
}

const ALONG_X: &str = "blocks along x, such as 2 or 2,1,1";

/// One size, or three of which the last two are 1.
fn of_sizes(text: &str) -> Result<String, BadArgument> {
    let sizes = split_list(text);
    let is_one = |size: &&str| size.trim() == "1";
    match sizes.split_first() {
        Some((x, others))
            if !x.trim().is_empty() && others.len() < 3 && others.iter().all(is_one) =>
        {
            Ok(x.trim().to_owned())
        }
        _ => Err(BadArgument::new("--cluster", ALONG_X, format!("'{text}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::of_sizes;

    #[test]
    fn a_cluster_lies_along_x() {
        assert_eq!(of_sizes("2").unwrap(), "2");
        assert_eq!(of_sizes("2, 1,1").unwrap(), "2");
        assert_eq!(of_sizes("min(4, n)").unwrap(), "min(4, n)");
        for wrong in ["1,2,1", "1,1,2", "2,1,1,1", ""] {
            let error = of_sizes(wrong).unwrap_err();
            assert_eq!((error.argument.as_str(), error.got), ("--cluster", format!("'{wrong}'")));
        }
    }
}
