//! What each operator makes of a few lines, and what it leaves alone.
#![allow(missing_docs)]

use lab_mutate::{Mutant, Operator, mutants};

fn of(operator: Operator, body: &str) -> Vec<String> {
    let text = format!("template <class T, int N> __device__ void f() {{\n{body}\n}}\n");
    let all = mutants("f.cu", &text).unwrap();
    all.iter().filter(|m| m.operator == operator).map(Mutant::change).collect()
}

#[test]
fn barriers_and_fences() {
    let body = "
        // __syncthreads(); in a comment
        /* __threadfence(); */
        printf(\"__syncthreads();\");
        __syncthreads();
        __syncwarp(0xffffffffu);
        cooperative_groups::this_grid().sync();
        block.sync();
        async_wait<0>();
        int any = __syncthreads_or(1);
        __threadfence_block();
        syncopate();";
    assert_eq!(
        of(Operator::Barrier, body),
        [
            "__syncthreads(); → ;",
            "__syncwarp(0xffffffffu); → ;",
            "cooperative_groups::this_grid().sync(); → ;",
            "block.sync(); → ;",
            "async_wait<0>(); → ;",
        ]
    );
    assert_eq!(of(Operator::Fence, body), ["__threadfence_block(); → ;"]);
}

#[test]
fn initialisations() {
    let body = "
        float sum = 0, other = sum;
        constexpr int K = 4;
        const int k = 4;
        M m = lowest<M>(), z = M(0);
        Running own = {lowest<float>(), 0};
        auto grid = this_grid();
        float negative = -1.0f;
        for (int i = 0; i != N; ++i) x[i] = 0.0f;
        x[0] = sum;
        sum += 0;";
    assert_eq!(
        of(Operator::Initialisation, body),
        [
            "sum = 0 → sum",
            "m = lowest<M>() → m",
            "z = M(0) → z",
            "own = {lowest<float>(), 0} → own",
            "negative = -1.0f → negative",
            "x[i] = 0.0f; → ;",
        ]
    );
}

#[test]
fn bounds_off_by_one() {
    let body = "
        static_assert(N < 4, \"small\");
        Pack<T> pack = load<T>(x);
        bool inside = i < n;
        if (i < n) g<T>(a < b);
        if (r >= rows || !(c < columns)) return;
        for (int j = 0; j < N; ++j) x[j] += 1;
        while (k > 0) --k;
        y = i < n ? 1 : 2;
        if constexpr (N < 2) y = 3;";
    assert_eq!(
        of(Operator::OffByOne, body),
        [
            "i < n → i <= n",
            "r >= rows → r > rows",
            "c < columns → c <= columns",
            "j < N → j <= N",
            "i < n → i <= n",
        ]
    );
}

#[test]
fn guards() {
    let body = "
        if (i < n) x[i] = y;
        if (i >= n) return;
        if (i >= n) { continue; }
        if (a && b) { x[1] = y; } else x[2] = y;
        z = i < n ? x[i] + 1 : y;
        if constexpr (N == 1) z = 1;";
    assert_eq!(
        of(Operator::Guard, body),
        [
            "if (i < n) x[i] = y; → x[i] = y;",
            "if (i >= n) return; → ;",
            "if (i >= n) { continue; } → ;",
            "if (a && b) { x[1] = y; } else x[2] = y; → { x[1] = y; }",
            "a && b → b",
            "a && b → a",
            "i < n ? x[i] + 1 : y → (x[i] + 1)",
        ]
    );
}

#[test]
fn indices_strides_and_loops() {
    let body = "
        __shared__ float tile[N][N + 1];
        tile[y][x] = tile[x][x] + in[r * columns + c];
        v = a * weight[i] + b;
        for (int p = t; p < n / N; p += 2 * threads) s = p;
        for (int k = 0; k < N; ++k) s = k;
        for (int d = 16; d > 0; d /= 2) s = d;";
    assert_eq!(of(Operator::SwapIndices, body), ["tile[y][x] → tile[x][y]"]);
    assert_eq!(
        of(Operator::Stride, body),
        ["r * columns → r * (columns + 1)", "p += 2 * threads → p += 2 * (2 * threads)"]
    );
    assert_eq!(
        of(Operator::LastStep, body),
        ["p < n / N → p + 2 * threads < n / N", "k < N → k + 1 < N", "d > 0 → d > 1"]
    );
}

#[test]
fn kernels_are_emptied_and_other_functions_are_not() {
    let text = "__device__ int g() { return 1; }
template <int N> __global__ void __launch_bounds__(N) k(int* x) { x[0] = g(); }
__global__ void l(int* x) { *x = 2; }
";
    let all = mutants("k.cu", text).unwrap();
    let emptied: Vec<_> = all.iter().filter(|m| m.operator == Operator::EmptyKernel).collect();
    assert_eq!(emptied.iter().map(|m| m.function.as_str()).collect::<Vec<_>>(), ["k", "l"]);
    assert_eq!((emptied[1].line, emptied[1].column), (3, 27));
    assert!(emptied[0].edit.apply(text).unwrap().contains("k(int* x) {}"));
}

#[test]
fn what_the_emulator_does_not_compile_is_left_alone() {
    let text = "#define STEP(x) if (x < 1) return;
__device__ void f(int i) {
#ifdef LAB_EMULATOR
    if (i < 1) return;
#else
    if (i < 2) return;
#endif
#ifndef LAB_EMULATOR
    if (i < 3) return;
#else
    if (i < 4) return;
#endif
}
";
    let all = mutants("f.cuh", text).unwrap();
    let bounds = all.iter().filter(|m| m.operator == Operator::OffByOne);
    assert_eq!(
        bounds.map(Mutant::change).collect::<Vec<_>>(),
        ["i < 1 → i <= 1", "i < 4 → i <= 4"]
    );
}

#[test]
fn a_pragma_before_a_loop_hides_nothing() {
    let body = "
#pragma unroll
    for (int k = 0; k < N; ++k)
#pragma unroll
        for (int i = 0; i < M; ++i) s += a[k * M + i];";
    assert_eq!(of(Operator::OffByOne, body), ["k < N → k <= N", "i < M → i <= M"]);
}

#[test]
fn mutants_differ_from_the_original_and_from_each_other() {
    let text = include_str!("../../cuda/lab/reduce.cuh");
    let all = mutants("shared/cuda/lab/reduce.cuh", text).unwrap();
    assert!(all.len() > 4);
    let mut texts: Vec<String> = all.iter().map(|m| m.edit.apply(text).unwrap()).collect();
    texts.push(text.to_owned());
    let count = texts.len();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), count);
    assert_eq!(all[0].edit.apply("another text"), None);
}

