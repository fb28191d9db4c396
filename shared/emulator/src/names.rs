//! What memory is called: shared arrays and kernel parameters, by the object's DWARF.

use rustc_hash::FxHashMap as HashMap;
use std::sync::Arc;

use gimli::{AttributeValue, DebuggingInformationEntry, Operation, Unit, UnitOffset};
use object::{Object, ObjectSymbol};

use crate::symbols::Reader;

type Entry<'a> = DebuggingInformationEntry<Reader>;

/// A static shared array (or variable), by its place in a block's static shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Array {
    pub(crate) offset: usize,
    /// Where ptxas puts it, among the arrays of its function: in the order of their declaration, each at
    /// the next multiple of its alignment (found by trial, CUDA 13.0, with optimisation; with -G it sorts).
    pub(crate) offset_on_gpu: usize,
    /// As it is declared, in bytes: of its type, or by an attribute.
    pub(crate) alignment: usize,
    pub(crate) bytes: usize,
    /// As the source has it; as the linker has it where there is no DWARF.
    pub(crate) name: String,
    /// `f32`, `f16`, …; empty where unknown.
    pub(crate) element: String,
    pub(crate) element_bytes: usize,
    pub(crate) dims: Vec<usize>,
}

impl Array {
    /// Whether it is the compiler's own, that says if a variable was constructed: set by the poison
    /// that a block finds, so that nothing is.
    pub(crate) fn is_guard(&self) -> bool {
        self.name.starts_with("_ZGV")
    }

    /// `tile[3][5]`, from the byte's offset in the array.
    pub(crate) fn index(&self, byte: usize) -> String {
        self.index_around(byte as isize)
    }

    /// The same of a byte that may lie before the array or behind it: the first index tells, `tile[32][5]` of 32 rows.
    pub(crate) fn index_around(&self, byte: isize) -> String {
        let mut left = byte.div_euclid(self.element_bytes.max(1) as isize);
        let mut indices = vec![0; self.dims.len()];
        for (at, size) in self.dims.iter().enumerate().rev() {
            let size = (*size).max(1) as isize;
            (indices[at], left) = match at {
                0 => (left, 0),
                _ => (left.rem_euclid(size), left.div_euclid(size)),
            };
        }
        let indices: String = indices.iter().map(|i| format!("[{i}]")).collect();
        format!("{}{indices}", self.name)
    }

    /// `32 × 33`
    pub(crate) fn size(&self) -> String {
        let dims: Vec<String> = self.dims.iter().map(ToString::to_string).collect();
        dims.join(" × ")
    }
}

/// Names of one object.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By offset.
    pub(crate) arrays: Vec<Array>,
    /// What the checks ask of each byte of static shared memory.
    pub(crate) static_bytes: Arc<[StaticByte]>,
    /// `__device__` and `__constant__` variables, by their place in the object.
    variables: Vec<Array>,
    /// Parameter names by the address of their function.
    parameters: HashMap<u64, Vec<String>>,
}

/// What the checks ask of a byte of static shared memory, for they ask it at nearly every access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaticByte(u16);

impl StaticByte {
    const EXISTS: u16 = 1 << 7;
    const GUARD: u16 = 1 << 6;
    /// The logarithm of what its array is declared to be aligned to.
    const ALIGNMENT: u32 = 8;
    /// The widest access of one instruction.
    pub(crate) const WIDEST: usize = 16;

    /// Whether an array holds it.
    pub(crate) fn exists(self) -> bool {
        self.0 & Self::EXISTS != 0
    }

    /// Whether the compiler's own holds it: see [`Array::is_guard`].
    pub(crate) fn is_guard(self) -> bool {
        self.0 & Self::GUARD != 0
    }

    /// How far behind its place here a GPU has it, modulo [`StaticByte::WIDEST`].
    pub(crate) fn shift_on_gpu(self) -> usize {
        usize::from(self.0) % Self::WIDEST
    }

    /// What its array is declared to be aligned to, in bytes.
    pub(crate) fn alignment(self) -> usize {
        1 << (self.0 >> Self::ALIGNMENT)
    }

    fn of_arrays(arrays: &[Array]) -> Arc<[Self]> {
        let end = arrays.iter().map(|a| a.offset + a.bytes).max().unwrap_or(0);
        let mut bytes = vec![Self::default(); end];
        for array in arrays {
            let shift = array.offset_on_gpu.wrapping_sub(array.offset) % Self::WIDEST;
            let guard = if array.is_guard() { Self::GUARD } else { 0 };
            let alignment = (array.alignment.max(1).ilog2() as u16) << Self::ALIGNMENT;
            let byte = Self(Self::EXISTS | guard | alignment | shift as u16);
            bytes[array.offset..][..array.bytes].fill(byte);
        }
        bytes.into()
    }
}

