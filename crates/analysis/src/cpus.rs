//! What the host's CPUs run, and which threads use them.

use stealtime_track::{CpuSpan, ThreadIndex};

use crate::options::Window;
use crate::series::Series;

/// One CPU of the host; times in ns, clipped to the selection.
#[derive(Debug, Clone, Default)]
pub(crate) struct CpuAccount {
    pub(crate) idle: u64,
    /// Threads that are vCPUs.
    pub(crate) vcpu: u64,
    /// All other tasks.
    pub(crate) others: u64,
    pub(crate) switches: u64,
    /// Time of any task over time.
    pub(crate) busy_over_time: Series,
    /// Time of vCPU threads over time.
    pub(crate) vcpu_over_time: Series,
    /// Time that vCPUs wait for this CPU over time; several can wait at once.
    pub(crate) waiting_over_time: Series,
}

/// All CPUs, and the time of each thread that is no vCPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cpus {
    list: Vec<CpuAccount>,
    /// By number of the thread.
    threads: Vec<u64>,
}

impl Cpus {
    /// The account of a CPU.
    #[inline]
    pub(crate) fn account(&mut self, cpu: u16) -> &mut CpuAccount {
        let index = usize::from(cpu);
        if index >= self.list.len() {
            self.list.resize_with(index + 1, CpuAccount::default);
        }
        &mut self.list[index]
    }

    /// All accounts, by number of the CPU.
    pub(crate) fn list(&self) -> &[CpuAccount] {
        &self.list
    }

    /// How long a thread that is no vCPU ran, in ns.
    pub(crate) fn thread(&self, thread: ThreadIndex) -> u64 {
        self.threads.get(thread.0 as usize).copied().unwrap_or(0)
    }

    /// The trace is over.
    pub(crate) fn close(&mut self) {
        for account in &mut self.list {
            account.busy_over_time.close();
            account.vcpu_over_time.close();
            account.waiting_over_time.close();
        }
    }

    /// A CPU's current task changes.
    pub(crate) fn add(&mut self, window: &Window, span: &CpuSpan) {
        if let Some((start, end)) = window.part(span.start, span.end, span.cpu) {
            self.add_part(span, start, end);
        }
    }

    fn add_part(&mut self, span: &CpuSpan, start: u64, end: u64) {
        let ns = end - start;
        let account = self.account(span.cpu);
        if span.thread == ThreadIndex::IDLE {
            account.idle = account.idle.saturating_add(ns);
            return;
        }
        account.busy_over_time.add(start, end);
        if span.vcpu.is_some() {
            account.vcpu = account.vcpu.saturating_add(ns);
            account.vcpu_over_time.add(start, end);
            return;
        }
        account.others = account.others.saturating_add(ns);
        let index = span.thread.0 as usize;
        if index >= self.threads.len() {
            self.threads.resize(index + 1, 0);
        }
        self.threads[index] = self.threads[index].saturating_add(ns);
    }
}
