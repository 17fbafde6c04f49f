//! Loads a compiled scheduler, as the samples of the kernel's tools/sched_ext are: comparisons of cost.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapType, ObjectBuilder};

use crate::costs::Costs;
use crate::options::Options;

/// Loads the scheduler of an object file, and stays until a signal or the end of `--for`.
///
/// # Errors
/// A file that cannot be read or has no scheduler, and what the kernel refuses.
pub(crate) fn run(path: &Path, options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    let on_signal = Arc::clone(&stop);
    ctrlc::set_handler(move || on_signal.store(true, Ordering::Relaxed))?;
    let mut object = ObjectBuilder::default().open_file(path)?.load()?;
    let costs = options.costs.then(Costs::begin).transpose()?;
    let mut operations = object
        .maps_mut()
        .find(|map| map.map_type() == MapType::StructOps)
        .ok_or_else(|| format!("{}: no scheduler in this object file", path.display()))?;
    let scheduler = operations.attach_struct_ops()?;
    eprintln!("scx_stealtime: loaded");
    let begin = Instant::now();
    let is_over = |seconds| begin.elapsed() >= Duration::from_secs_f64(seconds);
    while !stop.load(Ordering::Relaxed) && !options.run_for.is_some_and(is_over) {
        thread::sleep(Duration::from_millis(50));
    }
    if costs.is_some() {
        eprint!("{}", Costs::text());
    }
    drop(scheduler);
    Ok(ExitCode::SUCCESS)
}
