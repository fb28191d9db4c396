//! An LSTM, a GRU or an sLSTM, of several layers and directions on a device.

mod data;
mod layers;

use lab_device::{DType, Device, KernelSource};
use lab_harness::request::shapes_of;
use lab_harness::{Binding, Error, Prepared, Tensors, Version};
use lab_reference::lstm::{Cell, Network};

use data::narrow_lengths;
pub use layers::Layers;

use crate::Way;
use crate::direction::{
    HeadSums, MOST_GRID_UNITS, MOST_SPREAD_UNITS, MOST_TENSOR_UNITS, MOST_UNITS, TensorSlots,
    has_room_for_grid, wide_bytes,
};
use crate::kernels::{
    V3_TENSOR, V3_TENSOR_BACK, V4_PRODUCT, V4_PRODUCT_BACK, V5_WGMMA, V6_WGMMA_BACK,
    V7_TENSOR_GRID, V8_TENSOR_GRID_BACK,
};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// y, hn and cn. [`Way::Cell`] keeps c of two steps and no gates, with layer norm what the way back
    /// needs of the norms; [`Way::Sequence`] has the products of x with the weights, 4 H numbers for each
    /// row of each step, layer and direction.
    Forward,
    /// Also the gradients by all that goes in: 5 H numbers for each row of each step, layer and
    /// direction are kept, gates and c, in f32 (in runs of f64, in f64). Of a GRU it is 4 H, with
    /// layer norm 15 H + 5; of an sLSTM 5 H, and 4 H in the run's own type. [`Lstm::recompute`] keeps fewer,
    /// [`Lstm::bytes`] counts all.
    ForwardBackward,
}

impl Way {
    /// The most units; of [`Way::Cell`] as many as a network may have.
    fn most_hidden_units(self) -> usize {
        match self {
            Self::Cell => LARGEST[2].1,
            Self::Sequence => MOST_UNITS,
            Self::Cluster | Self::Grid => MOST_SPREAD_UNITS,
            Self::Tensor | Self::TensorProduct | Self::TensorGroups | Self::TensorGroupsBack => {
                MOST_TENSOR_UNITS
            }
            Self::TensorGrid => MOST_GRID_UNITS,
        }
    }
}

/// An LSTM on a device, a GRU or an sLSTM: layers, directions and options as its [`Network`] says.
///
/// Tensors go by PyTorch's names, row-major, all of one type:
///
/// | | | |
/// |---|---|---|
/// | `x` | \[T, B, I\] | |
/// | each of [`Network::parameters`] | its shape | `weight_ih_l0`, `weight_hh_l1_reverse`, … |
/// | `h0`, `c0` | \[L·dirs, B, H\] | zero where they are left out; a GRU has no c, an sLSTM also `n0` and `m0` |
/// | `lengths` | \[B\], i64 | steps of each row, 0 to T; all T where it is left out; none of an sLSTM |
/// | `dy` | \[T, B, H·dirs\] | the gradient by y; zero where it is left out |
/// | `dhn`, `dcn` | \[L·dirs, B, H\] | those by hn and cn; zero where they are left out |
///
/// Out come `y`, `hn` and `cn`, and on the way back `dx`, `dh0`, `dc0` and `d` with each parameter's
/// name. Of an sLSTM also `nn` and `mn`, from `dnn` also `dn0`; its c, n and m, and the gradients by them, are f32 in runs of
/// every type. Nothing is read of a row past its length; y and dx are zero there.
///
/// ```
/// use lab_harness::{Tensor, tensor::tensors};
/// use lstm_fused::{Lstm, Network, Pass};
/// // One unit that keeps everything: i, f and o are open, and g is about x where x is small.
/// let lstm = Lstm::new(Network { bias: false, ..Network::lstm(1, 1) })?;
/// let all = tensors([
///     ("x", Tensor::new(&[2, 1, 1], &[1e-4f32, 2e-4])),
///     ("weight_ih_l0", Tensor::new(&[4, 1], &[1e9f32, 1e9, 1.0, 1e9])),
///     ("weight_hh_l0", Tensor::new(&[4, 1], &[0f32; 4])),
/// ]);
/// let out = lstm.run(&lab_device::Device::emulator()?, &all, Pass::Forward)?;
/// assert!((out["cn"].values()[0] - 3e-4).abs() < 1e-9);
/// # Ok::<(), lab_harness::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lstm {
    network: Network,
    way: Way,
    recompute: bool,
}

