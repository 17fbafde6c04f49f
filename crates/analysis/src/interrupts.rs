//! Host interrupts that hit a CPU in guest mode.

use stealtime_events::vector::linux;

/// Interrupts that hit one vCPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct HitVectors {
    by_vector: Option<Box<[u64; 256]>>,
    /// Device interrupts with a vector that the trace lacks.
    pub(crate) devices: u64,
    /// Exits for an interrupt without a vector and without a handler before the next entry or exit.
    pub(crate) unknown: u64,
    is_open: bool,
}

impl HitVectors {
    /// An exit for a host interrupt, behind [`Self::close`].
    pub(crate) fn exit(&mut self, vector: Option<u8>) {
        match vector {
            Some(vector) => self.count(vector),
            // `vmx_handle_exit_irqoff` runs the handler at once: it is the first one before an entry.
            None => self.is_open = true,
        }
    }

    fn count(&mut self, vector: u8) {
        let counts = self.by_vector.get_or_insert_with(|| Box::new([0; 256]));
        counts[usize::from(vector)] += 1;
    }

    /// A handler with this vector begins.
    pub(crate) fn handler(&mut self, vector: u8) {
        if std::mem::take(&mut self.is_open) {
            self.count(vector);
        }
    }

    /// A device's handler begins.
    pub(crate) fn device(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.devices += 1;
        }
    }

    /// The guest is entered or left: the handler of the previous exit has run.
    pub(crate) fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.unknown += 1;
        }
    }

    /// Events were lost.
    pub(crate) fn forget(&mut self) {
        self.is_open = false;
    }

    /// Vectors and how often each hit.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = (u8, u64)> {
        let counts = self.by_vector.iter().flat_map(|counts| counts.iter());
        (0..=u8::MAX)
            .zip(counts.copied())
            .filter(|&(_, count)| count > 0)
    }

    /// Number of all interrupts.
    pub(crate) fn total(&self) -> u64 {
        let vectors: u64 = self.vectors().map(|(_, count)| count).sum();
        vectors + self.devices + self.unknown
    }
}

/// What a host vector is for (arch/x86/include/asm/irq_vectors.h).
pub(crate) const fn vector_name(vector: u8) -> &'static str {
    match vector {
        0x00..=0x1f => "exception",
        linux::LOCAL_TIMER => "local_timer",
        linux::POSTED_MSI_NOTIFICATION => "posted_msi_notification",
        linux::POSTED_INTR_NESTED => "posted_intr_nested",
        linux::POSTED_INTR_WAKEUP => "posted_intr_wakeup",
        linux::POSTED_INTR => "posted_intr",
        linux::IRQ_WORK => "irq_work",
        linux::CALL_FUNCTION_SINGLE => "call_function_single",
        linux::CALL_FUNCTION => "call_function",
        linux::RESCHEDULE => "reschedule",
        0xed..=0xff => "system",
        _ => "device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_handler_after_the_exit_counts() {
        let mut hits = HitVectors::default();
        hits.handler(0xfd);
        hits.exit(None);
        hits.handler(0xec);
        hits.handler(0xfd);
        hits.close();
        hits.exit(None);
        hits.close();
        hits.exit(Some(0xf2));
        hits.close();
        assert_eq!(hits.vectors().collect::<Vec<_>>(), [(0xec, 1), (0xf2, 1)]);
        assert_eq!((hits.unknown, hits.devices), (1, 0));
        // Two exits without an entry between them are two interrupts.
        hits.exit(None);
        hits.close();
        hits.exit(None);
        hits.close();
        assert_eq!(hits.unknown, 3);
        hits.exit(None);
        hits.device();
        assert_eq!((hits.devices, hits.total()), (1, 2 + 3 + 1));
    }

    #[test]
    fn vectors_have_the_names_of_linux() {
        for (vector, name) in [
            (0x1f, "exception"),
            (0x20, "device"),
            (0xeb, "posted_msi_notification"),
            (0xec, "local_timer"),
            (0xed, "system"),
            (0xf0, "posted_intr_nested"),
            (0xf1, "posted_intr_wakeup"),
            (0xf2, "posted_intr"),
            (0xf6, "irq_work"),
            (0xfb, "call_function_single"),
            (0xfc, "call_function"),
            (0xfd, "reschedule"),
            (0xff, "system"),
        ] {
            assert_eq!(vector_name(vector), name, "{vector:#x}");
        }
    }
}