struct Type {
    name: String,
    bytes: usize,
    dims: Vec<usize>,
    alignment: usize,
}

/// What the DWARF says of a static shared array.
struct Described {
    name: String,
    ty: Type,
    offset_on_gpu: usize,
    alignment: usize,
}

impl Names {
    pub(crate) fn read(bytes: &'static [u8]) -> Self {
        let Ok(file) = object::File::parse(bytes) else { return Self::default() };
        let mut names = Self::default();
        let mut described: HashMap<u64, Described> = HashMap::default();
        if let Some(dwarf) = crate::symbols::dwarf(&file) {
            let mut units = dwarf.units();
            while let Ok(Some(header)) = units.next() {
                if let Ok(unit) = dwarf.unit(header) {
                    // What cannot be read has no name; the report then goes without.
                    let _ = names.read_unit(&dwarf, &unit, &mut described);
                }
            }
        }
        for symbol in file.symbols().filter(|s| s.kind() == object::SymbolKind::Tls) {
            let (offset, size) = (symbol.address(), symbol.size() as usize);
            let mangled = symbol.name().unwrap_or("shared memory").to_owned();
            let Described { name, ty, offset_on_gpu, alignment } =
                described.remove(&offset).unwrap_or_else(|| {
                    let ty = Type { name: String::new(), bytes: 1, dims: vec![size], alignment: 1 };
                    // Nothing is known to be wrong.
                    Described { name: mangled, ty, offset_on_gpu: 0, alignment: StaticByte::WIDEST }
                });
            names.arrays.push(Array {
                offset: offset as usize,
                offset_on_gpu,
                alignment,
                bytes: size,
                name,
                element: ty.name,
                element_bytes: ty.bytes,
                dims: ty.dims,
            });
        }
        for all in [&mut names.arrays, &mut names.variables] {
            all.sort_by_key(|a| a.offset);
            all.dedup_by_key(|a| a.offset);
        }
        names.static_bytes = StaticByte::of_arrays(&names.arrays);
        names
    }

    /// The variable that holds this byte of the object.
    pub(crate) fn variable_at(&self, offset: usize) -> Option<&Array> {
        holder(&self.variables, offset)
    }

    /// The array that holds this byte of static shared memory.
    pub(crate) fn array_at(&self, offset: usize) -> Option<&Array> {
        holder(&self.arrays, offset)
    }

