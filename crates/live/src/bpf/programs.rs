//! The program of each tracepoint.
//!
//! A program leaves events out that no sample needs. These are wakeups and migrations of threads that run no
//! vCPU, and timers other than those of bandwidth limits. It writes what is left into the ring of its CPU.

use std::os::fd::{AsFd, OwnedFd};

use stealtime_events::HostVector;

use super::assembler::{
    Assembler, End, Helper, R0, R1, R2, R3, R6, R7, R8, R9, R10, Reg, Size, Wide,
};
use super::btf::Btf;
use super::record::{PREEMPTED, RecordKind, place};
use super::{BpfError, sys::Attach};

/// Most CPUs, a power of two (`NR_CPUS` is at most 8192).
pub(super) const CPUS: usize = 8192;
/// Thread ids are smaller (`PID_MAX_LIMIT`); a power of two.
pub(super) const TIDS: usize = 1 << 22;
/// The function that refills bandwidth, and the one that takes back what is not used of it.
pub(super) const PERIOD_TIMER: &str = "sched_cfs_period_timer";
pub(super) const SLACK_TIMER: &str = "sched_cfs_slack_timer";
/// `BPF_RB_NO_WAKEUP`: the reader comes by itself.
const NO_WAKEUP: i32 = 1;
/// Where a program keeps the number of its CPU, on the stack.
const CPU: i16 = -8;

/// What the programs share with this process.
pub(super) struct Maps {
    /// The rings by CPU.
    pub(super) rings: OwnedFd,
    /// Lost records by CPU, 64 bits each.
    pub(super) lost: OwnedFd,
    /// A byte for each thread id: 1 for a thread that runs a vCPU.
    pub(super) vcpus: OwnedFd,
}

/// Offsets in the kernel's structures, in bytes.
#[derive(Debug, Clone, Copy)]
struct Offsets {
    pid: i16,
    tgid: i16,
    comm: i16,
    state: i16,
    exit_state: i16,
    cpu: i16,
    function: i16,
}

impl Offsets {
    fn find(btf: &Btf) -> Result<Self, BpfError> {
        let task = |field: &str| btf.offset(&[&["task_struct", field]]);
        Ok(Self {
            pid: task("pid")?,
            tgid: task("tgid")?,
            comm: task("comm")?,
            // Linux 5.14 renamed it.
            state: btf.offset(&[&["task_struct", "__state"], &["task_struct", "state"]])?,
            exit_state: task("exit_state")?,
            // Linux 5.16 moved it.
            cpu: btf.offset(&[
                &["task_struct", "thread_info", "cpu"],
                &["task_struct", "cpu"],
            ])?,
            function: btf.offset(&[&["hrtimer", "function"]])?,
        })
    }
}

/// Offsets in the record of `kvm_exit`, in bytes. Reasons lie in structures of KVM's modules, which change
/// often; the record is part of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExitFields {
    pub(super) reason: i16,
    pub(super) isa: i16,
    /// Kernels before 5.10 lack it.
    pub(super) vcpu: Option<i16>,
}

/// A program and the tracepoint that runs it.
pub(super) struct Program {
    /// At most 15 characters are shown.
    pub(super) name: String,
    pub(super) attach: Attach,
    pub(super) code: Vec<u64>,
}

/// Makes programs for a kernel.
pub(super) struct Maker<'a> {
    pub(super) btf: &'a Btf,
    offsets: Offsets,
    maps: &'a Maps,
    /// Addresses of the timers of bandwidth limits.
    timers: Option<[u64; 2]>,
    exit: Option<ExitFields>,
}

impl<'a> Maker<'a> {
    /// Looks up what the programs need.
    ///
    /// # Errors
    /// The kernel's types lack a field.
    pub(super) fn new(
        btf: &'a Btf,
        maps: &'a Maps,
        timers: Option<[u64; 2]>,
        exit: Option<ExitFields>,
    ) -> Result<Self, BpfError> {
        let offsets = Offsets::find(btf)?;
        Ok(Self {
            btf,
            offsets,
            maps,
            timers,
            exit,
        })
    }

