//! Errors: one type per operation, with every operand and what to do.

use stealtime_hypervisor::counter::migration::MigrationError;
use stealtime_hypervisor::counter::scaling::SetTscKhzError;

use crate::policy::{WallClockBehind, WallClocksDiffer};
use crate::written::Written;

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

/// An ioctl failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}{}: {errno}{}", on(*.vcpu), hint(*.errno))]
#[non_exhaustive]
pub struct IoctlError {
    /// Its name as the kernel's documentation has it.
    pub call: &'static str,
    /// The vCPU by position, if it was one's.
    pub vcpu: Option<usize>,
    /// What the kernel said.
    pub errno: Errno,
}

fn on(vcpu: Option<usize>) -> String {
    vcpu.map(|v| format!(" of vCPU {v}")).unwrap_or_default()
}

fn hint(errno: Errno) -> &'static str {
    match errno.0 {
        libc::EIO => " (the VM belongs to another process: call from the one that created it)",
        libc::EBUSY => " (a vCPU ioctl is in flight: stop all vCPUs first)",
        libc::EMFILE => " (no descriptor left: raise the limit, `ulimit -n`)",
        libc::EBADF => " (not an open file: pass the VM's and vCPUs' own descriptors)",
        libc::ENOTTY => " (not a descriptor of KVM, or a kernel without this call)",
        _ => "",
    }
}

/// What the host offers could not be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// `/dev/kvm` is not there.
    #[error("/dev/kvm is not there: load kvm and its vendor module, or pass the device through")]
    NoDevice,
    /// `/dev/kvm` may not be opened.
    #[error("no permission for /dev/kvm: join group kvm, or run as root")]
    Permission,
    /// `/dev/kvm` cannot be opened for another reason.
    #[error("/dev/kvm cannot be opened: {errno}; see what the kernel's log says of kvm")]
    Open {
        /// What the kernel said.
        errno: Errno,
    },
    /// The throwaway VM that shows what KVM can do could not be made or asked.
    #[error("probing KVM with a VM of our own: {0}")]
    Probe(#[from] IoctlError),
    /// KVM says that its TSC has 0 kHz.
    #[error("KVM has no TSC frequency (KVM_GET_TSC_KHZ gave {khz}): the host's TSC is unusable")]
    NoFrequency {
        /// What it gave.
        khz: u32,
    },
}

/// What a guest has is beyond what a saved state may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest's {field} is {value}, but a state must have it {why}: set it right, then save")]
#[non_exhaustive]
pub struct Unloadable {
    /// Which field of the state.
    pub field: &'static str,
    /// What it is.
    pub value: u64,
    /// What it must be.
    pub why: &'static str,
}

/// The helper thread that asks vCPUs which may still run was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no thread to ask the vCPUs with: {errno}; raise the limit of threads (pids) or let clone3 \
     through the seccomp filter, or stop all vCPUs first and say so with Stopping::Done"
)]
pub struct NoThread {
    /// What the kernel said.
    pub errno: Errno,
}

/// The vCPUs given are not those of the VM, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WrongVcpus {
    /// One was given twice.
    #[error("vCPUs {first} and {again} are the same one (id {id}): pass each vCPU once")]
    Twice {
        /// Position of the first.
        first: usize,
        /// Position of the second.
        again: usize,
        /// `KVM_CREATE_VCPU`'s id.
        id: u32,
    },
    /// One belongs to another VM.
    #[error("vCPU {vcpu} (id {id}) belongs to another VM: pass the vCPUs of this one")]
    AnotherVm {
        /// Its position.
        vcpu: usize,
        /// `KVM_CREATE_VCPU`'s id.
        id: u32,
    },
    /// One was left out.
    #[error(
        "the VM has a vCPU of id {id} that is not among the {given} given: pass all of them, or its \
         TSC is apart from the others' and the master clock stays off"
    )]
    LeftOut {
        /// `KVM_CREATE_VCPU`'s id.
        id: u32,
        /// How many were given.
        given: usize,
    },
}

