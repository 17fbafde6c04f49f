//! What is wrong with a file, shown where it is wrong.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// Columns of a shown problem.
const WIDTH: usize = 100;

/// A problem at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file as the user named it.
    pub file: String,
    /// The key, dotted (`vm.web.pinning`); empty if the file as a whole is wrong.
    pub key: String,
    /// Line, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub help: Option<String>,
    /// The message with the line it speaks of.
    shown: String,
}

/// A problem before it is known in which file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) key: String,
    pub(crate) span: Range<usize>,
    pub(crate) problem: String,
    pub(crate) help: Option<String>,
}

impl Problem {
    pub(crate) fn at(self, file: &str, text: &str) -> Diagnostic {
        let Self {
            key,
            span,
            problem,
            help,
        } = self;
        let span = within(text, span);
        let line = text.get(..span.start).unwrap_or(text).matches('\n').count() + 1;
        let title = match key.as_str() {
            "" => problem.clone(),
            key => format!("{key}: {problem}"),
        };
        let snippet = Snippet::source(text)
            .path(file)
            .annotation(AnnotationKind::Primary.span(span));
        let mut group = Level::ERROR.primary_title(title).element(snippet);
        if let Some(help) = &help {
            group = group.element(Level::HELP.message(help.clone()));
        }
        let renderer = Renderer::plain().term_width(WIDTH);
        let shown = renderer.render(&[group]);
        Diagnostic {
            file: file.to_owned(),
            key,
            line,
            problem,
            help,
            shown: shown
                .lines()
                .map(str::trim_end)
                .collect::<Vec<_>>()
                .join("\n"),
        }
    }
}

/// The part of a span that is in its text, between characters, and of one line.
fn within(text: &str, span: Range<usize>) -> Range<usize> {
    let boundary = |mut offset: usize| {
        offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    };
    let start = boundary(span.start);
    let end = boundary(span.end.max(start));
    let part = text.get(start..end).unwrap_or_default();
    start..start + part.find('\n').unwrap_or(part.len())
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl std::error::Error for Diagnostic {}

/// Why a scenario or a machine profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file is larger than any that means something.
    #[error("{path}: more than {most} bytes: this is no scenario and no machine profile")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most bytes.
        most: u64,
    },
    /// What it says is wrong; at least one problem, in the order of the lines.
    #[error("{}", joined(.0))]
    Wrong(Vec<Diagnostic>),
}

fn joined(problems: &[Diagnostic]) -> String {
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    shown.join("\n\n")
}

impl LoadError {
    /// The problems in a file; none if it could not be read at all.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        match self {
            Self::Wrong(problems) => problems,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_its_line() {
        let problem = Problem {
            key: "run.duration".into(),
            span: 17..20,
            problem: "5 has no unit".into(),
            help: Some("give \"5s\"".into()),
        };
        let shown = problem.at("a.toml", "[run]\nduration = 5 # short\n");
        assert_eq!(shown.line, 2);
        let expected = "\
error: run.duration: 5 has no unit
 --> a.toml:2:12
  |
2 | duration = 5 # short
  |            ^^^
  |
  = help: give \"5s\"";
        assert_eq!(shown.to_string(), expected);
    }

    #[test]
    fn a_span_may_be_anywhere() {
        for span in [0..0, 3..9, 1..100, 50..60] {
            let problem = Problem {
                key: String::new(),
                span,
                problem: "?".into(),
                help: None,
            };
            assert!(problem.at("a", "aé\nü=1\n").line >= 1);
        }
    }
}
