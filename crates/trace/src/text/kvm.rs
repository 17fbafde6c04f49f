//! The kvm tracepoints as text: as the kernel prints them (5.10 to 7.2), as trace-cmd's own
//! plugins do, and as bare fields.

use stealtime_events::exit_reason::VMX_FAILED_VMENTRY;
use stealtime_events::{ExitReason, Isa, Kind, VcpuId};

use super::fields::{after, bare_hex, flag, hex, int, is_raw, named, number, parts, word};

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

/// Clock modes of the host's vDSO.
const HOST_CLOCKS: &[(u32, &str)] = &[(0, "none"), (1, "tsc")];

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

/// Exit reasons by the words that the text has for them.
#[derive(Debug, Default)]
pub(super) struct Exits {
    /// The few that a recording has, with the words they came from.
    known: Vec<(Box<[u8]>, ExitReason)>,
    isa: Option<Isa>,
}

impl Exits {
    /// The reason that `words` (`npf`, `EXIT_NPF`, `INVALID_STATE FAILED_VMENTRY`, `0x1234`) stand
    /// for. A bare number belongs to the table of the names seen before it, if that has no name for it.
    fn reason(&mut self, words: &[u8]) -> Option<ExitReason> {
        if let Some((_, reason)) = self.known.iter().find(|(known, _)| **known == *words) {
            return Some(*reason);
        }
        let mut parts = words
            .split(|byte| *byte == b' ')
            .filter(|part| !part.is_empty());
        let name = parts.next()?;
        let text = std::str::from_utf8(name).ok()?;
        let unknown = text == "UNKNOWN";
        let mut reason = match (ExitReason::from_name(text), unknown) {
            (Some(reason), false) => reason,
            _ => {
                let digits = if unknown {
                    parts.next()?.trim_ascii_start()
                } else {
                    name
                };
                let digits = digits.strip_prefix(b"(").unwrap_or(digits);
                let digits = digits.strip_suffix(b")").unwrap_or(digits);
                let code = u32::try_from(number(digits)?).ok()?;
                // A module prints a number where its table has no name. One that the table of the names
                // before has is another module's (`kvm_pvm` beside `kvm_intel`): it stays a number.
                let of_table = self.isa.map(|isa| ExitReason { isa, code });
                let other = ExitReason {
                    isa: Isa::Other,
                    code,
                };
                return Some(of_table.filter(|it| it.name().is_none()).unwrap_or(other));
            }
        };
        self.isa = Some(reason.isa);
        if reason.isa == Isa::Vmx && parts.any(|flag| flag == b"FAILED_VMENTRY") {
            reason.code |= VMX_FAILED_VMENTRY;
        }
        if self.known.len() < 256 {
            self.known.push((words.into(), reason));
        }
        Some(reason)
    }
}

/// The event, or `None` where it is not of kvm or cannot be read.
pub(super) fn parse(event: &[u8], body: &[u8], exits: &mut Exits) -> Option<Kind> {
    match event {
        b"kvm_entry" => entry(body),
        b"kvm_exit" => exit(body, exits),
        b"kvm_userspace_exit" => userspace_exit(body),
        b"kvm_hypercall" => Some(Kind::KvmHypercall {
            nr: int(body, "nr")?,
            a0: int(body, "a0")?,
            a1: int::<u64>(body, "a1")? as u32,
        }),
        b"kvm_pio" => pio(body),
        b"kvm_mmio" => mmio(body),
        b"kvm_msr" => msr(body),
        b"kvm_cpuid" => cpuid(body),
        b"kvm_page_fault" => page_fault(body),
        _ => interrupts(event, body).or_else(|| clocks(event, body)),
    }
}

fn vcpu(body: &[u8]) -> Option<VcpuId> {
    int(body, "vcpu")
        .or_else(|| int(body, "vcpu_id"))
        .map(VcpuId)
}

/// The vCPU where the field is printed, `UNKNOWN` where it is not.
fn vcpu_if_any(body: &[u8]) -> Option<VcpuId> {
    if after(body, "vcpu").is_none() && after(body, "vcpu_id").is_none() {
        return Some(VcpuId::UNKNOWN);
    }
    vcpu(body)
}

fn entry(body: &[u8]) -> Option<Kind> {
    // arm64 prints the program counter only.
    let vcpu = if body.starts_with(b"PC:") {
        VcpuId::UNKNOWN
    } else {
        vcpu(body)?
    };
    Some(Kind::KvmEntry { vcpu })
}

