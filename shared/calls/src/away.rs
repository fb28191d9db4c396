//! Work of the emulator's on threads of its own, while the caller's thread looks whether it is still wanted.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use lab_device::emulator::Cancel;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// From one look to the next.
const STEP: Duration = Duration::from_millis(50);

/// The threads of a process. One that was forked has none of its parent's: rayon's own would be waited for for ever.
struct Own {
    process: u32,
    pool: ThreadPool,
}

fn pool() -> Option<&'static ThreadPool> {
    static OWN: AtomicPtr<Own> = AtomicPtr::new(std::ptr::null_mut());
    let process = std::process::id();
    let known = OWN.load(Ordering::Acquire);
    // SAFETY: null, or of one that stays for ever.
    if let Some(own) = unsafe { known.as_ref() }
        && own.process == process
    {
        return Some(&own.pool);
    }
    let pool = ThreadPoolBuilder::new().thread_name(|n| format!("emulator-{n}")).build().ok()?;
    let own = Box::into_raw(Box::new(Own { process, pool }));
    match OWN.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it stays for ever.
        Ok(_) => Some(unsafe { &(*own).pool }),
        // SAFETY: nobody has seen this one; the other stays for ever.
        Err(other) => unsafe {
            drop(Box::from_raw(own));
            Some(&(*other).pool)
        },
    }
}

/// Does the work on another thread, and looks meanwhile: where `look` fails, the emulator's launches of the work are cancelled,
/// its end is waited for, and the error comes back.
///
/// # Errors
/// What `look` says.
pub fn run_away<T: Send, E>(
    work: impl FnOnce() -> T + Send,
    mut look: impl FnMut() -> Result<(), E>,
) -> Result<T, E> {
    let Some(pool) = pool() else { return Ok(work()) };
    let ((done, outcome), cancel) = (channel(), Cancel::default());
    let own = cancel.clone();
    pool.in_place_scope(|scope| {
        scope.spawn(move |_| {
            // Somebody waits for it.
            let _ = done.send(own.within(work));
        });
        let mut refused = None;
        loop {
            match outcome.recv_timeout(STEP) {
                Ok(value) => return refused.map_or(Ok(value), Err),
                Err(RecvTimeoutError::Timeout) => {
                    refused = refused.or_else(|| look().err());
                    if refused.is_some() {
                        cancel.cancel();
                    }
                }
                // The work has panicked, which the scope does in turn at its end.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(STEP),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use lab_device::{DType, Device, Mode};
    use lab_harness::{Options, Problem, Version as _, run};

    use super::*;

    /// A product that takes seconds ends soon behind the look that fails, and the next one runs.
    #[test]
    fn what_is_not_wanted_any_more_ends_soon() {
        let device = Device::emulator_in(Mode::Plain).unwrap();
        let problem = |rows| {
            let mut dims = matmul::NAIVE.info().small();
            ["M", "N", "K"].into_iter().for_each(|name| dims.set(name, rows));
            matmul::NAIVE.inputs(&Problem::new(dims, DType::F32))
        };
        let product = |rows| {
            let (device, inputs) = (device.clone(), problem(rows));
            move || run(&matmul::NAIVE, &device, &inputs, &Options::default()).map(|_| ())
        };
        run_away(product(8), || Ok::<_, ()>(())).unwrap().unwrap();
        let (start, work) = (Instant::now(), product(2000));
        let mut looks = 0;
        let outcome = run_away(work, || {
            looks += 1;
            if looks < 4 { Ok(()) } else { Err("no more") }
        });
        assert_eq!(outcome.err(), Some("no more"));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        run_away(product(8), || Ok::<_, ()>(())).unwrap().unwrap();
    }
}
