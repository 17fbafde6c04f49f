//! Texts that the `print fmt` of the table does not describe, each with the reason.
//!
//! A function here reads what the kernel or a plugin of trace-cmd formats. For a text with the fields
//! one by one it returns `None`, and the table reads them.

mod exits;
mod sched;

use stealtime_events::{Kind, VcpuId};

use super::decoded::Decoded;
use super::fields::{
    after, bare_hex, hex, int, is_raw, named, number, parts, vcpu_if_printed, word,
};
pub(super) use exits::Exits;

/// Delivery modes as the kernel names them; the number is bits 10:8 of an ICR or MSI.
const DELIVERY: &[(u32, &str)] = &[
    (0, "Fixed"),
    (1, "LowPrio"),
    (2, "SMI"),
    (3, "Res3"),
    (4, "NMI"),
    (5, "INIT"),
    (6, "SIPI"),
    (7, "ExtINT"),
];

/// Destination shorthands; bits 19:18 of an ICR.
const SHORTHAND: &[(u32, &str)] = &[(0, "dst"), (1, "self"), (2, "all"), (3, "all-but-self")];

/// `kvm_exception` vectors with their mnemonics.
const EXCEPTIONS: &[(u32, &str)] = &[
    (0, "#DE"),
    (1, "#DB"),
    (3, "#BP"),
    (4, "#OF"),
    (5, "#BR"),
    (6, "#UD"),
    (7, "#NM"),
    (8, "#DF"),
    (10, "#TS"),
    (11, "#NP"),
    (12, "#SS"),
    (13, "#GP"),
    (14, "#PF"),
    (16, "#MF"),
    (17, "#AC"),
    (18, "#MC"),
];

/// Registers of the LAPIC (offsets of the xAPIC page), as `kvm_apic` names them.
const APIC_REGISTERS: &[(u32, &str)] = &[
    (0x20, "APIC_ID"),
    (0x30, "APIC_LVR"),
    (0x80, "APIC_TASKPRI"),
    (0x90, "APIC_ARBPRI"),
    (0xa0, "APIC_PROCPRI"),
    (0xb0, "APIC_EOI"),
    (0xc0, "APIC_RRR"),
    (0xd0, "APIC_LDR"),
    (0xe0, "APIC_DFR"),
    (0xf0, "APIC_SPIV"),
    (0x100, "APIC_ISR"),
    (0x180, "APIC_TMR"),
    (0x200, "APIC_IRR"),
    (0x280, "APIC_ESR"),
    (0x300, "APIC_ICR"),
    (0x310, "APIC_ICR2"),
    (0x320, "APIC_LVTT"),
    (0x330, "APIC_LVTTHMR"),
    (0x340, "APIC_LVTPC"),
    (0x350, "APIC_LVT0"),
    (0x360, "APIC_LVT1"),
    (0x370, "APIC_LVTERR"),
    (0x380, "APIC_TMICT"),
    (0x390, "APIC_TMCCT"),
    (0x3e0, "APIC_TDCR"),
    (0x3f0, "APIC_SELF_IPI"),
    (0x400, "APIC_EFEAT"),
    (0x410, "APIC_ECTRL"),
];

/// The event, or `None` where the table has to read it.
pub(super) fn parse<'a>(event: &[u8], body: &'a [u8], exits: &mut Exits) -> Option<Decoded<'a>> {
    let kind = match event {
        b"kvm_exit" => exits::parse(body, exits),
        b"sched_switch" => return sched::switch(body),
        b"sched_waking" | b"sched_wakeup" | b"sched_wakeup_new" => {
            return sched::plugin_wakeup(event, body);
        }
        b"sched_process_fork" => return sched::fork(body),
        b"kvm_entry" => arm64_entry(body),
        b"kvm_userspace_exit" => userspace_exit(body),
        b"kvm_msr" => msr(body),
        b"kvm_page_fault" => page_fault(body),
        b"kvm_apic" => apic(body),
        b"kvm_apic_ipi" => apic_ipi(body),
        b"kvm_apic_accept_irq" => accept_irq(body, false),
        b"kvm_apicv_accept_irq" => accept_irq(body, true),
        b"kvm_inj_virq" => inj_virq(body),
        b"kvm_inj_exception" => inj_exception(body),
        b"kvm_msi_set_irq" => msi(body),
        b"kvm_avic_incomplete_ipi" => avic_incomplete(body),
        b"kvm_halt_poll_ns" => halt_poll(body),
        b"kvm_ple_window" => ple_window(body),
        _ => None,
    };
    kind.map(Decoded::without_tasks)
}

