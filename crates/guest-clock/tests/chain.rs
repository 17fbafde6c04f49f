//! A guest that goes from host to host, of any frequency and vendor: what is stated of each restore
//! holds against the time that really passed.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use guest_clock::arithmetic::RatioFormat;
use guest_clock::device::{HostFacts, TscMeans};
use guest_clock::fake::{Disturbance, FakeHost, FakeVcpu, FakeVm};
use guest_clock::{Explanation, GuestClocks, Options, Policy, Reason};

/// A few calls lie between a reading and the instant of the save or the anchor. A TSC within tolerance runs
/// up to 250 ppm off in them: the error in ns.
const SLACK_NS: u128 = 300;

/// xorshift64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    /// The guest's frequency, one within 200 ppm of it, or any.
    fn khz(&mut self, guest_khz: u32) -> u32 {
        let near = u64::from(guest_khz) / 5000;
        match self.below(3) {
            0 => guest_khz,
            1 => guest_khz - near as u32 + self.below(2 * near) as u32,
            _ => 1_000_000 + self.below(4_000_000) as u32,
        }
    }
}

struct Place {
    host: FakeHost,
    vm: FakeVm,
    vcpus: Vec<FakeVcpu>,
    khz: u32,
    format: RatioFormat,
    /// The guest's ratio here, `None` where it is not scaled.
    ratio: Option<u64>,
}

/// A host with the wall clock of `like`.
fn place(chance: &mut Chance, khz: u32, like: Option<&FakeHost>) -> Place {
    let mut facts = HostFacts::complete(khz);
    if chance.below(4) == 0 {
        facts.format = RatioFormat::SVM;
    }
    if chance.below(6) == 0 {
        facts.means = TscMeans::Values;
    }
    let host = FakeHost::with(facts);
    // Far from the end of 64 bits, where a scaled TSC of a host would jump.
    host.set_tsc_base(chance.below(1 << 61));
    if let Some(like) = like {
        host.pass(chance.below(1 << 50));
        let ahead = like.now().real_ns.wrapping_sub(host.now().real_ns) as i64;
        host.step_wall_clock(ahead);
    }
    let (vm, vcpus) = host.vm(2);
    Place {
        host,
        vm,
        vcpus,
        khz,
        format: facts.format,
        ratio: None,
    }
}

impl Place {
    /// Cycles of the guest's TSC in so many ns here.
    fn cycles(&self, ns: u128) -> u128 {
        let host = ns * u128::from(self.khz) / 1_000_000;
        match self.ratio {
            None => host,
            Some(ratio) => (host * u128::from(ratio)) >> self.format.frac_bits(),
        }
    }
}

/// kvmclock and TSC moved as they should have over `elapsed_ns`, within what is stated.
fn check(done: &Explanation, from: &Place, elapsed_ns: u128, clock_ns: i64, cycles: u64) {
    // A scaled guest's kvmclock may be set back by more than has passed.
    let off_ns = i128::from(clock_ns).abs_diff(elapsed_ns as i128);
    let most_ns = u128::from(done.kvmclock_against_real_ns) + SLACK_NS;
    assert!(off_ns <= most_ns, "kvmclock {off_ns} ns off: {done}");
    let off = u128::from(cycles).abs_diff(from.cycles(elapsed_ns));
    let off_ns = off * 1_000_000 / u128::from(done.tsc_khz);
    let most_ns = u128::from(done.tsc_against_its_rate_ns) + SLACK_NS;
    assert!(off_ns <= most_ns, "TSC {off_ns} ns off: {done}");
}

#[test]
fn stated_bounds_hold_from_host_to_host() {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let (mut scaled, mut near) = (0, 0);
    for _ in 0..400 {
        let guest_khz = 1_000_000 + chance.below(4_000_000) as u32;
        let mut here = place(&mut chance, guest_khz, None);
        for _ in 0..4 {
            for vcpu in &here.vcpus {
                vcpu.read_clocks().unwrap();
            }
            let lives = [1, 5_000_000_000, 3_600_000_000_000, 864_000_000_000_000];
            here.host.pass(lives[chance.below(4) as usize]);
            let before = here.vcpus[1].read_clocks().unwrap();
            let since = here.host.now().real_ns;
            let disturbed = Disturbance {
                one_in: 3,
                most_ns: 200_000,
            };
            here.host.disturb(disturbed, chance.below(1 << 40));
            let saved = GuestClocks::save(&here.vm, &here.vcpus).unwrap();
            here.host.disturb(Disturbance::default(), 1);
            here.host.pass(chance.below(100_000_000_000));

            let khz = chance.khz(guest_khz);
            let mut there = place(&mut chance, khz, Some(&here.host));
            let how = Options::new(Policy::ELAPSED).accept_inexact();
            let done = saved.restore(&there.vm, &there.vcpus, how).unwrap();
            let after = there.vcpus[1].read_clocks().unwrap();
            let elapsed_ns = u128::from(there.host.now().real_ns - since);
            let clock_ns = after.kvmclock_ns.wrapping_sub(before.kvmclock_ns) as i64;
            let cycles = after.tsc.wrapping_sub(before.tsc);
            check(&done, &here, elapsed_ns, clock_ns, cycles);

            there.ratio = done.reasons.iter().find_map(|reason| match reason {
                Reason::Scaled { ratio, .. } => Some(*ratio),
                _ => None,
            });
            scaled += usize::from(there.ratio.is_some());
            near += usize::from(there.ratio.is_none() && khz != guest_khz);
            here = there;
        }
    }
    assert!(scaled > 400 && near > 400, "{scaled} {near}");
}
