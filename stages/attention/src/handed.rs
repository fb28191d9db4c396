//! The backward pass in one walk: kernels/handed_back.cu.

use lab_device::{DType, Instance, TensorMap};
use lab_families::attention::{Slots, group_of, sizes_of};
use lab_harness::tiling::candidates;
use lab_harness::{Dims, Error, Plan, Tiling, arguments};

use super::{F32, Pass, ROWS, blocks_of, heads_together, kernels};

/// Numbers of a row of the sums.
const LINE: usize = 256;

/// What may be chosen: template arguments from PLACES on, then how many heads that have keys of their own come at a time.
const NAMES: [&str; 6] = ["PLACES", "SLOPES", "TURNS", "AHEAD", "ORDERED", "HEADS"];
const TEMPLATE: usize = 5;

/// The listed one that has room for so many columns.
fn keys(columns: usize, is_ours: impl Fn(&Instance) -> bool) -> Instance {
    let mut of_type = kernels::HANDED_BACK.instances("attention_keys_handed");
    of_type.find(|i| is_ours(i) && columns <= i.size("ROOM")).expect("D of a checked problem")
}

/// What `lab tune` tries, the one in use first: any order, to tell what a fixed one costs; then places, turns, and dq's product
/// under the slopes, where registers have room; then heads.
pub(crate) fn tilings(dims: &Dims, dtype: DType) -> Vec<Tiling> {
    let [b, nh, _, positions, columns] = sizes_of(dims);
    let Ok(group) = group_of(dims) else { return Vec::new() };
    let listed = keys(columns, |_| true);
    let mut in_use = [0; NAMES.len()];
    for (value, name) in in_use.iter_mut().zip(NAMES).take(TEMPLATE) {
        *value = listed.size(name);
    }
    let heads = b * nh / group;
    in_use[TEMPLATE] = heads_together(heads, positions, columns, dtype);
    let [places, slopes, turns, ahead, ordered, at_a_time] = in_use.map(|value| [value]);
    let room = listed.size("ROOM");
    // K, V, dq; q and do; slopes. There are 227 KiB.
    let kib = |t: &Tiling| room / 64 * (48 + 16 * t.get("PLACES")) + 16 * t.get("SLOPES") + 2;
    let try_values = |values| candidates(&NAMES, in_use, values, |t| kib(t) <= 227).into_iter();
    let all_heads = [4, 8, 16, 32].map(|n| n.min(heads));
    let ways: &[usize] = if room == ROWS { &[0, 1] } else { &[0] };
    let of_order = try_values([&places, &slopes, &turns, &ahead, &[1, 0], &at_a_time]);
    let of_loop = try_values([&[2, 3, 4], &[2, 3], &[0, 1], ways, &ordered, &at_a_time]);
    let of_heads = try_values([&places, &slopes, &turns, &ahead, &ordered, &all_heads]);
    of_order.chain(of_loop.skip(1)).chain(of_heads.skip(1)).collect()
}

impl Pass {
    /// dk, dv and dq's sums in one walk, then dq.
    pub(crate) fn add_gradients_handed_on(
        &self,
        plan: &mut Plan,
        slots: Slots,
        tiling: Option<&Tiling>,
    ) -> Result<(), Error> {
        let Self { heads, group, heads_a_sequence: nh, positions, columns, .. } = *self;
        let Some([grad, dq, dk, dv]) = slots.gradients else { return Ok(()) };
        let source = &kernels::HANDED_BACK;
        let keys = keys(columns, |i| self.is_ours(i));
        let rounding = self.instance(source, "attention_round_queries");
        let [room, rows] = [keys.size("ROOM"), keys.size("L")];
        let of_tile = rows * room;
        let (tiles, row_tiles) = (self.tiles_of(2 * ROWS), self.tiles_of(rows));
        let numbers = heads * row_tiles * of_tile;
        let any_order = tiling.map_or(keys.size("ORDERED"), |t| t.get("ORDERED")) == 0;
        // In a fixed order the first block stores.
        let sums = if any_order { plan.zeros(F32, numbers) } else { plan.scratch(F32, numbers) };
        let flags = plan.zeros(DType::U32, heads * row_tiles);
        // The kernel leaves it at 0.
        let ticket = plan.zeros(DType::U32, 1);
        let lines = TensorMap::new(F32, &[LINE, numbers / LINE], &[LINE, of_tile / LINE])?;
        let together = tiling.map_or_else(
            || heads_together(heads / group, positions, columns, self.dtype),
            |tiling| tiling.get("HEADS"),
        );
        let scope = self.add_rows(plan, slots, row_tiles * rows)?.with(arguments![
            flags,
            ticket,
            row_tiles,
            any_order,
            NH: nh / group,
        ]);
        let of_keys = scope.clone().with(arguments![
            q: slots.q.loaded_by(self.panels("q", rows)?),
            grad: grad.loaded_by(self.panels("do", rows)?),
            k: slots.k.loaded_by(self.panels("k", ROWS)?),
            v: slots.v.loaded_by(self.panels("v", ROWS)?),
            dk: dk.stored_by(self.panels("dk", ROWS)?),
            dv: dv.stored_by(self.panels("dv", ROWS)?),
            sums: sums.stored_by(lines),
            heads: heads / group,
            tiles,
            together,
        ]);
        let device = plan.device();
        let kernel = match tiling {
            None => device.load(keys)?,
            Some(tiling) => {
                let chosen: Vec<_> =
                    NAMES[..TEMPLATE].iter().map(|name| tiling.get(name).to_string()).collect();
                let types = self.dtype.cpp();
                let name = format!(
                    "attention_keys_handed<{types}, {room}, {rows}, {}>",
                    chosen.join(", ")
                );
                device.instantiate(source, &name, keys.name())?
            }
        };
        let launch = kernel.grid([blocks_of(heads / group * tiles)?, 1, 1])?;
        plan.launch_in(&of_keys, &kernel, launch, arguments![])?;
        let kernel = plan.device().load(rounding)?;
        let launch = kernel.grid([blocks_of(heads * row_tiles)?, 1, 1])?;
        let scope = scope.with(arguments![dq: dq.stored_by(self.panels("dq", rows)?), sums]);
        plan.launch_in(&scope, &kernel, launch, arguments![])
    }
}
