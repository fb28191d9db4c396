//! The parameters of a model: one arena, in which each has its place.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Tensor, Tensors};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

/// How a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All of this value.
    Constant(f64),
    /// From the first value to the second, in equal steps.
    Linear(f64, f64),
    /// Normal about 0 with this standard deviation.
    Normal(f64),
    /// Of this value from the first of these places up to the second, and 0 elsewhere.
    Within(f64, [usize; 2]),
}

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// As its file has it: `backbone.blocks.0.norm_mlstm.weight`.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Its first values.
    pub init: Init,
    /// Whether the optimizer's weight decay holds for it.
    pub decays: bool,
    /// Whether it begins where the one before it ends, although that is no multiple of 32 elements.
    pub joined: bool,
    /// Elements that it has in the arena, if they are more than its own: the others are zero.
    pub room: usize,
}

impl Parameter {
    /// One that does not decay.
    pub fn new(name: impl Into<String>, shape: &[usize], init: Init) -> Self {
        let (decays, joined, room) = (false, false, shape.iter().product());
        Self { name: name.into(), shape: shape.to_vec(), init, decays, joined, room }
    }

    /// The same, with weight decay.
    pub fn decays(self) -> Self {
        Self { decays: true, ..self }
    }

    /// The same, without a gap before it.
    pub fn joined(self) -> Self {
        Self { joined: true, ..self }
    }

    /// The same, with zeros behind it up to so many elements.
    pub fn with_room(self, room: usize) -> Self {
        Self { room: self.room.max(room), ..self }
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Parameters to whose multiples others begin: wide loads are aligned, and a tensor map has rows of whole 16 bytes.
const ALIGNED: usize = 32;

/// All parameters, and where each is in an arena. Those that decay come first; beside that they lie in the order in which they are
/// declared. So weights that are declared one behind the other, each of a multiple of 32 elements, are one matrix: see
/// [`Parameters::range`].
///
/// The arena of the masters, of the working copies, of the gradients and of each moment have the same places. What lies between two
/// parameters is zero, and stays it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    places: Vec<(Parameter, usize)>,
    decayed: usize,
    len: usize,
}

impl Parameters {
    /// Of these.
    pub fn new(all: Vec<Parameter>) -> Self {
        let (mut first, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| p.decays);
        let of_first = first.len();
        first.extend(rest);
        let (mut len, mut decayed) = (0, 0);
        let mut places = Vec::with_capacity(first.len());
        for (n, parameter) in first.into_iter().enumerate() {
            let start = if parameter.joined { len } else { usize::next_multiple_of(len, ALIGNED) };
            len = start + parameter.room;
            if n < of_first {
                decayed = len.next_multiple_of(ALIGNED);
            }
            places.push((parameter, start));
        }
        Self { places, decayed, len: len.next_multiple_of(ALIGNED) }
    }

    /// Elements of an arena, with what lies between parameters.
    #[allow(clippy::len_without_is_empty)] // no model has none
    pub fn len(&self) -> usize {
        self.len
    }

    /// So many of its first elements decay.
    pub fn decayed(&self) -> usize {
        self.decayed
    }

    /// Numbers that are learnt.
    pub fn count(&self) -> usize {
        self.places.iter().map(|(p, _)| p.len()).sum()
    }

    /// Each, in the order of the arena.
    pub fn iter(&self) -> impl Iterator<Item = &Parameter> {
        self.places.iter().map(|(p, _)| p)
    }

    fn find(&self, name: &str) -> Result<&(Parameter, usize), Error> {
        let found = self.places.iter().find(|(p, _)| p.name == name);
        found.ok_or_else(|| Error::bad("parameter", "one of the model", format!("'{name}'")))
    }

    /// The shape of a parameter.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn shape(&self, name: &str) -> Result<&[usize], Error> {
        Ok(&self.find(name)?.0.shape)
    }

