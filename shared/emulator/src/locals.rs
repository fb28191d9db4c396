//! Where a function has its local variables on the stack.

use gimli::{AttributeValue, Operation, Unit};

use crate::names::bytes_of;
use crate::symbols::{Reader, dwarf};

/// The variables of the function, and of those that are inlined into it, that lie on the stack: where each begins, from the end of
/// the function's frame on, and its bytes. `address`: of an instruction, from the object's base. `None` where one's place or
/// size is not known, or no function is there.
pub(crate) fn locals(bytes: &'static [u8], address: usize) -> Option<Vec<(i64, usize)>> {
    let file = object::File::parse(bytes).ok()?;
    let dwarf = dwarf(&file)?;
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let mut entries = unit.entries();
        while let Ok(Some(entry)) = entries.next_dfs() {
            if entry.tag() != gimli::DW_TAG_subprogram {
                continue;
            }
            let mut ranges = dwarf.die_ranges(&unit, entry).ok()?;
            while let Ok(Some(range)) = ranges.next() {
                if (range.begin..range.end).contains(&(address as u64)) {
                    return of_function(&dwarf, &unit, entry.offset());
                }
            }
        }
    }
    None
}

fn of_function(
    dwarf: &gimli::Dwarf<Reader>,
    unit: &Unit<Reader>,
    function: gimli::UnitOffset,
) -> Option<Vec<(i64, usize)>> {
    let mut all = Vec::new();
    let mut entries = unit.entries_at_offset(function).ok()?;
    let mut depth = None;
    while let Ok(Some(entry)) = entries.next_dfs() {
        let own = entry.depth();
        match depth {
            None => depth = Some(own),
            Some(first) if own <= first => break,
            _ => {}
        }
        if !matches!(entry.tag(), gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter) {
            continue;
        }
        let Some(AttributeValue::Exprloc(place)) = entry.attr_value(gimli::DW_AT_location) else {
            continue;
        };
        let mut operations = place.operations(unit.encoding());
        while let Ok(Some(operation)) = operations.next() {
            if let Operation::FrameOffset { offset } = operation {
                all.push((offset, bytes_of(dwarf, unit, entry)?));
            }
        }
    }
    (!all.is_empty()).then_some(all)
}
