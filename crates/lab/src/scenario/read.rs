//! The file as a whole.

use std::path::Path;

use stealtime_simulator::config::{Config, Knobs, RunConfig};
use stealtime_simulator::script::Scripts;
use toml::de::DeValue;

use super::{BASE, MOST_SEEDS, MOST_VARIANTS, Scenario, Variant, guests, host, settings};
use crate::document::{Item, Notes, Table, parse};
use crate::error::LoadError;
use crate::knobs::Kind;
use crate::profile::Origin;

/// The longest run, in ns: what [`Config::check`] allows.
const LONGEST_NS: u64 = 1_000_000_000_000_000;

/// Reads a file; `profile` is another machine than the one that it names.
pub(super) fn scenario(
    file: &str,
    path: &Path,
    text: &str,
    profile: Option<&str>,
) -> Result<Scenario, LoadError> {
    let parsed = parse(file, text)?;
    let mut notes = Notes::default();
    let table = Table::new("", 0..0, parsed.get_ref(), &mut notes);
    let read = whole(table, profile, file, &Origin::File(path, 0), &mut notes)?;
    let (Some(mut scenario), true) = (read, notes.is_fine()) else {
        return Err(LoadError::Wrong(notes.diagnostics(file, text)));
    };
    scenario.file = file.to_owned();
    scenario.text = text.to_owned();
    scenario.places = notes.places();
    scenario.check()?;
    Ok(scenario)
}

fn whole(
    mut table: Table<'_, '_>,
    profile: Option<&str>,
    file: &str,
    origin: &Origin<'_>,
    notes: &mut Notes,
) -> Result<Option<Scenario>, LoadError> {
    let about = table.text("about", notes).unwrap_or_default().to_owned();
    let host = match table.table("host", notes) {
        Some(table) => host::read(table, profile, file, origin, notes)?,
        None => {
            let help = "add [host] with a profile and its cpus".to_owned();
            notes.push("host", 0..0, "there is no [host]".into(), Some(help));
            None
        }
    };
    let khz = host
        .as_ref()
        .map_or(1, |host| host.host.profile.costs.tsc_khz);
    let mut names = Vec::new();
    let mut groups = Vec::new();
    for vm in table.tables("vm", notes) {
        let group = guests::vm(vm, &names, khz, notes);
        names.push(group.vm.name.clone());
        groups.push(group);
    }
    let mut tasks = Vec::new();
    for task in table.tables("task", notes) {
        let names: Vec<String> = tasks
            .iter()
            .map(|t: &stealtime_simulator::config::TaskConfig| t.name.clone())
            .collect();
        tasks.push(guests::task(task, &names, notes));
    }
    let knobs = table.table("knobs", notes);
    let variants = table.table("variants", notes);
    let (run, seeds) = run(table.table("run", notes), notes);
    // Published results leave parameters open here; what fits them reads this on its own.
    table.take("calibrate");
    table.finish(&[], notes);
    let Some(mut host) = host else {
        return Ok(None);
    };
    host.host.tasks = tasks;
    let mut template = Config {
        knobs: Knobs::on(&host.host.profile.features),
        host: host.host,
        vms: groups.iter().map(|group| group.vm.clone()).collect(),
        run,
        scripts: Scripts::default(),
    };
    let mut counts: Vec<u32> = groups.iter().map(|group| group.count).collect();
    let mut apply = |name: &str, item: &Item<'_, '_>, notes: &mut Notes| {
        // A value that is no text has its note already.
        if let Some(value) = item.words(notes)
            && let Err(error) = settings::apply(&mut template, &mut counts, name, &value)
        {
            settings::refused(error, item, notes);
        }
    };
    for (name, item) in &host.knobs {
        apply(name, item, notes);
    }
    for group in &groups {
        for (name, item) in &group.knobs {
            apply(&format!("vm.{}.{name}", group.vm.name), item, notes);
        }
    }
    for (setting, item) in knobs
        .map(|table| settings::read(table, notes))
        .unwrap_or_default()
    {
        apply(&setting.knob, &item, notes);
    }
    let variants = all_variants(variants, &template, &counts, notes);
    Ok(Some(Scenario {
        file: String::new(),
        about,
        variants,
        seeds,
        figures: host.machine.figures,
        template,
        counts,
        sets: Vec::new(),
        text: String::new(),
        places: std::collections::BTreeMap::new(),
    }))
}

