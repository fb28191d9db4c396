//! What the operations ask of their slots, and the launches that several share.

use lab_device::{DType, DeviceKind, Instance, Kernel, KernelSource, Launch};
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan};

/// Refuses another type than those of activations.
pub(crate) fn check_dtype(operation: &str, dtype: DType) -> Result<(), Error> {
    if [DType::F32, DType::F16, DType::BF16].contains(&dtype) {
        return Ok(());
    }
    Err(Error::bad(format!("dtype of {operation}"), "f32, f16 or bf16", dtype))
}

/// Refuses a size of nothing.
pub(crate) fn check_sizes(operation: &str, sizes: &[(&str, usize)]) -> Result<(), Error> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((name, _)) => Err(Error::bad(format!("{name} of {operation}"), "at least 1", 0)),
        None => Ok(()),
    }
}

/// Refuses what is added under a root, where it is negative or no number.
pub(crate) fn check_eps(operation: &str, eps: f32) -> Result<(), Error> {
    if eps >= 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::bad(format!("eps of {operation}"), "a finite number, 0 or above", eps))
}

/// Refuses slots of another length.
pub(crate) fn check_lengths(
    operation: &str,
    slots: &[(&str, Option<Slot>, usize)],
) -> Result<(), Error> {
    for (name, slot, length) in slots {
        if let Some(slot) = slot.filter(|slot| slot.len() != *length) {
            let expected = format!("{length} elements");
            return Err(Error::bad(format!("{name} of {operation}"), expected, slot.len()));
        }
    }
    Ok(())
}

/// Refuses a part of wider rows that is too short, or rows that overlap.
pub(crate) fn check_rows(
    operation: &str,
    name: &str,
    slot: Slot,
    [rows, width, stride]: [usize; 3],
) -> Result<(), Error> {
    if stride < width {
        let what = format!("row stride of {name} of {operation}");
        return Err(Error::bad(what, format!("at least {width}"), stride));
    }
    let least = (rows - 1) * stride + width;
    if slot.len() < least {
        let expected = format!("at least {least} elements");
        return Err(Error::bad(format!("{name} of {operation}"), expected, slot.len()));
    }
    Ok(())
}

/// Elements that a thread moves at once: 16 bytes of them where all sizes are multiples of that, and all slots, each with the
/// type of its elements, begin at one; else 1.
pub(crate) fn pack(dtype: DType, sizes: &[usize], slots: &[(Slot, DType)]) -> usize {
    let pack = 16 / dtype.size();
    let begins_well =
        |(slot, dtype): &(Slot, DType)| (slot.start() * dtype.size()).is_multiple_of(16);
    let whole = sizes.iter().all(|size| size.is_multiple_of(pack)) && slots.iter().all(begins_well);
    if whole { pack } else { 1 }
}

/// The first instantiation whose lanes hold a row of `width`. On the emulator that of the fewest lanes: each is a coroutine there,
/// which gives way at each shuffle.
pub(crate) fn holding_a_row(
    plan: &Plan,
    source: &'static KernelSource,
    kernel: &str,
    dtype: DType,
    [width, pack]: [usize; 2],
) -> Result<Strip, Error> {
    let cells = |i: &Instance| i.size("LANES") * i.size("PACKS") * i.size("N");
    let of_pack = |i: &Instance| i.has("T", dtype.cpp()) && i.size("N") == pack;
    let all = || source.instances(kernel).filter(of_pack);
    let mut holding = all().filter(|i| cells(i) >= width);
    let found = match plan.device().kind() {
        DeviceKind::Cuda => holding.next(),
        DeviceKind::Emulator => holding.min_by_key(|i| i.size("LANES")),
    };
    let Some(instance) = found else {
        let most = all().map(|i| cells(&i)).max().unwrap_or(0);
        return Err(Error::bad(format!("width of {kernel}"), format!("at most {most}"), width));
    };
    let rows = THREADS / instance.size("LANES");
    Ok(Strip { kernel: plan.device().load(instance)?, rows })
}

/// Threads of a block.
pub(crate) const THREADS: usize = 256;

/// A kernel whose lanes hold a row, and how many rows a block has at a time.
pub(crate) struct Strip {
    pub(crate) kernel: Kernel,
    pub(crate) rows: usize,
}

impl Strip {
    /// A grid that has each row once, for each of `heads`.
    pub(crate) fn launch(&self, rows: usize, heads: usize) -> Result<Launch, Error> {
        grid(&self.kernel, [rows.div_ceil(self.rows), heads])
    }

    /// A grid whose blocks fill the device, but have several rounds of rows each: each leaves a partial sum.
    pub(crate) fn launch_of_sums(&self, rows: usize, heads: usize) -> Result<Launch, Error> {
        const ROUNDS: usize = 4;
        let resident = self.kernel.resident_blocks(THREADS as u32, 0)? as usize;
        let most = (resident / heads).max(1);
        grid(&self.kernel, [rows.div_ceil(self.rows * ROUNDS).min(most), heads])
    }
}

/// So many blocks in x and y.
pub(crate) fn grid(kernel: &Kernel, [x, y]: [usize; 2]) -> Result<Launch, Error> {
    let size = |what: &str, size: usize, most: u32| match u32::try_from(size) {
        Ok(size) if size <= most => Ok(size),
        _ => {
            Err(Error::bad(format!("{what} of {}", kernel.name()), format!("at most {most}"), size))
        }
    };
    let (x, y) = (size("blocks", x, i32::MAX as u32)?, size("heads", y, 65535)?);
    Ok(kernel.grid([x, y, 1])?)
}

/// A thread for each of `threads`. Kernels count them in 32 bits.
pub(crate) fn grid_over(kernel: &Kernel, threads: usize) -> Result<Launch, Error> {
    if u32::try_from(threads.next_multiple_of(THREADS)).is_err() {
        let expected = format!("at most {} threads", u32::MAX as usize + 1 - THREADS);
        return Err(Error::bad(format!("size of {}", kernel.name()), expected, threads));
    }
    grid(kernel, [threads.div_ceil(THREADS), 1])
}

/// Refuses more rows than 31 bits count, with those that a grid has beyond them.
pub(crate) fn check_rows_count(operation: &str, rows: usize) -> Result<(), Error> {
    const MOST: usize = (1 << 31) - (1 << 20);
    if rows <= MOST {
        return Ok(());
    }
    Err(Error::bad(format!("rows of {operation}"), format!("at most {MOST}"), rows))
}

/// `name<T, N>` of a file.
pub(crate) fn with_pack(
    plan: &Plan,
    source: &'static KernelSource,
    name: &str,
    dtype: DType,
    pack: usize,
) -> Result<Kernel, Error> {
    Ok(plan.device().kernel(source, &format!("{name}<{}, {pack}>", dtype.cpp()))?)
}

/// A slot that a kernel's parameter must have, and that it does not touch.
pub(crate) fn untouched(plan: &mut Plan, dtype: DType) -> Slot {
    plan.scratch(dtype, 1)
}
