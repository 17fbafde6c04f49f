//! `struct guest_clock_by_value`: snapshots by value.

use std::ffi::{c_char, c_int};

use super::structures::{of_vcpus, read};
use super::{Failure, Status, argument, failed, finish, give};
use crate::arithmetic::KvmClockData;
use crate::by_value::ByValue;

/// `struct guest_clock_values`: what a snapshot has of a vCPU.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CValues {
    /// `IA32_TSC`.
    pub tsc: u64,
    /// `IA32_TSC_ADJUST`.
    pub tsc_adjust: u64,
    /// `IA32_TSC_DEADLINE` in guest cycles, 0 if not armed.
    pub tsc_deadline: u64,
    /// Not 0: the snapshot has `tsc_adjust`.
    pub has_tsc_adjust: c_int,
    /// Not 0: the snapshot has `tsc_deadline`.
    pub has_tsc_deadline: c_int,
}

/// `struct guest_clock_by_value`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CByValue {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// Values of each vCPU.
    pub vcpus: *const CValues,
    /// How many.
    pub count: usize,
    /// `kvm_clock_data.clock` in ns.
    pub clock_ns: u64,
    /// `kvm_clock_data.realtime`, in ns since the epoch. Without `KVM_CLOCK_REALTIME` the wall clock at the
    /// snapshot, and 0: not known.
    pub realtime_ns: u64,
    /// `kvm_clock_data.host_tsc`.
    pub host_tsc: u64,
    /// [`ByValue::read_within_ns`].
    pub read_within_ns: u64,
    /// `kvm_clock_data.flags`.
    pub clock_flags: u32,
    /// Frequency of the guest's TSC in kHz.
    pub tsc_khz: u32,
    /// That of the source host's TSC; 0: the same.
    pub host_tsc_khz: u32,
    /// [`ByValue::frac_bits`]; 0: 48.
    pub frac_bits: u32,
}

impl CByValue {
    /// The snapshot, without its vCPUs.
    fn snapshot(&self) -> ByValue {
        let clock = KvmClockData {
            clock_ns: self.clock_ns,
            flags: self.clock_flags,
            realtime_ns: self.realtime_ns,
            host_tsc: self.host_tsc,
        };
        let mut snapshot = ByValue::new(self.tsc_khz, clock);
        let stated = |value: u32, otherwise| if value == 0 { otherwise } else { value };
        snapshot.host_tsc_khz = stated(self.host_tsc_khz, self.tsc_khz);
        snapshot.frac_bits = stated(self.frac_bits, snapshot.frac_bits);
        snapshot.taken_realtime_ns = Some(self.realtime_ns).filter(|ns| *ns != 0);
        snapshot.read_within_ns = self.read_within_ns;
        snapshot
    }
}

/// Makes a state of a snapshot by value; see the header.
///
/// # Safety
/// `snapshot` is null or points to as many readable bytes as its size says, and its `vcpus` to `count`
/// structures. `buffer` points to `*length` writable bytes, and `length` to an integer. `message` is null or
/// points to 512 writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn guest_clock_import(
    snapshot: *const CByValue,
    buffer: *mut u8,
    length: *mut usize,
    message: *mut c_char,
) -> c_int {
    let import = || -> Result<(), Failure> {
        // SAFETY: the caller vouches for the structure.
        let caller = unsafe { read("snapshot", snapshot)? };
        // SAFETY: the caller vouches for the array.
        let vcpus = unsafe { of_vcpus(caller.vcpus, caller.count) }
            .ok_or_else(|| argument("give the values of 1 to 4096 vCPUs"))?;
        let mut snapshot = caller.snapshot();
        for vcpu in vcpus {
            snapshot.add_vcpu_with(
                vcpu.tsc,
                (vcpu.has_tsc_adjust != 0).then_some(vcpu.tsc_adjust),
                (vcpu.has_tsc_deadline != 0).then_some(vcpu.tsc_deadline),
            );
        }
        let saved = snapshot.to_saved();
        let saved = saved.map_err(failed(Status::Argument))?;
        // SAFETY: the caller vouches for the buffer and its length.
        unsafe { give(&saved, buffer, length) }
    };
    finish(import, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::{KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME};
    use crate::{Saved, State};

    fn import(snapshot: &CByValue) -> (c_int, Vec<u8>, String) {
        let (mut state, mut message) = ([0u8; 4096], [0 as c_char; 512]);
        let mut length = state.len();
        // SAFETY: buffers of their stated lengths, and a structure with its vCPUs.
        let status = unsafe {
            guest_clock_import(
                snapshot,
                state.as_mut_ptr(),
                &mut length,
                message.as_mut_ptr(),
            )
        };
        // SAFETY: the call ends the message with 0.
        let text = unsafe { std::ffi::CStr::from_ptr(message.as_ptr()) };
        let text = text.to_str().expect("UTF-8").to_owned();
        (status, state[..length.min(4096)].to_vec(), text)
    }

    #[test]
    fn a_snapshot_becomes_the_state_that_rust_makes_of_it() {
        let values = [(17_500_000_000, 5, 0), (17_500_031_000, 5, 18_000_000_000)];
        let vcpus = values.map(|(tsc, tsc_adjust, tsc_deadline)| CValues {
            tsc,
            tsc_adjust,
            tsc_deadline,
            has_tsc_adjust: 1,
            has_tsc_deadline: (tsc_deadline != 0).into(),
        });
        let mut given = CByValue {
            size: size_of::<CByValue>(),
            vcpus: vcpus.as_ptr(),
            count: vcpus.len(),
            clock_ns: 7_000_000_000,
            realtime_ns: 1_700_000_000_000_000_000,
            host_tsc: 99_000_000_000,
            read_within_ns: 50_000,
            clock_flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
            tsc_khz: 2_500_000,
            host_tsc_khz: 3_000_000,
            frac_bits: 32,
        };
        let (status, state, text) = import(&given);
        assert_eq!((status, text.as_str()), (0, ""));
        let mut expected = ByValue::new(
            2_500_000,
            KvmClockData {
                clock_ns: 7_000_000_000,
                flags: KVM_CLOCK_REALTIME | KVM_CLOCK_HOST_TSC,
                realtime_ns: 1_700_000_000_000_000_000,
                host_tsc: 99_000_000_000,
            },
        );
        expected.host_tsc_khz = 3_000_000;
        expected.frac_bits = 32;
        expected.read_within_ns = 50_000;
        expected.add_vcpu_with(17_500_000_000, Some(5), None);
        expected.add_vcpu_with(17_500_031_000, Some(5), Some(18_000_000_000));
        let expected = expected.to_saved().expect("a state");
        assert_eq!(Saved::load(&state).expect("a state"), expected);

        // Without what KVM reads as one, the wall clock of the snapshot.
        given.clock_flags = 0;
        let (status, state, _) = import(&given);
        let loaded = Saved::load(&state).expect("a state");
        let State::X86(x86) = loaded.state() else {
            panic!("a state of x86");
        };
        assert_eq!((status, x86.instant.bound_ns), (0, 50_000));
        given.realtime_ns = 0;
        let (status, _, text) = import(&given);
        assert_eq!(status, Status::Argument as c_int);
        assert!(text.contains("realtime_ns"), "{text}");
        given.count = 0;
        assert!(import(&given).2.contains("1 to 4096"));
        given.size = 4;
        assert!(import(&given).2.contains("snapshot.size"));
    }
}
