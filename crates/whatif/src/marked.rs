//! Marks of VMs with guessed threads, where people read a document. Its JSON has the names as
//! options take them, and `vm_guessed` next to them.

use stealtime_analysis::{shown_vm, shown_vm_in};

use crate::document::Document;
use crate::gain::Gain;
use crate::result::Variant;

impl Document {
    /// The document with a `?` behind the name of each VM with guessed threads, for people.
    /// What options take (pins, knobs of a VM) and file names stay as they are.
    #[must_use]
    pub fn marked(&self) -> Self {
        marked(self)
    }
}

fn marked(document: &Document) -> Document {
    let mut shown = document.clone();
    let rows = document.vcpus.iter().filter(|row| row.vm_guessed);
    let mut guessed: Vec<String> = rows.map(|row| row.vm.clone()).collect();
    guessed.dedup();
    if guessed.is_empty() {
        return shown;
    }
    for row in &mut shown.vcpus {
        mark(&mut row.vm, row.vm_guessed);
    }
    for partly in &mut shown.presence.partly {
        mark_in(&mut partly.who, &guessed);
    }
    for vcpu in &mut shown.presence.never_ran {
        mark_in(vcpu, &guessed);
    }
    for variant in &mut shown.variants {
        mark_variant(variant, &guessed);
    }
    for row in shown
        .seen
        .iter_mut()
        .flat_map(|observed| &mut observed.rows)
    {
        mark(&mut row.vm, row.vm_guessed);
    }
    for tried in shown.auto.iter_mut().flat_map(|auto| &mut auto.tried) {
        mark_gain(&mut tried.gain);
        mark_in(&mut tried.why, &guessed);
    }
    shown
}

fn mark(name: &mut String, guessed: bool) {
    *name = shown_vm(name, guessed).into_owned();
}

fn mark_in(text: &mut String, guessed: &[String]) {
    for name in guessed {
        *text = shown_vm_in(text, name);
    }
}

fn mark_variant(variant: &mut Variant, guessed: &[String]) {
    for delta in &mut variant.changes {
        mark(&mut delta.vm, delta.vm_guessed);
    }
    mark_in(&mut variant.verdict, guessed);
    mark_gain(&mut variant.gain);
}

fn mark_gain(gain: &mut Gain) {
    for vm in &mut gain.vms {
        for effect in [&mut vm.given_back, &mut vm.work, &mut vm.wakeup_p99_us] {
            mark(&mut effect.who, vm.vm_guessed);
        }
    }
}
