//! Which block takes which tile of an array, launch by launch.
//!
//! Blocks of a launch do not wait for each other where a scene says nothing else: in a step each of them takes its next
//! tile, though the emulator runs one after the other.

use std::collections::BTreeMap;

use lab_device::emulator::{Event, Operation, Step};
use maud::{Markup, html};

use super::{Drawn, Listing, Run, file_of, line_of};
use crate::Error;

pub(crate) struct Scene {
    pub(crate) run: Run,
    pub(crate) launches: &'static [Launch],
}

/// What the blocks of a launch do with an array.
pub(crate) struct Launch {
    pub(crate) title: &'static str,
    /// The file of the kernel, and the kernel, or a device function in it, whose accesses are shown.
    pub(crate) file: &'static str,
    pub(crate) function: &'static str,
    /// The arrays: a block takes their tiles together, or those of one of them alone.
    pub(crate) arrays: &'static [&'static str],
    /// They are stored, and not loaded.
    pub(crate) stored: bool,
    /// What a tile is called above its column, and in the text, where # is its number.
    pub(crate) tile: &'static str,
    pub(crate) what: &'static str,
    /// Bytes of a tile.
    pub(crate) bytes: usize,
    /// The array of which a block writes one tile, and the bytes of that: it orders the rows.
    pub(crate) own: Option<(&'static str, usize)>,
    /// What a row is called: it has the number of the block's own tile, or of the block.
    pub(crate) row: &'static str,
}

/// What a block takes.
struct Row {
    block: u32,
    own: Option<usize>,
    /// In its order, each with the lines that touch it.
    tiles: Tiles,
}

/// Tiles, each with the lines that touch it.
type Tiles = Vec<(usize, Vec<usize>)>;

struct Taken {
    listing: Listing,
    rows: Vec<Row>,
    columns: usize,
}

impl Scene {
    pub(crate) fn draw(&self) -> Result<Drawn, Error> {
        let events = self.run.trace()?.events;
        let taken: Vec<Taken> =
            self.launches.iter().map(|l| l.taken(&events)).collect::<Result<_, _>>()?;
        let (mut steps, mut tables) = (0, Vec::new());
        for (number, (launch, taken)) in self.launches.iter().zip(&taken).enumerate() {
            tables.push(launch.table(number, taken, steps, self.launches.len() > 1));
            steps += taken.rows.iter().map(|r| r.tiles.len()).max().unwrap_or(0);
        }
        let body = html! {
            div.still {
                div.run data-name=(self.run.version) {
                    @for (number, taken) in taken.iter().enumerate() { (taken.listing.markup_of(Some(number), |_| html! {})) }
                    div.maps { @for table in &tables { (table) } }
                }
            }
        };
        Ok(Drawn { of: self.run.version.into(), steps, kind: "tiles", body })
    }
}

impl Launch {
    fn taken(&self, events: &[Event]) -> Result<Taken, Error> {
        let listing = Listing::of_stage(self.file, self.function)?;
        let own_line = |line| listing.lines.iter().any(|l| l.0 == line);
        let mut all: BTreeMap<u32, [Tiles; 2]> = BTreeMap::new();
        let mut own: BTreeMap<u32, usize> = BTreeMap::new();
        for event in events.iter().filter(|e| file_of(&e.place.own) == self.file) {
            let line = line_of(&event.place.own);
            let Step::Access { operation, array, offset, .. } = &event.step else { continue };
            if !own_line(line) {
                continue;
            }
            let stores = *operation == Operation::GlobalStore;
            if let Some((name, bytes)) = self.own
                && stores
                && array.name == name
            {
                own.insert(event.block, offset / bytes);
            }
            let which = self.arrays.iter().position(|a| *a == array.name);
            let Some(which) = which.filter(|_| stores == self.stored) else { continue };
            let tiles = &mut all.entry(event.block).or_default()[usize::from(which > 0)];
            let tile = offset / self.bytes;
            match tiles.iter_mut().find(|t| t.0 == tile) {
                Some((_, lines)) if lines.contains(&line) => {}
                Some((_, lines)) => lines.push(line),
                None => tiles.push((tile, vec![line])),
            }
        }
        let mut rows = Vec::new();
        for (block, [mut tiles, mut others]) in all {
            let numbers = |of: &[(usize, Vec<usize>)]| of.iter().map(|t| t.0).collect::<Vec<_>>();
            let alone = tiles.is_empty() || others.is_empty();
            if tiles.is_empty() {
                tiles = others;
                others = Vec::new();
            }
            if !alone && numbers(&tiles) != numbers(&others) {
                let what = self.arrays.join(" and ");
                return Err(Error::Wrong(format!("{}: tiles of {what} differ", self.function)));
            }
            for (one, other) in tiles.iter_mut().zip(&others) {
                one.1.extend(&other.1);
            }
            tiles.iter_mut().for_each(|t| {
                t.1.sort_unstable();
                t.1.dedup();
            });
            rows.push(Row { block, own: own.get(&block).copied(), tiles });
        }
        if rows.is_empty() {
            return Err(Error::Wrong(format!("{}: nobody touches its tiles", self.function)));
        }
        rows.sort_by_key(|r| (r.own, r.block));
        let last = rows.iter().flat_map(|r| &r.tiles).map(|t| t.0).max().unwrap_or(0);
        let lines: Vec<usize> =
            rows.iter().flat_map(|r| &r.tiles).flat_map(|t| t.1.clone()).collect();
        let listing = listing.near(&lines, 2);
        Ok(Taken { listing, rows, columns: last + 1 })
    }

