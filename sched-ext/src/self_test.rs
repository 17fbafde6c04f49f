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
use stealtime_hypervisor::ipi_tracking::IpiKnobs;
use stealtime_hypervisor::lag_credit::Guard;
use stealtime_hypervisor::lag_credit::arithmetic::{
    CreditRequest, Tokens, credit_lag, credit_shift, is_due,
};
use stealtime_hypervisor::scx::{Answers, MOST_RECEIVERS, Receiver};

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
    Send,
    Accept,
    Due,
    Eoi,
}

/// Words of `struct st_answers`; the third is what its vCPU received.
const ANSWERS: usize = 3 + MOST_RECEIVERS;
const RECEIVED: usize = 2;
/// Words of `struct test_case`: kind, six inputs, result, two of the tokens, two vCPUs' answers.
const INPUT: usize = 1;
const RESULT: usize = 7;
const TOKENS: usize = 8;
const SOURCE: usize = 10;
const TARGET: usize = SOURCE + ANSWERS;
const WORDS: usize = TARGET + ANSWERS;

/// `struct st_answers`.
type Words = [u64; ANSWERS];

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

/// Calls a function on the answers of two vCPUs.
fn call_pair(
    kernel: &mut Kernel<'_>,
    kind: Kind,
    input: &[u64],
    vcpus: &mut [Words; 4],
    [source, target]: [usize; 2],
) -> Result<u64, Box<dyn Error>> {
    let words = kernel.call(kind, input, |words| {
        words[SOURCE..TARGET].copy_from_slice(&vcpus[source]);
        words[TARGET..].copy_from_slice(&vcpus[target]);
    })?;
    vcpus[source].copy_from_slice(&words[SOURCE..TARGET]);
    // A vCPU that answers itself is one.
    if target != source {
        vcpus[target].copy_from_slice(&words[TARGET..]);
    }
    Ok(words[RESULT])
}

/// Four vCPUs send, answer and ask in any order.
fn tracking(kernel: &mut Kernel<'_>, numbers: &mut Numbers) -> Result<(), Box<dyn Error>> {
    let contexts = [(); 4].map(|()| Answers::<AtomicU64>::new());
    let window_ns = IpiKnobs::default().ipi_window_ns;
    let mut vcpus: [Words; 4] = [[0; ANSWERS]; 4];
    let mut now_ns = 1_u64 << 23;
    for _ in 0..STEPS {
        let (vcpu, others) = (numbers.below(4) as usize, numbers.below(16));
        let vector = 16 + numbers.below(4) as u8;
        now_ns += numbers.below(60_000_000) >> (vector % 4 * 6);
        let word = u64::from(vector);
        if numbers.below(3) == 0 {
            contexts[vcpu].send(now_ns);
            call_pair(kernel, Kind::Send, &[now_ns], &mut vcpus, [vcpu; 2])?;
            let receivers = (0..4).filter(|other| others >> other & 1 != 0 && *other != vcpu);
            for (index, other) in receivers.enumerate() {
                let receiver = Receiver {
                    vcpu: other as u32,
                    index,
                    vector,
                };
                contexts[vcpu].accept(vcpu as u32, &contexts[other], receiver);
                let input = [vcpu as u64, other as u64, index as u64, word];
                call_pair(kernel, Kind::Accept, &input, &mut vcpus, [vcpu, other])?;
            }
        } else {
            let received = vcpus[vcpu][RECEIVED];
            let answered = Answers::eoi(&contexts, vcpu as u32, vector);
            let input = [received, word];
            let source = (received & 3) as usize;
            let due = call_pair(kernel, Kind::Eoi, &input, &mut vcpus, [source; 2])?;
            let found = u64::from(due != 0) + u64::from(due != 0 && due as u32 == 0);
            let expected = answered.map_or(0, |answered| 1 + u64::from(answered.is_last));
            equal(Kind::Eoi, &input, found, expected)?;
        }
        let input = [window_ns, now_ns];
        let due = call_pair(kernel, Kind::Due, &input, &mut vcpus, [vcpu; 2])?;
        let receivers = (0..MOST_RECEIVERS).filter(|index| due >> index & 1 != 0);
        let found = receivers.map(|index| vcpus[vcpu][3 + index] as u32);
        let is_equal = contexts[vcpu].due(window_ns, now_ns).eq(found);
        equal(Kind::Due, &input, u64::from(is_equal), 1)?;
    }
    Ok(())
}
