//! A host's clocks that advance by command, or by a call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stealtime_hypervisor::counter::scaling::HostTsc;
use stealtime_hypervisor::counter::tsc_sync::HostInstant;

use crate::device::{Bracket, HostFacts, TscMeans};
use crate::error::Errno;

/// Delays of calls: the calling thread loses the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbance {
    /// One call in this many is delayed; 0 none.
    pub one_in: u32,
    /// By at most this many ns.
    pub most_ns: u64,
}

/// A host without a device.
#[derive(Clone, Debug)]
pub struct FakeHost(Arc<Mutex<HostState>>);

#[derive(Debug)]
pub(super) struct HostState {
    pub(super) facts: HostFacts,
    pub(super) tsc: HostTsc,
    /// A set instant that does not pass.
    pub(super) fixed_instant: Option<HostInstant>,
    /// The wall clock and the TSC can be read as one.
    pub(super) instants: bool,
    ns: u64,
    tsc_base: u64,
    real_base: u64,
    /// The wall clock's slew against the raw one, in parts per billion.
    slew_ppb: i64,
    cost_ns: u64,
    /// What `KVM_SET_CLOCK` takes between its snapshot and the wall clock, on average.
    wall_clock_late_ns: u64,
    disturbance: Disturbance,
    random: u64,
    failures: Vec<(&'static str, u32, Errno)>,
    /// Calls that were made, by name.
    calls: Vec<&'static str>,
}

impl HostState {
    pub(super) fn now(&self) -> HostInstant {
        if let Some(fixed_instant) = self.fixed_instant {
            return fixed_instant;
        }
        let cycles = u128::from(self.ns) * u128::from(self.tsc.khz) / 1_000_000;
        let slew = i128::from(self.ns) * i128::from(self.slew_ppb) / 1_000_000_000;
        HostInstant {
            ns: self.ns,
            tsc: self.tsc_base.wrapping_add(cycles as u64),
            real_ns: self
                .real_base
                .wrapping_add(self.ns)
                .wrapping_add(slew as u64),
        }
    }

    fn pass(&mut self, ns: u64) {
        self.ns = self.ns.saturating_add(ns);
    }

    /// xorshift64: chance that can be repeated.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn be_delayed(&mut self) {
        let Disturbance { one_in, most_ns } = self.disturbance;
        self.pass(self.cost_ns);
        if one_in != 0 && self.random().is_multiple_of(u64::from(one_in)) {
            let delay = self.random() % most_ns.max(1);
            self.pass(delay);
        }
    }

    /// Within 10 ns of the average, as on real hosts where nothing interrupts.
    pub(super) fn wall_clock_late(&mut self) -> u64 {
        match self.wall_clock_late_ns {
            0 => 0,
            late => (late + self.random() % 21).saturating_sub(10),
        }
    }

    /// A call begins: it takes time, may be delayed before it acts, and may be set to fail.
    pub(super) fn call(&mut self, name: &'static str) -> Result<HostInstant, Errno> {
        self.be_delayed();
        self.calls.push(name);
        for (failing, remaining, errno) in &mut self.failures {
            if *failing == name {
                if *remaining == 0 {
                    return Err(*errno);
                }
                *remaining -= 1;
            }
        }
        Ok(self.now())
    }
}

impl FakeHost {
    /// A host of this frequency with all abilities and a round wall clock.
    #[must_use]
    pub fn new(tsc_khz: u32) -> Self {
        Self::with(HostFacts::complete(tsc_khz))
    }

    /// A host that can do this much.
    #[must_use]
    pub fn with(facts: HostFacts) -> Self {
        Self(Arc::new(Mutex::new(HostState {
            facts,
            tsc: facts.host_tsc(),
            fixed_instant: None,
            instants: facts.clock_flags != 0,
            ns: 1_000_000_000,
            tsc_base: 77_000_000_000,
            real_base: 1_700_000_000_000_000_000,
            slew_ppb: 0,
            cost_ns: 300,
            wall_clock_late_ns: 0,
            disturbance: Disturbance::default(),
            random: 0x9e37_79b9_7f4a_7c15,
            failures: Vec::new(),
            calls: Vec::new(),
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, HostState> {
        // A test that panicked elsewhere must not hide its own message behind this one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passes.
    pub fn pass(&self, ns: u64) {
        self.state().pass(ns);
    }

    /// The host's clocks now.
    #[must_use]
    pub fn now(&self) -> HostInstant {
        self.state().now()
    }

    /// Sets the instant, until the next one is set: time no longer passes by itself.
    pub fn tell(&self, now: HostInstant) {
        self.state().fixed_instant = Some(now);
    }

    /// The wall clock is set forward or back.
    pub fn step_wall_clock(&self, ns: i64) {
        let mut state = self.state();
        state.real_base = state.real_base.wrapping_add(ns as u64);
    }

    /// The wall clock is slewed against the TSC from the host's beginning on.
    pub fn slew_wall_clock(&self, ppb: i64) {
        self.state().slew_ppb = ppb;
    }

    /// `KVM_SET_CLOCK` reads the wall clock so many ns after the instant that it counts from, within
    /// 10 ns; 0 (the default): at that very instant. Real hosts take about 80.
    pub fn read_wall_clock_late(&self, ns: u64) {
        self.state().wall_clock_late_ns = ns;
    }

    /// The TSC's value at the host's beginning.
    pub fn set_tsc_base(&self, tsc: u64) {
        self.state().tsc_base = tsc;
    }

    /// The host's clock is read from something else than the TSC: no master clock anywhere.
    pub fn leave_tsc_clocksource(&self) {
        let mut state = self.state();
        state.tsc.clock_mode = stealtime_hypervisor::counter::scaling::ClockMode::None;
        state.instants = false;
    }

    /// What calls are disturbed by from now on, and the seed of chance.
    pub fn disturb(&self, disturbance: Disturbance, seed: u64) {
        let mut state = self.state();
        state.disturbance = disturbance;
        state.random = chance_of(seed);
    }

    /// The call of this name fails, the `nth` time from now (0: the next) and ever after.
    pub fn fail(&self, call: &'static str, nth: u32, errno: i32) {
        self.state().failures.push((call, nth, Errno(errno)));
    }

    /// No call fails any more.
    pub fn heal(&self) {
        self.state().failures.clear();
    }

    /// Names of the calls that were made since this was asked last.
    #[must_use]
    pub fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().calls)
    }

    /// What moves TSCs from now on.
    pub fn set_means(&self, means: TscMeans) {
        self.state().facts.means = means;
    }

    pub(super) fn bracket(&self) -> Bracket {
        let mut state = self.state();
        state.pass(20);
        let tsc_before = state.now().tsc;
        state.pass(20);
        let realtime_ns = state.now().real_ns;
        state.be_delayed();
        state.pass(20);
        Bracket {
            tsc_before,
            realtime_ns,
            tsc_after: state.now().tsc,
        }
    }
}

/// Where xorshift begins for a seed. From 0 it would never leave 0.
pub(crate) const fn chance_of(seed: u64) -> u64 {
    if seed == 0 { u64::MAX } else { seed }
}
