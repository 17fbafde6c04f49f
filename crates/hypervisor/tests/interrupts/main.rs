//! Posted interrupts, the local APIC and its timer: what a sloppy implementation gets wrong.
//!
//! Tests named `…_sloppy_NN_…` hold item NN of the specification's list, `…_flaw_NN_…` a flaw
//! that was found in the posted patches, `…_historic_NN_…` a fault of a released hypervisor.
#![allow(clippy::unwrap_used, reason = "what is not as expected fails the test")]

mod barriers;
mod destinations;
mod flaws;
mod historic;
mod lapic_models;
mod rig;
mod sloppy_posted;
mod sloppy_timer;
mod softirq_barriers;
mod splits;
mod threads;
mod timer_models;
mod tsc_changes;
#[path = "../../examples/vcpu_loop.rs"]
mod vcpu_loop;
mod walks;

/// The run loop of the author's guide: each interrupt of the timer and of the device is handled once.
#[test]
fn the_run_loop_of_the_example_loses_no_interrupt() {
    vcpu_loop::main();
}
