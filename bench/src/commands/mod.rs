//! One file per subcommand. Each returns whether it succeeded.

pub mod admin;
pub mod ceiling;
pub mod chaos;
pub mod client;
pub mod compare;
pub mod growth;
pub mod pinned;
pub mod run;
pub mod soak;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::environment::Machine;
use crate::report::Contender;

/// The file of full results: common fields of all subcommands, and the subcommand's own part.
#[derive(Serialize)]
struct Document<T> {
    command: Vec<String>,
    machine: Machine,
    ended_unix_seconds: u64,
    #[serde(flatten)]
    results: T,
}

fn write_json(path: Option<&Path>, machine: Machine, results: impl Serialize) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let document = Document {
        command: std::env::args().collect(),
        machine,
        ended_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        results,
    };
    write(path, &serde_json::to_vec_pretty(&document)?)
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Notes, errors and violations of a broker, a line each, after its name.
fn print_remarks(name: &str, contender: &Contender) {
    for note in &contender.notes {
        println!("{name}: {note}");
    }
    for text in &contender.error_texts {
        println!("{name}: ERROR {text}");
    }
    for violation in &contender.violations {
        println!("{name}: VIOLATION {violation}");
    }
}