/// arm64 prints the program counter alone (arch/arm64/kvm/trace_arm.h).
fn arm64_entry(body: &[u8]) -> Option<Kind> {
    let vcpu = VcpuId::UNKNOWN;
    body.starts_with(b"PC:").then_some(Kind::KvmEntry { vcpu })
}

/// `reason KVM_EXIT_IO (2)`: with an error the number in parentheses is the error's, and the reason is
/// not printed (include/trace/events/kvm.h).
fn userspace_exit(body: &[u8]) -> Option<Kind> {
    let name = word(body, "reason")?;
    let value: i32 = parts(body).next().and_then(number)?.try_into().ok()?;
    let (reason, errno) = match name {
        b"restart" | b"error" => (0, value.checked_neg()?),
        _ => (value.try_into().ok()?, 0),
    };
    Some(Kind::KvmUserspaceExit { reason, errno })
}

/// `msr_write 6e0 = 0x2e45 (#GP)`: no words before register and value.
fn msr(body: &[u8]) -> Option<Kind> {
    let (write, access) = access(body, b"msr_write ", b"msr_read ")?;
    let (register, data) = assignment(access)?;
    Some(Kind::KvmMsr {
        write,
        exception: access.ends_with(b"(#GP)"),
        ecx: bare_hex(register)?.try_into().ok()?,
        data,
    })
}

/// `apic_write APIC_EOI = 0x0`: registers by name.
fn apic(body: &[u8]) -> Option<Kind> {
    let (write, access) = access(body, b"apic_write ", b"apic_read ")?;
    let (register, val) = assignment(access)?;
    let reg = named(register, APIC_REGISTERS)?;
    Some(Kind::KvmApic { write, reg, val })
}

/// Whether an access is a write, and the text behind that word.
fn access<'a>(body: &'a [u8], write: &[u8], read: &[u8]) -> Option<(bool, &'a [u8])> {
    match body.strip_prefix(write) {
        Some(access) => Some((true, access)),
        None => Some((false, body.strip_prefix(read)?)),
    }
}

/// The left side and the value of `register = value`.
fn assignment(access: &[u8]) -> Option<(&[u8], u64)> {
    let equals = memchr::memmem::find(access, b" = ")?;
    let value = number(access.get(equals + 3..)?)?;
    Some((access.get(..equals)?, value.try_into().ok()?))
}

/// Kernels before 6.2 print hexadecimal numbers without `0x`.
fn page_fault(body: &[u8]) -> Option<Kind> {
    let address = if is_raw(body, "fault_address") {
        "fault_address"
    } else {
        "address"
    };
    Some(Kind::KvmPageFault {
        vcpu: vcpu_if_printed(body)?,
        address: hex(body, address)?,
        error_code: hex(body, "error_code")?,
    })
}

/// `dst 1f vec 251 (Fixed|physical|assert|edge|dst)`: five fields of the ICR (SDM vol. 3, 12.6.1).
fn apic_ipi(body: &[u8]) -> Option<Kind> {
    let mut parts = parts(body);
    let mode = named(parts.next()?, DELIVERY)?;
    let logical = u32::from(parts.next()? == b"logical");
    let assert = u32::from(parts.next()? == b"assert");
    let level = u32::from(parts.next()? == b"level");
    let shorthand = named(parts.next()?, SHORTHAND)?;
    let vec: u8 = int(body, "vec")?;
    Some(Kind::KvmApicIpi {
        icr_low: u32::from(vec)
            | (mode & 7) << 8
            | logical << 11
            | assert << 14
            | level << 15
            | (shorthand & 3) << 18,
        dest_id: hex(body, "dst")?,
    })
}

