//! What memory is called: shared arrays and kernel parameters, by the object's DWARF.

use std::collections::HashMap;

use gimli::{AttributeValue, DebuggingInformationEntry, Operation, Unit, UnitOffset};
use object::{Object, ObjectSymbol};

use crate::symbols::Reader;

type Entry<'a> = DebuggingInformationEntry<Reader>;

/// A static shared array (or variable), by its place in a block's static shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// As the source has it; as the linker has it where there is no DWARF.
    pub(crate) name: String,
    /// `f32`, `f16`, …; empty where unknown.
    pub(crate) element: String,
    pub(crate) element_bytes: usize,
    pub(crate) dims: Vec<usize>,
}

impl Array {
    /// `tile[3][5]`, from the byte's offset in the array.
    pub(crate) fn index(&self, byte: usize) -> String {
        let mut left = byte / self.element_bytes.max(1);
        let mut indices = vec![0; self.dims.len()];
        for (index, size) in indices.iter_mut().zip(&self.dims).rev() {
            *index = left % size.max(&1);
            left /= size.max(&1);
        }
        let indices: String = indices.iter().map(|i| format!("[{i}]")).collect();
        format!("{}{indices}", self.name)
    }
}

/// Names of one object.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By offset.
    pub(crate) arrays: Vec<Array>,
    /// Parameter names by the address of their function.
    parameters: HashMap<u64, Vec<String>>,
}

struct Type {
    name: String,
    bytes: usize,
    dims: Vec<usize>,
}

impl Names {
    pub(crate) fn read(bytes: &'static [u8]) -> Self {
        let Ok(file) = object::File::parse(bytes) else { return Self::default() };
        let mut names = Self::default();
        let mut types: HashMap<u64, (String, Type)> = HashMap::new();
        if let Some(dwarf) = crate::symbols::dwarf(&file) {
            let mut units = dwarf.units();
            while let Ok(Some(header)) = units.next() {
                if let Ok(unit) = dwarf.unit(header) {
                    // What cannot be read has no name; the report then goes without.
                    let _ = names.read_unit(&dwarf, &unit, &mut types);
                }
            }
        }
        for symbol in file.symbols().filter(|s| s.kind() == object::SymbolKind::Tls) {
            let (offset, size) = (symbol.address(), symbol.size() as usize);
            let mangled = symbol.name().unwrap_or("shared memory").to_owned();
            let (name, ty) = types.remove(&offset).unwrap_or_else(|| {
                (mangled, Type { name: String::new(), bytes: 1, dims: vec![size] })
            });
            names.arrays.push(Array {
                offset: offset as usize,
                bytes: size,
                name,
                element: ty.name,
                element_bytes: ty.bytes,
                dims: ty.dims,
            });
        }
        names.arrays.sort_by_key(|a| a.offset);
        names.arrays.dedup_by_key(|a| a.offset);
        names
    }

    /// The array that holds this byte of static shared memory.
    pub(crate) fn array_at(&self, offset: usize) -> Option<&Array> {
        let index = self.arrays.partition_point(|a| a.offset <= offset).checked_sub(1)?;
        self.arrays.get(index).filter(|a| offset < a.offset + a.bytes)
    }

    /// The array that ends or begins nearest to this byte.
    pub(crate) fn nearest_array(&self, offset: usize) -> Option<&Array> {
        let gap = |a: &&Array| match offset < a.offset {
            true => a.offset - offset,
            false => offset.saturating_sub(a.offset + a.bytes),
        };
        self.arrays.iter().min_by_key(gap)
    }

    /// The names of a function's parameters, by its address relative to the object's base.
    pub(crate) fn parameters(&self, function: usize) -> &[String] {
        self.parameters.get(&(function as u64)).map_or(&[], Vec::as_slice)
    }

