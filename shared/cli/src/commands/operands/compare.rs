//! The emulator's results beside a GPU's.

use std::path::Path;

use super::forms::Form;
use super::results::Results;
use crate::Common;
use crate::failure::Failure;

pub(super) fn with_file(
    _file: &Path,
    _forms: &[Form],
    _operands: &[u8],
    _all: &[Results],
    _record: Option<(&Path, &str)>,
) -> Result<(), Failure> {
    Ok(())
}

pub(super) fn with_record(
    _common: &Common,
    _record: &Path,
    _forms: &[Form],
    _operands: &[u8],
    _all: &[Results],
) -> Result<(), Failure> {
    Ok(())
}