/// The most of each size: products of two fit 32 bits where kernels count in them.
const LARGEST: [(&str, usize); 4] =
    [("layers", 1024), ("inputs", 1 << 20), ("hidden", 1 << 15), ("B", 1 << 15)];

/// Refuses a size of 0, and one past the largest of that name.
fn check_size(name: &str, size: usize) -> Result<(), Error> {
    let largest = LARGEST.iter().find(|l| l.0 == name).expect("a size that is listed").1;
    if (1..=largest).contains(&size) {
        return Ok(());
    }
    Err(Error::bad(name, format!("1 to {largest}"), size))
}

fn check_slstm(way: Way, network: &Network, heads: usize) -> Result<(), Error> {
    let Some(version) = way.slstm_version() else {
        return Err(Error::bad("way", "cell or tensor in an sLSTM", way));
    };
    let [.., most_heads, most_units] = version.info().dims else { unreachable!("B, T, NH and DH") };
    let hidden = network.hidden;
    if heads == 0 || !hidden.is_multiple_of(heads) {
        let expected = format!("a divisor of {hidden}, the units of a layer");
        return Err(Error::bad("heads", expected, heads));
    }
    if heads > most_heads.max {
        return Err(Error::bad("heads", format!("1 to {}", most_heads.max), heads));
    }
    if hidden / heads > most_units.max {
        let expected = format!("at most {} in each of {heads} heads by {way}", most_units.max);
        return Err(Error::bad("hidden", expected, hidden));
    }
    if network.bidirectional {
        let expected = "false in an sLSTM, whose kernels go from the first step to the last";
        return Err(Error::bad("bidirectional", expected, true));
    }
    if network.peephole {
        return Err(Error::bad("peephole", "false in an sLSTM", true));
    }
    match network.layer_norm {
        Some(epsilon) => Err(Error::bad("layer_norm", "none in an sLSTM", epsilon)),
        None => Ok(()),
    }
}

impl Lstm {
    /// The gradients from above, which the backward pass begins with.
    pub const UPSTREAM: [&str; 3] = ["dy", "dhn", "dcn"];

    /// Of these sizes and options: by [`Way::Sequence`] up to 64 units, whose weights a block has room
    /// for, and with layer norm up to 256; by [`Way::Cluster`] up to 768; what those do not take by
    /// [`Way::Cell`].
    ///
    /// # Errors
    /// As [`Lstm::by`].
    pub fn new(network: Network) -> Result<Self, Error> {
        let way = match (network.cell, network.layer_norm, network.hidden) {
            (Cell::Lstm, Some(_), 0..=MOST_UNITS) | (Cell::Lstm, None, 0..=64) => Way::Sequence,
            (Cell::Lstm, None, 65..=MOST_SPREAD_UNITS) => Way::Cluster,
            _ => Way::Cell,
        };
        Self::by(way, network)
    }

