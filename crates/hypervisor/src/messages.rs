//! Each error names what it is about, and names are those of the kernel's files.

extern crate std;

use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt::Display;

use crate::counter::arith::TimeScaleError;
use crate::counter::arm64::{CounterMigrationError, CounterOffset, CounterOffsetError};
use crate::counter::kvm_clock::UnknownClockFlags;
use crate::counter::migration::MigrationError;
use crate::counter::pvclock::PvclockBusy;
use crate::counter::scaling::{RatioError, RatioOperands, SetTscKhzError};
use crate::fair::{CgroupMode, Error, Feature, Features, RqId, TaskId, UnknownFeature};
use crate::ipi_tracking::{self, NotRecorded};
use crate::lapic::{DeliveryMode, IllegalVector, NoSuchVcpu, PvIpiError, VectorSet};
use crate::lapic_timer::{
    BusCycleOutOfRange, InvalidTsc, NoSuchCpu, TimerPolicy, UnknownTimerPolicy, hv_timer,
};
use crate::posted_interrupt::{NotOnACpu, Suppression, UnknownSuppression, vtd};
use crate::wakeup_batch::RaiseError;
use crate::wakeup_batch::icr::IcrError;

/// The message has each of these parts: numbers that no message has by itself.
fn names(error: impl Display, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn errors_of_clocks_name_their_operands() {
    let operands = RatioOperands {
        guest_khz: 4321,
        host_khz: 9876,
        frac_bits: 48,
        max_ratio: 0xabcd,
    };
    let offset = CounterOffset {
        counter_offset: 0xfedc,
        reserved: 0x77,
    };
    names(TimeScaleError::BeyondHz { khz: 4321 }, &["4321 kHz"]);
    names(CounterOffsetError::Reserved { offset }, &["0xfedc", "0x77"]);
    names(
        CounterOffsetError::Busy { offset, vcpu: 59 },
        &["0xfedc", "vCPU 59"],
    );
    names(
        CounterMigrationError::FrequencyZero { hz: 4321 },
        &["4321 Hz", "CNTFRQ_EL0"],
    );
    names(
        UnknownClockFlags {
            flags: 0xf0f,
            known: 0xe,
        },
        &["KVM_SET_CLOCK", "0xf0f", "0xe"],
    );
    names(
        MigrationError::FrequencyZero { guest_khz: 4321 },
        &["4321 kHz", "KVM_GET_TSC_KHZ"],
    );
    names(
        PvclockBusy {
            attempts: 59,
            version: 4321,
        },
        &["59", "4321"],
    );
    names(
        RatioError::Zero(operands),
        &["4321 kHz", "9876 kHz", "48 fraction bits", "0xabcd"],
    );
    names(
        SetTscKhzError::Ratio(RatioError::Zero(operands)),
        &["4321 kHz"],
    );
    names(
        SetTscKhzError::Protected { user_khz: 4321 },
        &["4321 kHz", "protected"],
    );
}

#[test]
fn other_errors_name_their_operands() {
    let task = TaskId {
        index: 71,
        generation: 83,
    };
    names(
        Error::AlreadyQueued {
            task,
            rq: RqId::nth(59),
        },
        &["task 71.83", "run queue 59"],
    );
    names(Error::NiceOutOfRange(-21), &["nice -21", "[-20, 19]"]);
    names(
        ipi_tracking::NoSuchVcpu { vcpu: 59, vcpus: 4 },
        &["vCPU 59", "VM of 4"],
    );
    names(
        NotRecorded::NoSuchVcpu(ipi_tracking::NoSuchVcpu { vcpu: 59, vcpus: 4 }),
        &["vCPU 59"],
    );
    names(NotRecorded::Shorthand, &["shorthand"]);
    names(NoSuchVcpu { vcpu: 59, vcpus: 4 }, &["vCPU 59", "VM has 4"]);
    names(
        IllegalVector {
            vector: 13,
            delivery: DeliveryMode::LowestPriority,
        },
        &["vector 13", "LowestPriority", "16-255"],
    );
    names(PvIpiError::InvalidIcr { icr: 0xf0f }, &["0xf0f"]);
    names(PvIpiError::NoMap { min: 4321 }, &["4321"]);
    names(BusCycleOutOfRange { ns: 4321 }, &["4321 ns", "1 to"]);
    names(NoSuchCpu { cpu: 59, cpus: 4 }, &["CPU 59", "host has 4"]);
    names(
        hv_timer::OutOfRange {
            guest_cycles: 4321,
            host_cycles: Some(9876),
            shift: 5,
        },
        &["4321 guest", "9876 host", "2^37 cycles"],
    );
    names(
        hv_timer::OutOfRange {
            guest_cycles: 4321,
            host_cycles: None,
            shift: 0,
        },
        &["4321 guest", "2^64 host", "2^32 cycles"],
    );
    names(
        InvalidTsc {
            khz: 4321,
            ratio: 0xf0f,
        },
        &["4321 kHz", "0xf0f"],
    );
    names(
        NotOnACpu {
            vcpu: 59,
            cpu: None,
        },
        &["vCPU 59"],
    );
    names(
        vtd::MisalignedDescriptor { address: 0xf0f },
        &["0xf0f", "64 bytes"],
    );
    names(RaiseError::NoSuchSoftirq { nr: 59 }, &["softirq 59"]);
    names(
        RaiseError::Icr(IcrError::IllegalVector { vector: 0xd }),
        &["0xd", "0x10"],
    );
    names(
        IcrError::NoSuchCpu { cpu: 59, cpus: 4 },
        &["CPU 59", "has 4"],
    );
    names(
        std::format!("{:?}", VectorSet::from_iter([0x31, 0xec])),
        &["49", "236"],
    );
}

/// `/sys/kernel/debug/sched/features` can be written as it is read.
#[test]
fn features_are_set_by_the_words_that_are_shown() {
    for wanted in [Features::NONE, Features::LINUX_7_2] {
        let shown = wanted.to_string();
        let words: Vec<&str> = shown.split(' ').collect();
        assert_eq!(words.len(), Feature::ALL.len(), "{shown}");
        let mut all = Features::NONE;
        for feature in Feature::ALL {
            all = all.with(feature);
        }
        for mut set in [Features::NONE, all] {
            for word in &words {
                assert_eq!(set.set(word), Ok(()), "{word}");
            }
            assert_eq!(set, wanted);
        }
        assert_eq!(
            std::format!("{wanted:?}"),
            ["Features(", &shown, ")"].concat()
        );
    }
    assert!(Features::NONE.to_string().contains(" NO_RUN_TO_PARITY "));
}

/// An unknown name is answered with those that there are.
#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    let features = Feature::ALL.map(Feature::name);
    let policies = TimerPolicy::ALL.map(TimerPolicy::name);
    let suppressions = Suppression::ALL.map(Suppression::name);
    for (message, names) in [
        (UnknownFeature.to_string(), &features[..]),
        (UnknownTimerPolicy.to_string(), &policies[..]),
        (UnknownSuppression.to_string(), &suppressions[..]),
    ] {
        let (_, listed) = message.split_once(" there are ").expect("a list");
        let words: Vec<&str> = listed.split([' ', ',']).filter(|w| !w.is_empty()).collect();
        assert_eq!(words, names);
    }
    assert_eq!(policies[0], "off");
    assert_eq!(suppressions[0], "off");
    let modes = CgroupMode::ALL.map(CgroupMode::name);
    assert_eq!(modes, ["up", "smp", "concur", "max", "tasks"]);
}
