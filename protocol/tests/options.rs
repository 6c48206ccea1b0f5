//! Compares the files that are generated from the table of queue options with it. Outdated files are written again.

use std::fmt::Write;
use std::path::Path;

use queen_protocol::{OPTIONS, QueueOption};

const WRITTEN: &str = "Written by protocol/tests/options.rs from the table in protocol/src/options.rs.";

#[test]
fn files_about_options_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let page = "docs/http-api.md";
    let mut outdated = Vec::new();
    for (file, text) in [
        (page, with_table(&read(page))),
        ("clients/rust/src/admin/queue_options.rs", rust()),
        ("clients/js/src/queueOptions.ts", javascript()),
        ("clients/python/src/queen_client/queue_options.py", python()),
        ("dashboard/src/queues/options.json", serde_json::to_string_pretty(&*OPTIONS).unwrap() + "\n"),
    ] {
        if read(file) != text {
            std::fs::write(root.join(file), text).unwrap();
            outdated.push(file);
        }
    }
    assert!(
        outdated.is_empty(),
        "out of date, and written anew: {outdated:?}; look at the difference, and commit it"
    );
}

/// The page with a new table between its two markers.
fn with_table(page: &str) -> String {
    let (start, end) = (format!("<!-- options: {WRITTEN} -->\n"), "<!-- end of options -->");
    let (before, rest) = page.split_once(&start).unwrap_or_else(|| panic!("{start:?} is missing"));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("{end:?} is missing"));
    let mut table = String::from("| option | default | meaning |\n|---|---|---|\n");
    for option in OPTIONS.iter() {
        let (default, meaning) = (option.default_text(), option.description());
        writeln!(table, "| `{}` | {default} | {meaning} |", option.name).expect("a string takes it");
    }
    format!("{before}{start}{table}{end}{after}")
}

fn rust() -> String {
    let mut text = format!("//! Options of a queue. {WRITTEN}\n");
    text += "
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Options of a queue. What is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = \"camelCase\", default)]
pub struct QueueOptions {
";
    for option in OPTIONS.iter() {
        let kind = match option {
            _ if option.default.is_boolean() => "bool",
            _ if option.max > i32::MAX.into() => "u64",
            _ if option.min < 0 => "i32",
            _ => "u32",
        };
        text += &commented(option, "    /// ");
        text += "    #[serde(skip_serializing_if = \"Option::is_none\")]\n";
        writeln!(text, "    pub {}: Option<{kind}>,", option.column).expect("a string takes it");
    }
    text += "    /// A label, for a pop by label.
    #[serde(skip_serializing_if = \"Option::is_none\")]
    pub namespace: Option<String>,
    /// A label, for a pop by label.
    #[serde(skip_serializing_if = \"Option::is_none\")]
    pub task: Option<String>,
    /// Any other option, by the broker's name for it.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}
";
    text
}

fn javascript() -> String {
    let mut text = format!("// {WRITTEN}\n");
    text += "
/** Options of a queue; `null` returns one to its default. */
export interface QueueOptions {
";
    for option in OPTIONS.iter() {
        let kind = if option.default.is_boolean() { "boolean" } else { "number" };
        writeln!(text, "  /**\n{}   */", commented(option, "   * ")).expect("a string takes it");
        writeln!(text, "  {}?: {kind} | null;", option.name).expect("a string takes it");
    }
    text += "}

/** @internal */
export const QUEUE_OPTIONS: readonly (keyof QueueOptions)[] = [
";
    for option in OPTIONS.iter() {
        writeln!(text, "  '{}',", option.name).expect("a string takes it");
    }
    text + "];\n"
}

fn python() -> String {
    let mut text = format!("\"\"\"Options of a queue. {WRITTEN}\"\"\"\n");
    text += "
from __future__ import annotations

from typing import TypedDict


class QueueOptions(TypedDict, total=False):
    \"\"\"Options of a queue. None returns one to its default.\"\"\"

";
    for option in OPTIONS.iter() {
        let kind = if option.default.is_boolean() { "bool" } else { "int" };
        text += &commented(option, "    #: ");
        writeln!(text, "    {}: {kind} | None", option.column).expect("a string takes it");
    }
    text + "    #: A label, for a pop by label.
    namespace: str | None
    #: A label, for a pop by label.
    task: str | None
"
}

/// The meaning and the default of an option, as lines of a comment.
fn commented(option: &QueueOption, start: &str) -> String {
    let text = format!("{} Default: {}.", option.description(), option.default_text());
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + word.len() < 100 {
            *line = format!("{line} {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.iter().map(|line| format!("{start}{line}\n")).collect()
}
