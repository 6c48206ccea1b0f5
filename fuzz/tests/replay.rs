//! Runs all fuzz targets on the corpus and on mutations of it: fixed bugs stay fixed, and the targets keep working.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails like the test itself: by panicking")]

use std::path::{Path, PathBuf};

use queen_fuzz::{Check, TARGETS};
use queen_testkit::Random;

const MUTATIONS: usize = 1_000;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(here().join("corpus").join(target)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Names the input when a target panics.
fn run(target: &str, check: Check, name: &str, data: &[u8]) {
    if let Err(panic) = std::panic::catch_unwind(|| check(data)) {
        eprintln!("{target}: {name}: {:?}", String::from_utf8_lossy(data));
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_case_of_the_corpus_passes() {
    for (target, check) in TARGETS {
        let cases = corpus(target);
        assert!(!cases.is_empty(), "{target} has no corpus");
        for (path, data) in cases {
            run(target, *check, &path.display().to_string(), &data);
        }
    }
}

/// Mutations of the corpus, the same in every run.
#[test]
fn mutations_of_the_corpus_pass() {
    for (target, check) in TARGETS {
        let cases = corpus(target);
        let mut dice = Random::seeded(0x9e37_79b9_7f4a_7c15);
        for number in 0..MUTATIONS {
            let data = mutated(&cases[number % cases.len()].1, &cases[dice.below(cases.len())].1, &mut dice);
            run(target, *check, &format!("mutation {number}"), &data);
        }
    }
}

#[test]
fn the_fuzzer_knows_every_target() {
    let manifest = std::fs::read_to_string(here().join("targets/Cargo.toml")).unwrap();
    let fuzzed: Vec<_> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""))
        .collect();
    assert_eq!(fuzzed, TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for target in fuzzed {
        let source =
            std::fs::read_to_string(here().join(format!("targets/fuzz_targets/{target}.rs"))).unwrap();
        assert!(source.contains(&format!("queen_fuzz::check(\"{target}\", data)")), "{target}");
    }
}

/// One to four mutations: a byte is changed, removed or inserted, a piece of another case is
/// inserted, or the end is cut off.
fn mutated(case: &[u8], other: &[u8], dice: &mut Random) -> Vec<u8> {
    const AWKWARD: &[u8] = b"\0\"\\{}[],:.%@?='+-0\n\xfe\xff";
    let mut data = case.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(data.len() + 1);
        match dice.below(5) {
            0 if at < data.len() => data[at] ^= 1 << dice.below(8),
            1 if at < data.len() => drop(data.remove(at)),
            2 => data.insert(at, AWKWARD[dice.below(AWKWARD.len())]),
            3 => {
                let from = dice.below(other.len() + 1);
                let to = (from + dice.below(32)).min(other.len());
                data.splice(at..at, other[from..to].iter().copied());
            }
            _ => data.truncate(at),
        }
    }
    data
}