    /// The part of an arena that one parameter has.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn part(&self, arena: Slot, name: &str) -> Result<Slot, Error> {
        self.range(arena, &[name])
    }

    /// The part that several have, which lie one behind the other without gaps: the matrix of all their rows. The room of the last
    /// one belongs to it.
    ///
    /// # Errors
    /// There is none of one of the names, or they do not lie so.
    pub fn range(&self, arena: Slot, names: &[&str]) -> Result<Slot, Error> {
        let (mut start, mut end) = (0, 0);
        for (n, name) in names.iter().enumerate() {
            let (parameter, at) = self.find(name)?;
            if n == 0 {
                (start, end) = (*at, *at);
            }
            if *at != end {
                let expected = format!("a parameter that follows '{}'", names[n.saturating_sub(1)]);
                return Err(Error::bad("parameter", expected, format!("'{name}'")));
            }
            end = at + parameter.room;
        }
        Ok(arena.part(start, end - start))
    }

    /// First values, by name, in f32: the same for the same seed, on any number of processors. Each parameter has streams of its own,
    /// one for each piece of it.
    pub fn initial(&self, seed: u64) -> Tensors {
        /// Values that one processor draws at a time.
        const PIECE: usize = 1 << 20;
        let mut all: Vec<&Parameter> = self.iter().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let values = |(stream, parameter): (usize, &Parameter)| {
            let len = parameter.len();
            let tensor = match parameter.init {
                Init::Constant(value) => Tensor::new(&parameter.shape, &vec![value as f32; len]),
                Init::Linear(from, to) => {
                    let step = (to - from) / (len - 1).max(1) as f64;
                    let at = |n: usize| (from + n as f64 * step) as f32;
                    Tensor::new(&parameter.shape, &(0..len).map(at).collect::<Vec<_>>())
                }
                Init::Within(value, [start, end]) => {
                    let mut values = vec![0f32; len];
                    values[start.min(len)..end.min(len)].fill(value as f32);
                    Tensor::new(&parameter.shape, &values)
                }
                Init::Normal(deviation) => {
                    // Where they will lie: memory is touched by who draws for it, and nothing is copied.
                    const SIZE: usize = size_of::<f32>();
                    let mut bytes = vec![0; len * SIZE];
                    bytes.par_chunks_mut(PIECE * SIZE).enumerate().for_each(|(piece, to)| {
                        let mut random = ChaCha8Rng::seed_from_u64(seed);
                        random.set_stream(stream as u64 | (piece as u64) << 32);
                        for to in to.chunks_exact_mut(SIZE) {
                            let drawn: f64 = StandardNormal.sample(&mut random);
                            to.copy_from_slice(&((deviation * drawn) as f32).to_ne_bytes());
                        }
                    });
                    Tensor { dtype: DType::F32, shape: parameter.shape.clone(), bytes }
                }
            };
            (parameter.name.clone(), tensor)
        };
        // Most matrices are one piece: all of them at once.
        let all: Vec<(String, Tensor)> = all.into_par_iter().enumerate().map(values).collect();
        all.into_iter().collect()
    }

    /// Refuses tensors that are missing, too many, or of another shape or type than f32.
    ///
    /// # Errors
    /// [`Error::Tensor`] with the first of them.
    pub fn check(&self, all: &Tensors) -> Result<(), Error> {
        self.check_types(all, DType::F32)?;
        let refuse = |name: &str, expected: String, got: String| {
            Err(Error::Tensor { name: name.to_owned(), expected, got })
        };
        match all.keys().find(|name| self.iter().all(|p| p.name != **name)) {
            Some(name) => refuse(name, "parameters of the model only".into(), "another".into()),
            None => Ok(()),
        }
    }

    /// Refuses tensors of its own names that are missing, or of another shape or type.
    pub(crate) fn check_types(&self, all: &Tensors, dtype: DType) -> Result<(), Error> {
        for p in self.iter() {
            let got = match all.get(&p.name) {
                Some(t) if t.shape == p.shape && t.dtype == dtype => continue,
                Some(t) => t.describe(),
                None => "none".into(),
            };
            let expected = format!("{dtype} {:?}", p.shape);
            return Err(Error::Tensor { name: p.name.clone(), expected, got });
        }
        Ok(())
    }

    /// An arena of all of them, each rounded to `dtype`.
    ///
    /// # Panics
    /// One is missing, or of another length.
    pub fn pack(&self, dtype: DType, all: &Tensors) -> Tensor {
        let mut bytes = vec![0; self.len * dtype.size()];
        for (parameter, start) in &self.places {
            let tensor = &all[&parameter.name];
            assert_eq!(tensor.len(), parameter.len(), "{}", parameter.name);
            let to = &mut bytes[start * dtype.size()..][..parameter.len() * dtype.size()];
            tensor.convert_into(dtype, to);
        }
        Tensor { dtype, shape: vec![self.len], bytes }
    }

    /// Each by its name, of an arena.
    pub fn unpack(&self, arena: &Tensor) -> Tensors {
        let size = arena.dtype.size();
        let own = |(parameter, start): &(Parameter, usize)| {
            let bytes = arena.bytes[start * size..][..parameter.len() * size].to_vec();
            let (dtype, shape) = (arena.dtype, parameter.shape.clone());
            (parameter.name.clone(), Tensor { dtype, shape, bytes })
        };
        self.places.iter().map(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_harness::Plan;

    fn some() -> Parameters {
        Parameters::new(vec![
            Parameter::new("norm", &[40], Init::Constant(1.0)),
            Parameter::new("q", &[4, 16], Init::Normal(0.1)).decays(),
            Parameter::new("k", &[2, 16], Init::Normal(0.1)).decays().with_room(64),
            Parameter::new("bias", &[3], Init::Linear(3.0, 6.0)),
            Parameter::new("other bias", &[3], Init::Within(2.0, [1, 9])).joined(),
        ])
    }

    #[test]
    fn those_that_decay_come_first_and_neighbours_are_one_matrix() {
        let all = some();
        assert_eq!((all.len(), all.decayed(), all.count()), (128 + 64 + 32, 128, 142));
        let device = lab_device::Device::emulator().unwrap();
        let arena = Plan::new(&device).scratch(DType::F32, all.len());
        assert_eq!(all.range(arena, &["q", "k"]).unwrap(), arena.part(0, 128));
        assert_eq!(all.range(arena, &["bias", "other bias"]).unwrap(), arena.part(192, 6));
        let said = all.range(arena, &["k", "q"]).unwrap_err().to_string();
        assert_eq!(said, "parameter: expected a parameter that follows 'k', got 'q'");
        let said = all.part(arena, "v").unwrap_err().to_string();
        assert_eq!(said, "parameter: expected one of the model, got 'v'");
    }

    #[test]
    fn arenas_hold_what_was_packed() {
        let all = some();
        let first = all.initial(7);
        assert_eq!(first["bias"].values(), [3.0, 4.5, 6.0]);
        assert_eq!(first["other bias"].values(), [0.0, 2.0, 2.0]);
        assert_ne!(first["q"].values()[..32], first["k"].values()[..]);
        assert_eq!(all.unpack(&all.pack(DType::F32, &first)), first);
        all.check(&first).unwrap();
        let mut other = first.clone();
        other.insert("v".into(), first["q"].clone());
        assert!(all.check(&other).is_err());
        other.remove("v");
        other.insert("q".into(), first["k"].clone());
        let said = all.check(&other).unwrap_err().to_string();
        assert_eq!(said, "tensor 'q': expected f32 [4, 16], got f32 [2, 16]");
    }
}