    fn read_unit(
        &mut self,
        dwarf: &gimli::Dwarf<Reader>,
        unit: &Unit<Reader>,
        types: &mut HashMap<u64, (String, Type)>,
    ) -> gimli::Result<()> {
        let mut tree = unit.entries();
        while let Some(entry) = tree.next_dfs()? {
            match entry.tag() {
                gimli::DW_TAG_variable => {
                    let Some(offset) = tls_offset(unit, entry) else { continue };
                    let own = origin(unit, entry)?;
                    let name = text(dwarf, unit, &own);
                    if let (Some(name), Some(ty)) = (name, type_of(dwarf, unit, &own)) {
                        types.insert(offset, (name, ty));
                    }
                }
                gimli::DW_TAG_subprogram => {
                    let Some(AttributeValue::Addr(address)) = entry.attr_value(gimli::DW_AT_low_pc)
                    else {
                        continue;
                    };
                    let names = parameter_names(dwarf, unit, entry.offset())?;
                    self.parameters.insert(address, names);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn parameter_names(
    dwarf: &gimli::Dwarf<Reader>,
    unit: &Unit<Reader>,
    function: UnitOffset,
) -> gimli::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut tree = unit.entries_tree(Some(function))?;
    let mut children = tree.root()?.children();
    while let Some(child) = children.next()? {
        if child.entry().tag() == gimli::DW_TAG_formal_parameter {
            let own = origin(unit, child.entry())?;
            names.push(text(dwarf, unit, &own).unwrap_or_default());
        }
    }
    Ok(names)
}

/// The entry that describes this one: an instance points to its template's or inline function's.
fn origin<'a>(unit: &Unit<Reader>, entry: &Entry<'a>) -> gimli::Result<Entry<'a>> {
    let mut own = entry.clone();
    for attribute in [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification] {
        if let Some(AttributeValue::UnitRef(offset)) = own.attr_value(attribute) {
            own = unit.entry(offset)?;
        }
    }
    Ok(own)
}

fn text(dwarf: &gimli::Dwarf<Reader>, unit: &Unit<Reader>, entry: &Entry<'_>) -> Option<String> {
    let value = entry.attr_value(gimli::DW_AT_name)?;
    let string = dwarf.attr_string(unit, value).ok()?;
    Some(string.to_string_lossy().into_owned())
}

/// Where a thread-local variable lies in its object's block.
fn tls_offset(unit: &Unit<Reader>, entry: &Entry<'_>) -> Option<u64> {
    let AttributeValue::Exprloc(expression) = entry.attr_value(gimli::DW_AT_location)? else {
        return None;
    };
    let mut operations = expression.operations(unit.encoding());
    let mut offset = None;
    while let Ok(Some(operation)) = operations.next() {
        match operation {
            Operation::UnsignedConstant { value } => offset = Some(value),
            Operation::SignedConstant { value } => offset = u64::try_from(value).ok(),
            Operation::TLS => return offset,
            _ => {}
        }
    }
    None
}

fn type_of(dwarf: &gimli::Dwarf<Reader>, unit: &Unit<Reader>, entry: &Entry<'_>) -> Option<Type> {
    let mut entry = entry.clone();
    let mut dims = Vec::new();
    loop {
        let AttributeValue::UnitRef(next) = entry.attr_value(gimli::DW_AT_type)? else {
            return None;
        };
        entry = unit.entry(next).ok()?;
        match entry.tag() {
            gimli::DW_TAG_array_type => dims.extend(lengths(unit, next)?),
            gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type | gimli::DW_TAG_typedef => {}
            _ => break,
        }
    }
    let bytes = entry.attr_value(gimli::DW_AT_byte_size)?.udata_value()? as usize;
    let name = text(dwarf, unit, &entry).unwrap_or_default();
    let name = match name.as_str() {
        "float" => "f32",
        "double" => "f64",
        "__half" => "f16",
        "__nv_bfloat16" => "bf16",
        "int" => "i32",
        "unsigned int" => "u32",
        "unsigned char" => "u8",
        other => other,
    };
    Some(Type { name: name.to_owned(), bytes, dims })
}

fn lengths(unit: &Unit<Reader>, array: UnitOffset) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    let mut tree = unit.entries_tree(Some(array)).ok()?;
    let mut children = tree.root().ok()?.children();
    while let Ok(Some(child)) = children.next() {
        let entry = child.entry();
        if entry.tag() != gimli::DW_TAG_subrange_type {
            continue;
        }
        let read = |name| entry.attr_value(name).and_then(|v| v.udata_value());
        let upper = read(gimli::DW_AT_upper_bound).map(|u| u + 1);
        all.push(upper.or(read(gimli::DW_AT_count))? as usize);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_the_dimensions_of_the_source() {
        let array = Array {
            offset: 0,
            bytes: 4 * 3 * 5,
            name: "tile".into(),
            element: "f32".into(),
            element_bytes: 4,
            dims: vec![3, 5],
        };
        assert_eq!(array.index(4 * 14), "tile[2][4]");
        assert_eq!(array.index(4 * 5 + 2), "tile[1][0]");
        let scalar = Array { dims: Vec::new(), name: "sum".into(), ..array };
        assert_eq!(scalar.index(0), "sum");
    }
}
