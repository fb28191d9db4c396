//! The devices of a process, each opened once.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use lab_device::{Device, Mode, Selector};
use lab_harness::Error;

/// The device of that name: `cuda:N`, `emulator`, or `checked`, the emulator that looks at every access.
///
/// # Errors
/// There is no such device.
pub fn device(name: &str) -> Result<Device, Error> {
    static OPEN: OnceLock<Mutex<HashMap<String, Device>>> = OnceLock::new();
    let open = OPEN.get_or_init(Mutex::default);
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.get(name) {
        return Ok(device.clone());
    }
    let device = match name {
        "checked" => Device::emulator_in(Mode::Checked)?,
        "emulator" => Device::emulator()?,
        _ => match name.parse()? {
            selector @ Selector::Cuda(_) => Device::open(selector)?,
            _ => return Err(Error::bad("device", "cuda:N, emulator or checked", name)),
        },
    };
    open.insert(name.to_owned(), device.clone());
    Ok(device)
}
