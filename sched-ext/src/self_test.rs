//! The arithmetic of the BPF program in this kernel, equal to that of `stealtime-hypervisor`.
//!
//! `sched-ext/arithmetic` compares the same C as compiled for the host. Here the kernel's verifier and
//! compiler have their part in it.

use std::error::Error;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ProgramInput, ProgramMut};
use stealtime_hypervisor::ipi_tracking::{
    IpiContext, IpiKnobs, Unicast, confirmed_receiver, record, settle,
};
use stealtime_hypervisor::lag_credit::Guard;
use stealtime_hypervisor::lag_credit::arithmetic::{
    CreditRequest, Tokens, credit_lag, credit_shift, is_due,
};

use crate::self_test_skeleton::SelfTestSkelBuilder;

/// Printed with a difference: with it the cases are the same ones again.
const SEED: u64 = 0x5eed_0001;
/// Cases of each function without state.
const CASES: u64 = 1_000;
/// Sequences of credits by one guard, and their length.
const GUARDS: u64 = 50;
const CREDITS: u64 = 20;
/// Steps of four vCPUs that send, answer and ask.
const STEPS: u64 = 2_000;
const NO_VCPU: u32 = (1 << 24) - 1;
/// `ST_NEVER`.
const NEVER: u64 = u64::MAX;

/// The function that a case calls, in the order of `bpf/self_test.bpf.c`.
#[derive(Clone, Copy, Debug)]
enum Kind {
    MulDiv,
    Vtime,
    FloorDiv,
    CreditLag,
    CreditShift,
    Spend,
    IsDue,
    Record,
    Awaited,
    Eoi,
}

/// Words of `struct test_case`: kind, six inputs, result, two of the tokens, three of each IPI.
const WORDS: usize = 16;
const INPUT: usize = 1;
const RESULT: usize = 7;
const TOKENS: usize = 8;
const SOURCE: usize = 10;
const TARGET: usize = 13;

/// `struct st_ipi`.
type Ipi = [u64; 3];

/// The BPF program.
struct Kernel<'p> {
    program: &'p ProgramMut<'p>,
    cases: u64,
}

impl Kernel<'_> {
    /// Calls a function; all words come back.
    fn call(
        &mut self,
        kind: Kind,
        input: &[u64],
        state: impl FnOnce(&mut [u64; WORDS]),
    ) -> Result<[u64; WORDS], Box<dyn Error>> {
        let mut words = [0; WORDS];
        words[0] = kind as u64;
        words[INPUT..INPUT + input.len()].copy_from_slice(input);
        state(&mut words);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let input = ProgramInput {
            context_in: Some(&mut bytes),
            ..ProgramInput::default()
        };
        self.program.test_run(input)?;
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into()?);
        }
        self.cases += 1;
        Ok(words)
    }

    /// A function without state.
    fn expect(&mut self, kind: Kind, input: &[u64], expected: u64) -> Result<(), Box<dyn Error>> {
        let words = self.call(kind, input, |_| {})?;
        equal(kind, input, words[RESULT], expected)
    }
}

fn equal(kind: Kind, input: &[u64], kernel: u64, library: u64) -> Result<(), Box<dyn Error>> {
    if kernel == library {
        return Ok(());
    }
    Err(format!(
        "{kind:?} of {input:?} is {kernel:#x} in the kernel, {library:#x} in the library (seed {SEED:#x})"
    )
    .into())
}

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Numbers of all lengths: uniform ones are nearly all long.
    fn any_length(&mut self) -> u64 {
        let shift = self.below(64);
        self.next() >> shift
    }

    fn lag(&mut self) -> i64 {
        let size = (self.any_length() >> 1) as i64;
        if self.below(2) == 0 { size } else { -size }
    }
}

/// Compares all functions.
///
/// # Errors
/// The first difference, or what the kernel refuses.
pub(crate) fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut object = MaybeUninit::uninit();
    let open = SelfTestSkelBuilder::default().open(&mut object)?;
    let skel = open.load()?;
    let mut kernel = Kernel {
        program: &skel.progs.self_test,
        cases: 0,
    };
    let mut numbers = Numbers(SEED);
    for _ in 0..CASES {
        functions(&mut kernel, &mut numbers)?;
    }
    for _ in 0..GUARDS {
        guard(&mut kernel, &mut numbers)?;
    }
    tracking(&mut kernel, &mut numbers)?;
    println!(
        "{} cases: the kernel's answers are the library's",
        kernel.cases
    );
    Ok(ExitCode::SUCCESS)
}

