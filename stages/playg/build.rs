//! The stage's table of kernels.

const ALL: [&str; 4] = ["float", "double", "__half", "__nv_bfloat16"];
const FLOATS: [&str; 3] = ["float", "__half", "__nv_bfloat16"];

fn each(types: &[&str], name: impl Fn(&str) -> String) -> Vec<String> {
    types.iter().map(|t| name(t)).collect()
}

fn main() {
    let mut softmax = each(&FLOATS, |t| format!("softmax<{t}, 256>"));
    softmax.extend(each(&FLOATS, |t| format!("softmax_online<{t}, 256>")));
    lab_kernel_build::Stage::new()
        .kernel("kernels/saxpy.cu", &each(&ALL, |t| format!("saxpy<{t}>")))
        .kernel("kernels/softmax.cu", &softmax)
        .kernel("kernels/sum.cu", &each(&ALL, |t| format!("sum<{t}, 256>")))
        .build();
}
