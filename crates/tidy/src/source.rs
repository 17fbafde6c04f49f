//! Rust sources as tokens, without the items that only tests compile.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or a keyword.
    Word,
    /// A string literal.
    Text,
    /// A number or a character.
    Literal,
    /// A lifetime or a label.
    Lifetime,
    /// One character of punctuation.
    Sign(char),
    /// A comment of either form.
    Comment,
}

/// A token with its first line and its last one, from 0.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its text, with quotes and comment marks.
    pub text: &'a str,
    /// The line where it begins.
    pub line: usize,
    /// The line where it ends.
    pub last_line: usize,
}

impl Token<'_> {
    /// Whether it is this word.
    pub fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text == word
    }

    /// Whether it is this sign.
    pub fn is_sign(&self, sign: char) -> bool {
        self.kind == Kind::Sign(sign)
    }
}

/// A file's code and comments, apart from each other.
pub struct Source<'a> {
    /// Tokens without comments.
    pub code: Vec<Token<'a>>,
    /// Comments.
    pub comments: Vec<Token<'a>>,
    /// The file's lines; those of tests are `None`.
    pub lines: Vec<Option<&'a str>>,
}

impl<'a> Source<'a> {
    /// Takes a file apart and leaves out what only tests compile.
    pub fn new(text: &'a str) -> Self {
        let mut lines: Vec<Option<&str>> = text.lines().map(Some).collect();
        let (comments, code): (Vec<_>, Vec<_>) = Lexer::new(text).partition(is_comment);
        let mut remaining = Vec::with_capacity(code.len());
        let mut index = 0;
        while index < code.len() {
            let Some(after) = test_attribute(&code[index..]) else {
                remaining.push(code[index]);
                index += 1;
                continue;
            };
            let inner = code[index + 1].is_sign('!');
            let end = if inner {
                code.len()
            } else {
                item_end(&code, index + after)
            };
            let first = if inner { 0 } else { code[index].line };
            let last = code[end - 1].last_line;
            lines[first..=last].fill(None);
            index = end;
        }
        let shown = |token: &Token| lines.get(token.line).is_some_and(Option::is_some);
        let comments = comments.into_iter().filter(shown).collect();
        Self {
            code: remaining,
            comments,
            lines,
        }
    }

    /// Functions that have a body.
    pub fn functions(&self) -> impl Iterator<Item = Function<'_, 'a>> {
        let starts = self.code.windows(2).enumerate();
        let starts = starts.filter(|(_, pair)| pair[0].is_word("fn") && pair[1].kind == Kind::Word);
        starts.filter_map(|(start, _)| {
            let end = item_end(&self.code, start + 2);
            let body = self.code[end - 1].is_sign('}');
            body.then(|| Function {
                tokens: &self.code[start..end],
            })
        })
    }

    /// Impls of a type's own methods, not of traits.
    pub fn inherent_impls(&self) -> impl Iterator<Item = Impl<'a>> {
        (0..self.code.len()).filter_map(|start| self.inherent_impl(start))
    }

    fn inherent_impl(&self, start: usize) -> Option<Impl<'a>> {
        let first = self.code[start];
        let first_of_line = start.checked_sub(1).is_none_or(|previous| {
            self.code[previous].line < first.line || self.code[previous].is_word("unsafe")
        });
        if !first.is_word("impl") || !first_of_line {
            return None;
        }
        let body = start + self.code[start..].iter().position(|t| t.is_sign('{'))?;
        let head = without_generics(&self.code[start + 1..body]);
        let head = head.split(|t| t.is_word("where")).next()?;
        let path = |t: &Token| t.is_sign(':') || t.kind == Kind::Word;
        if !head.iter().all(path) || head.iter().any(|t| t.is_word("for")) {
            return None;
        }
        let end = closing(&self.code, body);
        let tokens = &self.code[body..end];
        Some(Impl {
            name: head.last()?.text,
            lines: tokens.last()?.line - first.line + 1,
            methods: tokens.iter().filter(|t| t.is_word("fn")).count(),
        })
    }
}

/// A function from its `fn` to its closing brace.
pub struct Function<'s, 'a> {
    tokens: &'s [Token<'a>],
}

