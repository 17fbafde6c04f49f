//! The observer that adds up: each span and each event to the accounts that it belongs to.

use std::collections::BTreeMap;

use stealtime_events::exit_reason::Class;
use stealtime_events::{Event, Kind, Names, Tid};
use stealtime_track::{
    Accept, CpuSpan, Exit, Function, FunctionSeen, Halt, Loss, Observer, Place, ReasonIndex,
    Retracted, Run, Span, Switch, SwitchedOut, ThreadIndex, VcpuIndex, Wakeup,
};

use crate::account::{Account, Begun, Queued};
use crate::clocks::ClockEvents;
use crate::count::Counts;
use crate::cpus::Cpus;
use crate::keys::{Access, Keys, MMIO_READ, MMIO_WRITE};
use crate::latency::Backend;
use crate::options::{Options, Window};

/// `MSR_IA32_TSC_DEADLINE`, and the x2APIC's initial count: writes that arm the LAPIC timer.
const TIMER_MSRS: [u32; 2] = [0x6e0, 0x838];

/// Signs that a bandwidth limit held back some thread of the host, without saying which.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Throttling {
    /// Starts of slack timers.
    pub(crate) slack_starts: u64,
    /// Cross-CPU calls that let throttled threads run again.
    pub(crate) unthrottled: u64,
}

/// The longest time without an event that is too long to be true.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    pub(crate) start: u64,
    pub(crate) ns: u64,
}

/// What is added up of a trace.
#[derive(Debug)]
pub(crate) struct Sums {
    pub(crate) options: Options,
    pub(crate) window: Window,
    /// Events in the selection.
    pub(crate) events: u64,
    pub(crate) silence: Option<Silence>,
    pub(crate) lost: u64,
    /// Losses of which it is not known how many events they were.
    pub(crate) lost_gaps: u64,
    pub(crate) counts: Counts,
    /// Idle time of all CPUs.
    pub(crate) idle: u64,
    pub(crate) cpus: Cpus,
    /// By the vCPU's number in the tracker.
    pub(crate) accounts: Vec<Account>,
    pub(crate) keys: Keys,
    /// Expiries of the timers of bandwidth limits.
    bandwidth_expiries: u64,
    pub(crate) throttling: Throttling,
    /// States of guest clocks that KVM reports, by the current thread. Its VM is known at the end.
    pub(crate) clocks: BTreeMap<ThreadIndex, ClockEvents>,
}

