//! A plan, and the memory that it runs on.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use lab_device::dlpack::DLTensor;
use lab_device::{DType, Device, DeviceKind, Stream};
use lab_harness::plan::{Initial, SlotFacts, SlotKind};
use lab_harness::{
    Binder, Binding, Error, Options, Output, Plan, Prepared as _, Request, Shape, Shapes, Tensor,
    Tensors, Version,
};
use lstm_fused::{Lstm, Network};

use crate::{Pass, Training, choose};

/// How many bindings a plan keeps. An allocator that caches, as PyTorch's, hands out the same addresses again, so that
/// a training loop needs as many as a model has layers, or a few times that.
const KEPT: usize = 256;

/// A plan for calls of one shape on one device.
pub struct Planned {
    name: String,
    /// The version that it is of; of an LSTM of several layers there is none.
    chosen: Option<Chosen>,
    plan: Plan,
    /// Slots that a caller gives memory to, as indices.
    given: Vec<usize>,
    /// Those that one part of a call leaves to the other, as indices, each with where it begins in their memory.
    left: Vec<(usize, usize)>,
    bindings: Mutex<Bindings>,
}

/// A version, and what is asked of it.
#[derive(Clone)]
struct Chosen {
    version: &'static dyn Version,
    options: Options,
    dtype: DType,
}

/// Bindings by what they are bound to, and those keys, the oldest first.
#[derive(Default)]
struct Bindings {
    all: HashMap<Key, Binding>,
    order: VecDeque<Key>,
}

/// Addresses of the tensors, those of what is left and of the scratch, and the stream.
type Key = (Vec<u64>, [u64; 2], u64);

/// Where a piece begins in memory that holds several: a multiple of this.
const ALIGNMENT: usize = 256;

/// Memory of a run beside the tensors: the addresses of two pieces, each a multiple of 256.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rooms {
    /// Of [`Planned::left_bytes`]: what a forward pass leaves to its backward pass.
    pub left: u64,
    /// Of [`Planned::scratch_bytes`]; on the emulator it is not looked at.
    pub scratch: u64,
}

impl Planned {
    /// Chooses a version and plans its launches.
    ///
    /// # Errors
    /// As [`choose()`] and [`Version::plan`].
    pub fn new(
        pass: Pass,
        device: &Device,
        shapes: Shapes,
        options: &[String],
        name: Option<&str>,
    ) -> Result<Self, Error> {
        let (chosen, plan) = plan_of(pass, device, shapes, options, name)?;
        Ok(Self::of(chosen.version.info().full_name(), Some(chosen), plan))
    }

    /// The same of [`Pass::Gradients`], in two parts: what can be run before the gradient of the result is there, which is
    /// the forward pass, and the backward pass, to which it leaves what [`Planned::left_bytes`] says. `None` where the
    /// version makes both in one launch, or leaves more than half of what its inputs take.
    ///
    /// # Errors
    /// As [`Planned::new`].
    pub fn in_two_parts(
        device: &Device,
        shapes: Shapes,
        options: &[String],
        name: Option<&str>,
    ) -> Result<Option<[Self; 2]>, Error> {
        let (chosen, plan) = plan_of(Pass::Gradients, device, shapes, options, name)?;
        let inputs = plan.slots().iter().filter(|s| s.kind == SlotKind::Input);
        let most = inputs.map(SlotFacts::bytes).sum::<usize>() / 2;
        let name = chosen.version.info().full_name();
        let parts = plan.split_before(&chosen.version.info().upstream());
        let parts = parts.map(|p| p.map(|p| Self::of(name.clone(), Some(chosen.clone()), p)));
        Ok(parts.filter(|[first, _]| first.left_bytes() <= most))
    }

    /// The forward pass of an LSTM, in the way that suits the device: see [`Lstm::of_rows`].
    ///
    /// # Errors
    /// As [`Lstm::of_rows`] and [`Lstm::plan`].
    pub fn lstm(device: &Device, shapes: &Shapes, network: Network) -> Result<Self, Error> {
        let (name, plan) = plan_of_lstm(device, shapes, network, lstm_fused::Pass::Forward)?;
        Ok(Self::of(name, None, plan))
    }

