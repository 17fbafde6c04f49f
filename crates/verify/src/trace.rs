//! A path through a model as a table, and as a file that replays it.

use core::fmt::{self, Write as _};

use crate::model::{Choice, Model, Scratch, State, Violation, successors};
use crate::word::{self, Access, Accessed};

/// Version of the models: increases with each change that gives old paths another meaning.
pub const MODEL_VERSION: u32 = 2;

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The agent, as an index of [`Trace::agents`].
    pub agent: usize,
    /// The operation and its access.
    pub text: String,
    /// The changes of shared state.
    pub changes: Vec<String>,
}

/// A path through a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The agents with a step, in the model's order.
    pub agents: Vec<&'static str>,
    /// The steps.
    pub rows: Vec<Row>,
    /// The violation in the last state, if any.
    pub violation: Option<Violation>,
}

/// The model has no such step in the state before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchStep {
    /// The step, counted from 0.
    pub step: usize,
    /// The agent and the operation.
    pub choice: Choice,
}

impl fmt::Display for NoSuchStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (agent, op) = (self.choice.agent, self.choice.op);
        write!(
            f,
            "step {}: agent {agent} has no operation {op} in this state; the file is damaged, or \
             of another version: search again",
            self.step
        )
    }
}

impl core::error::Error for NoSuchStep {}

/// Repeats the steps of a path.
pub(crate) fn walk<M: Model>(model: &M, path: &[Choice]) -> Result<Trace, NoSuchStep> {
    word::install(model.layout(), model.tso());
    let mut state = model.initial();
    let mut rows = Vec::new();
    let mut scratch = Scratch::default();
    let mut next = Box::new(state.clone());
    for (step, &choice) in path.iter().enumerate() {
        let mut found = None;
        successors(
            model,
            &state,
            &mut next,
            &mut scratch,
            &mut |candidate, next, access| {
                if candidate == choice {
                    found = Some((State::clone(next), access));
                }
            },
        );
        let (next, access) = found.ok_or(NoSuchStep { step, choice })?;
        rows.push(Row {
            agent: usize::from(choice.agent),
            text: text(model, &state, &next, choice, access),
            changes: changes(model, &state, &next),
        });
        state = next;
    }
    let names = model.agents();
    let active: Vec<usize> = (0..names.len())
        .filter(|agent| rows.iter().any(|row| row.agent == *agent))
        .collect();
    for row in &mut rows {
        let index = active.iter().position(|a| *a == row.agent);
        debug_assert!(index.is_some(), "the agent of a row is active");
        row.agent = index.unwrap_or(0);
    }
    Ok(Trace {
        agents: active.into_iter().map(|agent| names[agent]).collect(),
        rows,
        violation: model.check(&state),
    })
}

fn text<M: Model>(
    model: &M,
    state: &State<M::Local>,
    next: &State<M::Local>,
    choice: Choice,
    accessed: Option<Accessed>,
) -> String {
    let actor = &state.agents[usize::from(choice.agent)];
    let op = match choice.op {
        Choice::FLUSH => return "store becomes visible".to_owned(),
        Choice::CONTINUE if actor.op == 0 => actor.suspended,
        Choice::CONTINUE => actor.op,
        op => op,
    };
    let mut text = String::new();
    if choice.op == Choice::CONTINUE {
        text.push_str("… ");
    }
    text.push_str(model.describe(choice.agent, op));
    if let Some(accessed) = accessed {
        let name = model.layout().words[usize::from(accessed.word)].name;
        // Writing to a String cannot fail.
        let _ = match accessed.access {
            Access::Load => write!(text, ": read {name}"),
            Access::Store => write!(text, ": write {name}"),
            Access::Rmw => write!(text, ": locked {name}"),
            Access::Fence => write!(text, ": fence"),
            Access::LineOwned => write!(text, ": line owned"),
            Access::Ahead => write!(text, ": loads done ahead"),
            Access::List => write!(text, ": {name}"),
            Access::Call => Ok(()),
        };
    }
    if next.agents[usize::from(choice.agent)].op == 0 && choice.op == Choice::CONTINUE {
        text.push_str(" (end)");
    }
    text
}

fn changes<M: Model>(model: &M, state: &State<M::Local>, next: &State<M::Local>) -> Vec<String> {
    let mut changes = Vec::new();
    let names = &model.layout().slot_names;
    for (slot, (old, new)) in state.mem.iter().zip(&next.mem).enumerate() {
        if old != new {
            changes.push(format!("{} {}", names[slot], model.value(slot, *new)));
        }
    }
    let old = model.shown(state);
    for (name, value) in model.shown(next) {
        if !old.iter().any(|(n, v)| *n == name && *v == value) {
            changes.push(format!("{name} {value}"));
        }
    }
    changes
}

/// Largest width of the table, in columns.
const LINE: usize = 100;
/// Smallest width of an agent's column.
const NARROWEST: usize = 8;
const STEP: usize = 4;

impl Trace {
    /// Widths of the agents' columns and of the last one, within the width of the table.
    fn widths(&self) -> Vec<usize> {
        let longest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let of_agent = |agent: usize| {
            let rows = self.rows.iter().filter(|row| row.agent == agent);
            let texts = longest(&mut rows.map(|row| row.text.chars().count()));
            texts.max(self.agents[agent].chars().count())
        };
        let mut widths: Vec<usize> = (0..self.agents.len()).map(of_agent).collect();
        let changes = self.rows.iter().map(|row| changes_of(row).chars().count());
        widths.push(longest(&mut { changes }).max("changes".len()));
        let room = LINE.saturating_sub(STEP + 2 * widths.len());
        while widths.iter().sum::<usize>() > room {
            let widest = widths.iter_mut().max();
            match widest.filter(|width| **width > NARROWEST) {
                Some(width) => *width -= 1,
                None => break,
            }
        }
        widths
    }
}