    /// The array that ends or begins nearest to this byte.
    pub(crate) fn nearest_array(&self, offset: usize) -> Option<&Array> {
        let gap = |a: &&Array| {
            if offset < a.offset {
                a.offset - offset
            } else {
                offset.saturating_sub(a.offset + a.bytes)
            }
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
        described: &mut HashMap<u64, Described>,
    ) -> gimli::Result<()> {
        let mut tree = unit.entries();
        // The end of the arrays of the function that is read.
        let mut end = 0usize;
        while let Some(entry) = tree.next_dfs()? {
            match entry.tag() {
                gimli::DW_TAG_variable => {
                    let Some(place) = place_of(unit, entry) else { continue };
                    let own = origin(unit, entry)?;
                    let name = text(dwarf, unit, &own);
                    let (Some(name), Some(ty)) = (name, type_of(dwarf, unit, &own)) else {
                        continue;
                    };
                    if let Place::Module(offset) = place {
                        self.variables.push(Array {
                            offset: offset as usize,
                            offset_on_gpu: 0,
                            alignment: 1,
                            bytes: ty.bytes * ty.dims.iter().product::<usize>(),
                            name,
                            element: ty.name,
                            element_bytes: ty.bytes,
                            dims: ty.dims,
                        });
                    } else if let Place::Shared(offset) = place {
                        let alignment = explicit_alignment(&own).unwrap_or(1).max(ty.alignment);
                        let offset_on_gpu = end.next_multiple_of(alignment);
                        end = offset_on_gpu + ty.bytes * ty.dims.iter().product::<usize>();
                        described.insert(offset, Described { name, ty, offset_on_gpu, alignment });
                    }
                }
                gimli::DW_TAG_subprogram => {
                    end = 0;
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

/// The one of these, by offset, that holds a byte.
fn holder(all: &[Array], offset: usize) -> Option<&Array> {
    let index = all.partition_point(|a| a.offset <= offset).checked_sub(1)?;
    all.get(index).filter(|a| offset < a.offset + a.bytes)
}

/// Where a variable lies.
enum Place {
    /// In its object's block of thread-local ones.
    Shared(u64),
    /// From its object's base.
    Module(u64),
}

fn place_of(unit: &Unit<Reader>, entry: &Entry<'_>) -> Option<Place> {
    let AttributeValue::Exprloc(expression) = entry.attr_value(gimli::DW_AT_location)? else {
        return None;
    };
    let mut operations = expression.operations(unit.encoding());
    let mut offset = None;
    while let Ok(Some(operation)) = operations.next() {
        match operation {
            Operation::UnsignedConstant { value } => offset = Some(value),
            Operation::SignedConstant { value } => offset = u64::try_from(value).ok(),
            Operation::TLS => return offset.map(Place::Shared),
            Operation::Address { address } => return Some(Place::Module(address)),
            _ => {}
        }
    }
    None
}

/// So many bytes a variable has.
pub(crate) fn bytes_of(
    dwarf: &gimli::Dwarf<Reader>,
    unit: &Unit<Reader>,
    variable: &Entry<'_>,
) -> Option<usize> {
    let ty = type_of(dwarf, unit, &origin(unit, variable).ok()?)?;
    Some(ty.bytes * ty.dims.iter().product::<usize>())
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
    let alignment = alignment_of(unit, &entry, 0);
    let name = text(dwarf, unit, &entry).unwrap_or_default();
    let name = match name.as_str() {
        "float" => "f32",
        "double" => "f64",
        "__half" => "f16",
        "__nv_bfloat16" => "bf16",
        "int" => "i32",
        "unsigned int" => "u32",
        "signed char" => "i8",
        "unsigned char" => "u8",
        other => other,
    };
    Some(Type { name: name.to_owned(), bytes, dims, alignment })
}

/// What `alignas` or `__align__` asks for.
fn explicit_alignment(entry: &Entry<'_>) -> Option<usize> {
    Some(entry.attr_value(gimli::DW_AT_alignment)?.udata_value()? as usize)
}

/// The alignment of a type: its own, or the largest of its members.
fn alignment_of(unit: &Unit<Reader>, ty: &Entry<'_>, depth: usize) -> usize {
    const DEPTH: usize = 8; // of types within types
    let own = explicit_alignment(ty).unwrap_or(1);
    let of_type = |entry: &Entry<'_>| match entry.attr_value(gimli::DW_AT_type) {
        Some(AttributeValue::UnitRef(next)) if depth < DEPTH => {
            unit.entry(next).map_or(1, |next| alignment_of(unit, &next, depth + 1))
        }
        _ => 1,
    };
    let inner = match ty.tag() {
        gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
            let mut largest = 1;
            let mut tree = unit.entries_tree(Some(ty.offset())).ok();
            let mut children = tree.as_mut().and_then(|t| Some(t.root().ok()?.children()));
            while let Some(Ok(Some(child))) = children.as_mut().map(|c| c.next()) {
                let member = child.entry();
                if matches!(member.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance) {
                    let own = explicit_alignment(member).unwrap_or(1);
                    largest = largest.max(own).max(of_type(member));
                }
            }
            largest
        }
        gimli::DW_TAG_array_type
        | gimli::DW_TAG_const_type
        | gimli::DW_TAG_volatile_type
        | gimli::DW_TAG_typedef => of_type(ty),
        // Numbers, pointers, enumerations.
        _ => ty.attr_value(gimli::DW_AT_byte_size).and_then(|v| v.udata_value()).unwrap_or(1)
            as usize,
    };
    own.max(inner).max(1)
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
            offset_on_gpu: 0,
            alignment: 4,
            bytes: 4 * 3 * 5,
            name: "tile".into(),
            element: "f32".into(),
            element_bytes: 4,
            dims: vec![3, 5],
        };
        assert_eq!(array.index(4 * 14), "tile[2][4]");
        assert_eq!(array.index(4 * 5 + 2), "tile[1][0]");
        assert_eq!(
            (array.index_around(4 * 15), array.size()),
            ("tile[3][0]".into(), "3 × 5".into())
        );
        assert_eq!(array.index_around(-4), "tile[-1][4]");
        let scalar = Array { dims: Vec::new(), name: "sum".into(), ..array };
        assert_eq!(scalar.index(0), "sum");
    }
}
