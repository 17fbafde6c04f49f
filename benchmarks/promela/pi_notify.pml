/* The model `pi-notify`, variant `put`, agents `device+poster`, as Promela: one vCPU on two CPUs,
 * a device that posts through the IOMMU, a poster in software, one migration, preemption, stores
 * buffered as on x86. A step is one shared access, as in crates/verify. It is here to compare
 * speeds, not verdicts.
 */

#define NOTIFICATION 1
#define WAKEUP 2

/* The thread goes on only while its CPU handles no interrupt. */
#define ready (!handling[own_cpu])

byte pir;                 /* bit 0: the device's vector, bit 1: the poster's */
bit on_, sn, nv, ndst;    /* nv: 1 is the wakeup vector */
byte mode = 1;            /* 0 outside, 1 in guest, 2 exiting */
byte requests;
bit waiting;
bit cpu;                  /* where it was loaded last */
bit listed[2];
byte irr;
byte pending[2];
bit handling[2];          /* the CPU runs the wakeup handler */

/* The thread, as its CPU's interrupts see it. */
bit out;                  /* without a CPU */
bit irqs_off = 1;
bit own_cpu;
byte delivered[2];
bit moved;

/* The thread's store buffer: what and value, oldest first. */
#define MODE 1
#define WAIT 2
#define CPU 3
byte what[3];
byte value[3];
byte waits;

inline visible() {
    if
    :: what[0] == MODE -> mode = value[0]
    :: what[0] == WAIT -> waiting = value[0]
    :: else -> cpu = value[0]
    fi;
    what[0] = what[1]; value[0] = value[1];
    what[1] = what[2]; value[1] = value[2];
    what[2] = 0; value[2] = 0;
    waits--
}
inline drain() {
    do
    :: waits > 0 -> visible()
    :: else -> break
    od
}
inline store(w, v) {
    if
    :: waits == 3 -> visible()
    :: else
    fi;
    what[waits] = w; value[waits] = v; waits++
}
inline take_interrupts() {
    if :: irr & 1 -> delivered[0]++; assert(delivered[0] <= 1) :: else fi;
    if :: irr & 2 -> delivered[1]++; assert(delivered[1] <= 1) :: else fi;
    irr = 0
}

/* PIR to IRR. */
inline sync() {
    if
    :: ready && on_ ->
        atomic { ready -> drain(); on_ = 0 };
        if
        :: ready && pir -> atomic { ready -> drain(); irr = irr | pir; pir = 0 }
        :: ready && !pir
        fi
    :: ready && !on_
    fi
}

inline preempted() {
    if
    :: ready && !sn -> atomic { ready -> drain(); sn = 1; out = 1 }
    :: atomic { ready && sn -> out = 1 }
    fi
}

#define word_ (on_ + 2 * sn + 4 * nv + 8 * ndst)

/* PIR is not empty: ON is set. */
inline recompute_on() {
    if
    :: atomic { on_ -> irqs_off = 0 }
    :: !on_ ->
        if
        :: pir -> atomic { drain(); on_ = 1; irqs_off = 0 }
        :: atomic { !pir -> irqs_off = 0 }
        fi
    fi
}

/* Loads the vCPU on its CPU or, once, on the other: its first step reads NV. */
inline load() {
    if
    :: atomic { !handling[own_cpu] && !nv -> out = 0; irqs_off = 1 };
        if
        :: atomic { sn -> drain(); sn = 0 }; recompute_on()
        :: atomic { !sn -> drain(); irqs_off = 0 }
        fi
    :: atomic { !handling[own_cpu] && nv -> out = 0; irqs_off = 1; to = own_cpu };
        load_anew()
    :: atomic { !moved && !handling[1 - own_cpu] ->
        out = 0; irqs_off = 1; moved = 1; to = 1 - own_cpu; was = own_cpu; own_cpu = to };
        load_anew()
    fi
}

inline load_anew() {
    if
    :: nv -> atomic { drain(); listed[was] = 0 }
    :: else
    fi;
    seen = word_;
    do
    :: atomic { seen == word_ -> drain();
        ndst = to; sn = 0; nv = 0; store(CPU, to); was = to; seen = 0; to = 0; break }
    :: atomic { seen != word_ -> drain(); seen = word_ }
    od;
    recompute_on()
}