    /// The program of a tracepoint; `None`: this kernel does not have what it needs.
    ///
    /// # Errors
    /// The kernel's types lack the tracepoint.
    pub(super) fn program(&self, name: &str, id: Option<u64>) -> Result<Option<Program>, BpfError> {
        let program = |attach, code| {
            let name = name.to_owned();
            Some(Program { name, attach, code })
        };
        let code = match name {
            "kvm_exit" => {
                let found = self.exit.zip(id);
                return Ok(found.and_then(|(fields, id)| {
                    program(Attach::Record { id }, self.kvm_exit(fields))
                }));
            }
            "kvm_entry" => self.kvm(RecordKind::Entry, |_| {}),
            "kvm_vcpu_wakeup" => self.kvm(RecordKind::HaltEnd, halt_end),
            "kvm_halt_poll_ns" => self.kvm(RecordKind::PollWindow, poll_window),
            name => {
                if let Some(kind) = vector(name) {
                    let first = |code: &mut Assembler| argument_word(code, 0, place::FIRST);
                    return Ok(program(Attach::Raw, self.record(kind, |_| {}, first)));
                }
                let (type_id, arguments) = self.btf.tracepoint(name)?;
                let code = self.typed(name, arguments);
                return Ok(code.and_then(|code| program(Attach::Typed { type_id }, code)));
            }
        };
        Ok(program(Attach::Raw, code))
    }

    /// Programs that follow pointers of their arguments.
    fn typed(&self, name: &str, arguments: usize) -> Option<Vec<u64>> {
        Some(match name {
            "sched_switch" => self.switch(arguments),
            "sched_waking" => self.of_task(RecordKind::Waking, true),
            "sched_wakeup" => self.of_task(RecordKind::Wakeup, true),
            "sched_wakeup_new" => self.of_task(RecordKind::WakeupNew, false),
            "sched_migrate_task" => self.migrate(),
            "sched_process_fork" => self.fork(),
            "sched_process_exit" => self.exit(),
            "task_rename" => self.rename(),
            "hrtimer_expire_entry" => self.timer(self.timers?),
            _ => return None,
        })
    }

    /// A program: what it leaves out, and what it writes behind the head of a record. The arguments are at
    /// `R6` and the record at `R8`.
    fn record(
        &self,
        kind: RecordKind,
        filter: impl FnOnce(&mut Assembler),
        fill: impl FnOnce(&mut Assembler),
    ) -> Vec<u64> {
        let mut code = Assembler::default();
        code.copy(R6, R1);
        filter(&mut code);
        code.call(Helper::GetSmpProcessorId);
        code.store(Size::Word, R10, CPU, R0);
        code.set_wide(R1, Wide::Map(self.maps.rings.as_fd()));
        code.copy(R2, R10);
        code.add_number(R2, CPU.into());
        code.call(Helper::MapLookup);
        code.end_if_zero(R0, End::Lost);
        code.copy(R1, R0);
        code.set(R2, kind.size());
        code.set(R3, 0);
        code.call(Helper::RingbufReserve);
        code.end_if_zero(R0, End::Lost);
        code.copy(R8, R0);
        // After the reservation: what is earlier than a reader's clock is reserved when it looks.
        code.call(Helper::KtimeGetNs);
        code.store(Size::Double, R8, place::TIME, R0);
        code.call(Helper::GetCurrentPidTgid);
        code.store(Size::Word, R8, place::TID, R0);
        self.lost_counter(&mut code);
        code.load(Size::Double, R2, R1, 0);
        code.shift(R2, 8);
        code.or_number(R2, kind.number().into());
        code.store(Size::Word, R8, place::KIND, R2);
        fill(&mut code);
        code.copy(R1, R8);
        code.set(R2, NO_WAKEUP);
        code.call(Helper::RingbufSubmit);
        code.place(End::Return);
        code.exit();
        code.place(End::Lost);
        self.lost_counter(&mut code);
        code.set(R2, 1);
        code.add_atomically(R1, R2);
        code.exit();
        code.finish()
    }

    /// `R1` = address of the CPU's count of lost records; changes `R2`.
    fn lost_counter(&self, code: &mut Assembler) {
        code.set_wide(R1, Wide::Value(self.maps.lost.as_fd()));
        code.load(Size::Word, R2, R10, CPU);
        code.and_number(R2, CPUS as i32 - 1);
        code.shift(R2, 3);
        code.add(R1, R2);
    }

