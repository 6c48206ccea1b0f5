//! What must hold for any bytes, one function per reader of bytes that come from outside. Each panics when it does not.
//! `fuzz/targets` runs them under libFuzzer, `tests/replay.rs` on the corpus and on mutations of it in every test run.

mod answer;
mod bodies;
mod frames;
mod ids;
mod input;
mod settings;
mod spool;

use input::Input;

pub type Check = fn(&[u8]);

/// Every target by its name: the same as in `fuzz/targets/Cargo.toml` and in `fuzz/corpus`.
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

/// For `fuzz_target!`. Panics for a name that is none.
pub fn check(target: &str, data: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    found.unwrap_or_else(|| panic!("there is no target {target}")).1(data);
}