impl Sums {
    /// Nothing was added yet.
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            window: Window::default(),
            events: 0,
            silence: None,
            lost: 0,
            lost_gaps: 0,
            counts: Counts::default(),
            idle: 0,
            cpus: Cpus::default(),
            accounts: Vec::new(),
            keys: Keys::default(),
            bandwidth_expiries: 0,
            throttling: Throttling::default(),
            clocks: BTreeMap::new(),
        }
    }

    fn counts(&self, place: &Place) -> bool {
        self.window.has(place.time, place.cpu)
    }

    #[inline]
    fn account(&mut self, vcpu: VcpuIndex) -> &mut Account {
        &mut self.accounts[vcpu.index()]
    }

    /// Adds the latest waiting of a vCPU over time; `next` is under way from now on.
    fn add_queued(&mut self, vcpu: VcpuIndex, next: Queued) {
        let account = &mut self.accounts[vcpu.index()];
        let Queued { cpu, start, end } = std::mem::replace(&mut account.queued, next);
        if let Some((start, end)) = self.window.part(start, end, cpu) {
            account.steal_over_time.add(start, end);
            self.cpus.account(cpu).waiting_over_time.add(start, end);
        }
    }

    /// The trace is over, and all spans were reported.
    pub(crate) fn close(&mut self) {
        for vcpu in (0..).map(VcpuIndex).take(self.accounts.len()) {
            self.add_queued(vcpu, Queued::default());
        }
        self.cpus.close();
        for account in &mut self.accounts {
            account.close_sleep();
            account.trust_doubted(self.options.longest);
            account.steal_over_time.close();
            if account.has_exits {
                // On a CPU, but neither entry nor exit came any more.
                account.time.unknown += std::mem::take(&mut account.time.mode_unknown);
            }
        }
    }

    /// An event that KVM traces in the vCPU's own context.
    fn on_own(&mut self, vcpu: VcpuIndex, event: &Event, place: &Place, counts: bool) {
        let account = &mut self.accounts[vcpu.index()];
        let latencies = &mut account.latencies;
        let wants_latencies = !self.options.skip.latencies;
        match event.kind {
            Kind::KvmHaltPollNs { new, old, .. } => account.on_poll_window(new, old, counts),
            Kind::KvmPleWindowUpdate { new, old, .. } if counts => {
                account.tally.count_ple_window(new, old);
            }
            Kind::KvmMsr { .. } | Kind::KvmPio { .. } | Kind::KvmMmio { .. } => {
                self.on_key(vcpu, event, counts);
            }
            Kind::KvmInjVirq {
                vector,
                soft: false,
                ..
            } if wants_latencies => {
                if let Ok(vector) = u8::try_from(vector) {
                    latencies.inject(vector, place.time, counts);
                }
            }
            // KVM writes vector -1 if nothing was in service.
            Kind::KvmEoi { vector, .. } | Kind::KvmPvEoi { vector, .. } if wants_latencies => {
                if let Ok(vector) = u8::try_from(vector) {
                    latencies.eoi(vector, place.time, counts);
                }
            }
            Kind::KvmWriteTscOffset { next, .. } => {
                account.tally.tsc_writes += 1;
                account.tsc_offset = Some(next);
                account.guest_clock.tsc_moved();
            }
            _ => {}
        }
    }

    fn on_key(&mut self, vcpu: VcpuIndex, event: &Event, counts: bool) {
        let account = &mut self.accounts[vcpu.index()];
        if let Kind::KvmMsr {
            write: true, ecx, ..
        } = event.kind
            && counts
            && TIMER_MSRS.contains(&ecx)
        {
            account.tally.timer_msr_writes += 1;
        }
        account.clock_reads.count(event.kind, counts);
        account.guest_clock.access(event.kind, counts);
        if self.options.skip.keys || !account.perf_counts {
            return;
        }
        let (vcpu, time, keys) = (vcpu.0, event.time_ns, &mut self.keys);
        match event.kind {
            Kind::KvmMsr { write, ecx, .. } => {
                keys.msr.begin(
                    vcpu,
                    time,
                    Some(Access::new(u8::from(write), u64::from(ecx))),
                );
            }
            Kind::KvmPio { write, port, .. } => {
                keys.ioport.begin(
                    vcpu,
                    time,
                    Some(Access::new(u8::from(write), u64::from(port))),
                );
            }
            Kind::KvmMmio {
                mmio_type: MMIO_WRITE,
                gpa,
                ..
            } => keys
                .mmio
                .begin(vcpu, time, Some(Access::new(MMIO_WRITE, gpa))),
            Kind::KvmMmio {
                mmio_type: MMIO_READ,
                gpa,
                ..
            } => keys
                .mmio
                .end(vcpu, time, Some(Access::new(MMIO_READ, gpa)), counts),
            _ => {}
        }
    }
}

impl Observer for Sums {
    fn begins(&mut self, time: u64, cpu: u16) {
        self.window = Window::new(&self.options.selection, time);
        if !self.window.has(time, cpu) {
            // What was lost before the first event belongs to its moment.
            (self.lost, self.lost_gaps) = (0, 0);
        }
    }

    fn silence(&mut self, start: u64, end: u64, cpu: u16) {
        let ns = end - start;
        let counts = self.window.clip(start, end, cpu) > stealtime_track::LONGEST_SILENCE_NS;
        if counts && self.silence.is_none_or(|longest| longest.ns < ns) {
            self.silence = Some(Silence { start, ns });
        }
    }

    fn lost(&mut self, loss: &Loss) {
        if loss.is_first || self.window.has(loss.time, loss.cpu) {
            self.lost = self.lost.saturating_add(loss.count);
            self.lost_gaps += u64::from(loss.count == 0);
        }
    }

    fn vcpu_found(&mut self, vcpu: VcpuIndex, _: Tid) {
        debug_assert_eq!(vcpu.index(), self.accounts.len(), "numbers are dense");
        self.accounts.push(Account::default());
    }

    fn first_switch(&mut self) {
        for account in &mut self.accounts {
            account.undo_assumed_halts();
        }
    }

