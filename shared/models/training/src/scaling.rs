//! How long a step takes on many GPUs, computed from the pieces that one and two of them were measured with.
//!
//! A step is a list of kernels and collectives. Collectives run one after the other on a stream of their own. Kernels count on all
//! multiprocessors of a GPU: one that begins while a collective is under way has blocks that wait for the collective's end, or for
//! the kernel's other blocks, and then take as long again. A collective whose data is there begins with the next kernel.

/// A kernel of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// How long it takes alone, in seconds.
    pub seconds: f64,
    /// Gradients that are final behind it, in elements.
    pub gradients: usize,
}

/// A step of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimes {
    /// Of the forward pass, in seconds.
    pub forward: f64,
    /// In their order.
    pub backward: Vec<Kernel>,
    /// Of the norm and the update of all parameters, in seconds.
    pub optimizer: f64,
    /// Bytes that the GPU's memory moves a second.
    pub memory: f64,
}

/// Links between GPUs, with the model of time that NCCL chooses its algorithms by (`src/graph/tuning.cc`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// GPUs of a host.
    pub gpus_of_host: usize,
    /// Bytes a second in one direction, of each GPU to others of its host.
    pub within: f64,
    /// Bytes a second in one direction, of all of a host's network cards together.
    pub between: f64,
    /// Seconds of any collective.
    pub base: f64,
    /// Seconds a step of a ring: within a host, and from host to host.
    pub ring: [f64; 2],
    /// The same of a tree.
    pub tree: [f64; 2],
}

impl Network {
    fn hosts(&self, gpus: usize) -> usize {
        gpus.div_ceil(self.gpus_of_host)
    }

    fn bandwidth(&self, gpus: usize) -> f64 {
        if self.hosts(gpus) > 1 { self.within.min(self.between) } else { self.within }
    }

    /// Seconds of a reduce-scatter or an all-gather of so many bytes in all: a ring.
    pub fn scatter(&self, bytes: f64, gpus: usize) -> f64 {
        let (steps, between) = ((gpus - 1) as f64, (self.hosts(gpus) - 1) as f64);
        let share = steps / gpus as f64;
        let latency = (steps - between) * self.ring[0] + between * self.ring[1];
        self.base + latency + share * bytes / self.bandwidth(gpus)
    }

    /// Seconds of an all-reduce of so many bytes: a ring, or a tree where that is faster.
    pub fn all_reduce(&self, bytes: f64, gpus: usize) -> f64 {
        // A tree's packets have 120 bytes of data in 128.
        const TREE: f64 = 120.0 / 128.0;
        let ring = 2.0 * self.scatter(bytes, gpus) - self.base;
        let hosts = self.hosts(gpus);
        let depth = [(gpus.min(self.gpus_of_host) - 1) as f64, (hosts as f64).log2().ceil()];
        let latency = 2.0 * (depth[0] * self.tree[0] + depth[1] * self.tree[1]);
        ring.min(self.base + latency + 2.0 * bytes / (TREE * self.bandwidth(gpus)))
    }
}

/// How gradients are summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// In pieces of at least so many bytes, beside the backward pass; what is left, behind it.
    Pieces(f64),
    /// Each GPU has a part of the optimizer's state: one reduce-scatter behind the backward pass, and an all-gather behind the update.
    Shards,
}

impl StepTimes {
    fn parameters(&self) -> f64 {
        self.backward.iter().map(|kernel| kernel.gradients as f64).sum()
    }

    /// Seconds of a step on one GPU alone.
    pub fn alone(&self) -> f64 {
        self.forward + self.backward.iter().map(|k| k.seconds).sum::<f64>() + self.optimizer
    }

    /// The step of a share of the windows: all kernels but the optimizer's take as large a share of their time.
    #[must_use]
    pub fn of_share(&self, share: f64) -> Self {
        let part = |kernel: &Kernel| Kernel { seconds: kernel.seconds * share, ..*kernel };
        let backward = self.backward.iter().map(part).collect();
        Self { forward: self.forward * share, backward, ..self.clone() }
    }

    /// Seconds of a step on each of so many GPUs, with gradients of so many bytes an element in their sum.
    pub fn on(&self, gpus: usize, network: &Network, way: Way, size: f64) -> f64 {
        let parameters = self.parameters();
        // Rounded gradients are read and written once more.
        let rounding =
            |elements: f64| if size < 4.0 { elements * (4.0 + size) / self.memory } else { 0.0 };
        match way {
            _ if gpus == 1 => self.alone(),
            Way::Shards => {
                let sums = network.scatter(size * parameters, gpus) + network.all_reduce(0.0, gpus);
                let gather = network.scatter(2.0 * parameters, gpus);
                let optimizer = self.optimizer / gpus as f64;
                self.alone() - self.optimizer + rounding(parameters) + sums + optimizer + gather
            }
            Way::Pieces(bytes) => {
                self.in_pieces(bytes, size, rounding, |b| network.all_reduce(b, gpus))
            }
        }
    }

