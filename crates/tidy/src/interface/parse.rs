//! Modules, items, `use` and `impl` of a crate's sources.

use super::spell::{signature, spelled, type_of};
use super::{Impl, Item, Kind, Module, Use};
use crate::source::{self, Source, Token, closing, split_at_commas};
use crate::tree::SourceFile;

/// What stands before an item.
struct Head<'s, 'a> {
    attributes: Vec<&'s [Token<'a>]>,
    is_public: bool,
}

impl Head<'_, '_> {
    /// The attributes of a name, from behind that name.
    fn named(&self, name: &str) -> impl Iterator<Item = &[Token<'_>]> {
        let named = move |tokens: &&[Token]| tokens[2].is_word(name);
        let attributes = self.attributes.iter().copied();
        attributes
            .filter(named)
            .map(|tokens| &tokens[3..tokens.len() - 1])
    }

    fn has(&self, name: &str) -> bool {
        self.named(name).next().is_some()
    }

    fn is_hidden(&self) -> bool {
        let mut docs = self.named("doc");
        docs.any(|tokens| tokens.iter().any(|token| token.is_word("hidden")))
    }

    /// The conditions of compilation, with a blank behind each.
    fn conditions(&self) -> String {
        let conditions = self.named("cfg");
        conditions
            .map(|tokens| format!("#[cfg{}] ", spelled(tokens)))
            .collect()
    }

    /// The path of a module's file.
    fn path(&self) -> Option<&str> {
        let tokens = self.named("path").next()?;
        Some(tokens.last()?.text.trim_matches('"'))
    }

    fn derived(&self, name: &str) -> Vec<String> {
        let derives = self.named("derive");
        let traits = derives.flat_map(|tokens| split_at_commas(&tokens[1..tokens.len() - 1]));
        traits
            .map(|derived| format!("impl {} for {name}", spelled(derived)))
            .collect()
    }
}

/// The attributes and the visibility at a position, and the position behind them.
fn head<'s, 'a>(tokens: &'s [Token<'a>], start: usize) -> (Head<'s, 'a>, usize) {
    let (mut attributes, mut index) = (Vec::new(), start);
    while tokens.get(index).is_some_and(|token| token.is_sign('#')) {
        let open = index + 1 + usize::from(tokens[index + 1].is_sign('!'));
        let end = closing(tokens, open);
        if open == index + 1 {
            attributes.push(&tokens[index..end]);
        }
        index = end;
    }
    let mut is_public = false;
    if tokens.get(index).is_some_and(|token| token.is_word("pub")) {
        index += 1;
        is_public = !tokens.get(index).is_some_and(|token| token.is_sign('('));
        // A tuple's field in brackets has no path in them.
        let path = tokens.get(index + 1).map_or("", |token| token.text);
        if !is_public && ["crate", "super", "self", "in"].contains(&path) {
            index = closing(tokens, index);
        } else {
            is_public = true;
        }
    }
    let head = Head {
        attributes,
        is_public,
    };
    (head, index)
}

/// The position of the first of some signs outside of brackets, from a start on.
fn position(tokens: &[Token], start: usize, signs: &[char]) -> usize {
    let mut index = start;
    while let Some(token) = tokens.get(index) {
        match token.kind {
            source::Kind::Sign(sign) if signs.contains(&sign) => return index,
            source::Kind::Sign('(' | '[' | '{') => index = closing(tokens, index),
            _ => index += 1,
        }
    }
    tokens.len()
}

/// Fields or variants, one after the other: their heads and tokens.
fn parts<'s, 'a>(body: &'s [Token<'a>]) -> Vec<(Head<'s, 'a>, &'s [Token<'a>])> {
    let parts = split_at_commas(body).into_iter().map(|part| {
        let (head, begin) = head(part, 0);
        (head, &part[begin..])
    });
    parts.collect()
}

