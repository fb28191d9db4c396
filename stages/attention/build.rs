//! The stage's table of kernels.

fn main() {
    const TYPES: [&str; 3] = ["float", "__half", "__nv_bfloat16"];
    let of_each = |names: &[&str], types: &[&str], rest: &[&str]| -> Vec<String> {
        let of_name = |name: &&str| -> Vec<String> {
            let of_type =
                |t: &&str| rest.iter().map(move |rest| format!("{t}{rest}")).collect::<Vec<_>>();
            types.iter().flat_map(of_type).map(|arguments| format!("{name}<{arguments}>")).collect()
        };
        names.iter().flat_map(of_name).collect()
    };
    let mut scores = of_each(
        &["attention_scores", "attention_over_columns", "attention_over_rows", "attention_slopes"],
        &TYPES,
        &[""],
    );
    scores.extend(of_each(&["attention_deltas"], &TYPES, &[", 128"]));
    scores.push("attention_softmax<128>".to_owned());
    // TQ, TKV, DH: as large as 99 KB of shared memory allow.
    let online =
        of_each(&["attention_online"], &TYPES, &[", 64, 64, 64", ", 64, 64, 128", ", 32, 32, 256"]);
    // ROOM, L: columns of a head that a block has room for, and positions of a tile.
    let rooms = [", 64, 64", ", 128, 64"];
    let mut back = of_each(&["attention_keys_mma", "attention_queries_mma"], &TYPES[1..], &rooms);
    back.extend(of_each(&["attention_rows"], &TYPES[1..], &[", 128"]));
    lab_kernel_build::Stage::new()
        .kernel("kernels/scores.cu", &scores)
        .kernel("kernels/online.cu", &online)
        .kernel("kernels/mma.cu", &of_each(&["attention_mma"], &TYPES[1..], &rooms))
        .needs("sm_80")
        .kernel("kernels/mma_back.cu", &back)
        .needs("sm_80")
        // TK: positions of a tile, a thread each.
        .kernel("kernels/step.cu", &of_each(&["attention_step"], &TYPES, &[", 128"]))
        .build();
}
