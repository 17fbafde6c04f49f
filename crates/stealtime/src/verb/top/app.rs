//! The state of the screen, and what keys change in it.

use std::collections::VecDeque;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use stealtime_collector::{Sample, Stall, Vm};

use super::view::{self, Column, Shape};
use crate::watched::Cost;

/// Long waits that are kept, of all VMs.
const STALLS: usize = 4096;
/// Shorter waits are not kept, in ns: they are switches.
const SHORT_NS: u64 = 100_000;
/// Waits that ended longer ago are dropped, in ns.
const OLD_NS: u64 = 60_000_000_000;
/// Rows that a page up or down moves by.
const PAGE: usize = 10;
/// Longest text of a filter.
const FILTER: usize = 64;

/// What fills the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    /// All VMs.
    List,
    /// One VM, by its name.
    Vm(String),
    /// The keys.
    Help,
}

/// A wait of a VM.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) vm: String,
    pub(super) stall: Stall,
}

/// The screen's state.
#[derive(Debug)]
pub(super) struct App {
    pub(super) shape: Shape,
    pub(super) mode: Mode,
    /// The latest sample that is shown.
    pub(super) sample: Option<Sample>,
    pub(super) cost: Cost,
    /// The lines of a loaded scheduler.
    pub(super) scheduler: Vec<String>,
    pub(super) is_paused: bool,
    /// The filter is being typed.
    pub(super) is_typing: bool,
    /// The selected VM, by its name, so that it stays selected where rows move.
    pub(super) selected: Option<String>,
    /// The selected vCPU of the VM that is shown alone, by its row.
    pub(super) vcpu: usize,
    pub(super) is_over: bool,
    pub(super) has_color: bool,
    /// Waits of the latest minute, in the order in which they were seen.
    stalls: VecDeque<Entry>,
    quits: bool,
}

impl App {
    /// A screen without samples.
    pub(super) fn new(shape: Shape, has_color: bool) -> Self {
        Self {
            shape,
            mode: Mode::List,
            sample: None,
            cost: Cost::default(),
            scheduler: Vec::new(),
            is_paused: false,
            is_typing: false,
            selected: None,
            vcpu: 0,
            is_over: false,
            has_color,
            stalls: VecDeque::new(),
            quits: false,
        }
    }

    /// Whether the user wants to leave.
    pub(super) const fn quits(&self) -> bool {
        self.quits
    }

    /// The next sample. While the screen is paused, only its waits are kept.
    pub(super) fn take(&mut self, sample: Sample, cost: Cost) {
        for vm in &sample.vms {
            for stall in vm.stalls.iter().filter(|stall| stall.ns >= SHORT_NS) {
                self.keep(&vm.vm, stall);
            }
        }
        // Waits of the future: the clock was set back.
        let known = sample.end_ns.saturating_sub(OLD_NS)..=sample.end_ns;
        self.stalls
            .retain(|entry| known.contains(&entry.stall.start_ns.saturating_add(entry.stall.ns)));
        if !self.is_paused {
            (self.sample, self.cost) = (Some(sample), cost);
        }
    }

    /// Keeps a wait; one that goes on takes the place of its begin.
    fn keep(&mut self, vm: &str, stall: &Stall) {
        let is_same = |entry: &&mut Entry| {
            entry.stall.goes_on
                && entry.stall.tid == stall.tid
                && entry.stall.start_ns == stall.start_ns
        };
        if let Some(entry) = self.stalls.iter_mut().rev().find(is_same) {
            entry.stall = stall.clone();
            return;
        }
        if self.stalls.len() >= STALLS {
            self.stalls.pop_front();
        }
        self.stalls.push_back(Entry {
            vm: vm.to_owned(),
            stall: stall.clone(),
        });
    }

    /// The longest waits of a VM in the latest minute, longest first.
    pub(super) fn worst(&self, vm: &str, limit: usize) -> Vec<&Stall> {
        let of_vm = self.stalls.iter().filter(|entry| entry.vm == vm);
        let mut stalls: Vec<&Stall> = of_vm.map(|entry| &entry.stall).collect();
        stalls.sort_by_key(|stall| (std::cmp::Reverse(stall.ns), stall.start_ns));
        stalls.truncate(limit);
        stalls
    }

