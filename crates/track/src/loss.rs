//! What losses make unknown. What other CPUs saw of vCPUs while a CPU's events were lost is only known
//! to be so when the CPU is heard of again.

use crate::observer::{Observer, Retracted};
use crate::tracker::Tracker;
use crate::{Cause, VcpuIndex};

impl<O: Observer> Tracker<O> {
    /// Events of this CPU were lost since its latest one.
    pub(crate) fn on_lost(&mut self, number: u16) {
        self.losses += 1;
        let cpu = &self.cpus[usize::from(number)];
        let (last, current, cause) = (cpu.last, cpu.vcpu(), cpu.cause());
        self.boundary(number, last, cause);
        self.doubt_silence(number, last, cause);
        let waiters = self.cpus[usize::from(number)].take_waiters();
        for waiter in waiters {
            self.vcpus[waiter.index()].is_queued = false;
            self.lose_sight(waiter, last);
        }
        if let Some(current) = current {
            self.lose_sight(current, last);
        }
        if let Some(span) = self.cpus[usize::from(number)].forget(number) {
            self.observer.cpu_span(&span);
        }
    }

    /// Events of this CPU were lost, from `last` to now, and `cause` had it then: what was concluded
    /// from its silence meanwhile does not hold.
    fn doubt_silence(&mut self, number: u16, last: u64, cause: Cause) {
        for (index, seen) in (0..).map(VcpuIndex).zip(&mut self.vcpus) {
            if let Some(woken) = seen.woken_at
                && seen.was_sent_to(number)
            {
                if let Some(span) = seen.close_span(woken, Cause::UNKNOWN) {
                    self.observer.span(index, &span);
                }
                seen.forget();
                self.observer.sight_lost(index);
            }
            if let Some(left) = seen.left_queue
                && left.cpu == number
                && left.end > last
            {
                let wait = Retracted {
                    run: left.run,
                    start: left.start.max(last),
                    end: left.end,
                    cpu: number,
                    cause: match left.is_queued {
                        true => cause,
                        false => Cause::UNKNOWN,
                    },
                };
                self.observer.retract(index, &wait);
                seen.left_queue = None;
            }
        }
    }
}
