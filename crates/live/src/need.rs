//! The tracepoints that the analyses need, and what each is for.

/// Tracepoints of one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The folder in `events`.
    pub system: &'static str,
    /// Their names.
    pub events: &'static [&'static str],
    /// The loss of an answer without them.
    pub without: &'static str,
    /// Whether samples of a live host are made of them; others cost time and add nothing to these.
    pub sampled: bool,
}

/// The loss without timers.
const TIMERS: &str = "timer latencies are missing, and waits for timers keep their recorded times";

/// All tracepoints that are recorded. docs/recording.md has the same table for users.
pub const NEEDS: &[Need] = &[
    Need {
        system: "sched",
        events: &["sched_switch"],
        without: "the current task of each CPU is unknown",
        sampled: true,
    },
    Need {
        system: "kvm",
        events: &["kvm_entry", "kvm_exit"],
        without: "no guest time and no exits; halts are unknown",
        sampled: true,
    },
    Need {
        system: "sched",
        events: &["sched_waking"],
        without: "wakers are unknown: replayed waits end at their recorded times",
        sampled: true,
    },
    Need {
        system: "sched",
        events: &["sched_wakeup", "sched_wakeup_new"],
        without: "whatif does not see whether wakeups preempt",
        sampled: true,
    },
    Need {
        system: "sched",
        events: &["sched_migrate_task"],
        without: "a migration shows only when the task runs next",
        sampled: true,
    },
    Need {
        system: "sched",
        events: &["sched_process_fork", "sched_process_exit"],
        without: "the process of a new thread may be unknown",
        sampled: true,
    },
    Need {
        system: "timer",
        events: &["hrtimer_expire_entry"],
        without: TIMERS,
        sampled: true,
    },
    Need {
        system: "timer",
        events: &["hrtimer_start", "hrtimer_cancel", "hrtimer_expire_exit"],
        without: TIMERS,
        sampled: false,
    },
    Need {
        system: "kvm",
        events: &["kvm_vcpu_wakeup", "kvm_halt_poll_ns"],
        without: "polling in halts counts as exits",
        sampled: true,
    },
    Need {
        system: "kvm",
        events: &[
            "kvm_apic_ipi",
            "kvm_apic_accept_irq",
            "kvm_inj_virq",
            "kvm_eoi",
        ],
        without: "no IPI and injection latencies",
        sampled: false,
    },
    Need {
        system: "kvm",
        events: &[
            "kvm_apicv_accept_irq",
            "kvm_pv_eoi",
            "kvm_set_irq",
            "kvm_msi_set_irq",
            "kvm_pi_irte_update",
            "kvm_avic_incomplete_ipi",
            "kvm_apicv_inhibit_changed",
        ],
        without: "posted interrupts and reasons against them are not counted",
        sampled: false,
    },
    Need {
        system: "kvm",
        events: &[
            "kvm_userspace_exit",
            "kvm_hypercall",
            "kvm_pio",
            "kvm_mmio",
            "kvm_msr",
            "kvm_cpuid",
            "kvm_page_fault",
            "kvm_apic",
            "kvm_inj_exception",
        ],
        without: "registers, ports and addresses of exits are unknown",
        sampled: false,
    },
    Need {
        system: "kvm",
        events: &[
            "kvm_ple_window_update",
            "kvm_hv_timer_state",
            "kvm_wait_lapic_expire",
            "kvm_write_tsc_offset",
            "kvm_track_tsc",
            "kvm_update_master_clock",
            "kvm_pvclock_update",
            "kvm_pv_tlb_flush",
        ],
        without: "no findings about the PLE window, timers and clocks of guests",
        sampled: false,
    },
    Need {
        system: "ipi",
        events: &["ipi_send_cpu", "ipi_send_cpumask"],
        without: "kicks are no evidence for the grouping of vCPUs into VMs",
        sampled: false,
    },
    Need {
        system: "irq_vectors",
        events: &[
            "local_timer_entry",
            "local_timer_exit",
            "reschedule_entry",
            "reschedule_exit",
            "call_function_entry",
            "call_function_exit",
            "call_function_single_entry",
            "call_function_single_exit",
        ],
        without: "the time of host interrupts counts for the interrupted task",
        sampled: true,
    },
];

/// The name of a tracepoint in older kernels.
pub(crate) fn former(name: &str) -> Option<&'static str> {
    (name == "kvm_ple_window_update").then_some("kvm_ple_window")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Rows of the table of tracepoints: system and name.
    macro_rules! rows {
        ($( $(#[$doc:meta])*
            $( $kind:ident = $system:ident $name:ident $(formerly $former:ident)? { $($record:tt)* }
               $print:literal )?
            $( [$module:ident] $made:ident { $($fields:tt)* }
               $( $layout:ident $point:ident = $made_system:ident $made_name:ident
                  { $($made_record:tt)* } $made_print:literal )+ )?
            ; )*) => {
            [ $( $( (stringify!($system), stringify!($name)), )?
                 $( $( (stringify!($made_system), stringify!($made_name)), )+ )? )* ]
        };
    }

    #[test]
    fn every_event_is_decoded_and_named_once() {
        let mut rows: BTreeSet<(&str, &str)> = stealtime_events::for_each_tracepoint!(rows)
            .into_iter()
            .collect();
        for class in stealtime_events::HostVector::ALL {
            let (_, entry, exit) = class.names();
            rows.extend([("irq_vectors", entry), ("irq_vectors", exit)]);
        }
        let mut seen = BTreeSet::new();
        for need in NEEDS {
            for event in need.events {
                assert!(
                    rows.contains(&(need.system, event)),
                    "{event} is not decoded"
                );
                assert!(seen.insert(event), "{event} is there twice");
            }
        }
        // Every decoded event of KVM is recorded.
        for (system, event) in rows {
            assert!(
                system != "kvm" || seen.contains(&event),
                "{event} is not recorded"
            );
        }
    }
}