    /// The VMs of the list, in its order.
    pub(super) fn vms(&self) -> Vec<&Vm> {
        let sample = self.sample.as_ref();
        sample.map_or_else(Vec::new, |sample| view::vms(sample, &self.shape))
    }

    /// The VM that is shown alone, if the latest sample has it.
    pub(super) fn vm(&self) -> Option<&Vm> {
        let Mode::Vm(name) = &self.mode else {
            return None;
        };
        let vms = &self.sample.as_ref()?.vms;
        vms.iter().find(|vm| vm.vm == *name)
    }

    /// A key is pressed.
    pub(super) fn on_key(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.quits |= matches!(key.code, KeyCode::Char('c' | 'C'));
            return;
        }
        if self.is_typing {
            return self.on_typed(key.code);
        }
        match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::F(10) => match self.mode {
                Mode::List => self.quits = true,
                _ => self.mode = Mode::List,
            },
            KeyCode::Char('?' | 'h' | 'H') | KeyCode::F(1) => {
                self.mode = match self.mode {
                    Mode::Help => Mode::List,
                    _ => Mode::Help,
                }
            }
            KeyCode::Esc | KeyCode::Backspace if self.mode != Mode::List => self.mode = Mode::List,
            KeyCode::Esc => self.shape.filter.clear(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/' | '\\') | KeyCode::F(3 | 4) => {
                (self.mode, self.is_typing) = (Mode::List, true);
            }
            KeyCode::Char('v') | KeyCode::F(5) => self.shape.vcpus = !self.shape.vcpus,
            KeyCode::Char('I' | 'r') => self.shape.reverse = !self.shape.reverse,
            KeyCode::Char('>' | '.') | KeyCode::F(6) | KeyCode::Right => self.sort_by_next(1),
            KeyCode::Char('<' | ',') | KeyCode::Left => {
                self.sort_by_next(Column::ALL.len() - 1);
            }
            KeyCode::Enter => {
                if let (Mode::List, Some(name)) = (&self.mode, self.selected_name()) {
                    (self.mode, self.vcpu) = (Mode::Vm(name), 0);
                }
            }
            code => self.on_move(code),
        }
    }

    fn on_typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.shape.filter.clear();
            }
            KeyCode::Backspace => drop(self.shape.filter.pop()),
            KeyCode::Char(letter) if self.shape.filter.chars().count() < FILTER => {
                self.shape.filter.push(letter);
            }
            _ => {}
        }
    }

    fn on_move(&mut self, code: KeyCode) {
        if let Mode::Vm(_) = self.mode {
            let vcpus = self.vm().map_or(0, |vm| vm.vcpus.len());
            self.vcpu = moved(code, self.vcpu, vcpus).unwrap_or(self.vcpu);
            return;
        }
        let names: Vec<String> = self.vms().iter().map(|vm| vm.vm.clone()).collect();
        let position = self.position().unwrap_or(0);
        if let Some(position) = moved(code, position, names.len()) {
            self.selected = names.get(position).cloned();
        }
    }

    fn sort_by_next(&mut self, step: usize) {
        let current = self.shape.sort as usize;
        let next = Column::ALL.get((current + step) % Column::ALL.len());
        self.shape.sort = next.copied().unwrap_or(Column::Ready);
    }

    /// The position of the selected VM in the list.
    fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.vms().iter().position(|vm| vm.vm == *selected)
    }

    /// The selected VM, else the first.
    pub(super) fn selected_name(&self) -> Option<String> {
        let vms = self.vms();
        let position = self.position().unwrap_or(0);
        vms.get(position).map(|vm| vm.vm.clone())
    }
}

/// The position among so many rows after a key; `None`: the key moves nothing.
fn moved(code: KeyCode, position: usize, rows: usize) -> Option<usize> {
    let last = rows.saturating_sub(1);
    let moved = match code {
        KeyCode::Down | KeyCode::Char('j') => position + 1,
        KeyCode::Up | KeyCode::Char('k') => position.saturating_sub(1),
        KeyCode::PageDown => position + PAGE,
        KeyCode::PageUp => position.saturating_sub(PAGE),
        KeyCode::Home => 0,
        KeyCode::End => last,
        _ => return None,
    };
    Some(moved.min(last))
}