/// Clocks were not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// No vCPUs were given.
    #[error("no vCPUs given: pass all of the VM's, in the order in which they will be restored")]
    NoVcpus,
    /// More vCPUs than KVM can have.
    #[error("{given} vCPUs given, at most {most}: no KVM has more")]
    TooManyVcpus {
        /// How many.
        given: usize,
        /// The most.
        most: usize,
    },
    /// A vCPU is running.
    #[error("vCPU {vcpu} is running (KVM_RUN holds it): stop all vCPUs first")]
    Busy {
        /// Its position.
        vcpu: usize,
    },
    /// Nothing could be asked.
    #[error(transparent)]
    NoThread(NoThread),
    /// Not the VM's vCPUs, each once.
    #[error(transparent)]
    Vcpus(#[from] WrongVcpus),
    /// The vCPUs have different frequencies.
    #[error(
        "vCPU {vcpu} has {khz} kHz, vCPU 0 has {first_khz} kHz: set one frequency for all \
         vCPUs when the VM is created"
    )]
    FrequenciesDiffer {
        /// Position of the odd one.
        vcpu: usize,
        /// Its frequency.
        khz: u32,
        /// The first one's frequency.
        first_khz: u32,
    },
    /// The guest's TSC is not where frequency, ratio and offset say it is.
    #[error(
        "vCPU 0 reads TSC {read}, but offset {offset:#x}, ratio {ratio:#x} and host TSC \
         {host_tsc} make {computed}: the ratio that KVM uses is not known, so no state that \
         another host could use can be saved"
    )]
    RatioUnknown {
        /// What `KVM_GET_MSRS` gave.
        read: u64,
        /// The offset attribute.
        offset: u64,
        /// The ratio assumed.
        ratio: u64,
        /// The host's TSC in the middle of the reading.
        host_tsc: u64,
        /// What these make.
        computed: u64,
    },
    /// The guest is faster than a host that cannot scale.
    #[error(
        "a guest of {guest_khz} kHz on a host of {host_khz} kHz runs in catch-up mode, its TSC \
         is pushed forward at each entry: it has no offset that could be saved; use a frequency \
         within {tolerance_ppm} ppm of the host's"
    )]
    CatchUp {
        /// The guest's frequency.
        guest_khz: u32,
        /// The host's.
        host_khz: u32,
        /// The tolerance.
        tolerance_ppm: u32,
    },
    /// The guest's frequency has no ratio on this host.
    #[error("{0}; KVM_GET_TSC_KHZ says so nevertheless: KVM_SET_TSC_KHZ failed before")]
    Rate(SetTscKhzError),
    /// A value that no state can hold: it could be written, but never loaded.
    #[error("{0}")]
    Unloadable(#[from] Unloadable),
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// An ioctl.
    #[error("saving clocks: {0}")]
    Ioctl(#[from] IoctlError),
}

/// TSCs were not made equal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EqualizeError {
    /// The vCPUs cannot be asked, or are not those of one VM. Nothing has been written.
    #[error(transparent)]
    Vcpus(#[from] SaveError),
    /// KVM has no TSC offsets. Nothing has been written.
    #[error(
        "the TSCs differ and this KVM has no offset attribute (Linux before 5.16), or ignores it: write \
         the first vCPU's IA32_TSC again and 0 to the others, which KVM takes as equal"
    )]
    NoOffsets,
    /// They are further apart than the caller allows. Nothing has been written.
    #[error(
        "vCPU {vcpu} is {cycles} cycles ({ns} ns) behind the most advanced, at most {at_most_ns} ns are \
         allowed: a restore by value is not delayed that much; allow more, or save the guest anew"
    )]
    TooFar {
        /// Position of the one farthest behind.
        vcpu: usize,
        /// How far.
        cycles: u64,
        /// The same in ns.
        ns: u64,
        /// What is allowed.
        at_most_ns: u64,
    },
    /// The guest has set its TSCs apart by itself. Nothing has been written.
    #[error(
        "vCPU {vcpu} is {cycles} cycles apart from vCPU 0, as is its TSC_ADJUST ({adjust:#x}, vCPU 0: \
         {first_adjust:#x}): the guest itself has set it so, leave it"
    )]
    SetApartByGuest {
        /// Its position.
        vcpu: usize,
        /// How far, signed.
        cycles: i64,
        /// Its `IA32_TSC_ADJUST`.
        adjust: u64,
        /// The first one's.
        first_adjust: u64,
    },
    /// An ioctl that only reads.
    #[error("comparing TSCs: {0}; nothing is written")]
    Ioctl(#[from] IoctlError),
    /// An ioctl failed on the way.
    #[error(
        "{failed}; already written: {}. Do not run the vCPUs; the same call once more is safe",
        list(.written)
    )]
    Partial {
        /// What failed.
        failed: IoctlError,
        /// What had been written before, in order.
        written: Vec<Written>,
    },
    /// KVM took an offset and does not have it.
    #[error(
        "vCPU {vcpu}: wrote TSC offset {wanted:#x}, KVM has {read:#x}; already written: {}. Do not run \
         the vCPUs: this KVM ignores offsets", list(.written)
    )]
    NotTaken {
        /// Its position.
        vcpu: usize,
        /// What was written.
        wanted: u64,
        /// What it has.
        read: u64,
        /// What had been written, in order.
        written: Vec<Written>,
    },
}

