//! hrtimers: the purposes of their functions, and the vCPUs of which they are the LAPIC timer.

use stealtime_events::{NameId, Names};

use crate::{IntMap, VcpuIndex};

/// Most LAPIC timers with a known vCPU: one each, and hosts have fewer vCPUs alive.
const MAX_TIMERS: usize = 1 << 16;
/// Most names of functions that are remembered: kernels have some hundred, damaged files any number.
const MAX_FUNCTIONS: usize = 1 << 12;

/// What a function that a timer or another CPU calls is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// A LAPIC timer of a guest (`apic_timer_fn`).
    ApicTimer,
    /// The period timer of a bandwidth limit.
    BandwidthPeriod,
    /// Its slack timer, which runs only while a thread of its cgroup is throttled.
    BandwidthSlack,
    /// Makes another CPU's throttled threads runnable again.
    Unthrottle,
    /// The trace has no name for it.
    Unnamed,
    /// Anything else.
    Other,
}

impl Function {
    /// By the kernel's name of the function.
    fn from_name(name: &str) -> Self {
        match name.split(['/', '+']).next().unwrap_or("") {
            "apic_timer_fn" => Self::ApicTimer,
            "sched_cfs_period_timer" => Self::BandwidthPeriod,
            "sched_cfs_slack_timer" => Self::BandwidthSlack,
            "__cfsb_csd_unthrottle" => Self::Unthrottle,
            "" => Self::Unnamed,
            address if address.starts_with("0x") => Self::Unnamed,
            _ => Self::Other,
        }
    }
}

/// `hrtimer_start`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Armed {
    /// The timer's address.
    pub(crate) hrtimer: u64,
    /// When it is to expire, by its own clock in ns.
    pub(crate) expires: u64,
}

/// A LAPIC timer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    pub(crate) vcpu: VcpuIndex,
    /// When it is to expire, by its own clock in ns.
    pub(crate) expires: u64,
}

/// hrtimers by address.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    owned: IntMap<u64, Owned>,
    functions: IntMap<u32, Function>,
}

impl Timers {
    /// What a function is for.
    pub(crate) fn function(&mut self, name: NameId, names: &dyn Names) -> Function {
        if let Some(&function) = self.functions.get(&name.0) {
            return function;
        }
        let function = Function::from_name(names.name(name));
        if self.functions.len() < MAX_FUNCTIONS {
            self.functions.insert(name.0, function);
        }
        function
    }

    /// The LAPIC timer at this address.
    pub(crate) fn get(&self, hrtimer: u64) -> Option<Owned> {
        self.owned.get(&hrtimer).copied()
    }

    /// It is armed again: its vCPU, if it has one.
    pub(crate) fn rearm(&mut self, armed: Armed) -> Option<VcpuIndex> {
        let owned = self.owned.get_mut(&armed.hrtimer)?;
        owned.expires = armed.expires;
        Some(owned.vcpu)
    }

    /// It is the LAPIC timer of this vCPU.
    pub(crate) fn set_owner(&mut self, armed: Armed, vcpu: VcpuIndex) {
        if self.owned.len() < MAX_TIMERS || self.owned.contains_key(&armed.hrtimer) {
            let expires = armed.expires;
            self.owned.insert(armed.hrtimer, Owned { vcpu, expires });
        }
    }

    /// The vCPU is gone, and its number goes to another.
    pub(crate) fn release(&mut self, vcpu: VcpuIndex) {
        self.owned.retain(|_, owned| owned.vcpu != vcpu);
    }
}