    #[inline]
    fn span(&mut self, vcpu: VcpuIndex, span: &Span) {
        self.accounts[vcpu.index()].add(&self.window, span);
        if matches!(span.run, Run::Preempted | Run::Waking) {
            let queued = &mut self.accounts[vcpu.index()].queued;
            if queued.end == span.start && queued.cpu == span.cpu {
                queued.end = span.end;
            } else {
                self.add_queued(
                    vcpu,
                    Queued {
                        cpu: span.cpu,
                        start: span.start,
                        end: span.end,
                    },
                );
            }
        }
    }

    fn retract(&mut self, vcpu: VcpuIndex, wait: &Retracted) {
        self.add_queued(vcpu, Queued::default());
        self.accounts[vcpu.index()].retract(&self.window, wait);
        if let Some((start, end)) = self.window.part(wait.start, wait.end, wait.cpu) {
            let cpu = self.cpus.account(wait.cpu);
            cpu.waiting_over_time.take_back(start, end);
        }
    }

    #[inline]
    fn cpu_span(&mut self, span: &CpuSpan) {
        if span.thread == ThreadIndex::IDLE {
            let ns = self.window.clip(span.start, span.end, span.cpu);
            self.idle = self.idle.saturating_add(ns);
        }
        self.cpus.add(&self.window, span);
    }

    #[inline]
    fn switch(&mut self, switch: &Switch) {
        let counts = self.window.has(switch.time, switch.cpu);
        self.cpus.account(switch.cpu).switches += u64::from(counts);
    }

    fn wait_begins(&mut self, vcpu: VcpuIndex) {
        let expiries = self.bandwidth_expiries;
        let account = self.account(vcpu);
        account.wait_bandwidth = expiries;
        account.wait_idle_whole = 0;
    }

    fn wait_ends(&mut self, vcpu: VcpuIndex, run: Run) {
        let expiries = self.bandwidth_expiries;
        let longest = self.options.longest;
        self.account(vcpu).end_wait(run, expiries, longest);
    }

    fn queue_left(&mut self, vcpu: VcpuIndex) {
        let longest = self.options.longest;
        let account = self.account(vcpu);
        account.trust_doubted(longest);
        account.doubted = Some(crate::doubt::Doubted::default());
        account.waits.doubt();
    }

    fn woken(&mut self, vcpu: VcpuIndex, wakeup: &Wakeup) {
        if !self.window.has(wakeup.running, wakeup.cpu) {
            return;
        }
        let waited = wakeup.running.saturating_sub(wakeup.woken);
        let account = self.account(vcpu);
        match account.doubted.as_mut().filter(|_| wakeup.is_doubted) {
            Some(doubted) => doubted.latency = Some((wakeup.waker, waited)),
            None => account.latencies.wakeup[wakeup.waker as usize].record(waited),
        }
    }

    fn switched_out(&mut self, vcpu: VcpuIndex, switch: &SwitchedOut) {
        let account = self.account(vcpu);
        account.stretches.push(switch.start, switch.end, switch.cpu);
        if switch.run == Run::Preempted {
            account.spinning.preempted_by(switch.next);
        } else {
            account.close_sleep();
            account.sleep_in_halt = switch.in_halt;
        }
    }

    fn switched_in(&mut self, vcpu: VcpuIndex, time: u64, cpu: u16) {
        let counts = self.window.has(time, cpu);
        self.account(vcpu).tally.switches_in += u64::from(counts);
    }

    fn sight_lost(&mut self, vcpu: VcpuIndex) {
        let account = self.account(vcpu);
        account.close_sleep();
        account.forget();
    }

    fn found_running(&mut self, vcpu: VcpuIndex) {
        self.account(vcpu).forget();
    }

    fn wakeup_lost(&mut self, vcpu: VcpuIndex) {
        self.account(vcpu).close_sleep();
    }