    /// The same with a backward pass, in two parts.
    ///
    /// # Errors
    /// As [`Planned::lstm`].
    pub fn lstm_in_two_parts(
        device: &Device,
        shapes: &Shapes,
        network: Network,
    ) -> Result<[Self; 2], Error> {
        let pass = lstm_fused::Pass::ForwardBackward;
        let (name, plan) = plan_of_lstm(device, shapes, network, pass)?;
        let parts = plan.split_before(&Lstm::UPSTREAM).ok_or_else(|| {
            Error::bad("lstm", "a forward pass before its backward pass", "one launch for both")
        })?;
        Ok(parts.map(|plan| Self::of(name.clone(), None, plan)))
    }

    /// Training steps of the bigram language model, in the way that suits the device. They update the parameters where
    /// they lie.
    ///
    /// # Errors
    /// As [`Planned::new`].
    pub fn mlp(device: &Device, training: Training, name: Option<&str>) -> Result<Self, Error> {
        let (version, options, plan) = training.plan(device, name)?;
        let name = version.info().full_name();
        let chosen = Chosen { version, options, dtype: DType::F32 };
        Ok(Self::of(name, Some(chosen), plan))
    }

    fn of(name: String, chosen: Option<Chosen>, plan: Plan) -> Self {
        let slots = || plan.slots().iter().enumerate();
        let is_given = |facts: &SlotFacts| facts.kind != SlotKind::Scratch && !facts.is_left();
        let given = slots().filter(|(_, facts)| is_given(facts)).map(|(index, _)| index).collect();
        let mut at = 0;
        let left = slots().filter(|(_, facts)| facts.is_left()).map(|(index, facts)| {
            let start = at;
            at += facts.bytes().next_multiple_of(ALIGNMENT);
            (index, start)
        });
        let left = left.collect();
        Self { name, chosen, plan, given, left, bindings: Mutex::default() }
    }

    /// The version that was chosen, as `stage:version`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the emulator makes the launches.
    pub fn is_emulated(&self) -> bool {
        self.plan.device().kind() == DeviceKind::Emulator
    }

    /// The tensors that a run wants addresses of, in this order: inputs, outputs, and what is updated in place.
    pub fn slots(&self) -> impl Iterator<Item = &SlotFacts> {
        self.given.iter().map(|&index| &self.plan.slots()[index])
    }

    /// Bytes of memory in which one part of a call leaves to the other what this needs, at a multiple of 256: of both parts the
    /// same.
    pub fn left_bytes(&self) -> usize {
        self.left.last().map_or(0, |&(index, start)| {
            start + self.plan.slots()[index].bytes().next_multiple_of(ALIGNMENT)
        })
    }

    /// Bytes of scratch that a run on a GPU wants, at a multiple of 256. None where a part of it must hold something that is
    /// brought when it is bound: a binding then has its own, for the caller's is used for something else between two runs.
    pub fn scratch_bytes(&self) -> usize {
        let mut scratch = self.plan.slots().iter().filter(|s| s.kind == SlotKind::Scratch);
        if scratch.any(|facts| matches!(facts.initial, Initial::Bytes(_))) {
            0
        } else {
            self.plan.scratch_bytes()
        }
    }

    /// The bounds that the version keeps on the relative error ‖out − ref‖ / ‖ref‖ of each output, by name.
    pub fn error_bounds(&self) -> Vec<(&'static str, f64)> {
        let Some(Chosen { version, options, dtype }) = &self.chosen else { return Vec::new() };
        let outputs = version.info().outputs_under(options).into_iter();
        let bound = |output: &&Output| output.bounds.iter().find(|(own, _)| own == dtype);
        outputs.filter_map(|output| Some((output.name, bound(&output)?.1))).collect()
    }

    /// The outputs in f64 of the family's reference, by name; none of an LSTM of several layers.
    ///
    /// # Safety
    /// As [`Planned::run`], of inputs in host memory.
    pub unsafe fn reference(&self, addresses: &[u64]) -> Vec<(&'static str, Vec<f64>)> {
        // SAFETY: the caller's promise.
        let inputs = unsafe { self.inputs_at(addresses) };
        let chosen = self.chosen.as_ref();
        chosen.map(|c| c.version.reference(&inputs, &c.options)).unwrap_or_default()
    }

