//! The emulator's headers, as they were when this program was built: what is compiled at its first use is compiled with
//! them.

macro_rules! emulator {
    ($($name:literal)*) => {
        /// Names and texts, `glue.cpp` included.
        pub(crate) static EMULATOR: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../emulator/include/", $name)))),*];
    };
}
emulator!("contract.def" "cooperative_groups.h" "cuda_bf16.h" "cuda_fp16.h" "cuda_runtime.h" "emulator.h" "emulator_abi.h"
          "emulator_half.h" "glue.cpp" "mma.h");

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn none_is_left_out() {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../emulator/include");
        let listed = std::fs::read_dir(include).unwrap();
        let mut names: Vec<_> =
            listed.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert!(names.iter().eq(super::EMULATOR.iter().map(|(name, _)| name)), "{names:?}");
    }
}
