//! The library of workloads.
//!
//! Each says what it does, which parameters it takes and where their defaults come from.

mod build;
mod counter;
mod dbench;
mod hackbench;
mod params;
mod parsec;
mod pipe;
mod redis;
mod simple;
mod timer;
mod tools;

pub use params::{ParamDoc, Params};
pub(crate) use simple::host_body;

use crate::config::WorkloadConfig;
use crate::engine::Random;
use crate::fault::Sim;
use crate::guest::GuestBuilder;
use crate::program::{AsyncProgram, Program};

/// A workload of the library.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// Its parameters.
    pub params: &'static [ParamDoc],
    build: fn(&Params, &mut GuestBuilder) -> Sim,
}

/// All workloads, by name.
pub const LIBRARY: &[Workload] = &[
    timer::BROADCAST,
    simple::BUSY,
    simple::CLOCK_READER,
    counter::COUNTER_READ,
    pipe::CPUID_LOOP,
    timer::CYCLICTEST,
    dbench::DBENCH,
    parsec::DEDUP,
    hackbench::HACKBENCH,
    simple::IDLE,
    simple::IPI_PAIRS,
    build::KERNEL_BUILD,
    simple::KERNEL_LOCK,
    redis::REDIS,
    pipe::SCHED_PIPE,
    simple::SHOOTDOWN,
    simple::TICKS,
    simple::USER_LOCK,
    parsec::VIPS,
];

/// The workload of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Workload> {
    LIBRARY.iter().find(|workload| workload.name == name)
}

/// Makes a guest's threads.
///
/// # Errors
///
/// An unknown workload or parameter, or a value out of range.
pub fn build(config: &WorkloadConfig, builder: &mut GuestBuilder) -> Sim {
    let (workload, params) = params::resolve(config)?;
    (workload.build)(&params, builder)
}

/// Makes the program of a host task: `busy`, `ticks` or `idle`.
///
/// # Errors
///
/// As [`build`].
pub(crate) fn host_program(
    config: &WorkloadConfig,
    random: Random,
    number: u32,
) -> Sim<Box<dyn Program>> {
    let (workload, params) = params::resolve(config)?;
    let body = host_body("task.workload".to_owned(), workload.name)?;
    Ok(Box::new(AsyncProgram::new(random, number, body(&params))))
}
