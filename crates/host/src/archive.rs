//! A tree of files as one text, to send and to test with.
//!
//! ```text
//! == proc/version
//! Linux version 6.12.0
//! == proc/4321/exe -> /usr/bin/qemu-system-x86_64
//! == sys/kernel/debug/sched ! 13
//! == sys/kernel/debug/kvm/
//! ```
//!
//! A heading is a path. A file has its content below, a link its target, a refused file its error
//! number, a directory nothing. In contents `\\`, `\0` and `\xHH` stand for bytes, and a
//! backslash at the end of a line for no end of line. Lines before the first heading are comments.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

const HEADING: &str = "== ";
/// `ENOENT`
const ABSENT: i32 = 2;
/// `EINVAL`: what `readlink` gives for what is no link.
const NO_LINK: i32 = 22;

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A file with its content.
    File(Vec<u8>),
    /// A symbolic link with its target.
    Link(String),
    /// A directory, for those without entries.
    Directory,
    /// What could not be read, with the error number.
    Refused(i32),
}

/// Files by path, without the first slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    /// Adds what was read at a path. A content takes the place of the mark that a path exists.
    pub(crate) fn add(&mut self, path: &str, entry: Entry) {
        let path = path.trim_matches('/').to_owned();
        let is_mark = entry == Entry::File(Vec::new()) || entry == Entry::Directory;
        if !is_mark || !self.entries.contains_key(&path) {
            self.entries.insert(path, entry);
        }
    }

    pub(crate) fn file(&self, path: &str) -> io::Result<&[u8]> {
        match self.get(path)? {
            Entry::File(bytes) => Ok(bytes),
            Entry::Link(target) => self.file(target),
            Entry::Directory => Err(io::ErrorKind::IsADirectory.into()),
            Entry::Refused(code) => Err(io::Error::from_raw_os_error(*code)),
        }
    }

    pub(crate) fn link(&self, path: &str) -> io::Result<&str> {
        match self.get(path)? {
            Entry::Link(target) => Ok(target),
            Entry::Refused(code) => Err(io::Error::from_raw_os_error(*code)),
            Entry::File(_) | Entry::Directory => Err(io::Error::from_raw_os_error(NO_LINK)),
        }
    }

    pub(crate) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        if let Some(Entry::Refused(code)) = self.entries.get(path.trim_matches('/')) {
            return Err(io::Error::from_raw_os_error(*code));
        }
        let mut names: Vec<String> = Vec::new();
        for below in self.below(path) {
            let name = below.split('/').next().unwrap_or_default();
            if names.last().is_none_or(|last| last != name) {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        names.dedup();
        match names.is_empty() && !self.exists(path) {
            true => Err(io::Error::from_raw_os_error(ABSENT)),
            false => Ok(names),
        }
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_matches('/')) || self.below(path).next().is_some()
    }

    fn get(&self, path: &str) -> io::Result<&Entry> {
        let entry = self.entries.get(path.trim_matches('/'));
        entry.ok_or_else(|| io::Error::from_raw_os_error(ABSENT))
    }

    /// The rest of each path below a directory.
    fn below<'t>(&'t self, path: &str) -> impl Iterator<Item = &'t str> {
        let prefix = match path.trim_matches('/') {
            "" => String::new(),
            path => format!("{path}/"),
        };
        let length = prefix.len();
        let range = self.entries.range(prefix.clone()..);
        let paths = range.map(|(path, _)| path.as_str());
        let paths = paths.take_while(move |path| path.starts_with(&prefix));
        paths.map(move |path| &path[length..])
    }

    /// Reads the text form.
    ///
    /// # Errors
    ///
    /// No UTF-8, or a heading that is none.
    pub fn parse(text: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(text);
        let text = text.map_err(|error| invalid(format!("no recorded tree: {error}")))?;
        let mut archive = Self::default();
        let mut parts = text.split('\n').peekable();
        while let Some(line) = parts.next() {
            let Some(heading) = line.strip_prefix(HEADING) else {
                continue;
            };
            if let Some((path, target)) = heading.split_once(" -> ") {
                archive.add(path, Entry::Link(target.to_owned()));
            } else if let Some((path, code)) = heading.split_once(" ! ") {
                let code = code.parse();
                let code = code.map_err(|_| invalid(format!("no error number: {line}")))?;
                archive.add(path, Entry::Refused(code));
            } else if heading.ends_with('/') {
                archive.add(heading, Entry::Directory);
            } else {
                let mut bytes = Vec::new();
                while let Some(line) = parts.next_if(|line| !line.starts_with(HEADING)) {
                    // What follows the last end of line is no line.
                    if !line.is_empty() || parts.peek().is_some() {
                        decode(line, &mut bytes);
                    }
                }
                archive.add(heading, Entry::File(bytes));
            }
        }
        match archive.entries.is_empty() {
            true => Err(invalid(
                "no recorded tree: no line begins with `== `".into(),
            )),
            false => Ok(archive),
        }
    }

    /// The text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (path, entry) in &self.entries {
            // Writing to a String cannot fail.
            let _ = match entry {
                Entry::File(_) => writeln!(text, "{HEADING}{path}"),
                Entry::Link(target) => writeln!(text, "{HEADING}{path} -> {target}"),
                Entry::Directory => writeln!(text, "{HEADING}{path}/"),
                Entry::Refused(code) => writeln!(text, "{HEADING}{path} ! {code}"),
            };
            if let Entry::File(bytes) = entry {
                encode(bytes, &mut text);
            }
        }
        text
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Adds the bytes of a line with its end.
fn decode(line: &str, bytes: &mut Vec<u8>) {
    let mut rest = line;
    while let Some((plain, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let mut signs = escape.chars();
        match signs.next() {
            None => return,
            Some('0') => bytes.push(0),
            Some('x') => {
                let digits = escape.get(1..3).unwrap_or_default();
                bytes.push(u8::from_str_radix(digits, 16).unwrap_or(b'?'));
                signs.next();
                signs.next();
            }
            Some(sign) => bytes.extend_from_slice(sign.to_string().as_bytes()),
        }
        rest = signs.as_str();
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes.push(b'\n');
}

fn encode(bytes: &[u8], text: &mut String) {
    if bytes.is_empty() {
        return;
    }
    let ends = bytes.ends_with(b"\n");
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let mut line = line;
        if line.starts_with(HEADING.as_bytes()) {
            text.push_str("\\x3d");
            line = &line[1..];
        }
        for chunk in line.utf8_chunks() {
            for sign in chunk.valid().chars() {
                match sign {
                    '\\' => text.push_str("\\\\"),
                    '\0' => text.push_str("\\0"),
                    // Editors change ends of lines, and terminals obey escapes.
                    sign if sign.is_ascii_control() && !"\n\t".contains(sign) => {
                        let _ = write!(text, "\\x{:02x}", u32::from(sign));
                    }
                    sign => text.push(sign),
                }
            }
            for byte in chunk.invalid() {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push_str(if ends { "\n" } else { "\\\n" });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_kept_to_the_byte() {
        let contents: [&[u8]; 9] = [
            b"",
            b"\n",
            b"a\n\nb",
            b"a\0b\\x\0",
            b"== x\n== y",
            b"\xff\xfe\n\n",
            "é\n".as_bytes(),
            b"\\",
            b"\r\n\x1b[2J\t\x7f",
        ];
        let mut archive = Archive::default();
        for (index, content) in contents.iter().enumerate() {
            archive.add(&format!("/f/{index}"), Entry::File(content.to_vec()));
        }
        archive.add("/l", Entry::Link("anon_inode:[kvm-vm]".into()));
        archive.add("/r", Entry::Refused(13));
        archive.add("/d", Entry::Directory);
        let read = Archive::parse(archive.to_text().as_bytes()).expect("a tree");
        assert_eq!(read, archive);
        assert_eq!(read.list("").expect("names"), ["d", "f", "l", "r"]);
        assert_eq!(read.list("/f").expect("names").len(), contents.len());
        assert!(read.list("/d").expect("names").is_empty());
        assert!(read.list("/x").is_err() && read.file("/f").is_err());
        assert_eq!(
            read.file("r").expect_err("refused").raw_os_error(),
            Some(13)
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [&b"{}"[..], b"", b"\xff", b"== a ! b\n"] {
            assert!(Archive::parse(text).is_err(), "{text:?}");
        }
    }
}