impl<'s, 'a> Function<'s, 'a> {
    /// Lines from `fn` to the closing brace.
    pub fn lines(&self) -> usize {
        self.tokens[self.tokens.len() - 1].line - self.tokens[0].line + 1
    }

    /// The tokens of each parameter, its name and its type.
    pub fn parameters(&self) -> Vec<&'s [Token<'a>]> {
        let Some(open) = parameters_open(self.tokens) else {
            return Vec::new();
        };
        let end = closing(self.tokens, open);
        split_at_commas(&self.tokens[open + 1..end - 1])
    }
}

/// An impl of a type's own methods.
pub struct Impl<'a> {
    /// The type, without its path and parameters.
    pub name: &'a str,
    /// Lines from `impl` to the closing brace.
    pub lines: usize,
    /// Functions within.
    pub methods: usize,
}

/// Where a function's parameters open: behind its generics, which may have brackets themselves.
pub(crate) fn parameters_open(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Sign('<') => depth += 1,
            Kind::Sign('>') if !is_arrow(tokens, index) => depth = depth.saturating_sub(1),
            Kind::Sign('(') if depth == 0 => return Some(index),
            _ => {}
        }
    }
    None
}

/// Parts between the commas that no bracket encloses.
pub(crate) fn split_at_commas<'s, 'a>(tokens: &'s [Token<'a>]) -> Vec<&'s [Token<'a>]> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Sign('(' | '[' | '{' | '<') => depth += 1,
            Kind::Sign('>') if is_arrow(tokens, index) => {}
            Kind::Sign(')' | ']' | '}' | '>') => depth -= 1,
            Kind::Sign(',') if depth == 0 => {
                parts.push(&tokens[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&tokens[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// Whether the `>` at a position ends `->` or `=>`.
pub(crate) fn is_arrow(tokens: &[Token], index: usize) -> bool {
    index > 0 && (tokens[index - 1].is_sign('-') || tokens[index - 1].is_sign('='))
}

pub(crate) fn without_generics<'a>(head: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut remaining, mut depth) = (Vec::new(), 0_usize);
    for (index, token) in head.iter().enumerate() {
        match token.kind {
            Kind::Sign('<') => depth += 1,
            Kind::Sign('>') if !is_arrow(head, index) => depth = depth.saturating_sub(1),
            _ if depth == 0 => remaining.push(*token),
            _ => {}
        }
    }
    remaining
}

/// The position after the bracket that closes the one at `open`.
pub fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Sign('(' | '[' | '{') => depth += 1,
            Kind::Sign(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// The position after an item: after its body, its semicolon, or the comma at the end of its line.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let mut index = start;
    while let Some(token) = tokens.get(index) {
        let line_ends = tokens
            .get(index + 1)
            .is_none_or(|next| next.line > token.line);
        match token.kind {
            Kind::Sign('(' | '[') => index = closing(tokens, index) - 1,
            Kind::Sign('{') => return closing(tokens, index),
            Kind::Sign(')' | ']' | '}') => return index,
            Kind::Sign(';') => return index + 1,
            // A variant or an argument, rather than a comma of generics.
            Kind::Sign(',') if line_ends => return index + 1,
            _ => {}
        }
        index += 1;
    }
    tokens.len()
}

/// The length of the attribute at the beginning, if only tests compile what it is for.
fn test_attribute(tokens: &[Token]) -> Option<usize> {
    let inner = tokens.get(1)?.is_sign('!');
    let open = if inner { 2 } else { 1 };
    if !tokens[0].is_sign('#') || !tokens.get(open)?.is_sign('[') {
        return None;
    }
    let end = closing(tokens, open);
    let words = tokens[open + 1..end]
        .iter()
        .filter(|t| t.kind == Kind::Word);
    let words: Vec<&str> = words.map(|t| t.text).collect();
    let (words, configured) = match &words[..] {
        ["cfg", "all", words @ ..] | ["cfg", words @ ..] => (words, true),
        words => (words, false),
    };
    let tests = match words.first() {
        Some(&"test") => true,
        Some(&("kani" | "loom")) => configured,
        Some(&("rstest" | "bench")) => !configured,
        Some(&"tokio") => words.get(1) == Some(&"test"),
        _ => false,
    };
    tests.then_some(end)
}

fn is_comment(token: &Token) -> bool {
    token.kind == Kind::Comment
}

/// Reads a text token by token.
struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            line: 0,
        }
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let blank = self.rest.len() - self.rest.trim_start().len();
        self.line += lines_in(&self.rest[..blank]);
        self.rest = &self.rest[blank..];
        let (kind, length) = first_token(self.rest)?;
        let (text, rest) = self.rest.split_at(length);
        let line = self.line;
        self.rest = rest;
        self.line += lines_in(text);
        Some(Token {
            kind,
            text,
            line,
            last_line: self.line,
        })
    }
}

