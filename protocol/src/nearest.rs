//! The known name that is nearest to an unknown one, for error messages.

/// The known name with the fewest edits, if they are few. Case and the characters between words do not count.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = |text: &str| -> Vec<char> {
        text.chars()
            .filter(|c| c.is_alphanumeric())
            .take(NAME_CHARS_MAX)
            .flat_map(char::to_lowercase)
            .collect()
    };
    let unknown = letters(unknown);
    let distances = known.into_iter().map(|name| (edits(&unknown, &letters(name)), name));
    let (edits, nearest) = distances.min_by_key(|(edits, _)| *edits)?;
    // With more edits it is another word, unless it begins with the unknown name.
    (3 * edits <= unknown.len() || letters(nearest).starts_with(&unknown)).then_some(nearest)
}

/// Longer than any option or setting.
const NAME_CHARS_MAX: usize = 64;

fn edits(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, a) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (to, b) in other.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[to + 1];
            row[to + 1] = changed.min(diagonal + 1).min(row[to] + 1);
        }
    }
    row[other.len()]
}