/// The variants; the first one is the scenario as it is.
fn all_variants(
    table: Option<Table<'_, '_>>,
    template: &Config,
    counts: &[u32],
    notes: &mut Notes,
) -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    let items = table.map(|mut table| table.rest()).unwrap_or_default();
    if let Some((_, item)) = items.get(MOST_VARIANTS) {
        let problem = format!("more than {MOST_VARIANTS} variants");
        notes.problem(&item.key, item.key_span.clone(), problem);
        return variants;
    }
    for (name, item) in items {
        if name.is_empty() || name.chars().any(char::is_control) || name.len() > 64 {
            let problem = "a variant's name has 1 to 64 characters that can be shown".to_owned();
            notes.problem(&item.key, item.key_span.clone(), problem);
        }
        let Some(table) = item.table(notes) else {
            continue;
        };
        let settings = settings::read(table, notes);
        // Set here for what is wrong with it; configurations are made anew from the template.
        let (mut template, mut counts) = (template.clone(), counts.to_vec());
        for (setting, item) in &settings {
            let set = settings::apply(&mut template, &mut counts, &setting.knob, &setting.value);
            if let Err(error) = set {
                settings::refused(error, item, notes);
            }
        }
        variants.push(Variant {
            name,
            settings: settings.into_iter().map(|(setting, _)| setting).collect(),
        });
    }
    if variants
        .first()
        .is_none_or(|first| !first.settings.is_empty())
    {
        let base = Variant {
            name: BASE.to_owned(),
            settings: Vec::new(),
        };
        if variants.iter().any(|variant| variant.name == BASE) {
            let problem = format!(
                "the scenario as it is comes first and is called `{BASE}`: name it by an empty \
                 [variants.NAME] before the others, or call this one something else"
            );
            let key = format!("variants.{BASE}");
            let place = notes.place(&key);
            notes.problem(&key, place, problem);
        }
        variants.insert(0, base);
    }
    variants
}

fn run(table: Option<Table<'_, '_>>, notes: &mut Notes) -> (RunConfig, Vec<u64>) {
    let mut run = RunConfig::default();
    let mut seeds = vec![1];
    let Some(mut table) = table else {
        return (run, seeds);
    };
    if let Some(item) = table.take("duration") {
        run.duration_ns = item
            .time(1_000..LONGEST_NS + 1, notes)
            .unwrap_or(run.duration_ns);
    }
    if let Some(item) = table.take("warmup") {
        run.warmup_ns = item.time(0..LONGEST_NS + 1, notes).unwrap_or(run.warmup_ns);
    }
    if let Some(item) = table.take("seeds") {
        seeds = read_seeds(&item, notes).unwrap_or(seeds);
    }
    table.finish(&[], notes);
    run.seed = seeds.first().copied().unwrap_or(1);
    (run, seeds)
}

/// How many seeds, from 1 on, or which.
fn read_seeds(item: &Item<'_, '_>, notes: &mut Notes) -> Option<Vec<u64>> {
    if !matches!(item.value, DeValue::Array(_)) {
        let count = item.number(1..MOST_SEEDS as u64 + 1, notes)?;
        return Some((1..=count).collect());
    }
    let kind = Kind::Number {
        min: 0,
        max: i64::MAX,
        unit: "",
    };
    let mut seeds = Vec::new();
    for text in item.words(notes)?.split(',') {
        let seed = kind.read(text).and_then(|value| value.number::<u64>());
        match seed {
            Ok(seed) if seeds.contains(&seed) => {
                item.wrong(
                    format!("seed {seed} is there twice: a second run would be the first"),
                    notes,
                );
                return None;
            }
            Ok(seed) => seeds.push(seed),
            Err(problem) => {
                item.wrong(format!("seeds are whole numbers: {problem}"), notes);
                return None;
            }
        }
        if seeds.len() > MOST_SEEDS {
            item.wrong(format!("more than {MOST_SEEDS} seeds"), notes);
            return None;
        }
    }
    Some(seeds)
}