fn changes_of(row: &Row) -> String {
    row.changes.join(", ")
}

/// Breaks a text at blanks, and within words that are too long.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().map(|l| l.chars().count()).unwrap_or(0);
            let gap = usize::from(line > 0);
            if line + gap + rest.len() <= width {
                push(&mut lines, gap, &rest);
                break;
            }
            if line > 0 {
                lines.push(String::new());
                continue;
            }
            let tail = rest.split_off(width);
            push(&mut lines, 0, &rest);
            rest = tail;
            lines.push(String::new());
        }
    }
    lines
}

fn push(lines: &mut [String], gap: usize, word: &[char]) {
    if let Some(line) = lines.last_mut() {
        line.extend(core::iter::repeat_n(' ', gap));
        line.extend(word);
    }
}

/// One row of the table, on as many lines as its cells need.
fn write_row(
    f: &mut fmt::Formatter<'_>,
    step: &str,
    cells: &[&str],
    widths: &[usize],
) -> fmt::Result {
    let cells: Vec<Vec<String>> = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| wrapped(cell, *width))
        .collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(1);
    for n in 0..height {
        let mut line = format!("{:>STEP$}", if n == 0 { step } else { "" });
        for (cell, width) in cells.iter().zip(widths) {
            let text = cell.get(n).map_or("", String::as_str);
            // Writing to a String cannot fail.
            let _ = write!(line, "  {text:width$}");
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let mut head = self.agents.clone();
        head.push("changes");
        write_row(f, "step", &head, &widths)?;
        for (n, row) in self.rows.iter().enumerate() {
            let changes = changes_of(row);
            let mut cells = vec![""; self.agents.len()];
            if let Some(cell) = cells.get_mut(row.agent) {
                *cell = &row.text;
            }
            cells.push(&changes);
            write_row(f, &(n + 1).to_string(), &cells, &widths)?;
        }
        Ok(())
    }
}

/// The content of a replay file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The protocol.
    pub protocol: String,
    /// The variant.
    pub variant: String,
    /// The set of agents.
    pub scene: String,
    /// The steps.
    pub path: Vec<Choice>,
}

/// A replay file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// Not a replay file at all.
    NotAReplay,
    /// Of another version of the models.
    Version {
        /// The file's.
        file: String,
        /// Ours.
        ours: u32,
    },
    /// A line that is not understood.
    Line {
        /// Its number, counted from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// A field is missing.
    Missing {
        /// The field.
        field: &'static str,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAReplay => write!(
                f,
                "not a replay file: it does not begin with `{HEADER}`; give one that a failed \
                 check has written"
            ),
            Self::Version { file, ours } => write!(
                f,
                "the replay file is of model version {file}, this is version {ours}: run the \
                 check again"
            ),
            Self::Line { line, text } => {
                write!(
                    f,
                    "line {line} of the replay file is not understood: {text:?}"
                )
            }
            Self::Missing { field } => write!(f, "the replay file has no line for the {field}"),
        }
    }
}

impl core::error::Error for ReplayError {}

const HEADER: &str = "stealtime check replay";

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER} {MODEL_VERSION}")?;
        writeln!(f, "protocol {}", self.protocol)?;
        writeln!(f, "variant {}", self.variant)?;
        writeln!(f, "scene {}", self.scene)?;
        for choice in &self.path {
            writeln!(f, "step {} {}", choice.agent, choice.op)?;
        }
        Ok(())
    }
}

impl core::str::FromStr for Replay {
    type Err = ReplayError;

    fn from_str(text: &str) -> Result<Self, ReplayError> {
        let mut lines = text.lines().enumerate();
        let first = lines.next().map_or("", |(_, line)| line);
        let version = first.strip_prefix(HEADER).ok_or(ReplayError::NotAReplay)?;
        if version.trim() != MODEL_VERSION.to_string() {
            return Err(ReplayError::Version {
                file: version.trim().chars().take(20).collect(),
                ours: MODEL_VERSION,
            });
        }
        let (mut protocol, mut variant, mut scene) = (None, None, None);
        let mut path = Vec::new();
        for (n, line) in lines {
            let wrong = || ReplayError::Line {
                line: n + 1,
                text: line.chars().take(80).collect(),
            };
            let (word, rest) = line.split_once(' ').ok_or_else(wrong)?;
            match word {
                "protocol" => protocol = Some(rest.to_owned()),
                "variant" => variant = Some(rest.to_owned()),
                "scene" => scene = Some(rest.to_owned()),
                "step" => {
                    let (agent, op) = rest.split_once(' ').ok_or_else(wrong)?;
                    let agent = agent.parse().map_err(|_| wrong())?;
                    let op = op.parse().map_err(|_| wrong())?;
                    path.push(Choice { agent, op });
                }
                _ => return Err(wrong()),
            }
        }
        Ok(Self {
            protocol: protocol.ok_or(ReplayError::Missing { field: "protocol" })?,
            variant: variant.ok_or(ReplayError::Missing { field: "variant" })?,
            scene: scene.ok_or(ReplayError::Missing { field: "scene" })?,
            path,
        })
    }
}