    fn in_pieces(
        &self,
        piece: f64,
        size: f64,
        rounding: impl Fn(f64) -> f64,
        sum: impl Fn(f64) -> f64,
    ) -> f64 {
        let (mut now, mut sum_ends, mut final_bytes) = (self.forward, 0.0f64, 0.0);
        let mut ready = std::collections::VecDeque::new();
        for kernel in &self.backward {
            if sum_ends <= now
                && let Some(bytes) = ready.pop_front()
            {
                sum_ends = now + sum(bytes);
            }
            let waits = (sum_ends - now).clamp(0.0, kernel.seconds);
            now += kernel.seconds + waits + rounding(kernel.gradients as f64);
            final_bytes += size * kernel.gradients as f64;
            if final_bytes >= piece {
                ready.push_back(std::mem::take(&mut final_bytes));
            }
        }
        if final_bytes > 0.0 {
            ready.push_back(final_bytes);
        }
        now.max(sum_ends) + ready.into_iter().map(sum).sum::<f64>() + self.optimizer
    }
}

/// The model of 162 M parameters on an H200, 16 windows of 2048 tokens: of a step of 52.7 ms what its trace says
/// (`benches/language_model/20261130-two-gpus-nvidia-h200.json`).
pub fn model_of_162m() -> StepTimes {
    const HEAD: usize = 50_304 * 768;
    const BLOCKS: usize = 12;
    const OF_BLOCK: usize = (162_340_752 - 2 * HEAD) / BLOCKS;
    const KERNELS: usize = 25;
    let kernel = |seconds: f64, gradients: usize| Kernel { seconds, gradients };
    // The loss and the head, in two parts of the rows: logits, loss, and both gradients.
    let mut backward = vec![kernel(1.75e-3, 0); 8];
    for _ in 0..BLOCKS {
        // Its matrices are final one after the other, here in the last of its kernels.
        backward.extend(vec![kernel(8.3e-5, 0); KERNELS - 1]);
        backward.push(kernel(8.3e-5, OF_BLOCK));
    }
    // The head's gradient is final before those of the blocks, but is summed behind them, beside the embedding's.
    backward.push(kernel(2e-4, 2 * HEAD));
    let optimizer = 1.4e-3;
    let forward = 52.7e-3 - optimizer - backward.iter().map(|k| k.seconds).sum::<f64>();
    StepTimes { forward, backward, optimizer, memory: 4e12 }
}

/// Hosts of eight H200, a network card of 400 Gbit/s a GPU. NVLink has 450 GB/s in each direction, of which NCCL 2.28.3 reached 284 in an
/// `all_reduce` of 649 MB over two GPUs (the same record); cards reach 90 % of their rate. Latencies are NCCL's own for LL128.
pub const HOSTS_OF_EIGHT: Network = Network {
    gpus_of_host: 8,
    within: 284e9,
    between: 0.9 * 8.0 * 50e9,
    base: 14e-6,
    ring: [1.9e-6, 4e-6],
    tree: [1.25e-6, 8.5e-6],
};