impl From<HostError> for EqualizeError {
    fn from(error: HostError) -> Self {
        Self::Vcpus(error.into())
    }
}

/// A snapshot by value cannot be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Nothing says when it was taken.
    #[error(
        "the clock has no wall clock (KVM_CLOCK_REALTIME) and taken_realtime_ns is not given: without \
         it no pause can be counted; give the snapshot file's time"
    )]
    NoWallClock,
    /// No time within which the values were read.
    #[error(
        "read_within_ns is 0: values are read one after the other, say within what time; the pause of \
         the VM for the snapshot is an upper bound"
    )]
    NoBound,
    /// The snapshot has no kvmclock.
    #[error(
        "the snapshot has no kvmclock: its guest was not run by KVM, or its VMM does not save it"
    )]
    NoClock,
    /// Nothing says the guest's frequency.
    #[error(
        "the snapshot has no TSC frequency and tsc_khz is not given: give what KVM_GET_TSC_KHZ said"
    )]
    NoFrequency,
    /// A vCPU without a TSC.
    #[error("the snapshot has no IA32_TSC of vCPU {vcpu}: its VMM saves too few registers")]
    NoTsc {
        /// Its position.
        vcpu: usize,
    },
    /// A format of ratios that no hardware has.
    #[error("frac_bits is {found}: 48 on Intel (VMX), 32 on AMD (SVM)")]
    FracBits {
        /// What it is.
        found: u32,
    },
    /// The guest's frequency has no ratio on the source.
    #[error("a guest of {guest_khz} kHz has no ratio on a host of {host_khz} kHz: check both")]
    Ratio {
        /// The guest's frequency.
        guest_khz: u32,
        /// The host's.
        host_khz: u32,
    },
    /// A value that no state can hold.
    #[error("{0}")]
    Unloadable(Unloadable),
}

/// A host's facts were not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// A version that this library does not know.
    #[error(
        "facts made by version {found}, this library reads up to version {known}: gather them again"
    )]
    Version {
        /// In the file.
        found: u32,
        /// Known.
        known: u32,
    },
    /// Too large to be facts.
    #[error("{bytes} bytes: these are no facts of a host")]
    TooLarge {
        /// How many.
        bytes: usize,
    },
    /// Not the JSON expected.
    #[error("no facts of a host: {message}; gather them on that host")]
    Json {
        /// The parser's message, with line and column.
        message: String,
    },
    /// A value that cannot be.
    #[error("{field} is {value}, but must be {expected}: gather the facts again")]
    Value {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it must be.
        expected: &'static str,
    },
}

/// The guest's time would jump further than its policy allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{elapsed_ns} ns have passed since the guest was saved, the policy allows {allowed_ns}: check \
     the wall clocks of both hosts, allow more, or choose Policy::AtMost or Policy::Stopped"
)]
pub struct Jump {
    /// Since the save.
    pub elapsed_ns: u64,
    /// Allowed.
    pub allowed_ns: u64,
}