/// The entries of a structure or union. One that can be made of its fields is one entry.
fn structure(item: &[Token], head: &Head, name: &str) -> Vec<String> {
    let open = position(item, 1, &['{', '(', ';']);
    let begin = spelled(&item[..open]);
    if item.get(open).is_none_or(|token| token.is_sign(';')) {
        return vec![begin];
    }
    let fields = parts(&item[open + 1..closing(item, open) - 1]);
    let is_tuple = item[open].is_sign('(');
    let name_of = |index: usize, field: &[Token]| match is_tuple {
        true => index.to_string(),
        false => field[0].text.to_owned(),
    };
    let public: Vec<String> = fields
        .iter()
        .enumerate()
        .filter(|(_, field)| field.0.is_public)
        .map(|(index, (_, field))| {
            let spelled = spelled(if is_tuple {
                field
            } else {
                type_of(field).unwrap_or(field)
            });
            format!("{}: {spelled}", name_of(index, field))
        })
        .collect();
    if public.len() == fields.len() && !head.has("non_exhaustive") {
        return vec![format!("{begin} {{ {} }}", public.join(", "))];
    }
    let members = public.iter().map(|field| format!("{name}.{field}"));
    std::iter::once(format!("{begin} {{ .. }}"))
        .chain(members)
        .collect()
}

/// The entries of an enumeration.
fn enumeration(item: &[Token], head: &Head, name: &str) -> Vec<String> {
    let open = position(item, 1, &['{']);
    let begin = spelled(&item[..open]);
    let variants = parts(&item[open + 1..closing(item, open) - 1])
        .into_iter()
        .map(|(_, variant)| {
            let end = position(variant, 1, &['=', '{', '(']);
            let Some(fields) = variant.get(end).filter(|token| !token.is_sign('=')) else {
                return spelled(variant);
            };
            let bare = parts(&variant[end + 1..closing(variant, end) - 1]);
            let bare: Vec<String> = bare.iter().map(|(_, field)| spelled(field)).collect();
            let [open, close] = if fields.is_sign('{') {
                [" { ", " }"]
            } else {
                ["(", ")"]
            };
            format!("{}{open}{}{close}", variant[0].text, bare.join(", "))
        });
    if !head.has("non_exhaustive") {
        let variants: Vec<String> = variants.collect();
        return vec![format!("{begin} {{ {} }}", variants.join(", "))];
    }
    let variants = variants.map(|variant| format!("{name}::{variant}"));
    std::iter::once(format!("{begin} {{ .. }}"))
        .chain(variants)
        .collect()
}

/// Functions, constants and types in the body of a trait or an impl: head, whether it has a value or a
/// body, text.
fn members<'s, 'a>(body: &'s [Token<'a>]) -> Vec<(Head<'s, 'a>, bool, String)> {
    let (mut found, mut start) = (Vec::new(), 0);
    while start < body.len() {
        let (head, begin) = head(body, start);
        let end = position(body, begin, &['{', ';', '=']);
        let is_function = body[begin..end].iter().any(|token| token.is_word("fn"));
        // A signature has no `=` but in generics and bounds.
        let end = if is_function {
            position(body, begin, &['{', ';'])
        } else {
            end
        };
        let has_body = body.get(end).is_some_and(|token| !token.is_sign(';'));
        let text = match is_function {
            true => signature(&body[begin..end]),
            false => spelled(&body[begin..end]),
        };
        found.push((head, has_body, text));
        start = match body.get(end) {
            Some(token) if token.is_sign('{') => closing(body, end),
            _ => position(body, end, &[';']) + 1,
        };
    }
    found
}

fn trait_lines(item: &[Token], name: &str) -> Vec<String> {
    let open = position(item, 1, &['{']);
    let members = members(&item[open + 1..closing(item, open) - 1]);
    let required = members.iter().filter(|(_, has_body, _)| !has_body);
    let required: Vec<&str> = required.map(|(.., text)| text.as_str()).collect();
    let provided = members.iter().filter(|(_, has_body, _)| *has_body);
    let provided = provided.map(|(.., text)| format!("trait {name} {{ {text}; .. }}"));
    let begin = format!("{} {{ {} }}", spelled(&item[..open]), required.join("; "));
    std::iter::once(begin).chain(provided).collect()
}

/// The words of a path, without generics: `&'a kvm::Plan<T>` gives `kvm` and `Plan`.
fn path_of(tokens: &[Token]) -> Vec<String> {
    let bare = source::without_generics(tokens);
    let words = bare.iter().filter(|token| token.kind == source::Kind::Word);
    let words = words.filter(|token| !["mut", "dyn", "const", "unsafe"].contains(&token.text));
    words.map(|token| token.text.to_owned()).collect()
}

