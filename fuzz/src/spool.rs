//! The spool: whatever happened to a file, reading it never invents a record, never loses an intact one, and never fails.

use queen_engine::fuzzing::{Files, Spooled, record};
use std::path::Path;

use crate::Input;

/// Real files are slow, so only one input in this many uses them.
const DISK_EVERY: u8 = 64;

pub fn spool(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    if kind % DISK_EVERY == 1 {
        return files(input);
    }
    match kind % 2 {
        0 => check_contents(input.rest()),
        _ => damaged(input),
    }
}

/// Arbitrary bytes.
fn check_contents(bytes: &[u8]) {
    let contents = record::read(bytes);
    let mut end = 0;
    for found in &contents.records {
        let mut written = Vec::new();
        record::write(&mut written, found.number, found.body);
        let at = end
            + bytes[end..]
                .windows(written.len())
                .position(|part| part == written)
                .expect("it is in the file");
        end = at + written.len();
        // Parsing a record's body must not panic either.
        let _ = serde_json::from_slice::<Spooled<'_>>(found.body);
    }
    assert_eq!(contents.end, end);
    assert!(contents.damaged.iter().all(|range| range.start < range.end && range.end <= contents.end));
    assert!(contents.damaged.is_sorted_by_key(|range| range.start));
}

/// Written records, in a file that then lost its end and some bytes.
fn damaged(mut input: Input<'_>) {
    let (cut, at, flip) = (input.number(), input.number(), input.byte());
    let mut bytes = Vec::new();
    let mut bounds = Vec::new();
    while !input.is_empty() && bounds.len() < 100 {
        let start = bytes.len();
        // Records as JSON, without the leading NUL of the binary form: with it, a body could imitate records and hide the next ones.
        let body: Vec<u8> = input.bytes().iter().map(|&byte| byte.max(1)).collect();
        record::write(&mut bytes, bounds.len() as u64, &body);
        bounds.push(start..bytes.len());
    }
    if bytes.is_empty() {
        return;
    }
    let at = (at % bytes.len() as u64) as usize;
    let cut = (cut % (bytes.len() as u64 + 1)) as usize;
    bytes[at] ^= flip;
    if flip != 0 && bytes[at] == 0 {
        return;
    }
    bytes.truncate(cut);
    check_contents(&bytes);
    let whole = |index: &usize| bounds[*index].end <= cut && (flip == 0 || !bounds[*index].contains(&at));
    let expected: Vec<u64> = (0..bounds.len()).filter(whole).map(|index| index as u64).collect();
    let found: Vec<u64> = record::read(&bytes).records.iter().map(|record| record.number).collect();
    assert_eq!(found, expected, "exactly the intact records are found");
}

/// A folder as a starting broker finds it.
fn files(mut input: Input<'_>) {
    let dir = tempfile::tempdir_in(quick_disk()).expect("a folder");
    let mut names = 0;
    while !input.is_empty() && names < 4 {
        std::fs::write(dir.path().join(format!("{names:020}.spool")), input.bytes()).expect("a file");
        names += 1;
    }
    let mut found = Vec::new();
    let open =
        |found: &mut Vec<u64>| Files::open(dir.path(), 1 << 10, 10, |record| found.push(record.number));
    let mut files = open(&mut found).expect("a folder that can be read");
    let first = files.append(&[b"{}".to_vec(), b"new".to_vec()]).expect("a disk that can be written");
    assert!(found.iter().all(|&number| number < first), "{first} is behind {found:?}");
    let read = files.read(first).expect("a file that can be read");
    assert_eq!(read.iter().map(|found| found.number).collect::<Vec<_>>(), [first, first + 1]);
    files.done(first + 2);
    assert!(files.read(0).expect("nothing to read").is_empty());
}

fn quick_disk() -> std::path::PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