/// A table in Markdown: of each number of GPUs and each way of summing, the share of so many times one GPU's tokens a second. With
/// `windows`, a step has so many in all, of which one GPU alone takes 16 at a time; else each GPU has 16.
pub fn table(step: &StepTimes, network: &Network, windows: Option<usize>) -> String {
    const GPUS: [usize; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 512];
    const OF_STEP: f64 = 16.0;
    let mib = f64::from(1 << 20);
    let ways = [
        ("16 MiB", Way::Pieces(16.0 * mib), 4.0),
        ("all at once", Way::Pieces(f64::INFINITY), 4.0),
        ("all at once, bf16", Way::Pieces(f64::INFINITY), 2.0),
        ("`--shard-optimizer`", Way::Shards, 4.0),
        ("`--shard-optimizer`, bf16", Way::Shards, 2.0),
    ];
    let head: Vec<&str> = ways.iter().map(|way| way.0).collect();
    let mut text =
        format!("| GPUs | {} |\n|---:|{}\n", head.join(" | "), "---:|".repeat(head.len()));
    for gpus in GPUS {
        let share = windows.map_or(1.0, |windows| windows as f64 / OF_STEP / gpus as f64);
        // One GPU alone adds up the same windows in parts, with one update.
        let own = step.of_share(share);
        let alone = step.of_share(share * gpus as f64).alone() / gpus as f64;
        let ideal = if windows.is_some() { alone } else { step.alone() };
        let cells: Vec<String> = ways
            .iter()
            .map(|(_, way, size)| format!("{:.2}", ideal / own.on(gpus, network, *way, *size)))
            .collect();
        text += &format!("| {gpus} | {} |\n", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Network = Network { gpus_of_host: 2, ..HOSTS_OF_EIGHT };

    /// One kernel each, so that all can be said by hand.
    fn two_kernels(gradients: [usize; 2]) -> StepTimes {
        let backward = gradients.map(|gradients| Kernel { seconds: 1.0, gradients }).to_vec();
        StepTimes { forward: 1.0, backward, optimizer: 0.5, memory: 1e12 }
    }

    #[test]
    fn a_kernel_waits_for_the_sum_that_it_meets() {
        // A byte a second: a sum of b bytes takes b seconds on two GPUs.
        let network = Network { within: 1.0, base: 0.0, ring: [0.0; 2], tree: [1e9; 2], ..TWO };
        let step = two_kernels([1, 1]);
        let on = |way, size| step.on(2, &network, way, size);
        assert_eq!(step.alone(), 3.5);
        // A quarter of a second of sum beside the second kernel, whose last blocks wait for it; as much behind it.
        assert_eq!(on(Way::Pieces(0.25), 0.25).floor(), 4.0);
        // All behind: 8 bytes.
        assert_eq!(on(Way::Pieces(f64::INFINITY), 4.0), 3.5 + 8.0);
        // A sum that is longer than the kernel beside it delays that by the kernel's time, and the last sum by the rest.
        assert_eq!(on(Way::Pieces(1.0), 4.0), 1.0 + 1.0 + 4.0 + 4.0 + 0.5);
        // Half of the bytes each, and two of bf16: 4 + 2 seconds, and half of the update.
        assert_eq!(on(Way::Shards, 4.0), 3.0 + 4.0 + 0.25 + 2.0);
        assert_eq!(step.on(1, &network, Way::Shards, 4.0), 3.5);
    }

    #[test]
    fn larger_rings_have_more_steps_and_trees_fewer() {
        let network = HOSTS_OF_EIGHT;
        let small: Vec<f64> = [8, 64, 512].map(|gpus| network.all_reduce(1e6, gpus)).to_vec();
        assert!(small[0] < small[1] && small[1] < small[2] && small[2] < 2e-4, "{small:?}");
        // A ring of 512 has 1022 steps, of which 126 leave a host.
        let ring = 2.0 * network.scatter(0.0, 512) - network.base;
        assert!((ring - (14e-6 + 896.0 * 1.9e-6 + 126.0 * 4e-6)).abs() < 1e-12, "{ring}");
        let large = network.all_reduce(4e9, 8);
        assert!((large / (1.75 * 4e9 / network.within) - 1.0).abs() < 0.01, "{large}");
    }

    /// Tokens that two H200 read in a second, and one; a step is of 2¹⁶ and 2¹⁵. The model is at most 2.5 % short of their steps.
    #[test]
    fn the_model_is_near_what_was_measured() {
        let step = model_of_162m();
        assert!((step.alone() / (32_768.0 / 621_313.0) - 1.0).abs() < 1e-3);
        let all = Way::Pieces(f64::INFINITY);
        let measured = [
            (Way::Pieces(16.0 * 1_048_576.0), 4.0, 1_181_865.0),
            (all, 4.0, 1_177_658.0),
            (all, 2.0, 1_190_234.0),
            (Way::Shards, 4.0, 1_192_638.0),
            (Way::Shards, 2.0, 1_198_117.0),
        ];
        for (way, size, tokens) in measured {
            let (two, seconds) = (step.on(2, &TWO, way, size), 65_536.0 / tokens);
            let text = format!("{way:?}, {size} bytes: {two}, measured {seconds}");
            assert!((0.975..1.0).contains(&(two / seconds)), "{text}");
        }
    }

    #[test]
    fn the_book_has_the_tables_that_are_printed() {
        let page = include_str!("../../../../book/src/data-parallel.md");
        for windows in [None, Some(512)] {
            let table = table(&model_of_162m(), &HOSTS_OF_EIGHT, windows);
            assert!(page.contains(&table), "{table}");
        }
    }
}
