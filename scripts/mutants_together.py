"""Many mutants of a crate in one build: the variable MUTANT chooses one as a test begins.

`a < b` becomes `match crate::mutant() { 17 => a <= b, 18 => a == b, _ => a < b }`. A function begins with
`if crate::mutant() == 19 { return …; }`, and an arm that may be deleted gets a guard. The tree of tree-sitter says
where an operator's operands end. What does not compile so, or stands in a constant, is left out: it needs a build of
its own. `const` functions become plain ones, where nothing constant calls them.
"""
import json
import re
import subprocess
from collections import defaultdict

import tree_sitter_rust
from tree_sitter import Language, Parser

PARSER = Parser(Language(tree_sitter_rust.language()))
# Code that the compiler computes, or that only tokens describe.
CONSTANT = {"const_item", "static_item", "array_type", "enum_variant", "const_block", "const_parameter"}
TOKENS = {"macro_invocation", "macro_definition"}
OPERATIONS = {"binary_expression", "compound_assignment_expr"}
# Read before `main`: tests count allocations.
CHOICE = """
extern crate std;
static CHOSEN: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
extern "C" fn choose() {
    let number = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok());
    CHOSEN.store(number.unwrap_or(0), core::sync::atomic::Ordering::Relaxed);
}
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose;
/// The mutant of this process; 0 for none.
#[inline]
pub fn mutant() -> u32 {
    CHOSEN.load(core::sync::atomic::Ordering::Relaxed)
}
"""


class Overlay:
    """A file with its mutants, by number. `left_out` grows by those that have no place."""

    def __init__(self, text, mutants, left_out, constant):
        self.source, self.constant, self.left_out = text.encode(), constant, left_out
        self.root = PARSER.parse(self.source).root_node
        self.operations, self.negations, self.guards = defaultdict(list), defaultdict(list), defaultdict(list)
        self.results, self.arms = defaultdict(list), {}
        lines = text.splitlines(keepends=True)
        for number, mutant in mutants:
            ends = []
            for place in (mutant["span"]["start"], mutant["span"]["end"]):
                before = "".join(lines[: place["line"] - 1]) + lines[place["line"] - 1][: place["column"] - 1]
                ends.append(len(before.encode()))
            if number not in left_out and not self.add(number, mutant, *ends):
                left_out.add(number)

    def add(self, number, mutant, begin, end):
        genre, replacement = mutant["genre"], mutant["replacement"]
        node = self.root.descendant_for_byte_range(begin, begin + 1 if genre.startswith("M") else max(begin + 1, end - 1))
        if genre == "FnValue":
            # The hidden type of `impl Trait` is that of the body.
            if "impl " in mutant["function"]["return_type"] or self.is_constant(node, begin):
                return False
            self.results[begin].append((number, replacement))
            return True
        if self.is_constant(node, None):
            return False
        above = node.parent
        if genre == "BinaryOperator" and above.type in OPERATIONS and (node.start_byte, node.end_byte) == (begin, end):
            self.operations[above.start_byte, above.end_byte].append((number, begin, end, replacement))
        elif genre == "UnaryOperator" and above.type == "unary_expression":
            self.negations[above.start_byte, above.end_byte].append((number, begin, end, ""))
        elif genre == "MatchArmGuard":
            self.guards[begin, end].append((number, replacement))
        elif genre == "MatchArm":
            while above and above.type != "match_arm":
                above = above.parent
            if not above or above.start_byte != begin:
                return False
            self.arms[begin] = number
        else:
            return False
        return True

    def is_constant(self, node, body):
        """Whether the compiler computes it. A body may begin with a constant or a macro."""
        while node:
            begins_body = node.start_byte == body and node.type != "block"
            if not begins_body and node.type in CONSTANT | TOKENS:
                return True
            if node.type == "function_item" and node.child_by_field_name("name").text.decode() in self.constant:
                return True
            node = node.parent
        return False

    def text(self, begin, end):
        return self.source[begin:end].decode()

    def choice(self, variants, node, original):
        numbers = ",".join(str(number) for number, _ in variants)
        arms = " ".join(f"{number} => {variant}," for number, variant in variants)
        return f"(/*<{numbers}*/match crate::mutant() {{ {arms} _ => {original} }}/*{numbers}>*/)"

    def render(self, node):
        span = (node.start_byte, node.end_byte)
        if span in self.guards:
            return self.choice(self.guards.pop(span), node, self.render(node))
        table = self.operations if node.type in OPERATIONS else self.negations
        if node.type in OPERATIONS | {"unary_expression"} and span in table:
            variants = [
                (number, self.text(span[0], begin) + replacement + self.text(end, span[1]))
                for number, begin, end, replacement in table.pop(span)
            ]
            return self.choice(variants, node, self.children(node))
        if node.type == "match_pattern" and node.parent.start_byte in self.arms:
            number = self.arms.pop(node.parent.start_byte)
            kept = f"/*<{number}*/crate::mutant() != {number}/*{number}>*/"
            condition = node.child_by_field_name("condition")
            if condition is None:
                return f"{self.children(node)} if {kept}"
            return f"{self.text(span[0], condition.start_byte)}{kept} && {self.render(condition)}"
        return self.children(node)

    def children(self, node):
        name = node.child_by_field_name("name") if node.type == "function_item" else None
        plain = name is not None and name.text.decode() not in self.constant
        parts, place = [], node.start_byte
        for child in node.children:
            parts.append(self.text(place, child.start_byte))
            place = child.end_byte
            if node.type == "block":
                for number, result in self.results.pop(child.start_byte, []):
                    parts.append(f"/*<{number}*/if crate::mutant() == {number} {{ return {result}; }}/*{number}>*/ ")
            if plain and child.type == "function_modifiers":
                parts.append(child.text.decode().replace("const", ""))
            else:
                parts.append(self.render(child))
        parts.append(self.text(place, node.end_byte))
        return "".join(parts)

    def rendered(self):
        text = self.text(0, self.root.start_byte) + self.render(self.root)
        for table in (self.operations, self.negations, self.guards, self.results):
            self.left_out.update(row[0] for rows in table.values() for row in rows)
        self.left_out.update(self.arms.values())
        return text + self.text(self.root.end_byte, len(self.source))