/// A restore was refused. Nothing has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The state is of another architecture.
    #[error(
        "the saved state is of {saved}, this VM is of {here}: restore on the same architecture"
    )]
    Architecture {
        /// Of the state.
        saved: &'static str,
        /// Of the VM.
        here: &'static str,
    },
    /// The state is of another number of vCPUs.
    #[error(
        "the saved state has {saved} vCPUs, {given} were given: create as many as were saved \
         and pass all of them in the same order"
    )]
    VcpuCount {
        /// In the state.
        saved: usize,
        /// Given.
        given: usize,
    },
    /// A vCPU is running.
    #[error("vCPU {vcpu} is running (KVM_RUN holds it): restore clocks before the first KVM_RUN")]
    Busy {
        /// Its position.
        vcpu: usize,
    },
    /// Nothing could be asked.
    #[error(transparent)]
    NoThread(NoThread),
    /// Not the VM's vCPUs, each once.
    #[error(transparent)]
    Vcpus(#[from] WrongVcpus),
    /// This host's wall clock is behind the source's at the save.
    #[error(transparent)]
    WallClockBehind(#[from] WallClockBehind),
    /// The hosts' wall clocks are further apart than is trusted.
    #[error(transparent)]
    WallClocksDiffer(#[from] WallClocksDiffer),
    /// The host cannot give the guest its frequency.
    #[error(
        "the guest's TSC has {guest_khz} kHz, this host's {host_khz} kHz: more than \
         {tolerance_ppm} ppm apart and KVM cannot scale to it (scaling: {has_scaling}); \
         restore on a host with TSC scaling or with the guest's frequency"
    )]
    Frequency {
        /// The guest's.
        guest_khz: u32,
        /// The host's.
        host_khz: u32,
        /// What counts as equal.
        tolerance_ppm: u32,
        /// Whether the hardware scales.
        has_scaling: bool,
    },
    /// The saved counters differ between vCPUs.
    #[error(
        "vCPU {vcpu} was saved with TSC offset {offset:#x}, vCPU 0 with {first:#x}: {cycles} \
         cycles ({ns} ns) apart, so a task that moves would see time go back and the master clock \
         would stay off; choose Unequal::Highest to raise all to the most advanced, or \
         Unequal::Keep if the guest itself wrote TSC_ADJUST ({adjust:#x}, vCPU 0: {first_adjust:#x})"
    )]
    OffsetsDiffer {
        /// Position of the odd one.
        vcpu: usize,
        /// Its offset.
        offset: u64,
        /// The first one's.
        first: u64,
        /// How far apart, signed.
        cycles: i64,
        /// The same in ns.
        ns: i64,
        /// Its `IA32_TSC_ADJUST`.
        adjust: u64,
        /// The first one's.
        first_adjust: u64,
    },
    /// A vCPU's counter would run backwards.
    #[error(
        "vCPU {vcpu} read TSC {saved_tsc} when it was saved and would read {planned_tsc} \
         ({cycles} cycles less): the guest would see time go back; raise all with Unequal::Highest, or \
         restore where TSCs can be moved"
    )]
    Backwards {
        /// Its position.
        vcpu: usize,
        /// What it read.
        saved_tsc: u64,
        /// What it would read.
        planned_tsc: u64,
        /// How much less.
        cycles: u64,
    },
    /// The guest's time would jump further than allowed.
    #[error(transparent)]
    Jump(#[from] Jump),
    /// KVM cannot move the guest's TSC, and it is not where it should be.
    #[error(
        "vCPU {vcpu} needs TSC offset {wanted:#x}, but this KVM keeps it at {fixed:#x} whatever \
         is written: the TSC would be {cycles} cycles ({ns} ns) off; restore on a host with TSC \
         offsets, or accept it with Inexact::Accept if the guest uses kvmclock only"
    )]
    TscFixed {
        /// Its position.
        vcpu: usize,
        /// The offset needed.
        wanted: u64,
        /// The offset it has.
        fixed: u64,
        /// Difference, signed.
        cycles: i64,
        /// The same in ns.
        ns: i64,
    },
    /// The TSC can be set by value only, and exactness was demanded.
    #[error(
        "this KVM has no TSC offset attribute (Linux before 5.16): the TSC can be set by value \
         only, and what the writing thread is delayed is added to guest time; accept a measured \
         bound with Inexact::Accept, or restore on a newer kernel"
    )]
    NoOffsets,
    /// Without the master clock there is no exact instant, and exactness was demanded.
    #[error(
        "the clocks could not be read in one instant ({}; bound {bound_ns} ns): match the TSCs \
         of all vCPUs or use the tsc clocksource on the host, or accept the bound with \
         Inexact::Accept", if *.at_save { "when saving" } else { "here" }
    )]
    NoInstant {
        /// It was so when the state was saved (else: on this host).
        at_save: bool,
        /// How far apart the readings can be.
        bound_ns: u64,
    },
    /// The arithmetic refused.
    #[error(transparent)]
    Arithmetic(#[from] MigrationError),
    /// The guest's time would leave 64 bits.
    #[error(
        "kvmclock {clock_ns} ns plus {advance_ns} ns leaves 64 bits: the state is forged, save it again"
    )]
    ClockOverflow {
        /// Saved.
        clock_ns: u64,
        /// To be added.
        advance_ns: u64,
    },
    /// The guest's TSC would advance by 2^63 cycles or more, which looks like a step back.
    #[error(
        "guest time is to advance by {advance_ns} ns, at {tsc_khz} kHz 2^63 cycles or more: check \
         the wall clocks of both hosts, or choose Policy::AtMost or Policy::Stopped"
    )]
    TscOverflow {
        /// By how much guest time is to advance.
        advance_ns: u64,
        /// The guest's frequency.
        tsc_khz: u32,
    },
    /// The host.
    #[error(transparent)]
    Host(#[from] HostError),
    /// An ioctl that only reads.
    #[error("planning the restore: {0}")]
    Ioctl(#[from] IoctlError),
}

/// A restore did not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// It was refused before anything was written.
    #[error(transparent)]
    Refused(#[from] PlanError),
    /// An ioctl failed on the way.
    #[error(
        "{failed}; already written: {}. Do not run the vCPUs; restoring once more from the \
         same state is safe and gives the same guest time", list(.written)
    )]
    Partial {
        /// What failed.
        failed: IoctlError,
        /// What had been written before, in order.
        written: Vec<Written>,
    },
    /// KVM took an offset and does not have it.
    #[error(
        "vCPU {vcpu}: wrote TSC offset {wanted:#x}, KVM has {read:#x}; already written: {}. Do \
         not run the vCPUs: this KVM ignores offsets", list(.written)
    )]
    OffsetNotTaken {
        /// Its position.
        vcpu: usize,
        /// What was written.
        wanted: u64,
        /// What it has.
        read: u64,
        /// What had been written, in order.
        written: Vec<Written>,
    },
    /// The wall clock stepped while the clocks were being restored.
    #[error(
        "the kvmclock is {off_ns} ns off where it was planned, at most {bound_ns} ns were \
         expected: the wall clock stepped meanwhile; written: {}. Restore once more from the \
         same state before running the vCPUs", list(.written)
    )]
    ClockStepped {
        /// kvmclock minus the plan.
        off_ns: i64,
        /// What was expected at most.
        bound_ns: u64,
        /// What had been written, in order.
        written: Vec<Written>,
    },
}

