//! Which items can be named from outside, and by which path.

use std::collections::{BTreeMap, BTreeSet};

use super::{Impl, Kind, Module, Use};

/// An item: its module, and its place in it.
type Id = (usize, usize);

/// A name is looked up through this many `use` at most.
const MOST: usize = 16;

/// The public items of a crate.
pub(super) struct Public<'m> {
    modules: &'m [Module],
    /// Public paths of modules.
    paths: BTreeMap<usize, String>,
    /// For each public item the paths of modules that have it.
    items: BTreeMap<Id, BTreeSet<String>>,
    /// Names of other crates.
    others: Vec<(String, String)>,
}

impl<'m> Public<'m> {
    pub(super) fn of(modules: &'m [Module]) -> Self {
        let mut public = Self {
            modules,
            paths: BTreeMap::new(),
            items: BTreeMap::new(),
            others: Vec::new(),
        };
        public.module(0, String::new());
        public
    }

    fn module(&mut self, module: usize, path: String) {
        if self.paths.contains_key(&module) {
            return;
        }
        self.paths.insert(module, path.clone());
        let modules = self.modules;
        let public = modules[module].items.iter().enumerate();
        for (index, _) in public.filter(|(_, item)| item.is_public) {
            self.item((module, index), &path);
        }
        for named in modules[module].uses.iter().filter(|named| named.is_public) {
            self.named(module, named, &path);
        }
    }

    fn item(&mut self, id: Id, path: &str) {
        let item = &self.modules[id.0].items[id.1];
        self.items.entry(id).or_default().insert(path.to_owned());
        if let Kind::Module(child) = item.kind {
            let blank = if path.is_empty() { "" } else { "::" };
            self.module(child, format!("{path}{blank}{}", item.name));
        }
    }

    /// The items of a public `use`.
    fn named(&mut self, module: usize, named: &Use, path: &str) {
        let found = match named.name.as_str() {
            "*" => self.children(module, &named.path),
            _ => self.find(module, &named.path, 0),
        };
        if found.is_empty() {
            let alias = match named.path.last() {
                Some(last) if *last == named.name => String::new(),
                _ if named.name == "*" => "::*".to_owned(),
                _ => format!(" as {}", named.name),
            };
            self.others.push((
                path.to_owned(),
                format!("use {}{alias}", named.path.join("::")),
            ));
        }
        for id in found {
            self.item(id, path);
        }
    }

    /// The public items of a module, by its path.
    fn children(&self, module: usize, path: &[String]) -> Vec<Id> {
        let Some(module) = self.find_module(module, path, 0) else {
            return Vec::new();
        };
        let items = self.modules[module].items.iter().enumerate();
        let mut found: Vec<Id> = items
            .filter(|(_, item)| item.is_public)
            .map(|(index, _)| (module, index))
            .collect();
        for named in self.modules[module]
            .uses
            .iter()
            .filter(|named| named.is_public && named.name != "*")
        {
            found.extend(self.find(module, &named.path, 1));
        }
        found
    }

    /// The module with a path, as a module names it.
    fn find_module(&self, start: usize, path: &[String], depth: usize) -> Option<usize> {
        let (last, parents) = match path {
            [] => return Some(start),
            [parents @ .., last] => (last, parents),
        };
        match (last.as_str(), parents) {
            ("crate", []) => return Some(0),
            ("self", []) => return Some(start),
            ("super", _) => {
                return Some(self.modules[self.find_module(start, parents, depth)?].parent);
            }
            _ => {}
        }
        let found = self.find(start, path, depth);
        found
            .into_iter()
            .find_map(|id| match self.modules[id.0].items[id.1].kind {
                Kind::Module(module) => Some(module),
                _ => None,
            })
    }

    /// The items with a path, as a module names them. A name may be of a module and of a function. A
    /// missing one may come of the module's macros.
    fn find(&self, start: usize, path: &[String], depth: usize) -> Vec<Id> {
        let Some((name, parents)) = path.split_last().filter(|_| depth < MOST) else {
            return Vec::new();
        };
        let Some(module) = self.find_module(start, parents, depth + 1) else {
            return Vec::new();
        };
        let mut found = self.declared(module, name, depth);
        for named in &self.modules[module].uses {
            let is_glob = named.name == "*" && found.is_empty();
            let target = is_glob.then(|| self.find_module(module, &named.path, depth + 1));
            if let Some(target) = target.flatten() {
                found = self.declared(target, name, depth + 1);
            }
        }
        if found.is_empty() && !parents.is_empty() {
            let macros = self.modules[module].items.iter().enumerate();
            let macros = macros.filter(|(_, item)| item.kind == Kind::Macro);
            found.extend(macros.map(|(index, _)| (module, index)));
        }
        found
    }

    /// The items of a name in a module, its own or else by a `use` of that name.
    fn declared(&self, module: usize, name: &str, depth: usize) -> Vec<Id> {
        let Module { items, uses, .. } = &self.modules[module];
        let declared = items.iter().enumerate();
        let declared = declared.filter(|(_, item)| item.name == name && item.kind != Kind::Macro);
        let declared: Vec<Id> = declared.map(|(index, _)| (module, index)).collect();
        if !declared.is_empty() {
            return declared;
        }
        let uses = uses
            .iter()
            .filter(|named| named.name == name && named.path[..] != [name.to_owned()]);
        uses.flat_map(|named| self.find(module, &named.path, depth + 1))
            .collect()
    }

    /// Whether an impl is part of the interface, and of which item.
    fn owner(&self, module: usize, block: &Impl) -> Option<Option<Id>> {
        let of_type = self.find(module, &block.of, 0).first().copied();
        if of_type.is_some_and(|id| !self.items.contains_key(&id)) {
            return None;
        }
        let of_trait = block.of_trait.as_ref();
        let trait_id = of_trait.and_then(|path| self.find(module, path, 0).first().copied());
        if trait_id.is_some_and(|id| !self.items.contains_key(&id)) {
            return None;
        }
        // Of another crate's type, or of all types.
        Some(of_type.or(trait_id))
    }

    /// Paths of modules, and entries.
    pub(super) fn entries(&self) -> Vec<(&str, &str)> {
        let mut found = Vec::new();
        let mut blocks: BTreeMap<Option<Id>, Vec<&str>> = BTreeMap::new();
        for (index, module) in self.modules.iter().enumerate() {
            for block in &module.impls {
                if let Some(owner) = self.owner(index, block) {
                    blocks
                        .entry(owner)
                        .or_default()
                        .extend(block.lines.iter().map(String::as_str));
                }
            }
        }
        for (id, paths) in &self.items {
            let lines = &self.modules[id.0].items[id.1].lines;
            let blocks = blocks.get(&Some(*id)).into_iter().flatten().copied();
            let lines: Vec<&str> = lines.iter().map(String::as_str).chain(blocks).collect();
            for path in paths {
                found.extend(lines.iter().map(|line| (path.as_str(), *line)));
            }
        }
        let rest = blocks
            .get(&None)
            .into_iter()
            .flatten()
            .map(|line| ("", *line));
        found.extend(rest);
        for (path, line) in &self.others {
            found.push((path, line));
        }
        found
    }
}
