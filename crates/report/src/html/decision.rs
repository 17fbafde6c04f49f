//! What to do, and what undoes it.

use stealtime_doctor::{Change, Decision};

use super::page::{Recipe, Step};
use super::{Lead, Mark};
use crate::terminal::decision::manager_name;

/// The one thing to do, with its commands.
pub(super) fn lead(decision: &Decision) -> Lead {
    if !decision.worth_doing {
        return Lead {
            about: "Nothing here is worth doing:".to_owned(),
            says: format!("{}.", decision.what),
            more: Vec::new(),
            steps: Vec::new(),
            mark: Mark::Noise,
        };
    }
    let manager = decision.manager.map(manager_name);
    let manager = manager.map(|name| format!("The commands are for {name}."));
    let reason = Some(&decision.why).filter(|reason| !reason.is_empty());
    Lead {
        about: "Do this:".to_owned(),
        says: format!("{}.", decision.what),
        more: reason.cloned().into_iter().chain(manager).collect(),
        steps: steps("", &decision.set, &decision.undo),
        mark: Mark::Better,
    }
}

/// The commands of a change: on the host, then by each manager. `rank` is that of its variant.
pub(super) fn recipe(rank: usize, change: &Change) -> Recipe {
    let acts = change.acts.as_deref().unwrap_or("on no host");
    let mut notes = vec![format!("Acts {acts}.")];
    if !change.note.is_empty() {
        notes.push(format!("{}.", change.note));
    }
    let mut command_steps = steps("", &change.set, &change.undo);
    for commands in &change.managers {
        let manager = manager_name(commands.manager);
        command_steps.extend(steps(
            &format!(" by {manager}"),
            &commands.set,
            &commands.undo,
        ));
        if !commands.note.is_empty() {
            notes.push(format!("By {manager}: {}.", commands.note));
        }
    }
    Recipe {
        change: format!("{rank}. {}", change.change),
        notes,
        steps: command_steps,
    }
}

/// Commands that set and undo; `place` ends their labels.
fn steps(place: &str, set: &[String], undo: &[String]) -> Vec<Step> {
    let lists = [("do", set), ("undo", undo)];
    let lists = lists.iter().flat_map(|(label, commands)| {
        commands.iter().map(move |command| Step {
            label: format!("{label}{place}"),
            command: command.clone(),
        })
    });
    lists.collect()
}
