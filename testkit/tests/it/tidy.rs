//! Checks the text of the repository: which crate may depend on what, and that every module starts with a summary.

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 9] =
    ["bench", "cli", "clients/rust", "engine", "fuzz", "postgres", "protocol", "server", "testkit"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Rust files below a folder, as paths from the root with their text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "rs" => {
                    let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                    found.push((name, fs::read_to_string(&path).unwrap()));
                }
                _ => {}
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no source");
    found
}

/// The dependencies that a crate ships with.
fn dependencies(crate_: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join(crate_).join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]")).unwrap();
    let name = |line: &str| line.split(['.', '=', ' ']).next().unwrap_or_default().to_owned();
    section.lines().map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_module_opens_with_what_it_is() {
    for (name, text) in CRATES.iter().flat_map(|each| sources(&format!("{each}/src"))) {
        // The client's summary is its README.
        let opens = text.starts_with("//! ") || text.starts_with("#![doc = include_str!");
        assert!(opens, "{name} does not start with `//!`");
    }
}

#[test]
fn tables_and_procedures_are_named_in_one_folder_only() {
    let callers =
        ["from queen.", "join queen.", "select queen.", "into queen.", "update queen.", "call queen."];
    for (name, text) in ["engine/src", "server/src", "cli/src", "postgres/src"].into_iter().flat_map(sources)
    {
        let is_code = |line: &str| !line.trim_start().starts_with("//") && !line.contains("queen psql");
        for (number, line) in text.lines().enumerate().filter(|(_, line)| is_code(line)) {
            let calls = callers.iter().any(|caller| line.contains(caller));
            assert!(!calls || name.starts_with("engine/src/db/"), "{name}:{} calls SQL: {line}", number + 1);
        }
    }
}

/// `println!` and its kind panic when the reader of the output has left, as in `queen … | head`.
#[test]
fn programs_write_their_output_and_do_not_print_it() {
    let shipped = ["cli/src", "clients/rust/src", "engine/src", "postgres/src", "protocol/src", "server/src"];
    for (name, text) in shipped.into_iter().flat_map(sources) {
        for (number, line) in text.lines().enumerate() {
            let prints =
                ["println!(", "eprintln!(", "print!(", "dbg!("].iter().any(|call| line.contains(call));
            assert!(!prints || line.trim_start().starts_with("//"), "{name}:{} prints: {line}", number + 1);
        }
    }
}

#[test]
fn only_the_engine_knows_sql_and_it_knows_no_http() {
    let refuses = [
        (
            "engine",
            &["axum", "hyper", "tower", "tower-http", "queen-server", "queen-cli", "queen-client"][..],
        ),
        ("server", &["tokio-postgres", "ratatui", "indicatif", "queen-client"]),
        ("cli", &["tokio-postgres", "queen-engine", "queen-server", "queen-postgres"]),
        ("protocol", &["tokio", "tokio-postgres", "hyper", "axum"]),
        ("clients/rust", &["queen-protocol", "queen-engine", "queen-server"]),
    ];
    for (crate_, refused) in refuses {
        let needs = dependencies(crate_);
        assert!(needs.len() > 2, "{crate_}: {needs:?}");
        for name in refused {
            assert!(!needs.iter().any(|need| need == name), "{crate_} must not depend on {name}");
        }
    }
}