    /// Makes all launches on tensors of the caller's, row-major and without gaps. On a GPU it returns before they have
    /// ended, and neither allocates device memory nor waits for the device.
    ///
    /// # Errors
    /// The number of addresses; what the device says of them or of the launches; of a checked emulator, what it found.
    ///
    /// # Safety
    /// Each address is that of a tensor of its slot's type and size on the plan's device (of the emulator: in host
    /// memory), nobody else uses what is written, and all of it stays until the launches have ended. So does memory
    /// of the sizes that [`Rooms`] says; `stream` is one of the device's primary context, and on the emulator not
    /// looked at.
    pub unsafe fn run(&self, addresses: &[u64], rooms: Rooms, stream: u64) -> Result<(), Error> {
        if addresses.len() != self.given.len() {
            return Err(Error::bad("addresses", self.given.len().to_string(), addresses.len()));
        }
        // SAFETY: the caller's promise.
        unsafe {
            match self.plan.device().kind() {
                DeviceKind::Cuda => self.run_in_place(addresses, rooms, stream),
                DeviceKind::Emulator => self.run_on_copies(addresses, rooms),
            }
        }
    }

    /// On the caller's own memory. What it is bound to is kept, for the next run on the same.
    ///
    /// # Safety
    /// As [`Planned::run`].
    unsafe fn run_in_place(
        &self,
        addresses: &[u64],
        rooms: Rooms,
        stream: u64,
    ) -> Result<(), Error> {
        let key: Key = (addresses.to_vec(), [rooms.left, rooms.scratch], stream);
        let mut bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(binding) = bindings.all.get_mut(&key) {
            return Ok(binding.run()?);
        }
        // SAFETY: the caller's promise.
        let mut binding = unsafe { self.bind(addresses, rooms, stream)? };
        binding.run()?;
        if bindings.order.len() == KEPT
            && let Some(oldest) = bindings.order.pop_front()
        {
            bindings.all.remove(&oldest);
        }
        bindings.order.push_back(key.clone());
        bindings.all.insert(key, binding);
        Ok(())
    }

    /// # Safety
    /// As [`Planned::run`].
    unsafe fn bind(&self, addresses: &[u64], rooms: Rooms, stream: u64) -> Result<Binding, Error> {
        let device = self.plan.device();
        let mut binder = self.plan.clone().bind();
        for (facts, &address) in self.slots().zip(addresses) {
            let dtype = facts.element.dtype().expect("a tensor of numbers");
            let shape: Vec<i64> = facts.shape.iter().map(|&size| size as i64).collect();
            let tensor = DLTensor::contiguous(address as *mut c_void, device, dtype, &shape);
            // SAFETY: the caller's promise.
            binder = unsafe { binder.foreign(&facts.name, &tensor)? };
        }
        // SAFETY: the caller's promise.
        binder = unsafe { self.bind_left(binder, rooms)? };
        if self.scratch_bytes() > 0 {
            // SAFETY: the caller's promise.
            binder = unsafe { binder.scratch(rooms.scratch, self.scratch_bytes())? };
        }
        // SAFETY: the caller's promise.
        let stream = unsafe { Stream::foreign(device, stream as *mut c_void) };
        binder.on(stream).finish()
    }

    /// # Safety
    /// As [`Planned::run`].
    unsafe fn bind_left<'a>(&self, binder: Binder<'a>, rooms: Rooms) -> Result<Binder<'a>, Error> {
        self.left.iter().try_fold(binder, |binder, &(index, start)| {
            let name = &self.plan.slots()[index].name;
            // SAFETY: the caller's promise.
            unsafe { binder.memory(name, rooms.left + start as u64) }
        })
    }

    /// On copies: an emulated kernel takes far longer than these, its checks see what is never written, and two tensors
    /// of the caller's may overlap.
    ///
    /// # Safety
    /// As [`Planned::run`].
    unsafe fn run_on_copies(&self, addresses: &[u64], rooms: Rooms) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let inputs = unsafe { self.inputs_at(addresses) };
        let binder = self.plan.clone().bind().upload_inputs(&inputs)?;
        // SAFETY: the caller's promise.
        let mut binding = unsafe { self.bind_left(binder, rooms)? }.finish()?;
        binding.run()?;
        binding.all_written()?;
        for (name, tensor) in binding.outputs()? {
            let mut slots = self.slots().zip(addresses);
            let (_, &address) = slots.find(|(facts, _)| facts.has_name(&name)).expect("its slot");
            // SAFETY: the caller's promise.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    tensor.bytes.as_ptr(),
                    address as *mut u8,
                    tensor.bytes.len(),
                );
            }
        }
        Ok(())
    }

    /// Copies of what goes in, by name.
    ///
    /// # Safety
    /// As [`Planned::run`], of the emulator.
    unsafe fn inputs_at(&self, addresses: &[u64]) -> Tensors {
        let slots = self.slots().zip(addresses).filter(|(facts, _)| facts.goes_in());
        let copies = slots.map(|(facts, &address)| {
            let dtype = facts.element.dtype().expect("a tensor of numbers");
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, facts.bytes()) };
            let tensor = Tensor { dtype, shape: facts.shape.clone(), bytes: bytes.to_vec() };
            (facts.name.clone(), tensor)
        });
        copies.collect()
    }
}

