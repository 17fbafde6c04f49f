//! arm64 counters: items 12–15.

use stealtime_hypervisor::counter::arm64::traps::{
    Cpu, EC_SYS64, EL1PCEN, EL1PCTEN, Mode, VHE_SHIFT, cval_in_guest, cval_in_host, on_entry,
    serve_read,
};
use stealtime_hypervisor::counter::arm64::{
    Counter, CounterMigrationError, CounterOffset, CounterOffsetError, CounterSide, MergedVm,
    PostedVcpu, RegisterWrite, guest_count, migrate,
};

#[test]
fn counters_sloppy_12_the_offset_is_subtracted_and_reaches_every_vcpu() {
    assert_eq!(guest_count(1000, 300), 700);
    assert_eq!(guest_count(0, 1), u64::MAX);
    // As posted: the vCPUs that there are, and the written one, which is not listed yet.
    let mut listed = [PostedVcpu::default(); 3];
    let mut created = PostedVcpu::default();
    PostedVcpu::set_offset(&mut created, &mut listed, Counter::Physical, 55);
    PostedVcpu::set_offset(&mut created, &mut listed, Counter::Virtual, 44);
    for vcpu in listed.iter().chain([&created]) {
        assert_eq!(vcpu.offset(Counter::Virtual), 44);
        assert_eq!(vcpu.offset(Counter::Physical), 55);
    }
    // As merged: in the VM, so that a vCPU created afterwards uses it too.
    let mut vm = MergedVm::default();
    vm.vcpu_created(1 << 40);
    assert_eq!((vm.virtual_offset, vm.physical_offset), (1 << 40, 0));
    let given = CounterOffset {
        counter_offset: 7,
        reserved: 0,
    };
    vm.set_counter_offset(given, None).unwrap();
    vm.vcpu_created(1 << 41);
    assert_eq!((vm.virtual_offset, vm.physical_offset), (7, 7));
}

#[test]
fn counters_sloppy_13_register_writes_are_ignored_after_the_ioctl() {
    let mut vm = MergedVm::default();
    let written = vm.set_counter(Counter::Virtual, 100, 1000);
    assert_eq!(written, RegisterWrite::Applied);
    assert_eq!(guest_count(1000, vm.offset(Counter::Virtual)), 100);
    // The user's 0 is an offset like any other.
    vm.set_counter_offset(CounterOffset::default(), None)
        .unwrap();
    for counter in [Counter::Virtual, Counter::Physical] {
        assert_eq!(vm.set_counter(counter, 5, 1000), RegisterWrite::Ignored);
        assert_eq!(vm.offset(counter), 0);
    }
}

#[test]
fn counters_sloppy_14_busy_while_a_vcpu_ioctl_is_in_flight() {
    let mut vm = MergedVm::default();
    vm.vcpu_created(9);
    let before = vm;
    let given = CounterOffset {
        counter_offset: 7,
        reserved: 0,
    };
    let busy = CounterOffsetError::Busy {
        offset: given,
        vcpu: 2,
    };
    assert_eq!(vm.set_counter_offset(given, Some(2)), Err(busy));
    let reserved = CounterOffset {
        reserved: 1,
        ..given
    };
    let refused = CounterOffsetError::Reserved { offset: reserved };
    assert_eq!(vm.set_counter_offset(reserved, None), Err(refused));
    assert_eq!(vm, before);
    vm.protected = true;
    let refused = CounterOffsetError::Protected { offset: given };
    assert_eq!(vm.set_counter_offset(given, None), Err(refused));
}

const VHE: Cpu = Cpu {
    mode: Mode::Vhe,
    ecv_cntpoff: false,
    broken_cntvoff: false,
};

#[test]
fn counters_sloppy_15_traps_follow_the_offset_at_every_entry() {
    let ecv = Cpu {
        ecv_cntpoff: true,
        ..VHE
    };
    let nvhe = Cpu {
        mode: Mode::Nvhe,
        ecv_cntpoff: true,
        ..VHE
    };
    assert!(!on_entry(VHE, 9, 0).physical_counter_traps);
    assert!(on_entry(VHE, 9, 1).physical_counter_traps);
    assert!(!on_entry(ecv, 9, 1).physical_counter_traps);
    assert_eq!(on_entry(ecv, 9, 1).cntpoff_el2, Some(1));
    // CNTPOFF is used with VHE only; without VHE the timer is the host's own and always traps.
    assert!(on_entry(nvhe, 9, 1).physical_counter_traps);
    assert!(!on_entry(nvhe, 9, 0).physical_counter_traps);
    assert!(on_entry(nvhe, 9, 0).physical_timer_traps);
    // Two VMs on one CPU: what one entry sets the other clears, whatever the order.
    for cpu in [VHE, ecv, nvhe] {
        let shift = if cpu.mode == Mode::Vhe { VHE_SHIFT } else { 0 };
        let both = (EL1PCTEN | EL1PCEN) << shift;
        let mut cnthctl = 0;
        for offset in [0, 5, 0, 5, 5, 0] {
            let entry = on_entry(cpu, 0, offset);
            assert_eq!((entry.cnthctl_set | entry.cnthctl_clear) & both, both);
            assert_eq!(entry.cnthctl_set & entry.cnthctl_clear, 0);
            cnthctl = cnthctl & !entry.cnthctl_clear | entry.cnthctl_set;
            let readable = cnthctl & EL1PCTEN << shift != 0;
            assert_eq!(readable, !entry.physical_counter_traps, "{cpu:?} {offset}");
        }
    }
}