fn list(written: &[Written]) -> String {
    if written.is_empty() {
        return "nothing".to_owned();
    }
    let items: Vec<String> = written.iter().map(ToString::to_string).collect();
    items.join(", ")
}

/// A saved state could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Neither form.
    #[error(
        "not a saved clock state: it begins neither with the binary form's mark nor with a brace; \
         give a file that was saved by this library"
    )]
    Unknown,
    /// A version that this library does not know.
    #[error(
        "state made by version {found}, this library reads up to version {known}: save it again"
    )]
    Version {
        /// In the state.
        found: u32,
        /// Known.
        known: u32,
    },
    /// An architecture that this library does not know.
    #[error("state of architecture number {found}: known are 1 (x86) and 2 (arm64); save it again")]
    Architecture {
        /// In the state.
        found: u8,
    },
    /// It ends too early.
    #[error("truncated: {needed} bytes needed at byte {at}, {left} left; copy the state once more")]
    Truncated {
        /// Where.
        at: usize,
        /// How many more.
        needed: usize,
        /// How many there are.
        left: usize,
    },
    /// Something follows its end.
    #[error("{extra} bytes after the end of the state: copy the state once more")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// The checksum is wrong.
    #[error(
        "checksum {found:#018x}, the contents make {computed:#018x}: damaged or forged, copy the \
         state once more"
    )]
    Checksum {
        /// In the state.
        found: u64,
        /// Of the contents.
        computed: u64,
    },
    /// Too large to be one.
    #[error("{bytes} bytes, a state has at most {most}: this is something else")]
    TooLarge {
        /// How many.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// Not the JSON expected.
    #[error("not a state's JSON: {message}; truncated or changed by hand, save it again")]
    Json {
        /// The parser's message, with line and column.
        message: String,
    },
    /// A value that cannot be.
    #[error("{field} is {value}, but must be {why}: damaged or forged, save it again")]
    Value {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What it must be.
        why: &'static str,
    },
}