/// A version for a call, and its plan.
fn plan_of(
    pass: Pass,
    device: &Device,
    shapes: Shapes,
    options: &[String],
    name: Option<&str>,
) -> Result<(Chosen, Plan), Error> {
    let version = choose(pass, device, &shapes, options, name)?;
    let options = Options::parse(options, version.info())?;
    let request = Request::new(version.info(), shapes, &options)?;
    let (dtype, plan) = (request.dtype, version.plan(device, &request)?);
    Ok((Chosen { version, options, dtype }, plan))
}

/// The way of an LSTM on a device, and its plan.
fn plan_of_lstm(
    device: &Device,
    shapes: &Shapes,
    network: Network,
    pass: lstm_fused::Pass,
) -> Result<(String, Plan), Error> {
    let (dtype, batch) = match shapes.get("x") {
        Some(Shape { dtype, sizes }) if sizes.len() == 3 => (*dtype, sizes[1]),
        _ => return Err(Error::bad("x", "a tensor [T, B, I]", "none")),
    };
    let lstm = Lstm::of_rows(network, device, dtype, batch)?;
    Ok((format!("lstm_fused:{}", lstm.way()), lstm.plan(device, shapes, pass)?))
}

#[cfg(test)]
mod tests {
    use lab_families::gdn;
    use lab_families::qkv::sizes;
    use lab_families::vlstm::step;
    use lab_harness::request::shapes_of;
    use lab_harness::{Dims, Problem};

    use super::*;

    /// Memory as a framework hands it out: at a multiple of 256.
    struct Lent(Vec<u8>);

    impl Lent {
        fn new(bytes: usize) -> Self {
            Self(vec![0xAB; bytes + 256])
        }

        fn holding(bytes: &[u8]) -> Self {
            let mut lent = Self::new(bytes.len());
            let start = (lent.address() - lent.0.as_ptr() as u64) as usize;
            lent.0[start..][..bytes.len()].copy_from_slice(bytes);
            lent
        }

        fn address(&self) -> u64 {
            (self.0.as_ptr() as u64).next_multiple_of(256)
        }

        fn read(&self, bytes: usize) -> &[u8] {
            let start = (self.address() - self.0.as_ptr() as u64) as usize;
            &self.0[start..][..bytes]
        }
    }

    impl Planned {
        /// Lets go of the memory that it is bound to.
        fn forget(&self) {
            *self.bindings.lock().unwrap() = Bindings::default();
        }
    }

    /// A plan, and memory for its slots with random inputs.
    fn planned(pass: Pass, dtype: DType, dims: &Dims, name: Option<&str>) -> (Planned, Vec<Lent>) {
        let device = Device::emulator().unwrap();
        let version = pass.candidates().into_iter().map(|c| c.version);
        let mut named = version.filter(|v| name.is_none_or(|name| v.info().full_name() == name));
        let inputs = named.next().unwrap().inputs(&Problem::new(dims.clone(), dtype));
        let planned = Planned::new(pass, &device, shapes_of(&inputs), &[], name).unwrap();
        let memory = planned.slots().map(|facts| match inputs.get(&facts.name) {
            Some(tensor) => Lent::holding(&tensor.bytes),
            None => Lent::new(facts.bytes()),
        });
        let memory = memory.collect();
        (planned, memory)
    }

    fn addresses(memory: &[Lent]) -> Vec<u64> {
        memory.iter().map(Lent::address).collect()
    }

    fn results(planned: &Planned, memory: &[Lent]) -> Vec<Vec<u8>> {
        planned.slots().zip(memory).map(|(facts, lent)| lent.read(facts.bytes()).to_vec()).collect()
    }

