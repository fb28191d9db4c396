//! Random tensor maps, and what tensor copies must leave by them.
//!
//! Where the elements of a box lie is worked out here element by element. The emulator has a way of its
//! own, by rows and chunks of 16 bytes, and a GPU is the judge of both.

use lab_device::{DType, Device, Error, Fill, Launch, RawBuffer, Swizzle, TensorMap};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::kernels;

/// Boxes that are loaded, and then some that are stored.
pub const LOADS: usize = 500;
/// See [`LOADS`].
pub const STORES: usize = 200;
/// Maps that are drawn from what is legal and what is not.
pub const DRAWN: usize = 5000;
/// Bytes of shared memory: `ROOM` of the kernels.
const ROOM: usize = 8192 * 4;
/// Bytes of device memory.
const MEMORY: usize = 1 << 18;
/// Most dimensions.
const RANK: usize = 5;

/// A map and where a box of it goes.
#[derive(Clone, Debug)]
pub struct Drawn {
    dtype: DType,
    rank: usize,
    sizes: [usize; RANK],
    /// In bytes; the first is that of an element.
    strides: [usize; RANK],
    extents: [usize; RANK],
    steps: [usize; RANK],
    swizzle: Swizzle,
    nan: bool,
    /// Bytes of memory before the tensor.
    start: usize,
    at: [i32; RANK],
    /// Where in shared memory.
    tile: usize,
}

impl Drawn {
    fn map(&self) -> Result<TensorMap, Error> {
        let of = |list: &[usize; RANK]| list[..self.rank].to_vec();
        let map = TensorMap::new(self.dtype, &of(&self.sizes), &of(&self.extents))?;
        let map = map.strides(&self.strides[1..self.rank])?.steps(&of(&self.steps))?;
        let map = map.swizzle(self.swizzle);
        Ok(if self.nan { map.nan_outside() } else { map })
    }

    /// One that a GPU takes, of a box that fits.
    fn draw(dice: &mut StdRng, stores: bool) -> Self {
        loop {
            let drawn = Self::propose(dice, stores);
            let last =
                (1..drawn.rank).map(|d| (drawn.sizes[d] - 1) * drawn.strides[d]).sum::<usize>();
            let end =
                drawn.start + last + (drawn.sizes[0] * drawn.dtype.size()).next_multiple_of(16);
            let fits = |m: TensorMap| m.check().is_ok() && drawn.tile + m.room() as usize <= ROOM;
            if end <= MEMORY && drawn.map().is_ok_and(fits) {
                return drawn;
            }
        }
    }

    fn propose(dice: &mut StdRng, stores: bool) -> Self {
        let dtype = DType::ALL[dice.random_range(0..DType::ALL.len())];
        let (element, rank) = (dtype.size(), dice.random_range(1..=RANK));
        let swizzle = Swizzle::ALL[dice.random_range(0..4)];
        let (mut sizes, mut extents, mut steps) = ([1; RANK], [1; RANK], [1; RANK]);
        let mut strides = [element; RANK];
        for d in 0..rank {
            sizes[d] = dice.random_range(1..=if d == 0 { 150 } else { 9 });
            extents[d] = dice.random_range(1..=12);
            steps[d] = if dice.random_bool(0.7) { 1 } else { dice.random_range(1..=8) };
        }
        let most = if swizzle == Swizzle::None { 256 } else { swizzle.span() as usize };
        extents[0] = 16 * dice.random_range(1..=most / 16) / element;
        for d in 1..rank {
            let plain = (strides[d - 1] * sizes[d - 1]).next_multiple_of(16);
            strides[d] =
                plain + if dice.random_bool(0.3) { 16 * dice.random_range(1..4) } else { 0 };
        }
        let mut at = [0; RANK];
        for d in 0..rank {
            // In units of 16 bytes along the innermost dimension.
            let unit = if d == 0 { 16 / element } else { 1 };
            let least = if stores { 0 } else { -3 };
            at[d] = dice.random_range(least..=(sizes[d] / unit) as i32 + 2) * unit as i32;
        }
        let float = !matches!(dtype, DType::U8 | DType::I32 | DType::U32 | DType::I64 | DType::U64);
        let nan = float && dice.random_bool(0.4);
        let start = 16 * dice.random_range(0..8);
        let tile = 128 * dice.random_range(0..9);
        Self { dtype, rank, sizes, strides, extents, steps, swizzle, nan, start, at, tile }
    }

    /// Each byte of the box: where in shared memory, and where in the tensor's memory unless outside.
    fn bytes(&self, stores: bool) -> Vec<(usize, Option<usize>)> {
        let element = self.dtype.size();
        let count = |d: usize| {
            if d == 0 { self.extents[0] } else { self.extents[d].div_ceil(self.steps[d]) }
        };
        let row = self.extents[0] * element;
        let pitch = row.max(self.swizzle.span() as usize);
        let total: usize = (0..self.rank).map(count).product();
        let mut all = Vec::new();
        for n in 0..total {
            let (mut rest, mut inside, mut from) = (n, true, self.start as i64);
            for d in 0..self.rank {
                let index = (rest % count(d)) as i64;
                rest /= count(d);
                let step = if d == 0 { 1 } else { self.steps[d] as i64 };
                let coordinate = i64::from(self.at[d]) + index * step;
                let mut size = self.sizes[d];
                if d == 0 && stores {
                    // Whole 16 bytes are stored.
                    size = (size * element).next_multiple_of(16) / element;
                }
                inside &= (0..size as i64).contains(&coordinate);
                from += coordinate * self.strides[d] as i64;
            }
            for byte in 0..element {
                let plain =
                    self.tile + n / self.extents[0] * pitch + n % self.extents[0] * element + byte;
                // The number of a 16-byte chunk in its span, mixed with that of its 128 bytes.
                let chunks = (self.swizzle.span() as usize / 16).max(1);
                let place = plain ^ (plain / 128 % chunks * 16);
                all.push((place, inside.then_some(from as usize + byte)));
            }
        }
        all
    }
}