    /// A row a block, a column a tile, in each cell the step in which the block takes it.
    fn table(&self, number: usize, taken: &Taken, first: usize, several: bool) -> Markup {
        let at = |lines: &[usize]| {
            lines.iter().map(|l| format!("{number}.{l}")).collect::<Vec<_>>().join(" ")
        };
        let turn = |row: &Row, tile: usize| row.tiles.iter().position(|t| t.0 == tile);
        let mut said = std::collections::HashSet::new();
        html! {
            table.map {
                caption { (self.title) }
                thead { tr {
                    th scope="col" { (self.row) }
                    @for tile in 0..taken.columns { th scope="col" { (self.tile) " " (tile) } }
                } }
                tbody {
                    @for row in &taken.rows {
                        tr {
                            th scope="row" {
                                @match row.own {
                                    Some(own) => { (own) " (block " (row.block) ")" }
                                    None => { "block " (row.block) }
                                }
                            }
                            @for tile in 0..taken.columns {
                                @match turn(row, tile) {
                                    Some(n) => {
                                        td data-step=(first + n) data-at=(at(&row.tiles[n].1))
                                            data-says=[said.insert(n).then(|| self.says(taken, n, several))] { (first + n + 1) }
                                    }
                                    None => td { "–" },
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// What all blocks do in their n-th turn; in which of several launches.
    fn says(&self, taken: &Taken, n: usize, several: bool) -> String {
        let mut of: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for row in &taken.rows {
            if let Some((tile, _)) = row.tiles.get(n) {
                of.entry(*tile).or_default().push(row.block);
            }
        }
        let blocks = |mut all: Vec<u32>| {
            all.sort_unstable();
            match &all[..] {
                [one] => format!("block {one}"),
                [many @ .., last] => {
                    let many: Vec<String> = many.iter().map(u32::to_string).collect();
                    format!("blocks {} and {last}", many.join(", "))
                }
                [] => String::new(),
            }
        };
        let verb = if self.stored { "store" } else { "load" };
        let taken_now: Vec<String> = of
            .into_iter()
            .map(|(tile, all)| {
                let ending = if all.len() == 1 { "s" } else { "" };
                let what = self.what.replace('#', &tile.to_string());
                format!("{} {verb}{ending} {what}", blocks(all))
            })
            .collect();
        let done: Vec<u32> =
            taken.rows.iter().filter(|r| r.tiles.len() <= n).map(|r| r.block).collect();
        let many = done.len() > 1;
        let done = if done.is_empty() {
            String::new()
        } else {
            format!(" {} {} done.", capital(&blocks(done)), if many { "are" } else { "is" })
        };
        let launch = if several { format!("{}: ", self.title) } else { String::new() };
        capital(&format!("{launch}{}.{done}", taken_now.join("; ")))
    }
}

/// A sentence's beginning.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tiles that each block takes in a launch of a figure, in its order.
    fn taken(figure: &str, launch: usize) -> Vec<(u32, Vec<usize>)> {
        let figure = super::super::list::FIGURES.iter().find(|f| f.name == figure);
        let Some(super::super::Scene::Tiles(scene)) = figure.map(|f| &f.scene) else { panic!() };
        let taken = scene.launches[launch].taken(&scene.run.trace().unwrap().events).unwrap();
        let tiles = |r: &Row| r.tiles.iter().map(|t| t.0).collect();
        taken.rows.iter().map(|r| (r.block, tiles(r))).collect()
    }

    #[test]
    fn a_block_stops_at_the_diagonal() {
        let all: [(u32, Vec<usize>); 4] =
            [(3, vec![0]), (2, vec![0, 1]), (1, vec![0, 1, 2]), (0, vec![0, 1, 2, 3])];
        assert_eq!(taken("causal", 0), all);
    }

    #[test]
    fn with_a_running_maximum_it_goes_back_from_there() {
        assert_eq!(taken("online", 0)[3], (0, vec![3, 2, 1, 0]));
    }

    #[test]
    fn one_block_walks_what_others_have_made_at_once() {
        let each: Vec<(u32, Vec<usize>)> = (0..4).map(|n| (n, vec![n as usize])).collect();
        assert_eq!(taken("chunks", 0), each);
        assert_eq!(taken("chunks", 1), [(0, vec![0, 1, 2, 3])]);
        assert_eq!(taken("chunks", 2), each);
    }

    #[test]
    fn gradients_walk_back() {
        assert_eq!(taken("back", 0), [(0, vec![0, 1, 2, 3])]);
        assert_eq!(taken("back", 1), [(0, vec![3, 2, 1, 0])]);
        assert_eq!(taken("walks", 0), [(0, vec![0, 1, 2, 3]), (1, vec![3, 2, 1, 0])]);
    }
}