    fn exit(&mut self, vcpu: VcpuIndex, place: &Place, exit: &Exit) {
        let counts = self.counts(place);
        let account = &mut self.accounts[vcpu.index()];
        // It can only have come out of the guest.
        account.time.guest += std::mem::take(&mut account.time.mode_unknown);
        if exit.class == Class::Pause {
            account.time.spin += account.spinning.pause_exit(counts);
            account.tally.pause_exits += u64::from(counts);
        } else {
            account.spinning.end();
        }
        account.has_exits = true;
        account.stretches.clear();
        account.slot(exit.reason).count += u64::from(counts);
        let time = exit.event_time;
        if account.perf_counts {
            let reason = exit.reason;
            account.begun = Some(Begun { time, reason });
            if !self.options.skip.keys {
                self.keys.mmio.begin(vcpu.0, time, None);
            }
        }
        // Also where this exit is not counted: a handler from here on is not that of the one before.
        account.hits.close();
        if exit.class == Class::HostInterrupt && counts {
            account.hits.exit(exit.vector);
        }
        if exit.class == Class::PreemptionTimer {
            account
                .latencies
                .timer_fires(place.time, Backend::PreemptionTimer);
        }
    }

    fn entry(&mut self, vcpu: VcpuIndex, place: &Place, event_time: u64) {
        let counts = self.counts(place);
        let account = &mut self.accounts[vcpu.index()];
        let unknown = std::mem::take(&mut account.time.mode_unknown);
        account.slot(ReasonIndex::NO_EXIT).ns += unknown;
        account.has_exits = true;
        account.perf_counts = true;
        account.close_sleep();
        account.stretches.clear();
        account.spinning.entry();
        account.hits.close();
        if let Some(begun) = account.begun.take()
            && let Some(ns) = event_time.checked_sub(begun.time)
            && counts
        {
            account.slot(begun.reason).durations.record(ns);
        }
        if !self.options.skip.keys {
            self.keys.msr.end(vcpu.0, event_time, None, counts);
            self.keys.ioport.end(vcpu.0, event_time, None, counts);
            self.keys.mmio.end(vcpu.0, event_time, None, counts);
        }
    }

    fn halt(&mut self, vcpu: VcpuIndex, place: &Place, halt: &Halt) {
        self.accounts[vcpu.index()].on_halt(&self.window, place, halt);
    }

    fn timer_armed(&mut self, vcpu: VcpuIndex) {
        self.account(vcpu).latencies.timer_armed();
    }

    fn timer_expires(&mut self, vcpu: VcpuIndex, place: &Place, now: u64, expires: u64) {
        let counts = self.counts(place);
        let latencies = &mut self.account(vcpu).latencies;
        latencies.timer_fires(place.time, Backend::Hrtimer);
        if counts && now >= expires {
            latencies.timer_expire.record(now - expires);
        }
    }

    fn function(&mut self, function: Function, action: FunctionSeen, place: &Place) {
        let counts = u64::from(self.counts(place));
        match (action, function) {
            (FunctionSeen::Started, Function::BandwidthSlack) => {
                self.throttling.slack_starts += counts;
            }
            (FunctionSeen::Called, Function::Unthrottle) => self.throttling.unthrottled += counts,
            (FunctionSeen::Expired, Function::BandwidthPeriod | Function::BandwidthSlack) => {
                self.bandwidth_expiries += 1;
            }
            _ => {}
        }
    }

    fn wants_accepted(&self) -> bool {
        !self.options.skip.latencies
    }

    fn accepted(&mut self, vcpu: VcpuIndex, place: &Place, accept: &Accept) {
        let counts = self.counts(place);
        let latencies = &mut self.account(vcpu).latencies;
        if accept.by_timer {
            latencies.timer_posts(place.time, accept.by_hardware, counts);
        }
        latencies.accept(accept.vector, place.time, accept.sent, counts);
    }

    fn event(&mut self, event: &Event, place: &Place, _: &dyn Names) {
        let counts = self.counts(place);
        if counts {
            self.events += 1;
            self.counts.add(event.kind);
        }
        match event.kind {
            Kind::KvmUpdateMasterClock { .. } | Kind::KvmTrackTsc { .. } => {
                let clocks = self.clocks.entry(place.thread).or_default();
                clocks.add(event.kind, place.time);
            }
            Kind::VectorEntry { vector, .. } => {
                if let Some(vcpu) = place.current {
                    self.account(vcpu).hits.handler(vector);
                }
            }
            Kind::IrqHandlerEntry { .. } => {
                if let Some(vcpu) = place.current {
                    self.account(vcpu).hits.device();
                }
            }
            _ => {
                if let Some(vcpu) = place.own {
                    self.on_own(vcpu, event, place, counts);
                }
            }
        }
    }
}