/// `apicid a vec 236 (Fixed|edge)`: delivery and trigger mode without words before them.
fn accept_irq(body: &[u8], apicv: bool) -> Option<Kind> {
    let (apicid, vec) = (hex(body, "apicid")?, int(body, "vec")?);
    let mut parts = parts(body);
    let mode = u16::try_from(named(parts.next()?, DELIVERY)? & 7).ok()?;
    let (dm, tm) = (mode << 8, u16::from(parts.next()?.starts_with(b"level")));
    Some(if apicv {
        Kind::KvmApicvAcceptIrq {
            apicid,
            dm,
            tm,
            vec,
        }
    } else {
        Kind::KvmApicAcceptIrq {
            apicid,
            dm,
            tm,
            vec,
        }
    })
}

/// Before 5.19 `irq 48`, later `IRQ 0x30` or `Soft/INTn 0x80 [reinjected]`.
fn inj_virq(body: &[u8]) -> Option<Kind> {
    let vector = int(body, "IRQ").or_else(|| int(body, "INTn"))?;
    Some(Kind::KvmInjVirq {
        vector,
        soft: body.starts_with(b"Soft"),
        reinjected: body.ends_with(b"[reinjected]"),
    })
}

/// `#PF (0x10) [reinjected]`: exceptions by mnemonic, and only some have an error code.
fn inj_exception(body: &[u8]) -> Option<Kind> {
    let exception = named(body, EXCEPTIONS)?.try_into().ok()?;
    let error_code = if memchr::memchr(b'(', body).is_some() {
        parts(body).next().and_then(number)?.try_into().ok()?
    } else {
        0
    };
    Some(Kind::KvmInjException {
        exception,
        error_code,
    })
}

/// `dst 1 vec 37 (Fixed|physical|edge|rh)`: the parts of address and data.
fn msi(body: &[u8]) -> Option<Kind> {
    let mut parts = parts(body);
    let mode = u64::from(named(parts.next()?, DELIVERY)?);
    let logical = u64::from(parts.next()? == b"logical");
    let trigger = parts.next()?;
    let level = u64::from(trigger.starts_with(b"level"));
    let hint = u64::from(trigger.ends_with(b"rh") || parts.next() == Some(b"rh"));
    let dst: u64 = hex(body, "dst")?;
    let vec: u8 = int(body, "vec")?;
    // The address as on the bus (SDM vol. 3, 12.11.1), with destination bits 31:8 in its upper half.
    let address = 0xfee0_0000 | (dst & 0xff) << 12 | hint << 3 | logical << 2;
    Some(Kind::KvmMsiSetIrq {
        address: address | (dst & 0xffff_ff00) << 32,
        data: u64::from(vec) | (mode & 7) << 8 | level << 15,
    })
}

/// `icrh:icrl=0x00000001:000000fb`: two numbers behind one word.
fn avic_incomplete(body: &[u8]) -> Option<Kind> {
    let (high, low) = after(body, "icrh:icrl")?.split_at_checked(10)?;
    Some(Kind::KvmAvicIncompleteIpi {
        vcpu: vcpu_if_printed(body)?,
        icrh: bare_hex(high)?.try_into().ok()?,
        icrl: bare_hex(low.strip_prefix(b":")?)?.try_into().ok()?,
        id: int(body, "id")?,
    })
}

/// `vcpu 2: halt_poll_ns 10000 (grow 0)`: the old value's word is that of the change.
fn halt_poll(body: &[u8]) -> Option<Kind> {
    let (grow, old) = change(body)?;
    Some(Kind::KvmHaltPollNs {
        grow,
        vcpu: vcpu_if_printed(body)?,
        new: int(body, "halt_poll_ns")?,
        old,
    })
}

/// `vcpu 2: ple_window 3000 (shrink 6000)`, before 5.0.
fn ple_window(body: &[u8]) -> Option<Kind> {
    let (_, old) = change(body)?;
    Some(Kind::KvmPleWindowUpdate {
        vcpu: vcpu_if_printed(body)?,
        new: int(body, "ple_window")?,
        old,
    })
}

/// Whether `(grow 10000)` is growth, and the old value.
fn change(body: &[u8]) -> Option<(bool, u32)> {
    let change = parts(body).next()?;
    let grow = change.starts_with(b"grow");
    let old = int(change, if grow { "grow" } else { "shrink" })?;
    Some((grow, old))
}