/// Bytes that tell neighbours apart.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|n| ((n ^ seed as u32).wrapping_mul(2_654_435_761) >> 21) as u8).collect()
}

/// What differed.
#[derive(Debug)]
pub struct Differs {
    /// The map and the box.
    pub drawn: Drawn,
    /// The first byte.
    pub byte: usize,
}

/// Makes one copy by a random map on a device, and looks at every byte that it left.
///
/// # Errors
/// What the device says of the launch.
pub fn copy(device: &Device, seed: u64, stores: bool) -> Result<Option<Differs>, Error> {
    let mut dice = StdRng::seed_from_u64(seed);
    let drawn = Drawn::draw(&mut dice, stores);
    let memory = noise(seed, MEMORY);
    let raw = device.raw_buffer(MEMORY)?;
    // SAFETY: it was made just now: nothing is under way that uses it.
    unsafe { raw.write(0, &memory)? };
    let (left, expected) = if stores {
        store(device, &drawn, &raw, memory, &noise(!seed, ROOM))?
    } else {
        load(device, &drawn, &raw, &memory)?
    };
    let byte = left.iter().zip(&expected).position(|(a, b)| a != b);
    Ok(byte.map(|byte| Differs { drawn, byte }))
}

fn launch(
    device: &Device,
    drawn: &Drawn,
    raw: &RawBuffer,
    name: &str,
    stores: bool,
    others: &[(&str, lab_device::Arg<'_>)],
) -> Result<(), Error> {
    let size = drawn.dtype.size();
    let map = raw.tensor_map(drawn.start / size..MEMORY / size, &drawn.map()?, stores)?;
    let kernel = device.kernel(&kernels::MAPS, &format!("{name}<{}>", drawn.rank))?;
    let mut arguments = vec![("map", map), ("tile", (drawn.tile as i32).into())];
    let coordinates = ["c0", "c1", "c2", "c3", "c4"].into_iter().zip(drawn.at);
    arguments.extend(coordinates.map(|(name, at)| (name, at.into())));
    arguments.extend(others);
    // SAFETY: what a map leaves of the buffer is drawn, and what leaves it is found by the checks, which end it, or by a GPU.
    unsafe { kernel.launch(Launch::new(1, 128).shared(ROOM), &arguments) }
}

fn load(
    device: &Device,
    drawn: &Drawn,
    raw: &RawBuffer,
    memory: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let mut out = device.buffer::<u32>(ROOM / 4)?;
    let box_bytes = drawn.map()?.bytes() as u32;
    let others = [("bytes", box_bytes.into()), ("out", out.arg_mut())];
    launch(device, drawn, raw, "box_loaded", false, &others)?;
    let mut expected = vec![0xEE; ROOM];
    let fill = if drawn.nan { [0xF7, 0x7F] } else { [0; 2] };
    for (place, from) in drawn.bytes(false) {
        expected[place] = from.map_or(fill[place % 2], |from| memory[from]);
    }
    Ok((bytemuck::cast_slice(&out.download()?).to_vec(), expected))
}

fn store(
    device: &Device,
    drawn: &Drawn,
    raw: &RawBuffer,
    mut memory: Vec<u8>,
    tile: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let from = device.upload::<u32>(&bytemuck::pod_collect_to_vec(tile))?;
    launch(device, drawn, raw, "box_stored", true, &[("from", from.arg())])?;
    for (place, to) in drawn.bytes(true) {
        if let Some(to) = to {
            memory[to] = tile[place];
        }
    }
    let mut left = vec![0; MEMORY];
    raw.read(0, &mut left)?;
    Ok((left, memory))
}

/// Whether the driver of a GPU takes exactly the maps that [`TensorMap::check`] takes; the ones about
/// which they differ. A box too large for shared memory is left out where it has steps, of which the
/// driver does not take account.
///
/// # Errors
/// No memory.
pub fn verdicts(device: &Device) -> Result<Vec<Drawn>, Error> {
    let raw = device.raw_buffer(MEMORY)?;
    // SAFETY: nothing is under way.
    unsafe { raw.fill(0..MEMORY, Fill::Zero, None)? };
    let mut dice = StdRng::seed_from_u64(0);
    let mut differ = Vec::new();
    for _ in 0..DRAWN {
        let mut drawn = Drawn::propose(&mut dice, false);
        for d in 0..drawn.rank {
            let mut wild = |list: &mut [usize; RANK], values: &[usize]| {
                if dice.random_bool(0.05) {
                    list[d] = values[dice.random_range(0..values.len())];
                }
            };
            wild(&mut drawn.sizes, &[0, 1 << 32, (1 << 32) + 1]);
            wild(&mut drawn.extents, &[0, 3, 64, 256, 257]);
            wild(&mut drawn.steps, &[0, 8, 9]);
            if d > 0 {
                wild(&mut drawn.strides, &[0, 8, 24, (1 << 40) - 16, 1 << 40]);
            }
        }
        drawn.nan = dice.random_bool(0.2);
        let map = drawn.map()?;
        let large = map.bytes() > 227 * 1024 && drawn.steps[..drawn.rank].iter().any(|&s| s != 1);
        let taken = device.encode_tensor_map(raw.address(), &map).is_ok();
        if !large && taken != map.check().is_ok() {
            differ.push(drawn);
        }
    }
    Ok(differ)
}
