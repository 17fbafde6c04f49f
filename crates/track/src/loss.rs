//! States that a loss makes unknown. A loss shows only with the CPU's next event, so states that other
//! CPUs' events have shown of its vCPUs meanwhile are revised.

use crate::host::Host;
use crate::observer::{Observer, Retracted};
use crate::{Cause, VcpuIndex};

impl<O: Observer> Host<O> {
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

    /// The same of all CPUs: the clock has jumped.
    pub(crate) fn on_jump(&mut self) {
        for (number, _) in (0..=u16::MAX).zip(0..self.cpus.len()) {
            self.on_lost(number);
        }
    }

    /// Events of this CPU were lost, from `last` to now. `cause` was its occupant at `last`. Conclusions
    /// from its silence meanwhile are revoked.
    fn doubt_silence(&mut self, number: u16, last: u64, cause: Cause) {
        for (index, vcpu) in (0..).map(VcpuIndex).zip(&mut self.vcpus) {
            if let Some(woken) = vcpu.woken_at
                && vcpu.was_sent_to(number)
            {
                if let Some(span) = vcpu.close_span(woken, Cause::UNKNOWN) {
                    self.observer.span(index, &span);
                }
                vcpu.forget();
                self.observer.sight_lost(index);
            }
            if let Some(wait) = vcpu.left_queue
                && wait.cpu == number
                && wait.end > last
            {
                let wait = Retracted {
                    run: wait.run,
                    start: wait.start.max(last),
                    end: wait.end,
                    cpu: number,
                    cause: match wait.is_queued {
                        true => cause,
                        false => Cause::UNKNOWN,
                    },
                };
                self.observer.retract(index, &wait);
                vcpu.left_queue = None;
            }
        }
    }
}
