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
    // PACKED: for a batch of sequences, and for packed ones.
    let packed_or_not = |names: Vec<String>| -> Vec<String> {
        let of = |packed| names.iter().map(move |n| n.replace('>', &format!(", {packed}>")));
        of(false).chain(of(true)).collect()
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
    // Threads, and lanes of a row: eight columns each.
    let lanes = [", 128, 8", ", 128, 16", ", 128, 32"];
    back.extend(packed_or_not(of_each(&["attention_rows"], &TYPES[1..], &lanes)));
    // ROOM, GROUPS, L, PLACES.
    let narrow = ", 64, 2, 128, 3";
    let wide = [", 64, 3, 128, 3", ", 128, 2, 128, 2", ", 256, 2, 64, 2"];
    let turns = packed_or_not(of_each(&["attention_turns"], &TYPES[1..], &wide));
    let mut wide_back = of_each(
        &["attention_keys_wgmma"],
        &TYPES[1..],
        &[
            ", 64, 2, 64, 4, BOTH",
            ", 128, 2, 64, 4, BOTH",
            ", 256, 1, 64, 2, VALUES_ALONE",
            ", 256, 1, 64, 2, KEYS_ALONE",
        ],
    );
    wide_back.extend(of_each(
        &["attention_queries_wgmma"],
        &TYPES[1..],
        &[", 64, 2, 128, 4, true", ", 128, 2, 64, 4, true", ", 256, 1, 64, 2, false"],
    ));
    let wide_back = packed_or_not(wide_back);
    // ROOM, L, PLACES, SLOPES, TURNS, AHEAD, ORDERED.
    let mut handed = of_each(
        &["attention_keys_handed"],
        &TYPES[1..],
        &[", 64, 64, 2, 3, 1, 0, 1", ", 128, 64, 3, 2, 1, 0, 1"],
    );
    handed.extend(of_each(&["attention_round_queries"], &TYPES[1..], &rooms));
    lab_kernel_build::Stage::new()
        .kernel("kernels/scores.cu", &scores)
        .kernel("kernels/online.cu", &online)
        .kernel("kernels/mma.cu", &of_each(&["attention_mma"], &TYPES[1..], &rooms))
        .needs("sm_80")
        .kernel("kernels/mma_back.cu", &back)
        .needs("sm_80")
        .kernel(
            "kernels/wgmma.cu",
            &of_each(&["attention_wgmma"], &TYPES[1..], &[narrow, wide[1], wide[2]]),
        )
        .needs("sm_90a")
        .kernel("kernels/turns.cu", &turns)
        .needs("sm_90a")
        .kernel("kernels/wgmma_back.cu", &wide_back)
        .needs("sm_90a")
        .kernel("kernels/handed_back.cu", &handed)
        .needs("sm_90a")
        // TK: positions of a tile, a thread each.
        .kernel("kernels/step.cu", &of_each(&["attention_step"], &TYPES, &[", 128"]))
        // ROOM, WARPS.
        .kernel(
            "kernels/step_split.cu",
            &of_each(&["attention_split"], &TYPES[1..], &[", 64, 4", ", 128, 4", ", 256, 2"]),
        )
        .needs("sm_80")
        .spills(4) // of heads of 256 columns
        .build();
}
