//! What other CPUs saw of vCPUs while a CPU's events were lost: that is only known to be so when the
//! CPU is heard of again.

use crate::Analysis;
use crate::latency::Waker;
use crate::ready::{self, Cause};
use crate::threads::IDLE;
use crate::vcpu::{Run, Vcpu};

/// A wait in a CPU's run queue that ended elsewhere: on another CPU, or in the run queue of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    queue: u16,
    from: u64,
    until: u64,
    run: Run,
    /// The latency of the wakeup that this wait was part of, in ns: it counts once the wait is no
    /// longer doubted.
    latency: Option<(Waker, u64)>,
    /// Whether it stood in the queue's list of waiters, which tells who had the CPU.
    is_queued: bool,
    /// What the CPU's being idle meant, once the whole wait had ended.
    idle: Option<Cause>,
}

impl Vcpu {
    /// It no longer waits in the run queue of its CPU, and that CPU was not there to see it. To be
    /// called before it is taken out of that queue.
    pub(crate) fn leaves_for(&mut self, other: u16, now: u64) {
        if other == self.cpu || !self.is_waiting() {
            return;
        }
        self.trust_left();
        self.left = Some(Left {
            queue: self.cpu,
            from: self.queue_start,
            until: now,
            run: self.run,
            is_queued: self.is_queued,
            latency: None,
            idle: None,
        });
    }

    /// Counts a wakeup at `woken` that got a CPU at `now`.
    pub(crate) fn count_wakeup(&mut self, waker: Waker, woken: u64, now: u64) {
        let waited = now.saturating_sub(woken);
        match &mut self.left {
            Some(left) if left.until > woken => left.latency = Some((waker, waited)),
            _ => self.latencies.wakeup[waker as usize].record(waited),
        }
    }

    /// The latest wait that ended elsewhere is not doubted any more.
    pub(crate) fn trust_left(&mut self) {
        if let Some((waker, waited)) = self.left.take().and_then(|left| left.latency) {
            self.latencies.wakeup[waker as usize].record(waited);
        }
    }

    /// The wait that it is in has ended, and idle time in it meant this.
    pub(crate) fn idle_meant(&mut self, cause: Cause) {
        if let Some(left) = &mut self.left {
            left.idle.get_or_insert(cause);
        }
    }

    /// Its wakeup was seen, by the CPU that sent it; whether the CPU that it was sent to has let it
    /// run since is not known.
    const fn was_sent_to(&self, cpu: u16) -> bool {
        let awaits = matches!(self.run, Run::Sleeping | Run::Unknown);
        awaits && self.woken_on == cpu
    }

    /// What was counted as waiting, for `cause`, was not seen: it is unknown.
    fn did_not_see(&mut self, left: Left, cause: Cause, (ns, whole): (u64, u64)) {
        let bucket = match left.run {
            Run::Waking => &mut self.time.wake_wait,
            _ => &mut self.time.preempted,
        };
        let ns = ns.min(*bucket);
        *bucket -= ns;
        self.time.unknown += ns;
        let cause = match (left.is_queued, left.idle) {
            (false, _) => Cause::UNKNOWN,
            (true, None) if cause == Cause::of(IDLE) => {
                // The same wait goes on: what idle time in it means is still open.
                self.wait_idle = self.wait_idle.saturating_sub(ns);
                self.wait_beside_idle = self.wait_beside_idle.saturating_sub(whole);
                return;
            }
            (true, Some(meant)) if cause == Cause::of(IDLE) => meant,
            (true, _) => cause,
        };
        ready::take_back(&mut self.ready, cause, ns);
    }
}

impl Analysis {
    /// Events of this CPU were lost, from `last` to now, and `cause` had it then: what was concluded
    /// from its silence meanwhile does not hold.
    pub(crate) fn doubt_silence(&mut self, number: u16, last: u64, cause: Cause) {
        let window = &self.window;
        for vcpu in &mut self.vcpus {
            if let Some(woken) = vcpu.woken_at
                && vcpu.was_sent_to(number)
            {
                vcpu.settle(window, woken, Cause::UNKNOWN);
                vcpu.close_sleep();
                vcpu.forget();
            }
            if let Some(left) = vcpu.left
                && left.queue == number
                && left.until > last
            {
                let from = left.from.max(last);
                let ns = window.clip(from, left.until, number);
                vcpu.did_not_see(left, cause, (ns, left.until.saturating_sub(from)));
                vcpu.left = None;
            }
        }
    }
}
