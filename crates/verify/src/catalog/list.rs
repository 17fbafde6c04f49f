//! All protocols with their variants and properties.

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its variants; those that are sound come first.
    pub variants: &'static [Variant],
    /// The properties checked, with what they say.
    pub properties: &'static [(&'static str, &'static str)],
    /// What its bounds leave out.
    pub left_out: &'static str,
}

/// A variant of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// It must pass, and is explored by default.
    pub sound: bool,
    /// What it is.
    pub about: &'static str,
}

const fn sound(name: &'static str, about: &'static str) -> Variant {
    let sound = true;
    Variant { name, sound, about }
}

const fn faulty(name: &'static str, about: &'static str) -> Variant {
    let sound = false;
    Variant { name, sound, about }
}

/// All protocols.
pub const PROTOCOLS: &[Protocol] = &[
    Protocol {
        name: "pi-notify",
        about: "posted interrupts: post, synchronize, enter, leave, block, wake up, move",
        variants: PI_NOTIFY,
        properties: &[
            (
                "posted-not-lost",
                "a vector posted is in PIR, in the IRR, or was delivered",
            ),
            (
                "posted-not-twice",
                "a vector is delivered at most as often as it was posted",
            ),
            (
                "no-blocked-for-ever",
                "no vCPU sleeps with a pending interrupt and without a pending wakeup",
            ),
            (
                "noticed-in-guest",
                "in guest mode a posted vector has a notification on its way",
            ),
            ("sn-clear-in-guest", "in guest mode SN is clear"),
            (
                "sn-set-in-host",
                "quality: a runnable vCPU in the host has SN set (as-posted, corrected)",
            ),
            (
                "one-wakeup-list",
                "a vCPU is on one wakeup list at most, on none when it is loaded",
            ),
            (
                "request-seen",
                "no request is overlooked at guest entry, no request to unblock in sleep",
            ),
        ],
        left_out: "more posts, vCPUs and CPUs than given, a second migration, TPR above 0, nested EOIs, APICv switched concurrently",
    },
    Protocol {
        name: "pi-timer",
        about: "a guest's timer: expiry elsewhere, entry, exit, blocking, moves, switched backends",
        variants: PI_TIMER,
        properties: &[
            ("timer-not-early", "no interrupt before its deadline"),
            ("timer-once", "no more interrupts than deadlines reached"),
            (
                "timer-fires",
                "in guest mode a deadline reached has an interrupt on its way",
            ),
            (
                "no-blocked-for-ever",
                "no vCPU sleeps with an expired timer and without a pending wakeup",
            ),
        ],
        left_out: "periodic and one-shot modes, a scaled TSC, a third deadline, a vCPU that is never loaded again",
    },
    Protocol {
        name: "wakeup-batch",
        about: "batched softirqs: raise, nest, interrupts inside, CPUs that handle or monitor",
        variants: WAKEUP_BATCH,
        properties: &[
            (
                "softirq-seen",
                "no CPU idles or executes a guest with a raised softirq and without a pending IPI",
            ),
            (
                "no-stray-ipi",
                "no IPI to a CPU for which no softirq was raised",
            ),
        ],
        left_out: "more CPUs and raises than given, NMIs, CPUs that go offline",
    },
    Protocol {
        name: "yield",
        about: "directed yield: credit, requeue, forced reschedules, ticks, a migration",
        variants: YIELD,
        properties: &[
            (
                "sums-agree",
                "each queue's sums are what its members add up to, after every operation",
            ),
            (
                "lag-in-bounds",
                "a credited target has a lag from 0 to the bound of any entity's",
            ),
            (
                "forced-once",
                "a run queue is forced to reschedule at most once per 6 ms",
            ),
            (
                "hint-exists",
                "a yield never names a vCPU that does not exist, nor the spinner",
            ),
        ],
        left_out: "more vCPUs, deeper groups, other weights, flat picking, target pulled to another run queue",
    },
    Protocol {
        name: "clock",
        about: "kvmclock: readers during updates, restore and new master clock while vCPUs run",
        variants: CLOCK,
        properties: &[
            ("no-torn-read", "all fields of a reading are of one update"),
            (
                "no-time-travel",
                "no reading is older than one that any vCPU had before",
            ),
        ],
        left_out: "a third update, a TSC that is scaled or unstable, a restore during another",
    },
    Protocol {
        name: "ipi-tracking",
        about: "receivers that senders wait for: record, EOI, hint, knob, vCPUs destroyed",
        variants: IPI_TRACKING,
        properties: &[
            (
                "hint-exists",
                "a hint never names a vCPU that does not exist",
            ),
            (
                "hint-whole",
                "receiver, vector and time of a hint are of one record",
            ),
            (
                "eoi-own-record",
                "an EOI does not end a record made for another vector",
            ),
            (
                "disabled-at-once",
                "once tracking is switched off no question gets a hint",
            ),
        ],
        left_out: "more IPIs and vCPUs, the age of a record, hints by the guest",
    },
    Protocol {
        name: "scx-yield",
        about: "scx_stealtime: tracked IPIs, yields and returned loans, each map update a step",
        variants: SCX_YIELD,
        properties: &[
            (
                "payer-whole",
                "a vCPU that runs on a loan is charged to the vCPU that lent to it",
            ),
            (
                "wanted-kept",
                "a pick forgets no vCPU that it has not found",
            ),
            (
                "answer-seen",
                "no yield to a receiver by an exit that begins after its answer",
            ),
            (
                "answer-due",
                "a vCPU waits for each receiver of its last IPI until that one's EOI",
            ),
        ],
        left_out: "more CPUs and vCPUs, other cache domains, vCPUs that end, timers, the slice's end",
    },
];