    /// As [`Lstm::new`], but that many rows of halves go by [`Way::TensorGroupsBack`], where the device has its
    /// kernels: from 8 rows on, and of more than 256 units, whose weights [`Way::Cluster`] fetches anew at each step, any.
    /// Up to 64 units a block has a row to itself, and blocks hide each other's latency. More units than a cluster keeps the
    /// weights of, up to 1024, go by [`Way::TensorGrid`]. An sLSTM in halves goes by [`Way::Tensor`], up to 256 units a head.
    ///
    /// # Errors
    /// As [`Lstm::by`].
    pub fn of_rows(
        network: Network,
        device: &Device,
        dtype: DType,
        batch: usize,
    ) -> Result<Self, Error> {
        let halves = [DType::F16, DType::BF16].contains(&dtype);
        let plain = network.cell == Cell::Lstm && !network.peephole && network.layer_norm.is_none();
        let many = match network.hidden {
            65..=256 => batch >= 8,
            257..=MOST_TENSOR_UNITS => true,
            _ => false,
        };
        let arch = &device.facts().arch;
        let runs = |sources: &[&KernelSource]| sources.iter().all(|source| source.runs_on(arch));
        if network.cell.is_slstm() {
            let by_heads = Self::by(Way::Tensor, network);
            let has_kernels = halves && runs(&slstm_fused::HEADS.sources());
            return if has_kernels && by_heads.is_ok() { by_heads } else { Self::new(network) };
        }
        let products = runs(&[&V4_PRODUCT, &V4_PRODUCT_BACK]);
        let steps = [&V3_TENSOR, &V3_TENSOR_BACK, &V5_WGMMA, &V6_WGMMA_BACK];
        if halves && plain && many && products && runs(&steps) {
            return Self::by(Way::TensorGroupsBack, network);
        }
        let wide = (MOST_TENSOR_UNITS + 1..=MOST_GRID_UNITS).contains(&network.hidden);
        let steps = [&V7_TENSOR_GRID, &V8_TENSOR_GRID_BACK];
        if halves && plain && wide && products && runs(&steps) && has_room_for_grid(device) {
            return Self::by(Way::TensorGrid, network);
        }
        Self::new(network)
    }

    /// Of these sizes and options.
    ///
    /// # Errors
    /// A size is 0 or too large, or ε negative; a GRU has peepholes or layer norm; a GRU or too many units
    /// in a launch for all steps; layer norm where a row's units are spread over blocks; peepholes on tensor cores. An sLSTM
    /// goes another way than [`Way::Cell`] and [`Way::Tensor`], has peepholes, layer norm or two directions, or heads that do
    /// not divide H.
    pub fn by(way: Way, network: Network) -> Result<Self, Error> {
        check_size("layers", network.layers)?;
        check_size("inputs", network.inputs)?;
        check_size("hidden", network.hidden)?;
        if let Cell::Slstm { heads } = network.cell {
            check_slstm(way, &network, heads)?;
            return Ok(Self { network, way, recompute: false });
        }
        let one_launch = way != Way::Cell;
        if one_launch && network.hidden > way.most_hidden_units() {
            let expected = format!("1 to {} in a launch for all steps", way.most_hidden_units());
            return Err(Error::bad("hidden", expected, network.hidden));
        }
        if network.cell == Cell::Gru {
            if one_launch {
                return Err(Error::bad("cell", "Lstm in a launch for all steps", "Gru"));
            }
            if network.peephole {
                return Err(Error::bad("peephole", "false in a GRU, which has no c", true));
            }
        }
        if way.on_tensor_cores() && network.peephole {
            return Err(Error::bad("peephole", "false on tensor cores", true));
        }
        if let Some(epsilon) = network.layer_norm {
            if !epsilon.is_finite() || epsilon < 0.0 {
                let expected = "none, or a number that is not negative";
                return Err(Error::bad("layer_norm", expected, epsilon));
            }
            if network.cell == Cell::Gru || !matches!(way, Way::Cell | Way::Sequence) {
                let expected = "none in a GRU, or where a row's units are spread over blocks";
                return Err(Error::bad("layer_norm", expected, epsilon));
            }
        }
        Ok(Self { network, way, recompute: false })
    }

    /// The same with fewer numbers kept for the way back: h and c of all layers, and the gates of one,
    /// whose place they take in turn. Before its turn a layer's gates are computed again, by a product over
    /// all steps at once.
    ///
    /// In f32 and f64 the gradients are the same but for roundings. In halves they are those of an h that
    /// was rounded to the type, as [`Way::Cell`] rounds it.
    ///
    /// # Errors
    /// A GRU, an sLSTM, or layer norm, which keep other numbers.
    pub fn recompute(self) -> Result<Self, Error> {
        if self.network.cell != Cell::Lstm || self.network.layer_norm.is_some() {
            let expected = "false, but in an LSTM without layer norm";
            return Err(Error::bad("recompute", expected, true));
        }
        Ok(Self { recompute: true, ..self })
    }

