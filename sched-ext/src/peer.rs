//! The least scheduler by virtual time, for comparisons of cost (`bpf/peer.bpf.c`).

use std::error::Error;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::costs::Costs;
use crate::options::Options;
use crate::peer_skeleton::PeerSkelBuilder;

/// Loads it, and stays until a signal or the end of `--for`.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    let on_signal = Arc::clone(&stop);
    ctrlc::set_handler(move || on_signal.store(true, Ordering::Relaxed))?;
    let mut object = MaybeUninit::uninit();
    let open = PeerSkelBuilder::default().open(&mut object)?;
    let mut skel = open.load()?;
    let costs = options.costs.then(Costs::begin).transpose()?;
    let scheduler = skel.maps.peer_ops.attach_struct_ops()?;
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