#[test]
fn text_that_is_no_program_is_no_panic() {
    for text in
        ["", "{", "é 漢 #pragma\n#pragma é", "template <", "__global__ void k() { if (", "\0"]
    {
        mutants("x.cu", text).unwrap();
    }
}

#[test]
fn names_are_understood() {
    for operator in Operator::ALL {
        assert_eq!(operator.name().parse::<Operator>().unwrap(), operator);
    }
    let said = "magic".parse::<Operator>().unwrap_err().to_string();
    assert!(said.starts_with("operator: expected barrier, fence"), "{said}");
    assert!(said.ends_with("got 'magic'"), "{said}");
}

/// Calls, numbers and constants of a header of instructions, on the emulator's side of it alone.
#[test]
fn headers_of_instructions() {
    let text = "
template <class T> constexpr unsigned type = sizeof(T) == 4 ? ONE : TWO;
__device__ unsigned issue(void* to, unsigned bytes) {
    static_assert(4 < 5);
#ifdef LAB_EMULATOR
    emu_copy(static_cast<int*>(to), bytes, true, EMU_SCOPE_BLOCK);
#else
    other(bytes, 3 + 4);
#endif
    while (!landed(to)) {}
    return bytes >> 4;
}";
    let header = mutants("shared/cuda/lab/ptx/copy.cuh", text).unwrap();
    let all: Vec<(Operator, String)> = header.iter().map(|m| (m.operator, m.change())).collect();
    let of = |operator| -> Vec<&str> {
        all.iter().filter(|(o, _)| *o == operator).map(|(_, change)| change.as_str()).collect()
    };
    let call = "emu_copy(static_cast<int*>(to), bytes, true, EMU_SCOPE_BLOCK)";
    assert_eq!(of(Operator::Instruction), [format!("{call}; → ;")]);
    assert_eq!(
        of(Operator::Argument),
        [
            "static_cast<int*>(to) → static_cast<int*>(to) + 1",
            "static_cast<int*>(to), bytes → bytes, static_cast<int*>(to)",
            "bytes → bytes + 1",
            "bytes, true → true, bytes",
            "true → false",
            "true, EMU_SCOPE_BLOCK → EMU_SCOPE_BLOCK, true",
            "EMU_SCOPE_BLOCK → EMU_SCOPE_CLUSTER",
            "to → to + 1",
        ]
    );
    assert_eq!(of(Operator::Number), ["4 → (4 + 1)", "4 → (4 + 1)"]);
    assert_eq!(of(Operator::Barrier), ["while (!landed(to)) {} → ;"]);
    let guards = ["sizeof(T) == 4 ? ONE : TWO → ONE", "sizeof(T) == 4 ? ONE : TWO → TWO"];
    assert_eq!(of(Operator::Guard), guards);
    assert_eq!(header[0].function, "type");
    // Anywhere else numbers and calls are left alone.
    let other = mutants("shared/cuda/lab/copy.cuh", text).unwrap();
    assert!(other.iter().all(|m| !m.operator.is_of_instructions()), "{other:?}");
    assert!(other.iter().all(|m| m.operator != Operator::Barrier), "{other:?}");
}