fn exit(body: &[u8], exits: &mut Exits) -> Option<Kind> {
    let vcpu = vcpu_if_any(body)?;
    let reason = if is_raw(body, "exit_reason") {
        let isa = match int(body, "isa") {
            Some(1_u8) => Isa::Vmx,
            Some(2) => Isa::Svm,
            Some(_) => Isa::Other,
            None => return None,
        };
        ExitReason {
            isa,
            code: int(body, "exit_reason")?,
        }
    } else if let Some(words) = after(body, "reason") {
        let end = memchr::memmem::find(words, b" rip ").or(memchr::memmem::find(words, b" info"));
        exits.reason(words.get(..end.unwrap_or(words.len()))?.trim_ascii())?
    } else {
        arm64_exit(body)?
    };
    let info1 = match after(body, "info1") {
        Some(value) => u64::try_from(number(value)?).ok()?,
        None => after(body, "info").map_or(Some(0), bare_hex)?,
    };
    let intr_info = match after(body, "intr_info") {
        Some(value) => u32::try_from(number(value)?).ok()?,
        None => 0,
    };
    // Bit 31 of the VM-exit interruption information: valid. SVM has EXITINTINFO here, which says
    // what was being delivered to the guest.
    let [vector, ..] = intr_info.to_le_bytes();
    let intr_vector = (intr_info >> 31 == 1 && reason.isa == Isa::Vmx).then_some(vector);
    Some(Kind::KvmExit {
        reason,
        vcpu,
        intr_vector,
        info1,
    })
}

/// `TRAP: HSR_EC: 0x0024 (DABT_LOW), PC: …`, `IRQ: HSR_EC: …`.
fn arm64_exit(body: &[u8]) -> Option<ExitReason> {
    let class = after(body, "HSR_EC").or_else(|| after(body, "ESR_EC"))?;
    if body.starts_with(b"TRAP") {
        let code = u32::try_from(number(class)?).ok()?;
        return Some(ExitReason {
            isa: Isa::Arm64,
            code,
        });
    }
    let name = body.get(..memchr::memchr(b':', body)?)?;
    ExitReason::from_name(std::str::from_utf8(name).ok()?).filter(|it| it.isa == Isa::Arm64)
}

fn userspace_exit(body: &[u8]) -> Option<Kind> {
    if is_raw(body, "reason") {
        return Some(Kind::KvmUserspaceExit {
            reason: int(body, "reason")?,
            errno: int(body, "errno")?,
        });
    }
    let name = word(body, "reason")?;
    let value: i32 = parts(body).next().and_then(number)?.try_into().ok()?;
    // With an error the kernel prints that instead of the reason.
    Some(match name {
        b"restart" | b"error" => Kind::KvmUserspaceExit {
            reason: 0,
            errno: value.checked_neg()?,
        },
        _ => Kind::KvmUserspaceExit {
            reason: value.try_into().ok()?,
            errno: 0,
        },
    })
}

fn pio(body: &[u8]) -> Option<Kind> {
    let raw = is_raw(body, "port");
    let port = if raw {
        int(body, "port")
    } else {
        int(body, "at")
    };
    let write = if raw {
        flag(body, "rw")?
    } else {
        body.starts_with(b"pio_write")
    };
    Some(Kind::KvmPio {
        write,
        port: port?,
        size: int(body, "size")?,
        count: int(body, "count")?,
        val: int(body, "val")?,
    })
}

fn mmio(body: &[u8]) -> Option<Kind> {
    let types = &[(0, "unsatisfied-read"), (1, "read"), (2, "write")];
    let mmio_type = after(body, "mmio").or_else(|| after(body, "type"))?;
    Some(Kind::KvmMmio {
        mmio_type: named(mmio_type, types)?.try_into().ok()?,
        len: int(body, "len")?,
        gpa: int(body, "gpa")?,
        val: int(body, "val")?,
    })
}

