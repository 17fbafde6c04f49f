//! `scripts/measures`: how easy Rust trees are to enter, as a Markdown table.

use std::path::Path;
use std::process::ExitCode;

use stealtime_tidy::measures::{Tree, table};

const HELP: &str = "\
Measures how easy a Rust tree is to enter, next to other trees.

    scripts/measures [TREE…]             this tree (or those given) as a Markdown table
    scripts/measures . ~/ripgrep=rg      two trees, the second under the heading rg

Tests, benchmarks, examples and fuzz targets are left out, in files of their own and inside a file.
\"Per 1,000 lines\" counts lines that are not blank, comments included. Lines of code are neither
blank nor comment. Commit subjects need a git repository; without one they are \"-\".";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "-h" || a == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if arguments.is_empty() {
        arguments.push(".".into());
    }
    let mut trees = Vec::new();
    for argument in &arguments {
        let (folder, title) = argument.split_once('=').unwrap_or((argument, ""));
        let Ok(path) = Path::new(folder).canonicalize() else {
            eprintln!("{folder}: no such folder");
            return ExitCode::from(2);
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let title = if title.is_empty() { &name } else { title };
        trees.push(Tree::measure(&path, title));
    }
    print!("{}", table(&trees));
    ExitCode::SUCCESS
}