def cargo(words, tree, environment):
    """Whether it succeeds, and its messages."""
    command = ["cargo", *words, "--quiet", "--offline", "--message-format=json"]
    ran = subprocess.run(command, check=False, cwd=tree, env=environment, capture_output=True)
    messages = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith(b"{")]
    return ran.returncode == 0, messages


def blamed(error, files):
    """The mutants that this error of the compiler is about."""
    found = set()
    for span in filter(lambda span: span["is_primary"], error["spans"]):
        # In a macro of another file: where this crate calls it.
        while span["file_name"] not in files and span["expansion"]:
            span = span["expansion"]["span"]
        text = files.get(span["file_name"], "").encode()
        innermost = None
        for opened in re.finditer(rb"/\*<([\d,]+)\*/", text[: span["byte_end"]]):
            if text.find(b"/*" + opened[1] + b">*/", opened.end()) >= span["byte_start"]:
                innermost = opened[1]
        if innermost:
            found.update(map(int, innermost.split(b",")))
    return found


def build(top, tree, crate, package, numbered, environment):
    """Builds all tests with the mutants (number, mutant) in it. Their programs, and the numbers left out."""
    left_out, constant = set(), set()
    by_file = defaultdict(list)
    for number, mutant in numbered:
        by_file[mutant["file"]].append((number, mutant))
    while True:
        files = {}
        for path in sorted((top / crate / "src").rglob("*.rs")):
            name = str(path.relative_to(top))
            text = Overlay(path.read_text(), by_file[name], left_out, constant).rendered()
            if path == top / crate / "src/lib.rs":
                text = text.replace("#![forbid(unsafe_code)]", "") + CHOICE
            files[name] = text
            if (tree / name).read_text() != text:
                (tree / name).write_text(text)
        compiles, messages = cargo(["check", "--package", package, "--tests"], tree, environment)
        if compiles:
            break
        progress = False
        for message in messages:
            error = message.get("message", {})
            if message["reason"] != "compiler-message" or error["level"] != "error":
                continue
            called = re.search(r"non-const (?:\w+ )*`(?:.*::)?(\w+)(?:::<.*>)?`", error["message"])
            found = {called[1]} - constant - {"mutant"} if called else set()
            constant |= found
            blames = blamed(error, files) - left_out
            left_out |= set() if found else blames
            progress |= bool(found or blames)
        if not progress:
            raise SystemExit("the mutants together do not compile: use --single")
    _, messages = cargo(["test", "--package", package, "--lib", "--test", "*", "--no-run"], tree, environment)
    programs = {}
    for message in messages:
        if message.get("executable"):
            target = message["target"]
            programs["lib" if "lib" in target["kind"] else target["name"]] = message["executable"]
    return programs, left_out