    /// `R1` = address of the byte of the thread id in `tid`, which stays; changes `R2`.
    fn vcpu_byte(&self, code: &mut Assembler, tid: Reg) {
        code.copy(R2, tid);
        code.and_number(R2, TIDS as i32 - 1);
        code.set_wide(R1, Wide::Value(self.maps.vcpus.as_fd()));
        code.add(R1, R2);
    }

    /// Marks the current thread as a vCPU's.
    fn mark(&self, code: &mut Assembler) {
        code.call(Helper::GetCurrentPidTgid);
        self.vcpu_byte(code, R0);
        code.load(Size::Byte, R2, R1, 0);
        // Neighbours of the byte belong to vCPUs of other CPUs: each store would take their cache line.
        code.skip_unless(R2, 0, 1);
        code.store_number(Size::Byte, R1, 0, 1);
    }

    /// A program of KVM that a vCPU's own thread runs.
    fn kvm(&self, kind: RecordKind, fill: impl FnOnce(&mut Assembler)) -> Vec<u64> {
        self.record(kind, |code| self.mark(code), fill)
    }

    fn kvm_exit(&self, fields: ExitFields) -> Vec<u64> {
        self.kvm(RecordKind::KvmExit, |code| {
            code.load(Size::Word, R1, R6, fields.reason);
            code.store(Size::Word, R8, place::FIRST, R1);
            match fields.vcpu {
                Some(vcpu) => code.load(Size::Word, R1, R6, vcpu),
                None => code.set(R1, -1),
            }
            code.store(Size::Word, R8, place::SECOND, R1);
            code.load(Size::Word, R1, R6, fields.isa);
            code.store(Size::Word, R8, place::THIRD, R1);
        })
    }

    /// `R7` = id of the thread in argument `number`.
    fn load_tid(&self, code: &mut Assembler, number: i16) {
        code.load(Size::Double, R1, R6, 8 * number);
        code.load(Size::Word, R7, R1, self.offsets.pid);
    }

    /// Leaves out threads that run no vCPU.
    fn vcpus_only(&self, code: &mut Assembler) {
        self.vcpu_byte(code, R7);
        code.load(Size::Byte, R1, R1, 0);
        code.end_if_zero(R1, End::Return);
    }

    /// The task and its CPU.
    fn of_task(&self, kind: RecordKind, is_filtered: bool) -> Vec<u64> {
        let filter = |code: &mut Assembler| {
            self.load_tid(code, 0);
            if is_filtered {
                self.vcpus_only(code);
            }
        };
        self.record(kind, filter, |code| {
            code.store(Size::Word, R8, place::FIRST, R7);
            code.load(Size::Double, R1, R6, 0);
            code.load(Size::Word, R1, R1, self.offsets.cpu);
            code.store(Size::Word, R8, place::SECOND, R1);
        })
    }

    fn migrate(&self) -> Vec<u64> {
        let filter = |code: &mut Assembler| {
            self.load_tid(code, 0);
            self.vcpus_only(code);
        };
        self.record(RecordKind::Migrate, filter, |code| {
            code.store(Size::Word, R8, place::FIRST, R7);
            argument_word(code, 1, place::SECOND);
            code.load(Size::Double, R1, R6, 0);
            code.load(Size::Word, R1, R1, self.offsets.cpu);
            code.store(Size::Word, R8, place::THIRD, R1);
        })
    }

    /// Linux 5.18 added the state of the former task to its arguments.
    fn switch(&self, arguments: usize) -> Vec<u64> {
        let filter = |_: &mut Assembler| {};
        self.record(RecordKind::Switch, filter, |code| {
            code.load(Size::Double, R3, R6, 8);
            match arguments {
                4.. => code.load(Size::Double, R2, R6, 24),
                _ => code.load(Size::Word, R2, R3, self.offsets.state),
            }
            code.load(Size::Word, R3, R3, self.offsets.exit_state);
            code.or(R2, R3);
            code.load(Size::Double, R1, R6, 0);
            code.skip_if(R1, 0, 1);
            code.set(R2, PREEMPTED.cast_signed());
            code.store(Size::Word, R8, place::FIRST, R2);
            code.load(Size::Double, R1, R6, 16);
            code.load(Size::Word, R1, R1, self.offsets.pid);
            code.store(Size::Word, R8, place::SECOND, R1);
        })
    }

