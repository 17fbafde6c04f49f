//! A run: the host, its guests and scripts, and the loop over the engine's events.
//!
//! # Parts and walls
//!
//! | part | owns | uses |
//! |---|---|---|
//! | [`Host`] | CPUs, tasks, run queues, hrtimers, limits, idle states, interrupts | `hypervisor` |
//! | [`Guests`] | kernels of guests, their threads, what vCPUs do in guest mode | the host |
//! | [`Kvm`] | vCPUs outside guest mode, their LAPICs and timers, IPIs on their way | guests, the host |
//! | [`ScriptRunner`] | what recorded tasks wait for | the host |
//! | [`Machine`] | the four parts, and nothing else | all |
//!
//! A part keeps its state private and is changed by its functions alone. It uses the parts above it
//! in the table. What a CPU does next is a [`Flow`](crate::host::Flow) that a part returns.
//! [`Machine::drive`] applies it: no part calls back into another one's work.

mod build;
mod checks;
#[cfg(test)]
mod checks_tests;
mod dispatch;
mod inject;

pub use build::Recipe;
pub use checks::CHECKS;
pub(crate) use checks::Checks;

use crate::fault::{Fault, Sim};
use crate::guest::{Guests, deadlock, stretch};
use crate::host::{EngineEvent, Host, Irq, injected};
use crate::ids::CpuNr;
use crate::inject::{Injected, Injection};
use crate::kvm::{Kvm, deliver};
use crate::outcome::Outcome;
use crate::script::ScriptRunner;

/// After so many events the caller is asked whether to stop: every few milliseconds.
const STOP_EVENTS: u64 = 1 << 16;

/// A host with its guests, at some instant.
pub struct Machine<'a> {
    pub(crate) host: Host<'a>,
    pub(crate) kvm: Kvm,
    pub(crate) guests: Guests,
    pub(crate) scripts: ScriptRunner,
}

impl Machine<'_> {
    /// Runs to the end and sums up.
    ///
    /// `stop` is asked now and then whether to give up.
    ///
    /// # Errors
    ///
    /// [`Fault`], with the time at which it happened.
    pub fn run(&mut self, stop: &dyn Fn() -> bool) -> Result<Outcome, Fault> {
        let run = self.host.cfg().run;
        let end = run.warmup_ns.saturating_add(run.duration_ns);
        while let Some(event) = self.host.clock_mut().advance(end)? {
            self.host.stats_mut().events += 1;
            if self.host.out().stats().events.is_multiple_of(STOP_EVENTS) && stop() {
                return Err(Fault::Stopped);
            }
            self.handle(event)
                .map_err(|fault| self.host.dated(*fault))?;
            self.watch().map_err(|fault| self.host.dated(*fault))?;
        }
        self.finish(end)
    }

    /// No event is left before the end.
    #[inline(never)]
    fn finish(&mut self, end: u64) -> Result<Outcome, Fault> {
        deadlock::check_deadlock(&self.guests)?;
        self.host.clock_mut().finish(end);
        // The last event may be long ago: what sleeps since then is looked at once more.
        self.host.checks_mut().look_now();
        self.watch()?;
        stretch::cut_all(&mut self.guests, &mut self.host);
        let cpu = CpuNr(0);
        self.host.emit_end(cpu);
        self.host.settle_books();
        self.kvm.settle_books(self.host.now());
        self.check_books()?;
        Ok(Outcome::of(
            &self.host,
            &self.kvm,
            &self.guests,
            &self.scripts,
        ))
    }

    /// After each event: a round of checks when it is due.
    #[inline]
    fn watch(&mut self) -> Sim {
        if !self.host.checks_mut().is_on() {
            return Ok(());
        }
        self.check()
    }

    /// Apart, so that a run without checks has a short loop.
    #[inline(never)]
    fn check(&mut self) -> Sim {
        if self.host.checks_mut().is_due() {
            // The checks read the host that holds them.
            let mut checks = core::mem::take(self.host.checks_mut());
            let result = checks.round(&self.host, &self.kvm, &self.guests);
            *self.host.checks_mut() = checks;
            result?;
        }
        self.host.report_failed()
    }

    /// At the end: all books add up.
    fn check_books(&mut self) -> Sim {
        let mut checks = core::mem::take(self.host.checks_mut());
        checks.books(&self.host, &self.kvm);
        *self.host.checks_mut() = checks;
        self.host.report_failed()
    }

    /// Switches the checks of invariants ([`CHECKS`]) on or off. Debug builds begin with them on.
    pub fn set_checks(&mut self, enabled: bool) {
        self.host.checks_mut().switch(enabled);
    }

    /// Injects these faults into the run, from now on.
    ///
    /// # Errors
    ///
    /// [`Fault::Config`] for a CPU, VM or vCPU that does not exist.
    pub fn inject(&mut self, injection: &Injection) -> Result<(), Fault> {
        inject::begin(self, injection)
    }

    /// How often each injected fault has happened.
    #[must_use]
    pub fn injected(&self) -> Injected {
        injected::state(&self.host).map_or_else(Injected::default, |state| state.counts)
    }

    /// The warm-up is over: all books start anew.
    #[cold]
    fn begin_measuring(&mut self) {
        // Stretches are cut first, so that what they have done by now counts before.
        stretch::cut_all(&mut self.guests, &mut self.host);
        self.host.begin_measuring();
        self.kvm.begin_measuring(self.host.now());
        self.guests.begin_measuring();
    }

    #[inline(always)]
    fn handle(&mut self, event: EngineEvent) -> Sim {
        match event {
            EngineEvent::Phase(cpu) => self.phase_over(cpu),
            EngineEvent::ClockEvent(cpu) => {
                if let Some(until_ns) = self.host.stalled(cpu) {
                    self.host.delay_clock_event(cpu, until_ns);
                    return Ok(());
                }
                deliver::raise(
                    &mut self.kvm,
                    &mut self.guests,
                    &mut self.host,
                    cpu,
                    Irq::LocalTimer,
                )
            }
            EngineEvent::Message(number) => self.arrived(number),
            EngineEvent::Measure => {
                self.begin_measuring();
                Ok(())
            }
        }
    }
}