fn msr(body: &[u8]) -> Option<Kind> {
    if is_raw(body, "ecx") {
        return Some(Kind::KvmMsr {
            write: flag(body, "write")?,
            exception: flag(body, "exception")?,
            ecx: hex(body, "ecx")?,
            data: int(body, "data")?,
        });
    }
    let (write, rest) = match body.strip_prefix(b"msr_write ") {
        Some(rest) => (true, rest),
        None => (false, body.strip_prefix(b"msr_read ")?),
    };
    let equals = memchr::memmem::find(rest, b" = ")?;
    Some(Kind::KvmMsr {
        write,
        exception: rest.ends_with(b"(#GP)"),
        ecx: bare_hex(rest)?.try_into().ok()?,
        data: number(rest.get(equals + 3..)?)?.try_into().ok()?,
    })
}

fn cpuid(body: &[u8]) -> Option<Kind> {
    if is_raw(body, "function") {
        let index = hex(body, "index").unwrap_or(0);
        return Some(Kind::KvmCpuid {
            function: hex(body, "function")?,
            index,
        });
    }
    Some(Kind::KvmCpuid {
        function: hex(body, "func")?,
        index: if after(body, "idx").is_some() {
            hex(body, "idx")?
        } else {
            0
        },
    })
}

fn page_fault(body: &[u8]) -> Option<Kind> {
    let address = if is_raw(body, "fault_address") {
        "fault_address"
    } else {
        "address"
    };
    Some(Kind::KvmPageFault {
        vcpu: vcpu_if_any(body)?,
        address: hex(body, address)?,
        error_code: hex(body, "error_code")?,
    })
}

fn interrupts(event: &[u8], body: &[u8]) -> Option<Kind> {
    Some(match event {
        b"kvm_apic" => {
            let (write, rest) = match body.strip_prefix(b"apic_write ") {
                Some(rest) => (true, rest),
                None if is_raw(body, "rw") => (flag(body, "rw")?, body),
                None => (false, body.strip_prefix(b"apic_read ")?),
            };
            let (reg, val) = if is_raw(rest, "reg") {
                (int(rest, "reg")?, int(rest, "val")?)
            } else {
                let equals = memchr::memmem::find(rest, b" = ")?;
                let val = number(rest.get(equals + 3..)?)?.try_into().ok()?;
                (named(rest.get(..equals)?, APIC_REGISTERS)?, val)
            };
            Kind::KvmApic { write, reg, val }
        }
        b"kvm_apic_ipi" => apic_ipi(body)?,
        b"kvm_apic_accept_irq" => {
            let (apicid, dm, tm, vec) = accept_irq(body)?;
            Kind::KvmApicAcceptIrq {
                apicid,
                dm,
                tm,
                vec,
            }
        }
        b"kvm_apicv_accept_irq" => {
            let (apicid, dm, tm, vec) = accept_irq(body)?;
            Kind::KvmApicvAcceptIrq {
                apicid,
                dm,
                tm,
                vec,
            }
        }
        b"kvm_inj_virq" => inj_virq(body)?,
        b"kvm_inj_exception" => inj_exception(body)?,
        b"kvm_eoi" => Kind::KvmEoi {
            apicid: hex(body, "apicid")?,
            vector: int(body, "vector")?,
        },
        b"kvm_pv_eoi" => Kind::KvmPvEoi {
            apicid: hex(body, "apicid")?,
            vector: int(body, "vector")?,
        },
        b"kvm_set_irq" => Kind::KvmSetIrq {
            gsi: int(body, "gsi")?,
            level: int(body, "level")?,
        },
        b"kvm_msi_set_irq" => msi(body)?,
        b"kvm_pi_irte_update" => Kind::KvmPiIrteUpdate {
            host_irq: int(body, "irq").or_else(|| int(body, "host_irq"))?,
            vcpu: vcpu(body)?,
            gsi: int(body, "gsi")?,
            gvec: int(body, "gvec")?,
            set: if is_raw(body, "set") {
                flag(body, "set")?
            } else {
                after(body, "is")?.starts_with(b"enabled")
            },
        },
        b"kvm_avic_incomplete_ipi" => avic_incomplete(body)?,
        b"kvm_apicv_inhibit_changed" => Kind::KvmApicvInhibitChanged {
            reason: int(body, "reason")?,
            set: if is_raw(body, "set") {
                flag(body, "set")?
            } else {
                body.starts_with(b"set")
            },
            inhibits: int(body, "inhibits")?,
        },
        _ => return None,
    })
}