const PI_NOTIFY: &[Variant] = &[
    sound("put", "SN at put unless it blocks: Linux 7.2"),
    sound("corrected", "SN with the mode, every flaw fixed"),
    sound("off", "SN only while preempted: before 2022"),
    faulty("as-posted-v1", "the first posting: flaws 1, 3, 5"),
    faulty(
        "as-posted-v1-half-repair",
        "the same with the PIR test of its review: flaw 2",
    ),
    faulty("as-posted-v2", "the second posting: flaw 5"),
    faulty("as-posted-v3", "the third posting: flaws 1, 8, 9"),
    faulty(
        "put-plain-apicv",
        "Linux 7.2 where no wakeup vector is used: preempted, moved blocker",
    ),
    faulty("on-not-recomputed", "Linux before c112b5f50232"),
    faulty("blocked-not-kicked", "Linux before a2486020a82e"),
    faulty("not-unlinked", "Linux before 8b306e2f3c41"),
    faulty("self-ipi-lost", "ACRN 4978"),
    faulty(
        "kick-compares-first",
        "a kick on the vCPU's own CPU that does not wake it first",
    ),
    faulty(
        "without-r1",
        "entry without the barrier between mode and ON",
    ),
    faulty(
        "without-r2",
        "ON cleared by an instruction that is no barrier",
    ),
    faulty(
        "without-r3",
        "SN cleared by an instruction that is no barrier",
    ),
    faulty("without-r4", "wait without the barrier before ON is read"),
    faulty(
        "without-r5",
        "no test of ON after the switch to the wakeup vector",
    ),
    faulty(
        "without-r6",
        "entry without the barrier between mode and requests",
    ),
    faulty("without-r7", "interrupts on between mode and VM entry"),
    faulty(
        "without-r8",
        "a nested post without the barrier before the mode is read",
    ),
    faulty("without-r10", "load takes the list of the new CPU"),
];

const PI_TIMER: &[Variant] = &[
    sound("preemption-timer", "an hrtimer only while the vCPU blocks"),
    sound("hrtimer", "no preemption timer, nothing is posted"),
    sound("posted", "expiries are posted to a vCPU in guest mode"),
    sound(
        "switching",
        "posted on the isolated CPU, the preemption timer on the other",
    ),
    faulty(
        "cancel-not-awaited",
        "arming anew does not wait for a callback that runs",
    ),
    faulty(
        "looks-too-early",
        "pending expiries are looked for before requests are taken",
    ),
    faulty("both-ways", "a posted expiry is injected as well"),
    faulty(
        "no-request",
        "an expiry kicks the vCPU, but requests nothing",
    ),
    faulty(
        "hv-while-blocking",
        "the preemption timer keeps the deadline of a blocked vCPU",
    ),
    faulty("no-spin", "the poster does not wait for the deadline"),
    faulty(
        "entry-wait",
        "Linux 7.2: the wait at entry is cut to the advance just made smaller",
    ),
];

const YIELD: &[Variant] = &[
    sound(
        "lag-credit",
        "version 3 of the series, with credits of up to four slices",
    ),
    faulty(
        "in-place",
        "a queued target is edited where it is in the tree",
    ),
    faulty("unbounded", "a credit is not cut to the bound of any lag"),
    faulty("unlimited", "every yield forces a reschedule"),
];

const WAKEUP_BATCH: &[Variant] = &[
    sound("in-word", "MWAIT promise in the softirq word: Xen 4.20.1"),
    faulty(
        "softirq-number",
        "the patch of 2014: notes the softirq's number, not the CPU",
    ),
    faulty(
        "no-second-look",
        "MWAIT without looking again after MONITOR",
    ),
    faulty(
        "promise-read-before",
        "the MWAIT promise is read before the bit is set",
    ),
];

const CLOCK: &[Variant] = &[
    sound("odd-version", "the version is odd during an update"),
    faulty(
        "version-after",
        "the version is raised only after an update",
    ),
    faulty(
        "entry-not-blocked",
        "vCPUs may enter while the clock changes",
    ),
    faulty(
        "exits-not-awaited",
        "vCPUs in guest mode are kicked, but not awaited",
    ),
    faulty(
        "unblocked-too-early",
        "vCPUs may enter before they know that their page is old",
    ),
];

const IPI_TRACKING: &[Variant] = &[
    sound(
        "vector-matched",
        "version 3: an EOI ends the record of its vector",
    ),
    faulty("any-vector", "version 2: an EOI ends whatever is recorded"),
    faulty(
        "own-context-only",
        "a vCPU destroyed is forgotten by its own context alone",
    ),
    faulty(
        "no-grace-period",
        "a vCPU is destroyed while an IPI to it is being recorded",
    ),
    faulty(
        "knob-at-record",
        "the knob is read at the IPI, not at the spin",
    ),
];

const SCX_YIELD: &[Variant] = &[
    sound(
        "one-word",
        "target, lender and slice are one word, taken by an exchange",
    ),
    faulty("split-words", "target and lender are words of their own"),
    faulty(
        "cleared-after",
        "a pick reads the target and clears it later, without the run queue's lock",
    ),
    faulty(
        "sender-cleared",
        "an EOI clears the sender's name after the record, as in the series",
    ),
    faulty(
        "unnumbered",
        "an answer clears the receiver's bit of whatever IPI is the newest",
    ),
];