fn lines_in(text: &str) -> usize {
    text.bytes().filter(|&b| b == b'\n').count()
}

/// The kind and the length of the token that a text begins with.
fn first_token(text: &str) -> Option<(Kind, usize)> {
    let first = text.chars().next()?;
    if text.starts_with("//") {
        return Some((Kind::Comment, text.find('\n').unwrap_or(text.len())));
    }
    if text.starts_with("/*") {
        return Some((Kind::Comment, block_comment(text)));
    }
    let prefix = text
        .find(|c: char| !"bcr".contains(c))
        .unwrap_or(text.len());
    if prefix <= 2 {
        if let Some(length) = string(&text[prefix..], text[..prefix].contains('r')) {
            return Some((Kind::Text, prefix + length));
        }
        let byte = usize::from(text.starts_with("b'"));
        if let Some(length) = character(&text[byte..]) {
            return Some((Kind::Literal, byte + length));
        }
    }
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let word_end = |text: &str| text.find(|c| !word(c)).unwrap_or(text.len());
    Some(match first {
        '\'' => (Kind::Lifetime, 1 + word_end(&text[1..])),
        '0'..='9' => (Kind::Literal, word_end(text)),
        _ if word(first) => (Kind::Word, word_end(text)),
        _ => (Kind::Sign(first), first.len_utf8()),
    })
}

/// The length of a block comment; they nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut position) = (0_usize, 0);
    while position < text.len() {
        let rest = &text.as_bytes()[position..];
        match (rest.starts_with(b"/*"), rest.starts_with(b"*/")) {
            (true, _) => depth += 1,
            (_, true) => depth -= 1,
            _ => {
                position += 1;
                continue;
            }
        }
        position += 2;
        if depth == 0 {
            return position;
        }
    }
    text.len()
}

/// The length of a string literal after its prefix.
fn string(text: &str, raw: bool) -> Option<usize> {
    if raw {
        let hashes = text.len() - text.trim_start_matches('#').len();
        let inner = text[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(hashes + 1 + inner.find(&end)? + end.len());
    }
    text.strip_prefix('"')?;
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((index, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => return Some(index + 1),
            _ => {}
        }
    }
    None
}

/// The length of a character literal, which a lifetime is not.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let first = inner.chars().next()?;
    // What an escape names may be a quote itself.
    let skipped = if first == '\\' { 2 } else { first.len_utf8() };
    let end = inner.get(skipped..)?.find('\'')?;
    let valid = first != '\'' && (end == 0 || first == '\\' && end < 10);
    valid.then_some(1 + skipped + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r##"
//! Page.
use a::b; // why
/// Doc /* no comment.
impl<'a, T: Fn(u8) -> u8> Host<'a, T> where T: Copy {
    fn pick(&self, (a, b): (u8, u8), name: &'static str) -> Option<[u8; 2]> { let c = '\''; "}" }
}
impl fmt::Display for Host {}
/* a /* b */ c */
const TEXT: &str = r#"fn no() { " }"#;
#[cfg(test)]
mod tests {
    fn also() {}
}
"##;

    #[test]
    fn items_are_found() {
        let source = Source::new(FILE);
        let functions: Vec<_> = source.functions().collect();
        assert_eq!(functions.len(), 1);
        assert_eq!(functions[0].lines(), 1);
        assert_eq!(functions[0].parameters().len(), 3);
        let impls: Vec<_> = source.inherent_impls().collect();
        assert_eq!(impls.len(), 1);
        assert_eq!(
            (impls[0].name, impls[0].lines, impls[0].methods),
            ("Host", 3, 1)
        );
        assert_eq!(source.comments.len(), 4);
        assert_eq!(source.lines.iter().flatten().count(), 10);
    }
}