    #[test]
    fn on_the_callers_memory_as_on_copies() {
        let (vlstm, delta) = (sizes([1, 2, 70, 32, 48]), gdn::sizes([1, 2, 1, 70, 32, 48]));
        for (pass, name, dims) in [
            (Pass::Forward, "vlstm_fw_v4:v1_roles", &vlstm),
            (Pass::Gradients, "vlstm_fwbw_v0:flags", &vlstm),
            (Pass::Gradients, "vlstm_fwbw_v4:v2_segments", &vlstm),
            (Pass::Delta, "gdn_fw:v3_resident", &delta),
            (Pass::DeltaGradients, "gdn_fwbw:v0_chunks", &delta),
        ] {
            let (planned, memory) = planned(pass, DType::BF16, dims, Some(name));
            // SAFETY: the memory is of the slots' sizes, and stays.
            unsafe { planned.run(&addresses(&memory), Rooms::default(), 0).unwrap() };
            let expected = results(&planned, &memory);
            let fresh: Vec<Lent> = planned
                .slots()
                .zip(&memory)
                .map(|(facts, lent)| {
                    if facts.goes_in() {
                        Lent::holding(lent.read(facts.bytes()))
                    } else {
                        Lent::new(facts.bytes())
                    }
                })
                .collect();
            for turn in 0..3 {
                // What lay there before must not matter: an allocator gives it to others between two runs.
                let scratch = Lent::new(planned.scratch_bytes());
                // SAFETY: as much memory as the plan asks for, which lives until the run has ended.
                unsafe {
                    let rooms = Rooms { scratch: scratch.address(), left: 0 };
                    planned.run_in_place(&addresses(&fresh), rooms, 0).unwrap();
                }
                assert!(results(&planned, &fresh) == expected, "{name}, run {turn}");
                planned.forget();
            }
        }
    }

    #[test]
    fn what_it_was_bound_to_is_kept_and_not_too_much_of_it() {
        let dims = step::sizes([1, 2, 32, 48]);
        let (planned, memory) =
            planned(Pass::Step, DType::F32, &dims, Some("vlstm_step:v2_slices"));
        let scratch: Vec<Lent> =
            (0..KEPT + 3).map(|_| Lent::new(planned.scratch_bytes())).collect();
        let kept = || planned.bindings.lock().unwrap().all.len();
        for (n, own) in scratch.iter().enumerate() {
            for _ in 0..2 {
                let rooms = Rooms { scratch: own.address(), left: 0 };
                // SAFETY: the memory is of the slots' sizes, and stays.
                unsafe { planned.run_in_place(&addresses(&memory), rooms, 0).unwrap() };
                assert_eq!(kept(), (n + 1).min(KEPT));
            }
        }
        // SAFETY: refused before it is used.
        let refused = unsafe { planned.run(&[1], Rooms::default(), 0) }.unwrap_err().to_string();
        assert_eq!(refused, "addresses: expected 9, got 1");
    }

    /// Runs a call in one, and its two parts: the first once, the second several times, on the caller's memory and on copies. Each
    /// result has the same bits, and what is left stays as it is.
    fn check_parts(whole: &Planned, memory: &[Lent], [first, second]: &[Planned; 2]) {
        let name = whole.name();
        // SAFETY: the memory is of the slots' sizes, and stays.
        unsafe { whole.run(&addresses(memory), Rooms::default(), 0).unwrap() };
        let of_whole: HashMap<String, &Lent> =
            whole.slots().map(|facts| facts.name.clone()).zip(memory).collect();
        assert_eq!(first.left_bytes(), second.left_bytes());
        let own: HashMap<String, Lent> = [first, second]
            .into_iter()
            .flat_map(Planned::slots)
            .map(|facts| {
                if facts.goes_in() && of_whole.contains_key(&facts.name) {
                    (facts, Lent::holding(of_whole[&facts.name].read(facts.bytes())))
                } else {
                    (facts, Lent::new(facts.bytes()))
                }
            })
            .map(|(facts, lent)| (facts.name.clone(), lent))
            .collect();
        let left = Lent::new(first.left_bytes());
        let mut found = None;
        for (turn, part) in [first, second, second].into_iter().enumerate() {
            let addresses: Vec<u64> =
                part.slots().map(|facts| own[&facts.name].address()).collect();
            let scratch = Lent::new(part.scratch_bytes());
            let rooms = Rooms { left: left.address(), scratch: scratch.address() };
            // SAFETY: as much memory as both plans ask for, which lives until the runs have ended.
            unsafe {
                part.run(&addresses, rooms, 0).unwrap();
                part.run_in_place(&addresses, rooms, 0).unwrap();
            }
            part.forget();
            let bytes = left.read(first.left_bytes());
            let before = found.get_or_insert_with(|| bytes.to_vec());
            assert!(bytes == before, "{name}: what is left, behind run {turn}");
            for facts in part.slots().filter(|facts| facts.kind == SlotKind::Output) {
                let bytes = facts.bytes();
                let same = own[&facts.name].read(bytes) == of_whole[&facts.name].read(bytes);
                assert!(same, "{name}: {} of run {turn}", facts.name);
            }
        }
    }