fn implementation(item: &[Token], head: &Head) -> Impl {
    let open = position(item, 1, &['{']);
    let begin = format!("{}{}", head.conditions(), spelled(&item[..open]));
    let bare = &item[generics_end(item, 1)..open];
    let bare = bare
        .split(|token| token.is_word("where"))
        .next()
        .unwrap_or(bare);
    let split = bare.iter().position(|token| token.is_word("for"));
    if let Some(split) = split {
        return Impl {
            of: path_of(&bare[split + 1..]),
            of_trait: Some(path_of(&bare[..split])),
            lines: vec![begin],
        };
    }
    let members = members(&item[open + 1..closing(item, open) - 1]).into_iter();
    let public = members.filter(|(head, ..)| head.is_public && !head.is_hidden());
    Impl {
        of: path_of(bare),
        of_trait: None,
        lines: public
            .map(|(head, _, text)| format!("{begin} {{ {}{text} }}", head.conditions()))
            .collect(),
    }
}

/// The position behind generics, if they begin at a position.
fn generics_end(tokens: &[Token], start: usize) -> usize {
    let mut depth = 0_i32;
    for (index, token) in tokens.iter().enumerate().skip(start) {
        match token.kind {
            source::Kind::Sign('<') => depth += 1,
            source::Kind::Sign('>') if !source::is_arrow(tokens, index) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if index == start { start } else { index + 1 };
        }
    }
    tokens.len()
}

/// The names of a `use`, from behind the word to the semicolon.
fn uses(tokens: &[Token], prefix: &[String], is_public: bool, found: &mut Vec<Use>) {
    for part in split_at_commas(tokens) {
        let mut path = prefix.to_vec();
        let mut name = None;
        for (index, token) in part.iter().enumerate() {
            match token.kind {
                source::Kind::Sign('{') => {
                    uses(&part[index + 1..part.len() - 1], &path, is_public, found);
                    break;
                }
                source::Kind::Sign('*') => name = Some("*".to_owned()),
                source::Kind::Word if token.text == "as" => {
                    name = part.get(index + 1).map(|alias| alias.text.to_owned());
                    break;
                }
                source::Kind::Word if token.text == "self" && !path.is_empty() => {}
                source::Kind::Word => path.push(token.text.to_owned()),
                _ => {}
            }
        }
        if part.iter().any(|token| token.is_sign('{')) {
            continue;
        }
        let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
        found.push(Use {
            is_public,
            path,
            name,
        });
    }
}

/// Reads modules from their files.
pub(super) struct Parser<'f> {
    files: &'f [SourceFile],
    modules: Vec<Module>,
    macros: Vec<String>,
}