fn saturated(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// One case of each function without state.
fn functions(kernel: &mut Kernel<'_>, numbers: &mut Numbers) -> Result<(), Box<dyn Error>> {
    let [a, b, c] = [(); 3].map(|()| numbers.any_length());
    let (divisor, lag, bound) = (c.max(1), numbers.lag(), numbers.lag().max(0));
    let product = u128::from(a) * u128::from(b) / u128::from(divisor);
    kernel.expect(Kind::MulDiv, &[a, b, divisor], saturated(product))?;
    let vtime = u128::from(a) * (1 << 20) / u128::from(divisor);
    kernel.expect(Kind::Vtime, &[a, divisor], saturated(vtime))?;
    let divisor = (c >> 1).max(1);
    let quotient = lag.div_euclid(divisor as i64);
    kernel.expect(Kind::FloorDiv, &[lag as u64, divisor], quotient as u64)?;
    let margin = credit_lag(a, b, bound).unwrap_or(-1);
    kernel.expect(Kind::CreditLag, &[a, b, bound as u64], margin as u64)?;
    let target = numbers.lag();
    let shift = credit_shift(lag, target, a, b).unwrap_or(0);
    let input = [lag as u64, target as u64, a, b];
    kernel.expect(Kind::CreditShift, &input, shift)?;
    let last = (numbers.below(8) > 0).then_some(a);
    let now = last.unwrap_or(0).saturating_add(b).min(NEVER - 1);
    if last.is_none_or(|last| last <= now) {
        let due = is_due(last, c, now);
        let input = [last.unwrap_or(NEVER), c, now];
        kernel.expect(Kind::IsDue, &input, u64::from(due))?;
    }
    Ok(())
}

/// Credits that one guard pays for.
fn guard(kernel: &mut Kernel<'_>, numbers: &mut Numbers) -> Result<(), Box<dyn Error>> {
    let guard = Guard {
        per_mille: 1 + numbers.below(1_000) as u32,
        burst_ns: numbers.any_length(),
    };
    let mut library = Tokens::default();
    let (mut tokens, mut now_ns) = ([0, NEVER], 0_u64);
    for _ in 0..CREDITS {
        now_ns = now_ns
            .saturating_add(numbers.any_length() >> 8)
            .min(NEVER - 1);
        let (one, two) = (numbers.lag(), numbers.lag());
        let (vlag, target) = (one.min(two), one.max(two));
        let weight = numbers.any_length();
        let request = CreditRequest {
            vlag,
            target,
            weight,
        };
        let reached = library.spend(guard, now_ns, request).unwrap_or(-1);
        let input = [
            u64::from(guard.per_mille),
            guard.burst_ns,
            now_ns,
            vlag as u64,
            target as u64,
            weight,
        ];
        let words = kernel.call(Kind::Spend, &input, |words| {
            words[TOKENS..SOURCE].copy_from_slice(&tokens);
        })?;
        equal(Kind::Spend, &input, words[RESULT], reached as u64)?;
        tokens = [words[TOKENS], words[TOKENS + 1]];
        equal(Kind::Spend, &input, tokens[0], library.left_ns())?;
    }
    Ok(())
}

/// Calls a function on the records of two vCPUs.
fn call_pair(
    kernel: &mut Kernel<'_>,
    kind: Kind,
    input: &[u64],
    records: &mut [Ipi; 4],
    [source, target]: [usize; 2],
) -> Result<u64, Box<dyn Error>> {
    let words = kernel.call(kind, input, |words| {
        words[SOURCE..TARGET].copy_from_slice(&records[source]);
        words[TARGET..].copy_from_slice(&records[target]);
    })?;
    records[source].copy_from_slice(&words[SOURCE..TARGET]);
    records[target].copy_from_slice(&words[TARGET..]);
    Ok(words[RESULT])
}

/// Four vCPUs send, answer and ask in any order.
fn tracking(kernel: &mut Kernel<'_>, numbers: &mut Numbers) -> Result<(), Box<dyn Error>> {
    let contexts = [(); 4].map(|()| IpiContext::<AtomicU64>::new());
    let knobs = IpiKnobs::default();
    let mut records: [Ipi; 4] = [[u64::from(NO_VCPU), 0, u64::from(NO_VCPU)]; 4];
    let mut now_ns = 1_u64 << 23;
    for _ in 0..STEPS {
        let (from, to) = (numbers.below(4) as u32, numbers.below(4) as u32);
        let vector = 14 + numbers.below(6) as u8;
        now_ns += numbers.below(60_000_000) >> (vector % 4 * 6);
        let word = u64::from(vector);
        let (sends, ends) = (numbers.below(3), numbers.below(2));
        let ipi = Unicast {
            sender: from,
            receiver: to,
            vector,
        };
        if sends == 0 && from != to && record(&contexts, &knobs, &ipi, now_ns, &()).is_ok() {
            let input = [u64::from(from), u64::from(to), word, now_ns];
            let pair = [from as usize, to as usize];
            call_pair(kernel, Kind::Record, &input, &mut records, pair)?;
        } else if ends == 0 {
            let settled = settle(&contexts, to, vector)?;
            let sender = (records[to as usize][2] & u64::from(NO_VCPU)) as u32;
            if sender != NO_VCPU {
                let input = [u64::from(to), word];
                let pair = [sender as usize, to as usize];
                let found = call_pair(kernel, Kind::Eoi, &input, &mut records, pair)?;
                equal(Kind::Eoi, &input, found, u64::from(settled))?;
            }
        }
        let expected = confirmed_receiver(&contexts, &knobs, from, now_ns);
        let expected = expected.map_or(NO_VCPU, |awaited| awaited.receiver);
        let input = [knobs.ipi_window_ns, now_ns];
        let pair = [from as usize, (from as usize + 1) % 4];
        let found = call_pair(kernel, Kind::Awaited, &input, &mut records, pair)?;
        equal(Kind::Awaited, &input, found, u64::from(expected))?;
    }
    Ok(())
}