#[test]
fn a_broken_cntvoff_traps_the_virtual_counter_as_well() {
    let broken = Cpu {
        broken_cntvoff: true,
        ..VHE
    };
    let entry = on_entry(broken, 9, 4);
    assert_eq!((entry.cntvoff_el2, entry.cntv_cval_add), (0, 9));
    assert_eq!((entry.virtual_traps, entry.cntp_cval_add), (true, 4));
    assert!(!on_entry(VHE, 9, 4).virtual_traps);
    assert_eq!(on_entry(VHE, 9, 4).cntvoff_el2, 9);
    let cval = cval_in_host(u64::MAX - 1, 7);
    assert_eq!((cval, cval_in_guest(cval, 7)), (5, u64::MAX - 1));
}

/// Bits of `CNTHCTL_EL2` by the Arm ARM: EL1PCTEN and EL1PCEN are 0 and 1, with `E2H` 10 and 11. ECV is 12,
/// EL1TVT and EL1TVCT are 13 and 14.
#[test]
fn cnthctl_has_the_bits_of_the_architecture() {
    let ecv = Cpu {
        ecv_cntpoff: true,
        ..VHE
    };
    let nvhe = Cpu {
        mode: Mode::Nvhe,
        ..VHE
    };
    let broken = Cpu {
        broken_cntvoff: true,
        ..VHE
    };
    for (cpu, offset, set, clear) in [
        (VHE, 0, 0xc00, 0x6000),
        (VHE, 1, 0, 0x6c00),
        (ecv, 1, 0x1c00, 0x6000),
        (nvhe, 0, 0x1, 0x6002),
        (nvhe, 1, 0, 0x6003),
        (broken, 0, 0x6c00, 0),
    ] {
        let entry = on_entry(cpu, 9, offset);
        let bits = (entry.cnthctl_set, entry.cnthctl_clear);
        assert_eq!(bits, (set, clear), "{cpu:?} {offset}");
    }
}

/// The syndrome of `MRS Xrt, S3_3_C14_C0_op2`.
fn mrs(op2: u64, rt: u64) -> u64 {
    EC_SYS64 << 26 | 3 << 20 | op2 << 17 | 3 << 14 | 14 << 10 | rt << 5 | 1
}

#[test]
fn trapped_reads_are_served_only_if_they_are_reads_of_a_counter() {
    let serve = |esr| serve_read(esr, false, 1000, 30, 4).map(|r| (r.rt, r.value));
    // CNTPCT, CNTPCTSS, CNTVCT, CNTVCTSS.
    assert_eq!(serve(mrs(1, 3)), Some((3, 996)));
    assert_eq!(serve(mrs(5, 31)), Some((31, 996)));
    assert_eq!(serve(mrs(2, 0)), Some((0, 970)));
    assert_eq!(serve(mrs(6, 17)), Some((17, 970)));
    // CNTFRQ, a write, another register of the block, another exception class with such bits.
    assert_eq!(serve(mrs(0, 3)), None);
    assert_eq!(serve(mrs(1, 3) & !1), None);
    assert_eq!(serve(mrs(1, 3) | 2 << 1), None);
    assert_eq!(serve(mrs(1, 3) & !(0x3f << 26) | 0x16 << 26), None);
    assert_eq!(serve_read(mrs(1, 3), true, 1000, 30, 4), None);
}

#[test]
fn a_generic_timer_migrates_with_the_signs_reversed() {
    let side = |count, hz| CounterSide { count, hz };
    let (from, to) = (side(1 << 40, 25_000_000), side(500, 25_000_000));
    let before = guest_count(from.count, 77);
    let moved = migrate(from, to, 77, 2_000_000_039, 100).unwrap();
    assert_eq!(moved.added_ticks, 50_000_000);
    assert_eq!(guest_count(to.count, moved.offset), before + 50_000_000);
    // A tick is 40 ns; 100 ppb of two seconds are 200 ns, rounded up.
    assert_eq!(moved.bound_ns, 241);
    let mismatch = CounterMigrationError::FrequencyMismatch {
        source_hz: 25_000_000,
        destination_hz: 24_000_000,
    };
    assert_eq!(migrate(from, side(1, 24_000_000), 0, 0, 0), Err(mismatch));
    let zero = CounterMigrationError::FrequencyZero { hz: 0 };
    assert_eq!(migrate(side(1, 0), side(1, 0), 0, 0, 0), Err(zero));
}

/// Each bit of the syndrome matters, but for the general register and those that name no register.
#[test]
fn a_bit_of_the_syndrome_makes_another_register() {
    let read = |esr| serve_read(esr, false, 1000, 30, 4);
    let served = read(mrs(1, 3)).unwrap();
    for bit in 0..32 {
        let other = read(mrs(1, 3) ^ 1 << bit);
        match bit {
            5..=9 => assert_eq!(other.unwrap().value, served.value, "Rt"),
            // Op2 5 is the self-synchronising twin; bits 22 to 24 are reserved, 25 is the length.
            19 | 22..=25 => assert_eq!(other, Some(served), "bit {bit}"),
            _ => assert_eq!(other, None, "bit {bit}"),
        }
    }
}