    /// How many of a part's steps are no launches: copies of what it overwrites, where nothing is set to zero.
    fn copies(part: &Planned) -> usize {
        part.plan.len() - part.plan.launches().len()
    }

    #[test]
    fn in_two_parts_as_in_one() {
        let dims = sizes([1, 1, 330, 32, 48]);
        let mut cut = Vec::new();
        for candidate in Pass::Gradients.candidates() {
            let info = candidate.version.info();
            let (name, dtype) = (info.full_name(), *info.dtypes.last().unwrap());
            let (whole, memory) = planned(Pass::Gradients, dtype, &dims, Some(&name));
            let shapes = whole.slots().filter(|facts| facts.goes_in()).map(|facts| {
                let dtype = facts.element.dtype().unwrap();
                (facts.name.clone(), Shape { dtype, sizes: facts.shape.clone() })
            });
            let device = Device::emulator().unwrap();
            let parts = Planned::in_two_parts(&device, shapes.collect(), &[], Some(&name)).unwrap();
            let Some(parts) = parts else { continue };
            assert!(parts[0].slots().all(|facts| facts.name != "dh"));
            check_parts(&whole, &memory, &parts);
            assert_eq!(copies(&parts[1]), 0, "{name}");
            cut.push(name);
        }
        for preferred in ["vlstm_fwbw_v4:v2_segments", "vlstm_fwbw_v4:v1_together"] {
            assert!(cut.iter().any(|name| name == preferred), "{preferred}: {cut:?}");
        }
    }

    /// Each way of an LSTM, so also those that a GPU takes that the emulator is not asked for.
    #[test]
    fn every_lstm_in_two_parts_as_in_one() {
        let device = Device::emulator().unwrap();
        let network = Network { layers: 2, bidirectional: true, ..Network::lstm(8, 40) };
        for way in lstm_fused::Way::ALL {
            let dtype = DType::BF16;
            let lstm = Lstm::by(way, network).unwrap();
            let mut shapes: Shapes = network
                .parameters()
                .into_iter()
                .map(|p| (p.name, Shape { dtype, sizes: p.shape }))
                .collect();
            let state = ["h0", "c0", "dhn", "dcn"].map(|name| (name.to_owned(), vec![4, 9, 40]));
            let others = [("x", vec![5, 9, 8]), ("dy", vec![5, 9, 80])];
            let others = others.map(|(name, sizes)| (name.to_owned(), sizes));
            shapes.extend(
                state.into_iter().chain(others).map(|(n, sizes)| (n, Shape { dtype, sizes })),
            );
            let problem = Problem::new(Dims::default(), dtype);
            let mut inputs: Tensors = shapes
                .iter()
                .zip(0..)
                .map(|((name, shape), stream)| (name.clone(), problem.normal(stream, &shape.sizes)))
                .collect();
            let lengths = Tensor::new(&[9], &[5_i64, 4, 5, 1, 2, 5, 3, 5, 5]);
            shapes.insert("lengths".into(), Shape { dtype: DType::I64, sizes: vec![9] });
            inputs.insert("lengths".into(), lengths);
            let plan = lstm.plan(&device, &shapes, lstm_fused::Pass::ForwardBackward).unwrap();
            let of = |plan| Planned::of(way.to_string(), None, plan);
            let parts = plan.split_before(&Lstm::UPSTREAM).unwrap().map(of);
            let whole = of(plan);
            let memory: Vec<Lent> = whole
                .slots()
                .map(|facts| match inputs.get(&facts.name) {
                    Some(tensor) => Lent::holding(&tensor.bytes),
                    None => Lent::new(facts.bytes()),
                })
                .collect();
            check_parts(&whole, &memory, &parts);
            let copies = copies(&parts[1]);
            assert!(way != lstm_fused::Way::TensorGroupsBack || copies == 0, "{way}: {copies}");
        }
    }
}
