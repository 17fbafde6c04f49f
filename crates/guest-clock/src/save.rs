//! Reading a guest's clocks.

use stealtime_hypervisor::counter::kvm_clock::{
    KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME, KVM_CLOCK_TSC_STABLE,
};
use stealtime_hypervisor::counter::scaling::TscRate;

use crate::device::{
    ATTEMPTS, HostFacts, MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE, NoAnswer,
    Stopping, TscMeans, Vcpu, Vm,
};
use crate::error::{Errno, IoctlError, NoThread, SaveError};
use crate::saved::{Instant, MAX_VCPUS, Saved, State, VcpuState, X86State};
use crate::vcpus;

/// The clocks of a guest: the way in.
///
/// ```
/// use guest_clock::{GuestClocks, Policy, fake::FakeHost};
///
/// // A VMM has `kvm_ioctls::VmFd` and `VcpuFd`s here.
/// let host = FakeHost::new(2_500_000);
/// let (vm, vcpus) = host.vm(2);
/// vcpus[1].read_clocks()?; // the guest runs
/// let saved = GuestClocks::save(&vm, &vcpus)?;
///
/// let (vm, vcpus) = host.vm(2);
/// let explanation = saved.restore(&vm, &vcpus, Policy::ELAPSED)?;
/// assert!(explanation.is_exact());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GuestClocks;

impl GuestClocks {
    /// Saves the clocks of a stopped x86 guest: the kvmclock with its instant, and each vCPU's
    /// offset, `TSC_ADJUST` and deadline. Only reads.
    ///
    /// Call it before the LAPICs are saved. A timer that fires between the two is then in both states, as
    /// an expired deadline and as an interrupt. So the guest gets one interrupt too many. In the other
    /// order it is in neither, and a guest that waits for it never wakes.
    ///
    /// # Errors
    /// [`SaveError`].
    pub fn save<V: Vm, C: Vcpu>(vm: &V, vcpus: &[C]) -> Result<Saved, SaveError> {
        Self::save_with(vm, vcpus, Stopping::default())
    }

    /// [`GuestClocks::save`], with what is known of the vCPUs' way out of `KVM_RUN`.
    ///
    /// # Errors
    /// [`SaveError`].
    pub fn save_with<V: Vm, C: Vcpu>(
        vm: &V,
        vcpus: &[C],
        stopping: Stopping,
    ) -> Result<Saved, SaveError> {
        let host = vm.host()?;
        check_count(vcpus.len())?;
        let tsc_khz = one_frequency(&C::frequencies(vcpus, stopping)?)?;
        vcpus::check(vm, vcpus)?;
        let ratio = ratio(&host, tsc_khz)?;
        let instant = read_instant(vm, &host)?;
        let states: Result<Vec<VcpuState>, SaveError> = (0..)
            .zip(vcpus)
            .map(|(index, vcpu)| save_vcpu(vm, &host, ratio, index, vcpu))
            .collect();
        let state = X86State {
            host_tsc_khz: host.tsc_khz,
            frac_bits: host.format.frac_bits(),
            tsc_khz,
            ratio,
            instant,
            vcpus: states?,
        };
        if let (Some(vcpu), Some(first)) = (vcpus.first(), state.vcpus.first()) {
            check_ratio(vm, &host, ratio, vcpu, first.tsc_offset)?;
        }
        Ok(Saved::of_guest(State::X86(state))?)
    }
}

pub(crate) fn check_count(count: usize) -> Result<(), SaveError> {
    match count {
        0 => Err(SaveError::NoVcpus),
        _ if count > MAX_VCPUS => Err(SaveError::TooManyVcpus {
            given: count,
            most: MAX_VCPUS,
        }),
        _ => Ok(()),
    }
}

/// Makes the error of an ioctl, with the vCPU that it is for.
pub(crate) fn of(call: &'static str, vcpu: Option<usize>) -> impl Fn(Errno) -> IoctlError {
    move |errno| IoctlError { call, vcpu, errno }
}

impl From<NoAnswer> for SaveError {
    fn from(answer: NoAnswer) -> Self {
        match answer {
            NoAnswer::Busy { vcpu } => Self::Busy { vcpu },
            NoAnswer::NoThread { errno } => Self::NoThread(NoThread { errno }),
            NoAnswer::Failed { vcpu, errno } => of("KVM_GET_TSC_KHZ", Some(vcpu))(errno).into(),
        }
    }
}

pub(crate) fn one_frequency(frequencies: &[u32]) -> Result<u32, SaveError> {
    let first_khz = *frequencies.first().ok_or(SaveError::NoVcpus)?;
    match frequencies.iter().position(|khz| *khz != first_khz) {
        None => Ok(first_khz),
        Some(vcpu) => Err(SaveError::FrequenciesDiffer {
            vcpu,
            khz: frequencies.get(vcpu).copied().unwrap_or(0),
            first_khz,
        }),
    }
}

fn ratio(host: &HostFacts, khz: u32) -> Result<u64, SaveError> {
    let mut rate = TscRate::default();
    rate.set_khz(&host.host_tsc(), khz)
        .map_err(SaveError::Rate)?;
    if rate.catchup {
        return Err(SaveError::CatchUp {
            guest_khz: khz,
            host_khz: host.tsc_khz,
            tolerance_ppm: host.tolerance_ppm,
        });
    }
    Ok(rate.ratio)
}