    fn fork(&self) -> Vec<u64> {
        let filter = |_: &mut Assembler| {};
        self.record(RecordKind::Fork, filter, |code| {
            code.load(Size::Double, R3, R6, 8);
            self.identity(code, R3);
            for half in [0, 8] {
                code.load(Size::Double, R1, R3, self.offsets.comm + half);
                code.store(Size::Double, R8, place::NAME + half, R1);
            }
        })
    }

    fn rename(&self) -> Vec<u64> {
        let filter = |_: &mut Assembler| {};
        self.record(RecordKind::Rename, filter, |code| {
            code.load(Size::Double, R3, R6, 0);
            self.identity(code, R3);
            for half in [0, 8] {
                code.store_number(Size::Double, R8, place::NAME + half, 0);
            }
            // The new name may be shorter than a task's field.
            code.copy(R1, R8);
            code.add_number(R1, place::NAME.into());
            code.set(R2, 16);
            code.load(Size::Double, R3, R6, 8);
            code.call(Helper::ProbeReadKernelStr);
        })
    }

    /// Thread and process of the task at `task`.
    fn identity(&self, code: &mut Assembler, task: Reg) {
        for (offset, position) in [
            (self.offsets.pid, place::FIRST),
            (self.offsets.tgid, place::SECOND),
        ] {
            code.load(Size::Word, R1, task, offset);
            code.store(Size::Word, R8, position, R1);
        }
    }

    /// The id can go to a thread that runs no vCPU.
    fn exit(&self) -> Vec<u64> {
        let filter = |code: &mut Assembler| {
            self.load_tid(code, 0);
            self.vcpu_byte(code, R7);
            code.load(Size::Byte, R2, R1, 0);
            code.skip_if(R2, 0, 1);
            code.store_number(Size::Byte, R1, 0, 0);
        };
        self.record(RecordKind::Exit, filter, |code| {
            code.store(Size::Word, R8, place::FIRST, R7);
            code.store_number(Size::Word, R8, place::SECOND, 0);
        })
    }

    /// Timers of bandwidth limits alone.
    fn timer(&self, [period, slack]: [u64; 2]) -> Vec<u64> {
        let filter = |code: &mut Assembler| {
            code.load(Size::Double, R1, R6, 0);
            code.load(Size::Double, R9, R1, self.offsets.function);
            code.set_wide(R2, Wide::Number(period));
            code.skip_if_equal(R9, R2, 3);
            code.set_wide(R2, Wide::Number(slack));
            code.end_unless_equal(R9, R2, End::Return);
        };
        self.record(RecordKind::Period, filter, |code| {
            code.store_number(Size::Double, R8, place::FIRST, 0);
        })
    }
}

/// Copies the low word of an argument.
fn argument_word(code: &mut Assembler, number: i16, position: i16) {
    code.load(Size::Double, R1, R6, 8 * number);
    code.store(Size::Word, R8, position, R1);
}

/// Arguments: ns, whether the thread slept, and whether the wakeup was worth a poll.
fn halt_end(code: &mut Assembler) {
    code.load(Size::Double, R1, R6, 0);
    code.store(Size::Double, R8, place::FIRST, R1);
    code.store_number(Size::Double, R8, place::THIRD, 0);
    argument_word(code, 1, place::THIRD);
}

/// Arguments: whether it grows, the vCPU, the new window, the old one.
fn poll_window(code: &mut Assembler) {
    argument_word(code, 2, place::FIRST);
    argument_word(code, 3, place::SECOND);
    argument_word(code, 1, place::THIRD);
}

/// The record of a tracepoint of `irq_vectors`.
fn vector(name: &str) -> Option<RecordKind> {
    HostVector::ALL.into_iter().find_map(|class| {
        let (_, entry, exit) = class.names();
        match name {
            name if name == entry => Some(RecordKind::VectorEntry(class)),
            name if name == exit => Some(RecordKind::VectorExit(class)),
            _ => None,
        }
    })
}
