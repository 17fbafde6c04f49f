//! The tracker's observer: each span to the account that it belongs to.

use stealtime_events::{Event, Kind, Names, Tid};
use stealtime_track::{
    CpuSpan, Exit, Function, FunctionSeen, Halt, Loss, Observer, Place, Retracted, Run, Span,
    SwitchedOut, ThreadIndex, VcpuIndex, Wakeup,
};

use crate::account::{Account, Bandwidth};
use crate::sample::Cpu;

/// Sums of the interval.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Begin of the interval, in ns of the trace's clock.
    pub(crate) since: u64,
    /// By the vCPU's number in the tracker.
    pub(crate) accounts: Vec<Account>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) events: u64,
    pub(crate) lost: u64,
    pub(crate) lost_gaps: u64,
    /// The clock has jumped in the interval.
    pub(crate) has_jump: bool,
    /// vCPUs that have ended: their numbers go to others.
    pub(crate) ended: Vec<VcpuIndex>,
}

impl Meter {
    fn account(&mut self, vcpu: VcpuIndex) -> &mut Account {
        &mut self.accounts[vcpu.index()]
    }

    fn cpu(&mut self, number: u16) -> &mut Cpu {
        let index = usize::from(number);
        while self.cpus.len() <= index {
            let cpu = u16::try_from(self.cpus.len()).unwrap_or(u16::MAX);
            self.cpus.push(Cpu {
                cpu,
                ..Cpu::default()
            });
        }
        &mut self.cpus[index]
    }

    /// The interval ends at `now`, in ns.
    pub(crate) fn settle(&mut self, now: u64) {
        let bandwidth = self.bandwidth;
        let accounts = self.accounts.iter_mut();
        accounts.for_each(|account| account.settle(now, bandwidth));
    }

    /// The next interval begins at `now`, in ns.
    pub(crate) fn clear(&mut self, now: u64) {
        self.since = now;
        self.accounts.iter_mut().for_each(Account::clear);
        for cpu in &mut self.cpus {
            *cpu = Cpu {
                cpu: cpu.cpu,
                ..Cpu::default()
            };
        }
        (self.events, self.lost, self.lost_gaps) = (0, 0, 0);
        self.has_jump = false;
    }
}

impl Observer for Meter {
    const RECYCLES: bool = true;
    // Live threads of a host with 500 VMs are a tenth of this; the rest is room for those that have ended.
    const MAX_THREADS: usize = 1 << 17;

    fn vcpu_found(&mut self, vcpu: VcpuIndex, _: Tid) {
        match self.accounts.get_mut(vcpu.index()) {
            Some(account) => *account = Account::default(),
            None => self.accounts.push(Account::default()),
        }
    }

    fn span(&mut self, vcpu: VcpuIndex, span: &Span) {
        self.account(vcpu).add(span);
        if matches!(span.run, Run::Preempted | Run::Waking) {
            self.cpu(span.cpu).waiting_ns += span.end - span.start;
        }
    }

    fn retract(&mut self, vcpu: VcpuIndex, wait: &Retracted) {
        let begin = self.since;
        self.account(vcpu).retract(wait, begin);
        let ns = wait.end.saturating_sub(wait.start.max(begin));
        let cpu = self.cpu(wait.cpu);
        cpu.waiting_ns = cpu.waiting_ns.saturating_sub(ns);
    }

    fn cpu_span(&mut self, span: &CpuSpan) {
        let ns = span.end.saturating_sub(span.start);
        let cpu = self.cpu(span.cpu);
        if span.thread == ThreadIndex::IDLE {
            cpu.idle_ns += ns;
        } else if span.vcpu.is_some() {
            cpu.vcpu_ns += ns;
        } else {
            cpu.other_ns += ns;
        }
    }

    fn wait_begins(&mut self, vcpu: VcpuIndex) {
        let bandwidth = self.bandwidth;
        self.account(vcpu).begin_wait(bandwidth);
    }

    fn wait_ends(&mut self, vcpu: VcpuIndex, run: Run) {
        let bandwidth = self.bandwidth;
        self.account(vcpu).end_wait(run, bandwidth);
    }

    fn woken(&mut self, vcpu: VcpuIndex, wakeup: &Wakeup) {
        let waited = wakeup.running.saturating_sub(wakeup.woken);
        self.account(vcpu).woken(waited);
    }

    fn switched_out(&mut self, vcpu: VcpuIndex, switch: &SwitchedOut) {
        self.account(vcpu).switched_out(switch);
    }

    fn sight_lost(&mut self, vcpu: VcpuIndex) {
        self.account(vcpu).forget();
    }

    fn found_running(&mut self, vcpu: VcpuIndex) {
        self.account(vcpu).forget();
    }

    fn ended(&mut self, vcpu: VcpuIndex) {
        self.ended.push(vcpu);
    }

    fn exit(&mut self, vcpu: VcpuIndex, _: &Place, exit: &Exit) {
        self.account(vcpu).exit(exit.reason);
    }

    fn entry(&mut self, vcpu: VcpuIndex, _: &Place, _: u64) {
        self.account(vcpu).entry();
    }

    fn halt(&mut self, vcpu: VcpuIndex, place: &Place, halt: &Halt) {
        let begin = self.since;
        self.account(vcpu).halt(place, halt, begin);
    }

    fn function(&mut self, function: Function, action: FunctionSeen, place: &Place) {
        if action == FunctionSeen::Expired
            && matches!(
                function,
                Function::BandwidthPeriod | Function::BandwidthSlack
            )
        {
            self.bandwidth.expiries += 1;
            self.bandwidth.latest = place.time;
        }
    }

    fn lost(&mut self, loss: &Loss) {
        self.lost = self.lost.saturating_add(loss.count);
        self.lost_gaps += u64::from(loss.count == 0);
    }

    fn event(&mut self, event: &Event, place: &Place, _: &dyn Names) {
        self.events += 1;
        if let (Kind::KvmHaltPollNs { new, old, .. }, Some(vcpu)) = (event.kind, place.own) {
            self.account(vcpu).poll_window(new, old);
        }
    }
}
