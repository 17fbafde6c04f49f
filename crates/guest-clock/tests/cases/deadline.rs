//! A live guest's TSC-deadline timer, armed by the guest before it is saved, fires after the
//! restore: at its deadline, not before, and not never.

use std::sync::Arc;
use std::time::Duration;

use guest_clock::guest::Memory;
use guest_clock::kvm::host;
use guest_clock::{Errno, Explanation, GuestClocks, Policy, Reason, Saved, State};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_lapic_state, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use super::Outcome;

const CODE: usize = 0x1000;
const STACK: u64 = 0x8000;
/// Cycles from arming to the deadline; the deadline; the TSC when it fired.
const AHEAD: u64 = 0x2000;
const DEADLINE: u64 = 0x2008;
const FIRED: u64 = 0x2010;
/// Ports on which the program tells that it has armed, and that the timer has fired.
const ARMED_PORT: u16 = 0x11;
const FIRED_PORT: u16 = 0x10;
const VECTOR: u64 = 0x40;
/// The first of the LAPIC's registers of requested interrupts.
const IRR: usize = 0x200;
/// `APIC_SPIV` with the software-enable bit.
const SPIV: (usize, u32) = (0xf0, 0x1ff);
/// `APIC_LVTT` in TSC-deadline mode.
const LVTT: (usize, u32) = (0x320, 0x40000 | VECTOR as u32);

core::arch::global_asm!(
    r#"
    .pushsection .rodata.guest_clock_deadline, "a"
    .globl guest_clock_deadline_arm
    .globl guest_clock_deadline_sleep
    .globl guest_clock_deadline_fired
    .globl guest_clock_deadline_end
    .code16
guest_clock_deadline_arm:
    rdtsc
    addl 0x2000, %eax
    adcl 0x2004, %edx
    movl %eax, 0x2008
    movl %edx, 0x200c
    movl $0x6e0, %ecx
    wrmsr
    outb %al, $0x11
guest_clock_deadline_sleep:
    sti
10: hlt
    jmp 10b
guest_clock_deadline_fired:
    rdtsc
    movl %eax, 0x2010
    movl %edx, 0x2014
    outb %al, $0x10
11: hlt
    jmp 11b
guest_clock_deadline_end:
    .code64
    .popsection
    "#,
    options(att_syntax)
);

// SAFETY: labels of the assembly above, in a read-only section of this binary, in this order.
// Needed: Rust has no other way to take assembled code as data.
unsafe extern "C" {
    static guest_clock_deadline_arm: u8;
    static guest_clock_deadline_sleep: u8;
    static guest_clock_deadline_fired: u8;
    static guest_clock_deadline_end: u8;
}

/// The program, and where in it the guest sleeps and the handler begins.
fn program() -> (&'static [u8], usize, usize) {
    let begin = &raw const guest_clock_deadline_arm;
    let offset = |label: *const u8| label.addr() - begin.addr();
    let end = offset(&raw const guest_clock_deadline_end);
    let (sleep, fired) = (
        offset(&raw const guest_clock_deadline_sleep),
        offset(&raw const guest_clock_deadline_fired),
    );
    // SAFETY: from the first label to the last there are `end` bytes of initialised, read-only,
    // never freed data of this binary. Needed: labels have no length.
    (
        unsafe { std::slice::from_raw_parts(begin, end) },
        sleep,
        fired,
    )
}

/// A VM with a LAPIC, and one vCPU.
struct Sleeper {
    vm: VmFd,
    vcpus: Vec<VcpuFd>,
    memory: Arc<Memory>,
}

fn memory(ahead: u64) -> Arc<Memory> {
    let memory = Memory::new(0x10000).unwrap();
    let (code, _, fired) = program();
    assert!(memory.copy_in(CODE as u64, code));
    // The interrupt vector table: offset, segment 0.
    assert!(memory.copy_in(VECTOR * 4, &(CODE + fired).to_le_bytes()[..4]));
    assert!(memory.write(AHEAD, ahead));
    Arc::new(memory)
}

impl Sleeper {
    fn new(memory: Arc<Memory>, begin: usize) -> Result<Self, String> {
        let failed = |call: &'static str| move |e: kvm_ioctls::Error| format!("{call}: {e}");
        let kvm = Kvm::new().map_err(failed("/dev/kvm"))?;
        let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
        vm.create_irq_chip().map_err(failed("KVM_CREATE_IRQCHIP"))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: memory.len() as u64,
            userspace_addr: memory.address(),
        };
        // SAFETY: the region is `memory`'s own mapping, which lives as long as the VM (field
        // order). Needed: so says `kvm-ioctls`.
        unsafe { vm.set_user_memory_region(region) }.map_err(failed("memory"))?;
        let vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
        let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap();
        for entry in cpuid.as_mut_slice().iter_mut().filter(|e| e.function == 1) {
            entry.ecx |= 1 << 24; // TSC-deadline
        }
        vcpu.set_cpuid2(&cpuid).map_err(failed("KVM_SET_CPUID2"))?;
        let mut sregs = vcpu.get_sregs().unwrap();
        (sregs.cs.base, sregs.cs.selector) = (0, 0);
        vcpu.set_sregs(&sregs).unwrap();
        let mut regs = vcpu.get_regs().unwrap();
        (regs.rip, regs.rflags, regs.rsp) = ((CODE + begin) as u64, 2, STACK);
        vcpu.set_regs(&regs).unwrap();
        Ok(Self {
            vm,
            vcpus: vec![vcpu],
            memory,
        })
    }

    /// The LAPIC as a guest's kernel sets it: enabled, its timer in TSC-deadline mode.
    fn enable_lapic(&self) {
        let mut lapic: kvm_lapic_state = self.vcpus[0].get_lapic().unwrap();
        for (register, value) in [SPIV, LVTT] {
            for (to, from) in lapic.regs[register..].iter_mut().zip(value.to_le_bytes()) {
                *to = from.cast_signed();
            }
        }
        self.vcpus[0].set_lapic(&lapic).unwrap();
    }

    /// Runs until the program writes to a port.
    fn run(&mut self) -> Result<u16, String> {
        loop {
            match self.vcpus[0].run() {
                Ok(VcpuExit::IoOut(port, _)) => return Ok(port),
                Ok(VcpuExit::Intr) => {}
                Ok(other) => return Err(format!("the guest left its program: {other:?}")),
                Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
                Err(error) => return Err(format!("KVM_RUN: {}", Errno(error.errno()))),
            }
        }
    }
}

