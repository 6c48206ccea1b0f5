//! Properties that must hold for any bytes, one function per parser of external input. Each panics when its property fails.
//! `fuzz/targets` runs them under libFuzzer; `tests/replay.rs` runs them on the corpus and mutations of it in every test run.

mod answer;
mod bodies;
mod frames;
mod ids;
mod input;
mod settings;
mod spool;

use input::Input;

pub type Check = fn(&[u8]);

/// All targets by name, as in `fuzz/targets/Cargo.toml` and `fuzz/corpus`.
pub const TARGETS: &[(&str, Check)] = &[
    ("push_body", bodies::push),
    ("ack_body", bodies::ack),
    ("transaction_body", bodies::transaction),
    ("configure_body", bodies::configure),
    ("admin_bodies", bodies::admin),
    ("pop_query", bodies::pop_query),
    ("frames", frames::frames),
    ("answer", answer::answer),
    ("spool", spool::spool),
    ("ids", ids::ids),
    ("connection", settings::connection),
    ("units", settings::units),
];

/// Called by `fuzz_target!`. Panics for an unknown name.
pub fn check(target: &str, data: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    found.unwrap_or_else(|| panic!("no target {target}")).1(data);
}