/// kvmclock, wall clock and TSC: of one instant if KVM can, otherwise the narrowest of several
/// readings, with their width as bound.
pub(crate) fn read_instant<V: Vm>(vm: &V, host: &HostFacts) -> Result<Instant, IoctlError> {
    let needed = KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC;
    let mut best: Option<(u64, Instant)> = None;
    for _ in 0..ATTEMPTS {
        let opening = vm.bracket();
        let data = vm.get_clock().map_err(of("KVM_GET_CLOCK", None))?;
        let master_clock = data.flags & KVM_CLOCK_TSC_STABLE != 0;
        if data.flags & needed == needed {
            return Ok(Instant {
                clock_ns: data.clock_ns,
                realtime_ns: data.realtime_ns,
                host_tsc: data.host_tsc,
                bound_ns: 0,
                master_clock,
            });
        }
        let closing = vm.bracket();
        let width = closing.tsc_after.wrapping_sub(opening.tsc_before);
        let half_ns = closing.realtime_ns.saturating_sub(opening.realtime_ns) / 2;
        let reading = Instant {
            clock_ns: data.clock_ns,
            realtime_ns: opening.realtime_ns.saturating_add(half_ns),
            host_tsc: opening.tsc_before.wrapping_add(width / 2),
            // Never 0: that would claim one instant.
            bound_ns: cycles_to_ns(width, host.tsc_khz).max(1),
            master_clock,
        };
        if best.as_ref().is_none_or(|(least, _)| width < *least) {
            best = Some((width, reading));
        }
    }
    best.map(|(_, reading)| reading)
        .ok_or(of("KVM_GET_CLOCK", None)(Errno(libc::EAGAIN)))
}

/// Nanoseconds of this many cycles, rounded up.
pub(crate) fn cycles_to_ns(cycles: u64, khz: u32) -> u64 {
    let ns = (u128::from(cycles) * 1_000_000).div_ceil(u128::from(khz.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Signed cycles in ns, rounded away from zero.
pub(crate) fn signed_ns(cycles: i64, khz: u32) -> i64 {
    let ns = i64::try_from(cycles_to_ns(cycles.unsigned_abs(), khz)).unwrap_or(i64::MAX);
    if cycles < 0 { -ns } else { ns }
}

/// A wider number: what is beyond the range is cut to its end.
pub(crate) fn narrow(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

fn save_vcpu<V: Vm, C: Vcpu>(
    vm: &V,
    host: &HostFacts,
    ratio: u64,
    index: usize,
    vcpu: &C,
) -> Result<VcpuState, SaveError> {
    let (tsc_offset, offset_bound_cycles) = match vcpu.tsc_offset() {
        Ok(offset) => (offset, 0),
        // Before Linux 5.16 there is only the value to go by.
        Err(_) if host.means != TscMeans::Offsets => {
            let read = read_tsc(vm, host, ratio, index, vcpu)?;
            (read.offset(), read.width() / 2 + 1)
        }
        Err(errno) => return Err(of("KVM_GET_DEVICE_ATTR", Some(index))(errno).into()),
    };
    let registers = vcpu.two_msrs([MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE]);
    let [tsc_adjust, tsc_deadline] = registers.map_err(of("KVM_GET_MSRS", Some(index)))?;
    Ok(VcpuState {
        tsc_offset,
        offset_bound_cycles,
        tsc_adjust,
        tsc_deadline,
    })
}

/// A guest's TSC by value, and the scaled host's on both sides.
pub(crate) struct TscReading {
    value: u64,
    host_tsc: u64,
    before: u64,
    after: u64,
}

impl TscReading {
    pub(crate) const fn width(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }

    pub(crate) const fn offset(&self) -> u64 {
        let middle = self.before.wrapping_add(self.width() / 2);
        self.value.wrapping_sub(middle)
    }
}

/// Reads a guest's TSC by value, as narrowly as it goes.
pub(crate) fn read_tsc<V: Vm, C: Vcpu>(
    vm: &V,
    host: &HostFacts,
    ratio: u64,
    index: usize,
    vcpu: &C,
) -> Result<TscReading, IoctlError> {
    let mut best = read_tsc_once(vm, host, ratio, index, vcpu)?;
    for _ in 1..ATTEMPTS {
        let reading = read_tsc_once(vm, host, ratio, index, vcpu)?;
        if reading.width() < best.width() {
            best = reading;
        }
    }
    Ok(best)
}

fn read_tsc_once<V: Vm, C: Vcpu>(
    vm: &V,
    host: &HostFacts,
    ratio: u64,
    index: usize,
    vcpu: &C,
) -> Result<TscReading, IoctlError> {
    let failed = of("KVM_GET_MSRS(IA32_TSC)", Some(index));
    let bracket = vm.bracket();
    let value = vcpu.msr(MSR_IA32_TSC).map_err(&failed)?;
    let value = value.ok_or_else(|| failed(Errno(libc::ENOENT)))?;
    let host_tsc = vm.bracket().tsc_before;
    Ok(TscReading {
        value,
        host_tsc,
        before: host.format.scale(bracket.tsc_after, ratio),
        after: host.format.scale(host_tsc, ratio),
    })
}

/// Checks the ratio, which KVM does not report, by the TSC of one vCPU.
fn check_ratio<V: Vm, C: Vcpu>(
    vm: &V,
    host: &HostFacts,
    ratio: u64,
    vcpu: &C,
    offset: u64,
) -> Result<(), SaveError> {
    // After any delay the guest's TSC lies between the host's on both sides.
    let reading = read_tsc_once(vm, host, ratio, 0, vcpu)?;
    let low = offset.wrapping_add(reading.before);
    let distance = reading.value.wrapping_sub(low);
    // One cycle of rounding on either side, and what an offset by value can be off.
    let slack = reading.width().saturating_add(2);
    // Offsets computed from values fit any ratio.
    if distance.wrapping_add(1) <= slack || host.means != TscMeans::Offsets {
        return Ok(());
    }
    Err(SaveError::RatioUnknown {
        read: reading.value,
        offset,
        ratio,
        host_tsc: reading.host_tsc,
        computed: low.wrapping_add(reading.width()),
    })
}