/// A guest that is stopped: memory, clocks, LAPIC.
struct Stopped {
    memory: Arc<Memory>,
    saved: Saved,
    lapic: kvm_lapic_state,
}

/// A guest that has armed its timer, and is saved when it has been stopped for a while.
fn armed(ahead_ms: u64, stopped_for_ms: u64) -> Result<Stopped, String> {
    let khz = host().map_err(|error| error.to_string())?.facts().tsc_khz;
    let memory = memory(ahead_ms * u64::from(khz));
    let mut source = Sleeper::new(Arc::clone(&memory), 0)?;
    source.enable_lapic();
    assert_eq!(source.run()?, ARMED_PORT);
    std::thread::sleep(Duration::from_millis(stopped_for_ms));
    let saved = GuestClocks::save(&source.vm, &source.vcpus).unwrap();
    let State::X86(x86) = saved.state() else {
        panic!()
    };
    // Clocks first, LAPIC second: a timer that has fired is in one of them.
    let lapic = source.vcpus[0].get_lapic().unwrap();
    let deadline = x86.vcpus[0].tsc_deadline;
    let requested = lapic.regs[IRR + (VECTOR / 32 * 16) as usize] & 1 != 0;
    let there = deadline == Some(memory.read(DEADLINE));
    assert!(there || (stopped_for_ms > ahead_ms && requested));
    Ok(Stopped {
        memory,
        saved,
        lapic,
    })
}

fn restored(stopped: &Stopped) -> Result<(Sleeper, Explanation), String> {
    let (_, sleep, _) = program();
    let target = Sleeper::new(Arc::clone(&stopped.memory), sleep)?;
    target.vcpus[0].set_lapic(&stopped.lapic).unwrap();
    let done = stopped
        .saved
        .restore(&target.vm, &target.vcpus, Policy::ELAPSED);
    Ok((target, done.unwrap()))
}

/// Runs the guest until its timer fires; by how many cycles after its deadline that was.
fn fires(target: &mut Sleeper) -> Result<u64, String> {
    let memory = Arc::clone(&target.memory);
    let fd = Watchdog::new();
    let port = target.run();
    drop(fd);
    assert_eq!(port?, FIRED_PORT);
    let (deadline, fired) = (memory.read(DEADLINE), memory.read(FIRED));
    assert!(fired >= deadline, "{fired} before {deadline}");
    Ok(fired - deadline)
}

/// A guest without its timer interrupt would sleep for ever: the process ends instead.
struct Watchdog(Arc<std::sync::atomic::AtomicBool>);

impl Watchdog {
    fn new() -> Self {
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let watched = Arc::clone(&done);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(30));
            if !watched.load(std::sync::atomic::Ordering::SeqCst) {
                println!("the guest's timer did not fire within 30 s");
                std::process::exit(1);
            }
        });
        Self(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Armed 150 ms ahead, saved, 20 ms pass, restored into a new VM: fires at its deadline there.
pub(super) fn fires_after_the_restore() -> Outcome {
    let stopped = armed(150, 0)?;
    std::thread::sleep(Duration::from_millis(20));
    let (mut target, done) = restored(&stopped)?;
    assert_eq!(
        done.vcpus[0].tsc_deadline,
        Some(stopped.memory.read(DEADLINE))
    );
    let not_armed = |r: &Reason| matches!(r, Reason::DeadlinesNotArmed { .. });
    assert!(!done.reasons.iter().any(not_armed), "{done}");
    let late = fires(&mut target)?;
    println!("  fired {late} cycles after its deadline");
    Ok(())
}

/// A deadline that passes while no vCPU runs fires at once, and is not lost.
pub(super) fn fires_if_it_passed_meanwhile() -> Outcome {
    let stopped = armed(5, 0)?;
    std::thread::sleep(Duration::from_millis(40));
    let (mut target, _) = restored(&stopped)?;
    fires(&mut target)?;
    Ok(())
}

/// A LAPIC that is not in TSC-deadline mode yet takes no deadline: that is said.
pub(super) fn says_if_the_lapic_was_not_restored() -> Outcome {
    let Stopped { memory, saved, .. } = armed(60_000, 0)?;
    let target = Sleeper::new(memory, 0)?;
    let done = saved.restore(&target.vm, &target.vcpus, Policy::ELAPSED);
    let done = done.unwrap();
    let expected = Reason::DeadlinesNotArmed { vcpus: 1 };
    assert!(done.reasons.contains(&expected), "{done}");
    Ok(())
}

/// The timer fires after the vCPU was stopped and before it is saved.
pub(super) fn fires_if_it_was_lost_to_the_save() -> Outcome {
    let stopped = armed(5, 30)?;
    let (mut target, _) = restored(&stopped)?;
    fires(&mut target)?;
    Ok(())
}