    /// Bytes on the device of a run of T steps and B rows with [`Pass::ForwardBackward`], of an LSTM
    /// without layer norm. With e bytes an element, m one in arithmetic (4, of f64 8), P parameters, L
    /// layers and D directions:
    ///
    /// | | bytes |
    /// |---|---|
    /// | x, dx | 2 e T B I |
    /// | y and the gradient by it, of each layer | 2 e L T B H D |
    /// | h0, c0, hn, cn and their gradients | 8 e L D B H |
    /// | parameters and theirs | 2 e P |
    /// | c of all steps | m L D T B H |
    /// | gates of all steps, later da | 4 m L D T B H; with [`Lstm::recompute`] 4 m D T B H |
    /// | lengths | 4 B |
    ///
    /// and what is left over: m L D B H for the dc of [`Way::Cell`], a few numbers a direction else.
    /// On tensor cores there is what x adds to the gates of all steps, 4 e L D T B H, and more where x has no
    /// multiple of 8 columns, or rows have lengths.
    /// The boxes of [`Way::Grid`] and [`Way::TensorGrid`], whose number is a matter of the device, are not among them.
    pub fn bytes(&self, dtype: DType, steps: usize, batch: usize) -> usize {
        let Network { inputs, hidden, layers, bias, .. } = self.network;
        let sizes = self.sizes(dtype, steps, batch, Pass::ForwardBackward);
        let (e, m) = (dtype.size(), sizes.arithmetic().size());
        let (rows, of_all) = (sizes.rows(), layers * sizes.directions);
        let parameters: usize =
            self.network.parameters().iter().map(|p| p.shape.iter().product::<usize>()).sum();
        let data = 2 * e * (rows * (inputs + of_all * hidden) + parameters)
            + 8 * e * of_all * batch * hidden
            + 4 * batch;
        let of_gates = if self.recompute { sizes.directions } else { of_all };
        let kept = m * rows * hidden * (of_all + 4 * of_gates);
        let own = match self.way {
            Way::Cell => m * of_all * batch * hidden,
            Way::Sequence => 0,
            Way::Cluster | Way::Grid => 2 * of_all * (m + 4),
            // What x adds to the gates has a place of its own; and what is summed up of da.
            // A narrow x has columns of zeros beside it, and so have its weights, and the gradients by both.
            Way::Tensor
            | Way::TensorProduct
            | Way::TensorGroups
            | Way::TensorGroupsBack
            | Way::TensorGrid => {
                of_all * TensorSlots::bytes(dtype, rows, batch, hidden)
                    + wide_bytes(self.way, dtype, rows, [inputs, hidden, sizes.directions])
            }
        };
        let without_bias = if bias { 0 } else { 2 * e * of_all };
        data + kept + own + without_bias + HeadSums::none_bytes(dtype)
    }

    /// How it goes through the steps.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Its sizes and options.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Runs it once.
    ///
    /// # Errors
    /// As [`Lstm::prepare`], and what the device reports.
    pub fn run(&self, device: &Device, tensors: &Tensors, pass: Pass) -> Result<Tensors, Error> {
        let mut binding = self.prepare(device, tensors, pass)?;
        binding.run()?;
        binding.outputs()
    }

    /// Plans a run and uploads the tensors.
    ///
    /// # Errors
    /// As [`Lstm::plan`]; also a length past T, and a device without enough memory. Nothing has been
    /// launched then.
    pub fn prepare(
        &self,
        device: &Device,
        tensors: &Tensors,
        pass: Pass,
    ) -> Result<Binding, Error> {
        let plan = self.plan(device, &shapes_of(tensors), pass)?;
        let steps = tensors["x"].shape[0];
        let lengths = tensors.get("lengths").map(|all| narrow_lengths(all, steps)).transpose()?;
        let mut binder = plan.bind();
        if let Some(lengths) = &lengths {
            binder = binder.upload("lengths", lengths)?;
        }
        binder.upload_inputs(tensors)?.finish()
    }
}