impl<'f> Parser<'f> {
    pub(super) fn new(files: &'f [SourceFile]) -> Self {
        Self {
            files,
            modules: Vec::new(),
            macros: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> (Vec<Module>, Vec<String>) {
        (self.modules, self.macros)
    }

    /// Adds a module, with all below it. Without its file it is empty.
    pub(super) fn file(&mut self, path: &str, module: Module) -> usize {
        let index = self.modules.len();
        self.modules.push(module);
        if let Some(file) = self.files.iter().find(|file| file.path == path) {
            let source = Source::new(&file.text);
            let folder = path
                .strip_suffix("mod.rs")
                .or_else(|| path.strip_suffix("lib.rs"));
            let folder = folder.map_or_else(
                || format!("{}/", path.trim_end_matches(".rs")),
                str::to_owned,
            );
            self.items(&source.code, index, path, &folder);
        }
        index
    }

    fn items(&mut self, tokens: &[Token], module: usize, path: &str, folder: &str) {
        let mut start = 0;
        while start < tokens.len() {
            let (head, begin) = head(tokens, start);
            let end = item_end(tokens, begin);
            let item = &tokens[begin.min(end)..end];
            if !head.is_hidden() && !item.is_empty() {
                self.item(item, &head, module, path, folder);
            }
            start = end.max(start + 1);
        }
    }

    fn item(&mut self, item: &[Token], head: &Head, module: usize, path: &str, folder: &str) {
        let keyword = keyword(item);
        let name = item
            .get(keyword + 1)
            .map_or("", |token| token.text)
            .to_owned();
        let mut kind = Kind::Other;
        let word = item.get(keyword).map_or("", |token| token.text);
        let mut lines = match word {
            "use" => {
                let mut found = Vec::new();
                uses(&item[1..item.len() - 1], &[], head.is_public, &mut found);
                self.modules[module].uses.append(&mut found);
                return;
            }
            "impl" => {
                self.modules[module]
                    .impls
                    .push(implementation(&item[keyword..], head));
                return;
            }
            "macro_rules" => {
                if head.has("macro_export") {
                    let name = item[2].text;
                    self.macros.push(format!("crate: macro {name}!"));
                    let rows = rows(&item[4..item.len() - 1]).into_iter();
                    self.macros
                        .extend(rows.map(|row| format!("crate: macro {name}! {{ {row} }}")));
                }
                return;
            }
            "mod" => {
                let child = self.module(item, head, module, path, folder);
                kind = Kind::Module(child);
                vec![format!("mod {name}")]
            }
            "struct" | "union" => structure(item, head, &name),
            "enum" => enumeration(item, head, &name),
            "trait" => trait_lines(item, &name),
            "fn" => vec![signature(&item[..position(item, keyword, &['{', ';'])])],
            "type" => vec![spelled(&item[..item.len() - 1])],
            "const" | "static" => vec![spelled(&item[..position(item, keyword, &['='])])],
            // Code that is in no language of types.
            _ if item.iter().any(|token| token.is_word("global_asm")) => return,
            _ if item.iter().any(|token| token.is_sign('!')) => {
                kind = Kind::Macro;
                vec![spelled(item)]
            }
            _ => return,
        };
        lines.extend(head.derived(&name));
        let conditions = head.conditions();
        for line in &mut lines {
            line.insert_str(0, &conditions);
        }
        self.modules[module].items.push(Item {
            name,
            is_public: head.is_public || kind == Kind::Macro,
            kind,
            lines,
        });
    }

    fn module(
        &mut self,
        item: &[Token],
        head: &Head,
        parent: usize,
        path: &str,
        folder: &str,
    ) -> usize {
        let name = item[1].text;
        let mut below = self.modules[parent].path.clone();
        below.push(name.to_owned());
        let module = Module {
            path: below,
            parent,
            ..Module::default()
        };
        if let Some(open) = item.iter().position(|token| token.is_sign('{')) {
            let index = self.modules.len();
            self.modules.push(module);
            let folder = format!("{folder}{name}/");
            self.items(&item[open + 1..item.len() - 1], index, path, &folder);
            return index;
        }
        let directory = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let file = match head.path() {
            Some(file) => format!("{directory}/{file}"),
            None => format!("{folder}{name}.rs"),
        };
        match self.files.iter().any(|source| source.path == file) {
            true => self.file(&file, module),
            false => self.file(&format!("{folder}{name}/mod.rs"), module),
        }
    }
}

/// The parts of a macro's body between semicolons, as a table has them: its outer brackets hold one part
/// each.
fn rows(body: &[Token]) -> Vec<String> {
    let mut parts = Vec::new();
    let mut start = 0;
    while start < body.len() {
        let end = position(body, start, &[';']);
        parts.push(&body[start..end]);
        start = end + 1;
    }
    match (&parts[..], body.iter().position(|token| token.is_sign('{'))) {
        ([only], Some(open)) => rows(&only[open + 1..closing(only, open) - 1]),
        _ => parts.into_iter().map(spelled).collect(),
    }
}

/// The position of the word that says what an item is.
fn keyword(item: &[Token]) -> usize {
    let is_modifier = |index: usize| {
        let next = item.get(index + 1).map_or("", |token| token.text);
        match item[index].text {
            "unsafe" | "async" => true,
            "const" => ["fn", "unsafe", "async", "extern"].contains(&next),
            "extern" => next != "crate",
            text => text.starts_with('"'),
        }
    };
    (0..item.len())
        .find(|index| !is_modifier(*index))
        .unwrap_or(0)
}

/// The position behind an item.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let Some(item) = tokens.get(start..).filter(|item| !item.is_empty()) else {
        return tokens.len();
    };
    let word = item[keyword(item)].text;
    let signs: &[char] = match word {
        "use" | "const" | "static" | "type" => &[';'],
        _ => &[';', '{'],
    };
    let end = position(tokens, start, signs);
    match tokens.get(end) {
        Some(token) if token.is_sign('{') => closing(tokens, end),
        Some(_) => end + 1,
        None => tokens.len(),
    }
}