active proctype vcpu() {
    byte seen;
    bit to, was;

host:
    if
    :: atomic { ready -> irqs_off = 1; store(MODE, 1); drain() }
    :: preempted(); load(); goto host
    fi;
    sync();
    if
    :: atomic { ready && mode == 2 -> store(MODE, 0); irqs_off = 0 }; goto host
    :: ready && mode != 2
    fi;
    if
    :: atomic { ready && requests -> store(MODE, 0); irqs_off = 0 }; goto host
    :: atomic { ready && !requests -> take_interrupts() }
    fi;

guest:
    if
    :: atomic { pending[own_cpu] & NOTIFICATION ->
        pending[own_cpu] = pending[own_cpu] & ~NOTIFICATION };
        atomic { drain(); on_ = 0 };
        atomic { drain(); irr = irr | pir; pir = 0; take_interrupts() };
        goto guest
    :: atomic { store(MODE, 0); irqs_off = 0 }; goto host
    :: atomic { !(pending[own_cpu] & WAKEUP) -> store(MODE, 0); irqs_off = 0 }; goto block
    :: !(pending[own_cpu] & WAKEUP);
        sync();
        if
        :: atomic { mode == 2 -> store(MODE, 0); irqs_off = 0 }; goto host
        :: mode != 2
        fi;
        if
        :: atomic { requests -> store(MODE, 0); irqs_off = 0 }; goto host
        :: atomic { !requests -> take_interrupts() }; goto guest
        fi
    fi;

block:
    if
    :: atomic { ready -> store(WAIT, 1); drain() }
    :: preempted(); load(); goto block
    fi;
    if
    :: ready && !requests
    :: preempted(); load()
    fi;
    ready && !requests;
    sync();
    if
    :: atomic { ready && irr -> store(WAIT, 0) }; goto host
    :: ready && !irr && waiting -> irqs_off = 1
    :: ready && !irr && !waiting -> goto block
    :: preempted(); load(); goto block
    fi;

    /* put, to sleep */
    atomic { drain(); listed[own_cpu] = 1 };
    !sn;
    seen = word_;
    do
    :: atomic { seen == word_ -> drain();
        nv = 1; out = 1; irqs_off = 0; seen = 0;
        if :: on_ -> pending[own_cpu] = pending[own_cpu] | WAKEUP :: else fi;
        break }
    :: atomic { seen != word_ -> drain(); seen = word_ }
    od;
    !waiting && waits == 0;
    load();
    goto block
}

active proctype buffer() {
end:
    do
    :: atomic { waits > 0 -> visible() }
    od
}

active proctype device() {
    bit notify, at, vector;
    d_step {
        pir = pir | 1;
        if
        :: !on_ && !sn -> on_ = 1; notify = 1; at = ndst; vector = nv
        :: else
        fi
    };
    if
    :: notify -> d_step { pending[at] = pending[at] | (vector -> WAKEUP : NOTIFICATION) }
    :: else
    fi
}

inline wake() {
    if
    :: waiting -> waiting = 0
    :: !waiting
    fi
}

active proctype poster() {
    bit at;
    pir = pir | 2;
    if
    :: on_
    :: atomic { !on_ -> on_ = 1 };
        if
        :: mode == 1 ->
            at = cpu;
            pending[at] = pending[at] | NOTIFICATION
        :: mode != 1 -> wake()
        fi
    fi
}

#define open(c) (out || own_cpu != c || !irqs_off)

proctype irq(bit c) {
end:
    do
    :: atomic { (pending[c] & NOTIFICATION) && open(c) ->
        pending[c] = pending[c] & ~NOTIFICATION }
    :: atomic { (pending[c] & WAKEUP) && open(c) ->
        pending[c] = pending[c] & ~WAKEUP; handling[c] = 1 };
        if
        :: atomic { !listed[c] -> handling[c] = 0 }
        :: listed[c] ->
            if
            :: on_ -> wake(); handling[c] = 0
            :: atomic { !on_ -> handling[c] = 0 }
            fi
        fi
    od
}

init {
    atomic { run irq(0); run irq(1) }
}
