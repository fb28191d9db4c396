//! A long prompt in pieces, one behind the other's state: each is read between two steps of a batch.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use lab_device::{Device, Graph};
use lab_harness::plan::Slot;
use lab_harness::{Binder, Binding, Error, Tensor};

use crate::Model;
use crate::bucket::Of;
use crate::decoding::{Behind, Blocks, planned_behind};
use crate::fresh::Fresh;

/// The shortest piece: what a prompt has behind its last piece is read a token a step.
pub const LEAST_PIECE: usize = 16;

/// The longest piece that may be asked for.
pub const MOST_PIECE: usize = 1 << 16;

/// A plan for each length of a piece, made once: powers of two, from the longest down to [`LEAST_PIECE`]. All go on from the same state
/// of one sequence, and leave theirs there. So a prompt of any length has no plan of its own.
pub(crate) struct Pieces {
    model: Model,
    /// From the longest, which owns the state and lends it to the others.
    all: Vec<Piece>,
}

struct Piece {
    positions: usize,
    // Dropped before the buffers that its launches use.
    graph: Graph<'static>,
    run: Rc<RefCell<Binding>>,
    tokens: Slot,
    blocks: Blocks,
}

/// Refuses what is no length of a piece.
pub(crate) fn check_piece(positions: usize) -> Result<(), Error> {
    if positions.is_power_of_two() && (LEAST_PIECE..=MOST_PIECE).contains(&positions) {
        return Ok(());
    }
    let expected = format!("a power of two from {LEAST_PIECE} to {MOST_PIECE}");
    Err(Error::bad("piece of a prompt", expected, positions))
}

impl Pieces {
    /// Of pieces of so many positions and fewer, of the weights of another binding. No mixer of the model keeps all positions.
    ///
    /// # Errors
    /// It is no length of a piece; sizes that no kernel takes; the device's.
    pub(crate) fn new(of: Of<'_>, longest: usize, weights: &Binding) -> Result<Self, Error> {
        check_piece(longest)?;
        let mut all: Vec<Piece> = Vec::new();
        let mut positions = longest;
        while positions >= LEAST_PIECE {
            let bind = |binder: Binder<'_>| {
                let mut binder = of.store.share(binder, weights)?;
                if let Some(owner) = all.first() {
                    for name in Blocks::names_of_states(of.model) {
                        binder = binder.share(&name, &owner.run.borrow(), &name)?;
                    }
                }
                binder.finish()
            };
            let piece = Piece::new(of, positions, bind)?;
            all.push(piece);
            positions /= 2;
        }
        Ok(Self { model: *of.model, all })
    }

    /// Positions of each piece, from the longest.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.all.iter().map(|piece| piece.positions).collect()
    }

    /// How many of so many tokens pieces read: all but fewer than [`LEAST_PIECE`].
    pub(crate) fn covered(tokens: usize) -> usize {
        tokens / LEAST_PIECE * LEAST_PIECE
    }

    /// The sequence becomes one that has read nothing.
    pub(crate) fn forget(&self, fresh: &Fresh) -> Result<(), Error> {
        let (own, blocks) = self.states();
        let (binding, theirs) = fresh.states();
        let mut slots = blocks.slots(&self.model).into_iter().zip(theirs.slots(&self.model));
        slots.try_for_each(|(to, from)| own.copy(to, binding, from))
    }

    /// Reads the longest piece that so many tokens begin with, and waits until the device has done it; its length, which is 0 where there
    /// are fewer than [`LEAST_PIECE`].
    pub(crate) fn read(&mut self, tokens: &[i32]) -> Result<usize, Error> {
        let Some(piece) = self.all.iter_mut().find(|piece| piece.positions <= tokens.len()) else {
            return Ok(0);
        };
        let own = Tensor::new(&[piece.positions], &tokens[..piece.positions]);
        let device: Device = {
            let mut run = piece.run.borrow_mut();
            run.write(piece.tokens, &own)?;
            run.plan().device().clone()
        };
        piece.graph.launch()?;
        // The time of a piece is the reader's, not that of the step behind it.
        device.synchronize()?;
        Ok(piece.positions)
    }

    /// The state behind what was read, of one sequence.
    pub(crate) fn states(&self) -> (Ref<'_, Binding>, &Blocks) {
        let owner = self.all.first().expect("a length of a piece has been checked");
        (owner.run.borrow(), &owner.blocks)
    }
}

impl Piece {
    fn new(
        of: Of<'_>,
        positions: usize,
        bind: impl FnOnce(Binder<'_>) -> Result<Binding, Error>,
    ) -> Result<Self, Error> {
        let Of { device, model, store, types, .. } = of;
        let Behind { plan, tokens, blocks } =
            planned_behind(device, model, store, types, positions)?;
        let run = Rc::new(RefCell::new(bind(plan.bind())?));
        let repeated = Rc::clone(&run);
        let graph = device.graph(move || repeated.borrow_mut().run())?;
        Ok(Self { positions, graph, run, tokens, blocks })
    }
}