fn apic_ipi(body: &[u8]) -> Option<Kind> {
    if is_raw(body, "icr_low") {
        let (icr_low, dest_id) = (int(body, "icr_low")?, hex(body, "dest_id")?);
        return Some(Kind::KvmApicIpi { icr_low, dest_id });
    }
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

/// Local APIC, delivery mode << 8, trigger mode (1: level), vector.
fn accept_irq(body: &[u8]) -> Option<(u32, u16, u16, u8)> {
    let apicid = hex(body, "apicid")?;
    let vec = int(body, "vec")?;
    if is_raw(body, "dm") {
        return Some((apicid, int(body, "dm")?, int(body, "tm")?, vec));
    }
    let mut parts = parts(body);
    let mode = u16::try_from(named(parts.next()?, DELIVERY)? & 7).ok()?;
    let level = u16::from(parts.next()?.starts_with(b"level"));
    Some((apicid, mode << 8, level, vec))
}

fn inj_virq(body: &[u8]) -> Option<Kind> {
    if is_raw(body, "vector") || is_raw(body, "irq") {
        return Some(Kind::KvmInjVirq {
            vector: int(body, "vector").or_else(|| int(body, "irq"))?,
            soft: flag(body, "soft").unwrap_or(false),
            reinjected: flag(body, "reinjected").unwrap_or(false),
        });
    }
    // Before 5.19: `irq 48`. After: `IRQ 0x30` or `Soft/INTn 0x80 [reinjected]`.
    let vector = int(body, "irq")
        .or_else(|| int(body, "IRQ"))
        .or_else(|| int(body, "INTn"))?;
    Some(Kind::KvmInjVirq {
        vector,
        soft: body.starts_with(b"Soft"),
        reinjected: body.ends_with(b"[reinjected]"),
    })
}

fn inj_exception(body: &[u8]) -> Option<Kind> {
    if is_raw(body, "exception") {
        return Some(Kind::KvmInjException {
            exception: int(body, "exception")?,
            error_code: int(body, "error_code")?,
        });
    }
    let error_code = if memchr::memchr(b'(', body).is_some() {
        parts(body).next().and_then(number)?.try_into().ok()?
    } else {
        0
    };
    let exception = named(body, EXCEPTIONS)?.try_into().ok()?;
    Some(Kind::KvmInjException {
        exception,
        error_code,
    })
}

fn msi(body: &[u8]) -> Option<Kind> {
    if is_raw(body, "address") {
        let (address, data) = (int(body, "address")?, int(body, "data")?);
        return Some(Kind::KvmMsiSetIrq { address, data });
    }
    let mut parts = parts(body);
    let mode = u64::from(named(parts.next()?, DELIVERY)?);
    let logical = u64::from(parts.next()? == b"logical");
    let trigger = parts.next()?;
    let level = u64::from(trigger.starts_with(b"level"));
    let hint = u64::from(trigger.ends_with(b"rh") || parts.next() == Some(b"rh"));
    let dst: u64 = hex(body, "dst")?;
    let vec: u8 = int(body, "vec")?;
    // The address as on the bus (SDM 12.11.1), with destination bits 31:8 in its upper half.
    let address = 0xfee0_0000 | (dst & 0xff) << 12 | hint << 3 | logical << 2;
    Some(Kind::KvmMsiSetIrq {
        address: address | (dst & 0xffff_ff00) << 32,
        data: u64::from(vec) | (mode & 7) << 8 | level << 15,
    })
}

fn avic_incomplete(body: &[u8]) -> Option<Kind> {
    let (icrh, icrl) = if is_raw(body, "icrh") {
        (int(body, "icrh")?, int(body, "icrl")?)
    } else {
        let both = after(body, "icrl")?;
        let colon = memchr::memchr(b':', both)?;
        let icrl = bare_hex(both.get(colon + 1..)?)?.try_into().ok()?;
        (u32::try_from(bare_hex(both.get(..colon)?)?).ok()?, icrl)
    };
    Some(Kind::KvmAvicIncompleteIpi {
        vcpu: vcpu(body)?,
        icrh,
        icrl,
        id: int(body, "id")?,
    })
}

fn clocks(event: &[u8], body: &[u8]) -> Option<Kind> {
    Some(match event {
        b"kvm_vcpu_wakeup" if is_raw(body, "ns") => Kind::KvmVcpuWakeup {
            ns: int(body, "ns")?,
            waited: flag(body, "waited")?,
            valid: flag(body, "valid")?,
        },
        b"kvm_vcpu_wakeup" => Kind::KvmVcpuWakeup {
            ns: int(body, "time")?,
            waited: body.starts_with(b"wait"),
            valid: after(body, "polling")?.starts_with(b"valid"),
        },
        b"kvm_halt_poll_ns" => {
            let (grow, new, old) = grown(body, "halt_poll_ns")?;
            Kind::KvmHaltPollNs {
                vcpu: vcpu(body)?,
                grow,
                new,
                old,
            }
        }
        b"kvm_ple_window_update" | b"kvm_ple_window" => {
            let (new, old) = if after(body, "new").is_some() {
                (int(body, "new")?, int(body, "old")?)
            } else {
                let (_, new, old) = grown(body, "ple_window")?;
                (new, old)
            };
            Kind::KvmPleWindowUpdate {
                vcpu: vcpu(body)?,
                new,
                old,
            }
        }
        b"kvm_hv_timer_state" => Kind::KvmHvTimerState {
            vcpu: VcpuId(hex(body, "vcpu_id")?),
            hv_timer_in_use: flag(body, "hv_timer").or_else(|| flag(body, "hv_timer_in_use"))?,
        },
        b"kvm_wait_lapic_expire" => Kind::KvmWaitLapicExpire {
            vcpu: vcpu(body)?,
            delta: int(body, "delta")?,
        },
        b"kvm_write_tsc_offset" => Kind::KvmWriteTscOffset {
            vcpu: vcpu(body)?,
            prev: int(body, "prev").or_else(|| int(body, "previous_tsc_offset"))?,
            next: int(body, "next").or_else(|| int(body, "next_tsc_offset"))?,
        },
        b"kvm_track_tsc" => Kind::KvmTrackTsc {
            vcpu: vcpu(body)?,
            matched: int(body, "offsetmatched").or_else(|| int(body, "nr_vcpus_matched_tsc"))?,
            online: int(body, "nr_online").or_else(|| int(body, "online_vcpus"))?,
            use_master_clock: master_clock(body)?,
            host_clock: host_clock(body)?,
        },
        b"kvm_update_master_clock" => Kind::KvmUpdateMasterClock {
            use_master_clock: master_clock(body)?,
            host_clock: host_clock(body)?,
            offset_matched: flag(body, "offsetmatched").or_else(|| flag(body, "offset_matched"))?,
        },
        b"kvm_pvclock_update" => Kind::KvmPvclockUpdate {
            vcpu: vcpu(body)?,
            tsc_timestamp: int(body, "tsc_timestamp")?,
            system_time: int(body, "system_time")?,
        },
        b"kvm_pv_tlb_flush" => Kind::KvmPvTlbFlush {
            vcpu: vcpu(body)?,
            need_flush_tlb: flag(body, "need_flush_tlb")?,
        },
        _ => return None,
    })
}

/// `NAME 20000 (grow 10000)`, or raw fields.
fn grown(body: &[u8], name: &str) -> Option<(bool, u32, u32)> {
    if is_raw(body, "new") {
        return Some((flag(body, "grow")?, int(body, "new")?, int(body, "old")?));
    }
    let change = parts(body).next()?;
    let grow = change.starts_with(b"grow");
    let old = after(change, if grow { "grow" } else { "shrink" })?;
    Some((grow, int(body, name)?, u32::try_from(number(old)?).ok()?))
}

fn master_clock(body: &[u8]) -> Option<bool> {
    flag(body, "masterclock").or_else(|| flag(body, "use_master_clock"))
}

fn host_clock(body: &[u8]) -> Option<u32> {
    named(
        after(body, "hostclock").or_else(|| after(body, "host_clock"))?,
        HOST_CLOCKS,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_the_table_of_the_names_has_is_of_another_module() {
        let mut exits = Exits::default();
        let mut of = |words: &str| {
            let reason = exits.reason(words.as_bytes()).expect("a reason");
            (reason.isa, reason.code, reason.name())
        };
        assert_eq!(of("0x20"), (Isa::Other, 0x20, None));
        assert_eq!(of("HLT"), (Isa::Vmx, 12, Some("HLT")));
        // KVM on VMX prints a name for it.
        assert_eq!(of("0x0"), (Isa::Other, 0, None));
        assert_eq!(of("0x3e7"), (Isa::Vmx, 0x3e7, None));
    }
}
