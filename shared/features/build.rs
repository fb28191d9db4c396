//! Without a build script cargo asks nothing for the features of what procedural macros stand on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
